"""Waiting for something to receive at several nodes at once, without taking it."""

from __future__ import annotations

import asyncio
from typing import Final

from tandem.broker.ports import Consumer, SessionAcceptor, Watcher
from tandem.broker.queue.sessions import MessageSession
from tandem.gateway.fragment_owners import Ask
from tandem.model import address as addresses
from tandem.model.address import Address
from tandem.model.errors import BusError
from tandem.server.context import NamespaceContext

AWAIT: Final = "await"
"""The request to another node."""
_SLICE_MS: Final = 5_000
"""For so long a node is asked at a time: whoever gave up meanwhile is forgotten by then."""
_PAUSE: Final = 0.2


class _Looker(SessionAcceptor):
    """Is told that there is a session, and leaves it."""

    __slots__ = ("found",)

    def __init__(self, deadline: int) -> None:
        super().__init__(Consumer(False), deadline, True)
        self.found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def accepted(self, session: MessageSession) -> None:
        if not self.found.done():
            self.found.set_result(True)

    def timed_out(self) -> None:
        if not self.found.done():
            self.found.set_result(False)


class _FirstReady(Watcher):
    __slots__ = ("found",)

    def __init__(self) -> None:
        super().__init__()
        self.found: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def looked(self, ready: int) -> None:
        if ready and not self.found.done():
            self.found.set_result(True)


async def something_here(context: NamespaceContext, address: Address, ms: int) -> bool:
    """Does this node have a message (of an entity with sessions, a free session with messages), now or within so long?"""
    now = context.turn.begin()
    queue = context.namespace.resolve(address)
    if queue.terms.has_sessions:
        looker = _Looker(now + ms)
        queue.sessions.await_next(looker)
        try:
            return await looker.found
        finally:
            queue.sessions.forget(looker)
    ready = _FirstReady()
    queue.receivers.watch(ready)
    try:
        async with asyncio.timeout(ms / 1000):
            return await ready.found
    except TimeoutError:
        return False
    finally:
        queue.receivers.unwatch(ready)


async def first_with_something(context: NamespaceContext, address: Address, owners: list[str], ask: Ask, seconds: float) -> str | None:
    """The first of these nodes (the empty name: this one) that says so; None: none did in that time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds

    async def look(owner: str) -> str | None:
        while (left := deadline - loop.time()) > 0:
            ms = max(min(int(left * 1000), _SLICE_MS), 1)
            try:
                if not owner:
                    found = await something_here(context, address, ms)
                else:
                    found = bool((await ask(owner, AWAIT, {"entity": address.path, "ms": ms})).get("found"))
                if found:
                    return owner
            except BusError:
                await asyncio.sleep(_PAUSE)
        return None

    looking = {asyncio.ensure_future(look(owner)) for owner in owners}
    try:
        pending = looking
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                if one.result() is not None:
                    return one.result()
    finally:
        for one in looking:
            one.cancel()
    return None


def answer_awaits(context: NamespaceContext) -> None:
    """Tell other nodes when there is something here."""

    async def answer(body: dict[object, object]) -> dict[object, object]:
        ms = body.get("ms")
        found = await something_here(context, addresses.parse(str(body.get("entity"))), min(ms, _SLICE_MS) if isinstance(ms, int) else 0)
        return {"found": found}

    context.peer_operations[AWAIT] = answer
