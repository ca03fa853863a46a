"""`/$tandem/connections`: who is connected to a namespace and what they have attached; one of them can be closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tandem.model.errors import EntityNotFound, ServerBusy

if TYPE_CHECKING:
    from tandem.server.context import NamespaceContext

_CONNECTIONS_SHOWN_MAX: Final = 10_000


def describe_connections(context: NamespaceContext) -> dict[str, Any]:
    now = context.connection_clock.steady_ms()
    shown = [client.describe(now) for client in list(context.connections)[:_CONNECTIONS_SHOWN_MAX]]
    return {"connections": shown, "total": len(context.connections)}


def close_connection(context: NamespaceContext, peer: str) -> dict[str, Any]:
    """With an error that clients take as: connect again."""
    for client in context.connections:
        if client.peer == peer:
            client.close(ServerBusy("The connection was closed by an operator. Connect again in a moment."))
            return {"closed": peer}
    raise EntityNotFound(f"There is no connection from '{peer}'.")
