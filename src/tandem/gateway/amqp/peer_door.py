"""The door for other nodes: a carried connection as the node that has the entities sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tandem.amqp.connection import Connection
from tandem.amqp.errors import AmqpError
from tandem.cluster.peers import NODE_PROPERTY, RIGHTS_PROPERTY, unfit_version
from tandem.gateway.amqp.connection import ConnectionWriter, PeerConnection
from tandem.model import address as addresses
from tandem.model.entity import Right
from tandem.model.errors import Unauthorized

if TYPE_CHECKING:
    from tandem.amqp.config import ConnectionConfig
    from tandem.amqp.link import Link
    from tandem.model.address import Address
    from tandem.model.limits import Limits
    from tandem.server.context import NamespaceContext


class CarriedClient(PeerConnection):
    """A client of another node, which has checked its claims: what it attaches is not checked again, and never carried further."""

    def __init__(
        self,
        context_of: Callable[[str], NamespaceContext],
        attach: Callable[[PeerConnection, Link], None],
        writer: ConnectionWriter,
        peer: str,
        config: ConnectionConfig,
    ) -> None:
        self._config = config
        self._rights: dict[str, frozenset[Right]] = {}
        """By the path of a management node what the client may do there."""
        super().__init__(context_of, attach, writer, peer, config.container_id)
        self.may_carry = False

    def is_of_a_client(self) -> bool:
        return False

    def engine_config(self, limits: Limits, container_id: str) -> ConnectionConfig:
        return self._config

    def require(self, address: Address, right: Right) -> None:
        if address.management and right not in self._rights.get(address.key, frozenset()):
            raise Unauthorized(
                f"Unauthorized access. '{right.value}' claim(s) are required to perform this operation. Resource: '{address.path}'."
            )

    def on_open(self, connection: Connection) -> None:
        """Peers are not counted among the connections that the broker may have: their clients were."""
        unfit = unfit_version(connection.remote_properties)
        if unfit:
            self.context.log(f"connection of {self.peer} refused: {unfit}")
            connection.close(AmqpError("amqp:not-allowed", unfit))
            self.touch()
            return
        self.authenticated = True
        self.move_to(self._context_of(connection.remote_hostname or ""))
        self.authenticated = True
        self.peer = f"{self.peer} ({connection.remote_properties.get(NODE_PROPERTY)})"

    def on_attach(self, link: Link) -> None:
        told = link.properties.pop(RIGHTS_PROPERTY, None)
        terminus = link.target if link.receiver else link.source
        path = getattr(terminus, "address", None)
        if isinstance(told, list) and isinstance(path, str):
            self._rights[addresses.parse(path).key] = frozenset([Right(name) for name in told])
        super().on_attach(link)
