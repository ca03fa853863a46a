"""The sessions of an entity: how many messages, who holds them until when, their state; and setting it while nobody does."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Any, Final

from tandem.broker.ports import Consumer
from tandem.gateway.waiting import durable
from tandem.model.entity import Right
from tandem.model.errors import ArgumentRefused, MessageSizeExceeded

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.broker.queue.sessions import MessageSession
    from tandem.gateway.http.api.calls import ApiCall

_PAGE_MAX: Final = 500
_STATE_BYTES_SHOWN: Final = 65_536


def _found(queue: Entity, session_id: str) -> MessageSession | None:
    return next((found for part in queue.parts() if (found := part.holding.find(session_id)) is not None), None)


async def show(call: ApiCall) -> object:
    """{path, skip, top} -> {sessions, more}."""
    queue = call.context.namespace.resolve(call.address(Right.LISTEN))
    skip, top = call.number_of("skip", 0, 10_000_000, 0), call.number_of("top", 1, _PAGE_MAX, 100)
    ids = queue.sessions.list_ids(None, skip, top + 1)
    return {"sessions": [_described(session_id, _found(queue, session_id)) for session_id in ids[:top]], "more": len(ids) > top}


def _described(session_id: str, session: MessageSession | None) -> dict[str, Any]:
    row: dict[str, Any] = {"session_id": session_id, "messages": 0, "state_base64": None, "state_bytes": 0}
    if session is None:
        return row
    state = session.state
    if state is not None:
        row |= {"state_base64": base64.b64encode(state[:_STATE_BYTES_SHOWN]).decode(), "state_bytes": len(state)}
    held = session.holder is not None
    return row | {
        "messages": session.total,
        "held": held,
        "locked_until_ms": session.locked_until if held else None,
        "state_updated_at_ms": session.state_updated_at or None,
    }


async def set_state(call: ApiCall) -> object:
    """{path, session, state?} sets it; without `state` it is cleared."""
    queue = call.context.namespace.resolve(call.address(Right.LISTEN))
    session_id = call.argument("session", str)
    state: bytes | None = None
    if call.body.get("state_base64") is not None:
        try:
            state = base64.b64decode(call.argument("state_base64", str), validate=True)
        except (ValueError, binascii.Error):
            raise ArgumentRefused("'state_base64' is not base64") from None
    most = call.context.limits.session_state_bytes_max
    if state is not None and len(state) > most:
        raise MessageSizeExceeded(f"The state has {len(state)} bytes; at most {most} are allowed.")
    now = call.context.turn.begin()
    holder = Consumer(True)
    session = queue.sessions.accept(session_id, holder, now)
    try:
        queue.sessions.set_state(session_id, state, now)
        await durable(queue)
    finally:
        queue.sessions.close(session, holder, call.context.turn.begin())
    return _described(session_id, _found(queue, session_id))
