"""Claims-based security: `$cbs` takes tokens and remembers what they allow on this connection."""

from __future__ import annotations

from tandem.amqp.types import Int
from tandem.gateway.amqp.connection import PeerConnection
from tandem.gateway.amqp.requests import Request, Requests
from tandem.model import address as addresses
from tandem.model.errors import ArgumentRefused, AuthenticationFailed, BusError
from tandem.server import sas


class TokenNode(Requests):
    """put-token. Existence of the entity is checked here, rights at attach: that is what the SDKs expect."""

    def __init__(self, client: PeerConnection) -> None:
        super().__init__(client)

    def handle(self, request: Request) -> None:
        client = self.client
        audience = request.properties.get("name")
        try:
            operation = request.properties.get("operation")
            if operation != "put-token":
                raise ArgumentRefused(f"$cbs knows the operation put-token, not {operation!r}.")
            if not isinstance(audience, str):
                raise ArgumentRefused("put-token needs the audience as a string in the application property 'name'.")
            self._put(audience, request.body)
        except BusError as error:
            text = client.context.tracker.describe(error, addresses.parse(str(audience)).path, client.turn.now)
            self.reply(request, {"status-code": Int(error.status), "status-description": text}, None)
            return
        self.reply(request, {"status-code": Int(202), "status-description": "Accepted"}, None)

    def _put(self, audience: str, token: object) -> None:
        client = self.client
        if not isinstance(token, str):
            raise AuthenticationFailed("The token must be a string in the body.")
        if not sas.looks_like_sas(token):
            raise AuthenticationFailed("The token is not a shared access signature; no other token issuer is configured.")
        # The host is not compared: a client may reach us by any name, through tunnels and custom endpoints.
        address = addresses.parse(audience)
        # Some clients sign for the management node of an entity: that covers the node, and not the entity.
        grant = sas.verify(token, address.path, client.context.rule_lookup, client.context.connection_clock.now_ms())
        if address.entity and address.entity.casefold() != addresses.CBS:
            client.context.namespace.must_exist(address)
        client.grant(grant)
