"""Which namespace a command speaks to, and with what: the connection string that was given, or the one of a context."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tandem.cli.operations.contexts import contexts_file, load_contexts
from tandem.model.errors import ConfigurationError

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient
    from azure.servicebus.management import ServiceBusAdministrationClient

    from tandem.engine_client.blocking import BlockingClient

ConnectionString = Annotated[
    str | None, typer.Option("--connection-string", "-c", envvar="TANDEM_CONNECTION_STRING", help="Of the namespace; see `tandem keys`.")
]
ContextName = Annotated[str | None, typer.Option("--context", envvar="TANDEM_CONTEXT", help="One of `tandem context list`.")]
CaFile = Annotated[Path | None, typer.Option("--ca-file", help="CA file to trust, if the certificate is a generated one.", metavar="FILE")]

_RETRIES: Final = 2


@dataclass(frozen=True, slots=True)
class OperationTarget:
    """A namespace and how to reach it."""

    connection_string: str
    ca_file: str | None

    def administration(self) -> ServiceBusAdministrationClient:
        from azure.servicebus.management import ServiceBusAdministrationClient

        from tandem.engine_client.endpoint import Endpoint

        options = self._options()
        if not Endpoint.parse(self.connection_string).tls:
            options["transport"] = _plain_transport()
        return ServiceBusAdministrationClient.from_connection_string(self.connection_string, retry_total=_RETRIES, **options)

    def client(self, retries: int = _RETRIES, **options: Any) -> ServiceBusClient:
        from azure.servicebus import ServiceBusClient

        from tandem.engine_client.endpoint import Endpoint

        endpoint = Endpoint.parse(self.connection_string)
        if ":" in endpoint.host:
            raise ConfigurationError(
                f"azure-servicebus, which sends and receives for this command, takes no address of IPv6 ({endpoint.place}): "
                "say a host name that stands for it; `tandem queue`, `topic`, `bench`, `connection` and `lock` take the address"
            )
        logging.getLogger("azure").addHandler(logging.NullHandler())  # what goes wrong is raised, and said once
        return ServiceBusClient.from_connection_string(self.connection_string, retry_total=retries, **self._options(), **options)

    def engine_client(self) -> BlockingClient:
        """For requests that the SDK does not know."""
        from tandem.engine_client.blocking import BlockingClient
        from tandem.engine_client.endpoint import Endpoint

        return BlockingClient(Endpoint.parse(self.connection_string, self.ca_file))

    def _options(self) -> dict[str, Any]:
        return {} if self.ca_file is None else {"connection_verify": self.ca_file}


def _plain_transport() -> Any:
    """The SDK administers over TLS whatever the connection string says; a namespace that is spoken to in plain needs no certificate."""
    from azure.core.pipeline.transport import RequestsTransport

    class PlainTransport(RequestsTransport):  # type: ignore[misc]
        def send(self, request: Any, **options: Any) -> Any:
            if request.url.startswith("https://"):  # else it is sent again
                request.url = "http://" + request.url.removeprefix("https://")
            return super().send(request, **options)

    return PlainTransport()


def target_of(connection_string: str | None, context: str | None, ca_file: Path | None) -> OperationTarget:
    """What was said outright comes first, then a context that was named, then the current one."""
    said_ca = str(ca_file) if ca_file is not None else None
    if connection_string is not None:
        return OperationTarget(connection_string, said_ca)
    contexts = load_contexts(contexts_file())
    name = context or contexts.current
    if name is None:
        raise ConfigurationError("which namespace? Say --connection-string, set TANDEM_CONNECTION_STRING, or see `tandem context add`")
    found = contexts.get(name)
    return OperationTarget(found.connection_string, said_ca or found.ca_file)


def takes_target(command: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameter `target` is chosen by three options: they stand here, and nowhere else."""
    signature = inspect.signature(command, eval_str=True)

    @functools.wraps(command)
    def chosen(*, connection_string: str | None, context: str | None, ca_file: Path | None, **others: Any) -> None:
        command(target=target_of(connection_string, context, ca_file), **others)

    kept = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for name, one in signature.parameters.items() if name != "target"]
    options = {"connection_string": ConnectionString, "context": ContextName, "ca_file": CaFile}
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind) for name, kind in options.items()]
    chosen.__signature__ = signature.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
    chosen.__annotations__ = {}
    return chosen


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """What the namespace refuses is one line and exit code 2, not a traceback."""
    from tandem.engine_client.endpoint import TransportError

    try:
        yield
    except TransportError as error:
        raise ConfigurationError(error.description or error.condition) from error
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    except Exception as error:
        if not _is_of_the_sdk(error):
            raise
        inner = getattr(error, "inner_exception", None)
        told = getattr(inner, "status_description", None)  # of a token that is refused: its reason is nowhere else
        said = (told.decode(errors="replace") if isinstance(told, bytes) else told) or str(getattr(error, "message", "") or error).strip()
        raise ConfigurationError(said.splitlines()[0] if said else type(error).__name__) from error


def _is_of_the_sdk(error: Exception) -> bool:
    """Without loading it: what was never loaded has raised nothing."""
    core = sys.modules.get("azure.core.exceptions")
    return core is not None and isinstance(error, core.AzureError)
