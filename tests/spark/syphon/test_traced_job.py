"""One trace through a whole Spark job: sent with the official SDK's tracing, diverted, carried home by `tandem syphon`, received."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from tandem.aio import PairedNamespaces
from tandem.tracing import trace_parent
from tests.cli.broker_process import BrokerProcess
from tests.waiting import until

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="MISSING: opentelemetry-exporter-otlp-proto-http")
pytest.importorskip("azure.core.tracing.ext.opentelemetry_span", reason="MISSING: azure-core-tracing-opentelemetry")

from azure.core.settings import settings
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

BACKLOG = "contoso/x-servicebus-transfer/0"
CONFIG = "tracing = true\n\n" + "".join(f'[[queue]]\nname = "{name}"\n' for name in ("orders", BACKLOG))
COUNT = 3


@dataclass(frozen=True)
class Span:
    service: str
    name: str
    trace: str
    id: str
    parent: str
    entity: str

    @property
    def what(self) -> tuple[str, str]:
        return self.service, self.name


class Collector:
    """Takes what is exported over OTLP, from whatever process."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.take(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *words: Any) -> None:
                """Quietly."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = next(one.value.string_value for one in resource.resource.attributes if one.key == "service.name")
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                entity = next((one.value.string_value for one in span.attributes if one.key == "messaging.destination.name"), "")
                self.spans.append(Span(service, span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), entity))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.close()


@pytest.fixture
def provider(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[TracerProvider]:
    """Of an application, which has the SDK trace by itself."""
    made = TracerProvider(resource=Resource.create({"service.name": "shop"}))
    made.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{collector.address}/v1/traces")))
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", made)
    settings.tracing_implementation = "opentelemetry"
    yield made
    settings.tracing_implementation = None
    made.shutdown()


def broker_of(directory: Path, collector: Collector) -> BrokerProcess:
    directory.mkdir()
    (directory / "tandem.toml").write_text(CONFIG)
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address, "OTEL_BSP_SCHEDULE_DELAY": "200"}
    return BrokerProcess(directory, "--port", "0", "--dev", "--data", "data", environ=environ)


async def send_round_about(west: str, east: str, provider: TracerProvider) -> str:
    """Messages to an entity that is failed over; the id of their trace."""
    pair = PairedNamespaces(
        west, east, primary_namespace="contoso", failover_interval=0, enable_syphon=False, backlog_queue_count=1, tracer_provider=provider
    )
    async with pair, pair.get_queue_sender("orders") as sender:
        await pair.fail_over("orders", hold=True)
        with provider.get_tracer("shop").start_as_current_span("order taken") as span:
            for number in range(COUNT):
                await sender.send_messages(ServiceBusMessage(f"{number}"))
    return f"{span.get_span_context().trace_id:032x}"


async def receive_at_home(west: str) -> list[str]:
    """The contexts that the messages carry."""
    contexts: list[str] = []
    async with ServiceBusClient.from_connection_string(west) as client, client.get_queue_receiver("orders") as receiver:
        while len(contexts) < COUNT:
            for message in await receiver.receive_messages(COUNT, max_wait_time=30):
                contexts.append(trace_parent(message.application_properties or {}))
                await receiver.complete_message(message)
    return contexts


@pytest.mark.spark
async def test_a_message_that_spark_carried_home_has_one_trace_from_its_send_to_its_receive(
    collector: Collector, provider: TracerProvider, tmp_path: Path
) -> None:
    with broker_of(tmp_path / "west", collector) as west, broker_of(tmp_path / "east", collector) as east:
        trace_id = await send_round_about(west.connection_string, east.connection_string, provider)
        command = [
            sys.executable, "-m", "tandem", "syphon", "--primary", west.connection_string, "--secondary", east.connection_string,
            "--name", "contoso", "--once", "--json", "--master", "local[1]", "--tracing",
        ]  # fmt: skip
        environ = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address}
        done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False, env=environ)
        assert done.returncode == 0, done.stderr[-3000:]
        contexts = await receive_at_home(west.connection_string)

        def of_the_trace(name: str) -> list[Span]:
            return [span for span in collector.spans if span.trace == trace_id and span.name == name]

        await until(lambda: len(of_the_trace("tandem settle")) == 2 * COUNT, 60, "all to be settled, in the backlog and at home")

    spans = {span.id: span for span in collector.spans if span.trace == trace_id}
    [taken] = of_the_trace("order taken")
    assert taken.parent == "" and all(span.parent in spans for span in spans.values() if span is not taken), "nothing hangs in the air"
    carried = {context.split("-")[2] for context in contexts}
    assert {context.split("-")[1] for context in contexts} == {trace_id} and len(carried) == COUNT, "each came home with its own context"
    for number in carried:
        upwards = [spans[number]]
        while upwards[-1] is not taken:
            upwards.append(spans[upwards[-1].parent])
        assert [span.what for span in upwards] == [
            ("shop", "ServiceBus.message"),
            ("shop", "tandem divert"),
            ("shop", "tandem send"),
            ("shop", "order taken"),
        ]
        below = sorted((span.service, span.name, span.entity) for span in spans.values() if span.parent == number)
        steps = ("accept", "deliver", "settle")
        there = [("tandem", f"tandem {step}", entity) for step in steps for entity in (BACKLOG, "orders")]
        assert below == [*there, ("tandem-syphon", "tandem move", "orders")]
