"""Gives disk space back from the oldest segment on: what still matters is appended again, then the whole segment goes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from tandem.broker.facts import SETTLED
from tandem.broker.ports import Effect, FetchEffect, Tenant
from tandem.model.errors import Corrupt
from tandem.stores.blocks import BLOCK_BYTES, GUARD, RECORD, RECORD_BYTES
from tandem.stores.fetching import Fetch
from tandem.stores.salvage import Salvaged, lost_body, substitute
from tandem.stores.settings import LogSettings
from tandem.stores.upkeep import Blocks, Upkeep

STEP_RECORDS_MAX: Final = 2_048
"""Looked at in one turn at the most: a few milliseconds of the loop's time."""
PENDING_BYTES_MAX: Final = 4_194_304
"""Relocation waits while more than this is not yet durable: it must never crowd out the traffic."""
_SEGMENT_PART: Final = 16
"""… or more than this part of a segment: the last block of one reaches beyond its end, and on a full disk there is little."""

Fact = tuple[int, int, int, int, int, int, bytes, int]
"""Kind, flags, entity, sequence number, instant, aux, key, location."""


class Host(Protocol):
    """The store it works for."""

    @property
    def pending_bytes(self) -> int: ...

    @property
    def active_segment(self) -> int: ...

    def when_durable(self, effect: Effect) -> None: ...

    def compaction_turn(self) -> None:
        """Call `step`, if the store still is in service."""

    def compaction_failed(self, error: Exception) -> None: ...


class Compaction:
    """Walks one segment at a time, a few records per turn of the loop, until nothing is worth compacting.

    Begun by `step`, it goes on by itself: after each turn it asks the loop for another, and after each wait for a thread or
    for durability likewise. Turns grow with the backlog, so that compaction keeps up with a store under full load.
    """

    def __init__(
        self, host: Host, maintenance: Upkeep, tenant: Tenant, settings: LogSettings, call_loop: Callable[[Callable[[], None]], None]
    ) -> None:
        self._host = host
        self._call_loop = call_loop
        self._maintenance = maintenance
        self._tenant = tenant
        self._records_per_step = settings.compaction_records_per_step
        self._records = settings.compaction_records_per_step
        self._pending_bytes_max = min(PENDING_BYTES_MAX, max(settings.segment_bytes // _SEGMENT_PART, settings.lazy_bytes_max))
        self._turn_asked = False
        self._segment = 0
        self._reading = False
        self._exhausted = False
        self._leaving = False
        self.blocked = False
        """Waits for the committer; whoever sees a commit through asks for another turn."""
        self._error: Exception | None = None
        self._blocks: deque[tuple[int, Salvaged]] = deque()
        self._payload = b""
        self._bare = False
        self._damaged: frozenset[int] = frozenset()
        self._at: int = 0
        """Where the next record stands in the block."""
        self._head_at: int = 0
        """… and its head in `_payload`."""
        self._heads_end: int = 0
        self._key_at: int = 0
        """… and its key, if keys stand by themselves."""
        self._location: int = 0
        self._wanted: list[Fact] = []
        """Facts of the last visit whose bodies are being fetched."""
        self._fetch: Fetch | None = None
        """… and have arrived."""
        self._entities: set[int] = set()

    @property
    def under_way(self) -> bool:
        return self._segment != 0

    def goes_on(self) -> None:
        """On the loop: another turn, later."""
        if not self._turn_asked:
            self._turn_asked = True
            self._call_loop(self._turn)

    def _turn(self) -> None:
        self._turn_asked = False
        self._host.compaction_turn()

    def step(self) -> bool:
        """True if there is more to do right now; False while there is nothing, or something is waited for."""
        self.blocked = self._host.pending_bytes > self._pending_bytes_max
        if self._leaving or self.blocked:
            return False
        if self._segment == 0:
            self._segment, backlog = self._maintenance.head_to_compact(self._host.active_segment)
            if self._segment:
                self._records = min(self._records_per_step * (1 + backlog), STEP_RECORDS_MAX)
                self._read(begin=True)
            return False
        if self._error is not None:
            self._leaving = True  # nothing more is tried: the store stops, and reopening begins anew
            self._host.compaction_failed(self._error)
            return False
        if self._wanted:
            return self._relocate_fetched()
        if self._head_at == self._heads_end and not self._next_block():
            return False
        self._visit()
        return not self._wanted

    def depart(self) -> None:
        """What was appended again is durable."""
        self._maintenance.remove_head(self._segment, self._host.active_segment, self._removed)

    def _removed(self) -> None:
        self._segment = 0
        self._exhausted = False
        self._leaving = False
        self.goes_on()

    def _read(self, begin: bool) -> None:
        self._reading = True
        self._maintenance.read_blocks(self._segment, begin, self._arrived)

    def _arrived(self, blocks: Blocks, error: Exception | None) -> None:
        """On the maintenance thread; the loop looks at the outcome in its next turn."""
        self._blocks.extend(blocks)
        if error is not None:
            self._error = error
        elif not blocks:
            self._exhausted = True
        self._reading = False
        self._call_loop(self.goes_on)

    def _next_block(self) -> bool:
        if not self._blocks:
            if self._exhausted:
                self._leave()
            elif not self._reading:
                self._read(begin=False)
            return False
        offset, block = self._blocks.popleft()
        self._payload, self._damaged, self._bare = block.payload, block.damaged, block.bare
        if block.told:
            self._maintenance.tell((block.told,))
        self._at = self._head_at = 0
        self._key_at = block.count * RECORD_BYTES
        self._heads_end = self._key_at if block.bare else len(block.payload)
        self._location = self._segment << 32 | offset + BLOCK_BYTES
        if not self._blocks and not self._exhausted and not self._reading:
            self._read(begin=False)
        return True

    def _visit(self) -> None:
        payload, bare, wanted = self._payload, self._bare, self._wanted
        at, head_at, key_at, end = self._at, self._head_at, self._key_at, self._heads_end
        unpack = RECORD.unpack_from
        relocate = self._tenant.relocate
        host = self._host
        wanted_bytes = 0
        left = self._records
        while head_at < end and left > 0:
            left -= 1
            kind, flags, entity, seq, instant, aux, key_bytes, body_bytes, _ = unpack(payload, head_at)
            if kind != GUARD:
                self._entities.add(entity)
            if not bare:
                key_at = head_at + RECORD_BYTES
            body_at = key_at + key_bytes
            # what a settlement buried stood before it, so it is gone or going with this segment: it has nothing left to say
            if kind != SETTLED and kind != GUARD:
                key = payload[key_at:body_at]
                body = None if bare and body_bytes else payload[body_at : body_at + body_bytes]
                where = ""
                if self._damaged and at in self._damaged:
                    where = f"segment {self._segment}, offset {self._location + at & 0xFFFF_FFFF}"
                    body = substitute(kind, key, where)
                before = host.pending_bytes
                if relocate(kind, flags, entity, seq, instant, aux, key, body, self._location + at):
                    wanted.append((kind, flags, entity, seq, instant, aux, key, self._location + at))
                    wanted_bytes += body_bytes
                grown = self._grown(before, body_bytes)
                if before + grown + wanted_bytes > self._pending_bytes_max:
                    left = 0
                if where and grown:
                    self._maintenance.tell((lost_body(where, kind, entity, seq, key),))
            at += RECORD_BYTES + key_bytes + body_bytes
            head_at = head_at + RECORD_BYTES if bare else at
            key_at = body_at
        if head_at > end:
            raise Corrupt(f"segment {self._segment}: the records of a block do not fill it")
        self._at, self._head_at, self._key_at = at, head_at, key_at
        if head_at == end:
            self._payload = b""
            self._head_at = self._heads_end = 0
        if wanted:
            self._fetch_bodies()

    def _grown(self, before: int, body_bytes: int) -> int:
        """By how much, since so many bytes were pending: for one record, which had a body of this size."""
        grown = self._host.pending_bytes - before
        if grown > 0:
            self._maintenance.relocated.add(self._host.active_segment, grown, body_bytes)
        return grown

    # ── bodies that did not come with their block ────────────────────────────────────────────────────────────────────────────

    def _fetch_bodies(self) -> None:
        fetch = Fetch(len(self._wanted), FetchEffect(), self._fetched)
        fetch.wanted.extend(fact[7] for fact in self._wanted)
        self._maintenance.fetch(fetch)

    def _fetched(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._error = self._error or fetch.error
        self.goes_on()

    def _relocate_fetched(self) -> bool:
        """What is not wanted any more its tenant leaves."""
        fetch = self._fetch
        if fetch is None:
            return False
        self._maintenance.tell(fetch.damaged)
        for (kind, flags, entity, seq, instant, aux, key, location), body in zip(self._wanted, fetch.in_order(), strict=True):
            before = self._host.pending_bytes
            self._tenant.relocate(kind, flags, entity, seq, instant, aux, key, body, location)
            self._grown(before, len(body))
        self._wanted, self._fetch = [], None
        return True

    def _leave(self) -> None:
        """Everything that matters was appended again; once that is durable, the segment can go."""
        self._leaving = True
        entities, self._entities = self._entities, set()
        before = self._host.pending_bytes
        self._tenant.segment_leaving(entities)
        self._maintenance.relocated.add(self._host.active_segment, self._host.pending_bytes - before, 0)
        self._host.when_durable(_Departure(self))


class _Departure(Effect):
    __slots__ = ("_compaction",)

    def __init__(self, compaction: Compaction) -> None:
        self._compaction = compaction

    def done(self, error: BaseException | None) -> None:
        if error is None:
            self._compaction.depart()
