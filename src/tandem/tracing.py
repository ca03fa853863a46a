"""OpenTelemetry for messages that carry a trace context: spans that continue it. Loads OpenTelemetry only where it is asked for.

`traceparent` (W3C) and `Diagnostic-Id` (what Azure's clients wrote before) are application properties of a message, and are kept.
"""

from __future__ import annotations

import atexit
import re
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

from tandem.model.errors import ConfigurationError

TRACEPARENT: Final = "traceparent"
DIAGNOSTIC_ID: Final = "Diagnostic-Id"
_FORM: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_SCOPE: Final = "tandem"
_SEND_SECONDS_MAX: Final = 3.0


def trace_parent(properties: Mapping[Any, object]) -> str:
    """The context a message carries; empty if it carries none that can be continued."""
    for name in (TRACEPARENT, DIAGNOSTIC_ID):
        value = properties.get(name, properties.get(name.encode()))
        text = value.decode("ascii", "replace") if isinstance(value, bytes) else value
        if isinstance(text, str) and _FORM.fullmatch(text):
            return text
    return ""


class MessageSpans:
    """Makes spans with the tracer of a provider, or of the process's own."""

    def __init__(self, provider: Any = None, **attributes: str) -> None:
        """`attributes` are set on every span. Raises ConfigurationError where OpenTelemetry is not installed."""
        try:
            from opentelemetry import trace
        except ImportError:
            raise ConfigurationError("tracing needs OpenTelemetry: pip install 'tandem-bus[otel]'") from None
        self._trace = trace
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=provider)
        self._attributes = {"messaging.system": _SCOPE, **attributes}

    def start(self, name: str, parent: str, entity: str, start_ns: int | None = None, **attributes: str | int) -> Any:
        """A span that continues `parent`; with an empty one, whatever is current, or a trace of its own."""
        context = self._continuing(parent) if parent else None
        return self._start(name, context, entity, start_ns, attributes)

    def begin(self, name: str, entity: str, **attributes: str | int) -> Any:
        """A trace of its own."""
        from opentelemetry.context import Context

        return self._start(name, Context(), entity, None, attributes)

    def _start(self, name: str, context: Any, entity: str, start_ns: int | None, attributes: Mapping[str, str | int]) -> Any:
        known = {
            **self._attributes,
            "messaging.destination.name": entity,
            **{f"messaging.{key}": value for key, value in attributes.items()},
        }
        return self._tracer.start_span(f"tandem {name}", context, self._trace.SpanKind.INTERNAL, known, start_time=start_ns)

    def end(self, span: Any, error: BaseException | None = None, end_ns: int | None = None) -> None:
        if error is not None:
            said = str(getattr(error, "description", "") or error)
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, said[:200]))
        span.end(end_ns)

    def within(self, span: Any) -> AbstractContextManager[Any]:
        """What others trace meanwhile, as the SDK's plug-in does, is part of this span. It does not end with it."""
        meanwhile: AbstractContextManager[Any] = self._trace.use_span(
            span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        )
        return meanwhile

    def parent_of(self, span: Any) -> str:
        """The context of a span, as messages carry it."""
        found = span.get_span_context()
        return f"00-{found.trace_id:032x}-{found.span_id:016x}-{int(found.trace_flags):02x}"

    def current(self) -> str:
        """That of the code that runs now; empty if it is not traced."""
        span = self._trace.get_current_span()
        return self.parent_of(span) if span.get_span_context().is_valid else ""

    def _continuing(self, parent: str) -> Any:
        _, trace_id, span_id, flags = parent.split("-")
        trace = self._trace
        remote = trace.SpanContext(int(trace_id, 16), int(span_id, 16), True, trace.TraceFlags(int(flags, 16)))
        return trace.set_span_in_context(trace.NonRecordingSpan(remote))


def exporting_provider(service: str, instance: str) -> Any:
    """Sends spans in batches, from a thread of its own, where the variables OTEL_EXPORTER_OTLP_… say."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigurationError("tracing needs OpenTelemetry: pip install 'tandem-bus[otel]'") from None
    resource = Resource.create({"service.name": service, "service.instance.id": instance})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    _send_the_rest_at_exit(provider)
    return provider


def flush(provider: Any) -> None:
    """What there is, for so long and no longer: the SDK would wait for a collector that hangs."""
    sending = threading.Thread(target=provider.force_flush, name="spans", daemon=True)
    sending.start()
    sending.join(_SEND_SECONDS_MAX)


def _send_the_rest_at_exit(provider: Any) -> None:
    """Likewise: a collector that hangs keeps no process from ending."""
    ending = threading.Event()

    def send() -> None:
        ending.wait()
        provider.shutdown()

    last = threading.Thread(target=send, name="last spans", daemon=True)  # begun now: at the exit it is too late for threads
    last.start()

    def end() -> None:
        ending.set()
        last.join(_SEND_SECONDS_MAX)

    atexit.register(end)
