"""Claims-based security: `$cbs` takes tokens and remembers what they allow on this connection."""

from __future__ import annotations

from typing import Final

from tandem.amqp.types import Int, Symbol
from tandem.gateway.amqp.connection import PeerConnection
from tandem.gateway.amqp.requests import NodeRequest, Requests
from tandem.model import address as addresses
from tandem.model.address import Address
from tandem.model.errors import ArgumentRefused, AuthenticationFailed, BusError
from tandem.server.audit import TOKEN
from tandem.server.sas import Grant
from tandem.tokens.trust import UnknownKey

TOKEN_CHARS_MAX: Final = 16_384
LOOKING_MAX: Final = 8
"""Requests of one connection that wait until the key of a token is found."""


class TokenNode(Requests):
    """put-token. Existence of the entity is checked here, rights at attach: that is what the SDKs expect."""

    def __init__(self, connection: PeerConnection, node: str) -> None:
        super().__init__(connection, node)
        self._looking = 0

    def handle(self, request: NodeRequest) -> None:
        audience = request.properties.get("name")
        try:
            operation = request.properties.get("operation")
            if operation != "put-token":
                raise ArgumentRefused(f"$cbs knows the operation put-token, not {operation!r}.")
            if not isinstance(audience, str):
                raise ArgumentRefused("put-token needs the audience as a string in the application property 'name'.")
            token = request.body
            if not isinstance(token, str):
                raise AuthenticationFailed("The token must be a string in the body.")
            if len(token) > TOKEN_CHARS_MAX:
                raise AuthenticationFailed(f"The token has {len(token)} characters; at most {TOKEN_CHARS_MAX} are allowed.")
            # The host is not compared: a client may reach us by any name, through tunnels and custom endpoints.
            address = addresses.parse(audience)
            try:
                # Some clients sign for the management node of an entity: that covers the node, and not the entity.
                self._accept(request, address, self.connection.context.authority.grants(token, address.path))
            except UnknownKey:
                if self._looking >= LOOKING_MAX:
                    raise
                self._looking += 1
                self.connection.context.spawn(self._look_for_key(request, address, token))
        except BusError as error:
            self._refuse(request, str(audience), error)

    async def _look_for_key(self, request: NodeRequest, address: Address, token: str) -> None:
        """Its issuer may have published the key since we last looked."""
        try:
            grants = await self.connection.context.authority.grants_looking(token, address.path)
            self.connection.turn.begin()
            self._accept(request, address, grants)
        except BusError as error:
            self._refuse(request, address.path, error)
        finally:
            self._looking -= 1
            self.connection.touch()

    def _accept(self, request: NodeRequest, address: Address, grants: list[Grant]) -> None:
        connection = self.connection
        if address.entity and address.entity.casefold() != addresses.CBS:
            connection.context.namespace.must_exist(address)
        for grant in grants:
            connection.grant(grant)
        if grants:
            connection.context.audited(TOKEN, grants[0].key_name, connection.peer, address.path)
        self.reply(request, {"status-code": Int(202), "status-description": "Accepted"}, None)

    def _refuse(self, request: NodeRequest, audience: str, error: BusError) -> None:
        connection = self.connection
        path = addresses.parse(audience).path
        text = connection.context.tracker.describe(error, path, connection.turn.now)
        if isinstance(error, AuthenticationFailed):
            connection.context.warn(f"token of {connection.peer} refused at $cbs: {text}")
        # Java's first client has an exception per condition. Not spelled `error-condition`: the Python SDK forgets status and text then.
        refusal: dict[object, object] = {
            "status-code": Int(error.status),
            "status-description": text,
            "errorCondition": Symbol(error.condition),
        }
        self.reply(request, refusal, None)
