"""Management of message sessions: lock, state and listing, for the link that holds the session and for no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.amqp.types import Array, Int, Timestamp
from tandem.gateway.amqp.receiving import LinkConsumer, Receiving
from tandem.gateway.amqp.requests import Reply, need
from tandem.gateway.waiting import durable
from tandem.model.errors import ArgumentRefused, SessionLockLost

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.gateway.amqp.connection import PeerConnection
    from tandem.model.address import Address

ASSOCIATED_LINK: Final = "associated-link-name"
"""Application property of a request: the receiver it speaks for."""

_ALL_SESSIONS_MS: Final = 253_402_300_800_000
"""DateTime.MaxValue: not "updated after" but "with messages or state"."""

STRING: Final = 0xB1


class SessionOperations:
    """Requests about the sessions of one entity."""

    def __init__(self, connection: PeerConnection, address: Address) -> None:
        self._connection = connection
        self._address = address

    @property
    def _queue(self) -> Entity:
        return self._connection.context.namespace.resolve(self._address)

    # -- whose session -----------------------------------------------------------------------

    def held_by(self, body: dict[object, object]) -> str:
        """The session that the asking receiver holds. A request names its link, its session, or both; without a link, one of the same
        connection will do. A worker that lost the session does not reach it through whoever holds it now."""
        name = body.get(ASSOCIATED_LINK)
        wanted = body.get("session-id")
        if wanted is None and name is not None:
            wanted = self._held_through(str(name))
        if not isinstance(wanted, str):
            raise ArgumentRefused(f"The request needs 'session-id' as str, found {type(wanted).__name__}.")
        holder = self._queue.sessions.held(wanted, self._connection.turn.now).holder
        if (
            not isinstance(holder, LinkConsumer)
            or holder.connection is not self._connection
            or (name is not None and holder.link.name != name)
        ):
            raise SessionLockLost(f"The lock of session '{wanted}' is held by another receiver. Accept the session again.")
        return wanted

    def looked_at(self, body: dict[object, object]) -> str | None:
        """The session a peek is about: the one named, or that of the receiver asking. None: all that there is."""
        wanted = body.get("session-id")
        if isinstance(wanted, str):
            return wanted
        if not self._queue.terms.has_sessions or body.get(ASSOCIATED_LINK) is None:
            return None
        return self.held_by(body)

    def _held_through(self, name: str) -> str:
        engine = self._connection.engine
        link = None if engine is None else engine.named.get((False, name))
        handler = None if link is None else link.handler
        session = handler.consumer.session if isinstance(handler, Receiving) else None
        if session is None:
            raise SessionLockLost(f"The link '{name}' holds no session. Accept the session again.")
        return session.id

    # -- operations --------------------------------------------------------------------------

    async def renew(self, body: dict[object, object]) -> Reply:
        until = self._queue.sessions.renew(self.held_by(body), self._connection.turn.now)
        return 200, {"expiration": Timestamp(until)}

    async def set_state(self, body: dict[object, object]) -> Reply:
        """Null and nothing at all clear it."""
        state = body.get("session-state")
        if state is not None and not isinstance(state, bytes):
            raise ArgumentRefused("The request needs 'session-state' as binary or null.")
        limit = self._connection.context.limits.session_state_bytes_max
        if state is not None and len(state) > limit:
            raise ArgumentRefused(f"The session state has {len(state)} bytes; at most {limit} are allowed.")
        self._queue.sessions.set_state(self.held_by(body), state or None, self._connection.turn.now)
        await durable(self._queue)
        return 200, {}

    async def get_state(self, body: dict[object, object]) -> Reply:
        return 200, {"session-state": self._queue.sessions.state(self.held_by(body), self._connection.turn.now)}

    async def list(self, body: dict[object, object]) -> Reply:
        after = need(body, "last-updated-time", int)
        skip = need(body, "skip", int)
        top = need(body, "top", int)
        ids = self._queue.sessions.list_ids(None if after >= _ALL_SESSIONS_MS - 1 else int(after), max(skip, 0), max(top, 0))
        if not ids:
            return 204, {}
        return 200, {"skip": Int(skip + len(ids)), "sessions-ids": Array(STRING, list[object](ids))}
