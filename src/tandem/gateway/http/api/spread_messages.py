"""Calls about the messages of a partitioned entity whose fragments several workers have: each goes to who has what it is about."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from tandem.broker.entities.joined import FRAGMENT_SHIFT, fragment_of_key
from tandem.gateway.http.api.browsing import PAGE_MAX, browse
from tandem.gateway.http.api.calls import SEQ_MAX, ApiCall
from tandem.gateway.http.api.message_lines import message_of_line
from tandem.gateway.http.api.messages import CHUNK_MAX
from tandem.model.address import parse
from tandem.model.errors import ArgumentRefused, StoreUnavailable

if TYPE_CHECKING:
    from tandem.broker.entities.partitioned import PartitionedQueue
    from tandem.gateway.http.onward import Onward

Handler = Callable[[ApiCall], Awaitable[Any]]
_HERE: Final = ""
_SESSIONS_MAX: Final = 500


class SpreadCall:
    """One call, shared out."""

    def __init__(self, call: ApiCall, what: str, handler: Handler, front: PartitionedQueue, onward: Onward) -> None:
        self._call = call
        self._what = what
        self._handler = handler
        self._front = front
        self._onward = onward

    async def answer(self) -> Any:
        name = self._what.partition(" ")[2]
        if name in ("messages", "messages/lines"):
            return await self._browse(self._call.number_of("count", 1, PAGE_MAX, 50))
        if name in ("message", "message/body"):
            return await self._at(self._owner_of_seq(self._call.number_of("sequence_number", 0, SEQ_MAX)))
        if name == "outage/destinations":
            return await self._destinations()
        if name == "messages/send":
            return await self._send()
        if name == "messages/purge":
            return await self._purge()
        if name == "sessions":
            return await self._sessions()
        if name == "session":
            return await self._at(self._owner(fragment_of_key(self._call.argument("session", str), len(self._front.fragments.queues))))
        return await self._by_number()

    # -- who ---------------------------------------------------------------------------------

    def _owner(self, fragment: int) -> str:
        return self._onward.owner_of_fragment(self._call.number, fragment)

    def _owner_of_seq(self, seq: int) -> str:
        fragment = seq >> FRAGMENT_SHIFT
        return self._owner(fragment if fragment < len(self._front.fragments.queues) else 0)

    def _owners(self) -> list[str]:
        return sorted({self._owner(fragment) for fragment in range(len(self._front.fragments.queues))})

    # -- asking ------------------------------------------------------------------------------

    async def _at(self, owner: str) -> Any:
        """The call as it came, answered there."""
        if owner == _HERE:
            return await self._handler(self._call)
        return await self._onward.answer(owner, self._call.request, json.dumps(self._call.body).encode())

    async def _ask(self, owner: str, body: dict[str, Any]) -> dict[str, Any]:
        call = self._call
        if owner == _HERE:
            call.context.turn.begin()
            found: dict[str, Any] = await self._handler(ApiCall(call.server, call.number, call.request, call.caller, body))
            return found
        method, _, name = self._what.partition(" ")
        return await self._onward.says(owner, call.request, json.dumps(body).encode(), f"{method} /$tandem/api/{name}")

    async def _everywhere(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        return await asyncio.gather(*(self._ask(owner, body) for owner in self._owners()))

    # -- looking -----------------------------------------------------------------------------

    async def _browse(self, count: int) -> dict[str, Any]:
        """Up to where all have looked, what all have found is all there is."""
        pages = await self._everywhere({**self._call.body, "count": count})
        ends = [int(page["next"]) for page in pages if page["next"] is not None]
        horizon = min(ends, default=None)
        rows = [row for page in pages for row in page["messages"] if horizon is None or int(row["sequence_number"]) < horizon]
        rows.sort(key=lambda row: int(row["sequence_number"]))
        if len(rows) > count:
            rows, horizon = rows[:count], int(rows[count - 1]["sequence_number"]) + 1
        told = {name: sum(page[name] for page in pages) for name in ("scanned", "unread")}
        return {"messages": rows, "next": None if horizon is None else str(horizon), **told}

    async def _destinations(self) -> dict[str, Any]:
        """One worker after the other: where to go on says whose turn it is, too."""
        owners = self._owners()
        owner, _, start = str(self._call.body.get("from", 0)).rpartition(":")
        if owner not in owners:
            owner, start = owners[0], "0"
        told = await self._ask(owner, {**self._call.body, "from": start})
        if told["next"] is None:
            left = owners[owners.index(owner) + 1 :]
            return told | {"next": f"{left[0]}:0" if left else None}
        return told | {"next": f"{owner}:{told['next']}"}

    async def _sessions(self) -> dict[str, Any]:
        call = self._call
        skip, top = call.number_of("skip", 0, 10_000_000, 0), call.number_of("top", 1, _SESSIONS_MAX, 100)
        if skip + top > _SESSIONS_MAX:
            raise ArgumentRefused(f"of an entity that several workers have, the first {_SESSIONS_MAX} sessions are shown")
        pages = await self._everywhere({**call.body, "skip": 0, "top": skip + top})
        rows = sorted((row for page in pages for row in page["sessions"]), key=lambda row: str(row["session_id"]))
        more = any(page["more"] for page in pages) or len(rows) > skip + top
        return {"sessions": rows[skip : skip + top], "more": more}

    # -- doing -------------------------------------------------------------------------------

    async def _send(self) -> dict[str, Any]:
        """Each worker takes its share whole, or refuses it."""
        call = self._call
        lines = call.argument("messages", list)
        shares: dict[str, list[int]] = {}
        for place, line in enumerate(lines):
            message = message_of_line(call.context, line, None) if isinstance(line, dict) else None
            fragment = self._front.fragment_of(message) if message is not None else -1
            if fragment < 0:
                owner = _HERE if self._front.takes_here() else next((one for one in self._owners() if one != _HERE), _HERE)
            else:
                owner = self._owner(fragment)
            shares.setdefault(owner, []).append(place)
        numbers: dict[int, str] = {}
        for owner, places in shares.items():
            told = await self._ask(owner, {**call.body, "messages": [lines[place] for place in places]})
            numbers.update(zip(places, told["sequence_numbers"], strict=True))
        return {"sent": len(numbers), "sequence_numbers": [numbers[place] for place in sorted(numbers)]}

    async def _purge(self) -> dict[str, Any]:
        now = self._call.context.turn.begin()
        before = self._call.number_of("before_ms", 1, 1 << 60, now)
        told = await self._everywhere({**self._call.body, "before_ms": before})
        return {"done": sum(one["done"] for one in told), "before_ms": before, "finished": all(one["finished"] for one in told)}

    async def _by_number(self) -> dict[str, Any]:
        """What is done to messages that are named; or to the next that are wanted, which are looked for first."""
        call, body = self._call, dict(self._call.body)
        further: dict[str, Any] = {"next": None, "unread": 0}
        if "sequence_numbers" in body:
            seqs = call.numbers("sequence_numbers", CHUNK_MAX)
        else:
            page = await self._wanted()
            seqs = [int(row["sequence_number"]) for row in page["messages"]]
            further = {"next": page["next"], "unread": page["unread"]}
        shares: dict[str, list[str]] = {}
        for seq in seqs:
            shares.setdefault(self._owner_of_seq(seq), []).append(str(seq))
        found: dict[str, Any] = {"done": 0, "skipped": [], "skipped_total": 0}
        for name in ("from", "count", "state", "session", "where", "text", "before_ms"):
            body.pop(name, None)
        for owner, some in shares.items():
            try:
                told = await self._ask(owner, {**body, "sequence_numbers": some})
            except StoreUnavailable as error:
                if not found["done"]:
                    raise
                error.reword(f"{found['done']} are done, and the rest is not: {error.description}")
                raise
            for name in found:
                found[name] += told[name]
        return found | further

    async def _wanted(self) -> dict[str, Any]:
        count = self._call.number_of("count", 1, CHUNK_MAX, 200)
        return await SpreadCall(self._call, "POST messages", browse, self._front, self._onward)._browse(min(count, PAGE_MAX))


def shared_out(call: ApiCall, what: str, handler: Handler) -> Awaitable[Any] | None:
    """The answer of all workers to a call about the messages of an entity that several have; None: it is none of those."""
    onward, path = call.server.onward, str(call.body.get("path", ""))
    if onward is None or not call.others or not path:
        return None
    front = call.context.namespace.front(parse(path))
    return SpreadCall(call, what, handler, front, onward).answer() if front is not None else None
