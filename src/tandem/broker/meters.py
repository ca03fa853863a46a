"""Counts every operation: per minute, entity, operation, outcome and 64 KB size unit, exact through a crash to the last commit.

What a turn counted is written at its end as one fact, METERED, into the same block as the facts it counts. METERS, written with every
roll-up and before a segment leaves, says all that is not in a file yet: a replay starts over with it and adds what follows.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from tandem.broker import facts
from tandem.broker.ports import Effect, Recorded
from tandem.model.errors import Corrupt
from tandem.model.histogram import AgeHistogram, Histogram

if TYPE_CHECKING:
    from tandem.broker.ports import Journal
    from tandem.broker.turn import Turn
    from tandem.model.clock import Clock

UNIT_BYTES: Final = 65_536
"""Operations are priced by started units of this size."""
MINUTE_MS: Final = 60_000
_UNIT_MAX: Final = 0xFFFF
_RECENT_MINUTES: Final = 60

# operations: numbers are on disk
SEND: Final = 1
PING: Final = 2
SCHEDULE: Final = 3
CANCEL: Final = 4
RECEIVE: Final = 5
SETTLE: Final = 6
RENEW: Final = 7
PEEK: Final = 8
SESSION: Final = 9
LEASE: Final = 10
PURGE: Final = 11
RULE: Final = 12

OPERATION_NAMES: Final = {
    SEND: "send",
    PING: "ping",
    SCHEDULE: "schedule",
    CANCEL: "cancel",
    RECEIVE: "receive",
    SETTLE: "settle",
    RENEW: "renew",
    PEEK: "peek",
    SESSION: "session",
    LEASE: "lease",
    PURGE: "purge",
    RULE: "rule",
}

# outcomes: numbers are on disk
OK: Final = 0
EMPTY: Final = 1
"""A receive, peek or lease that ended with nothing. It is an operation like any other."""
DUPLICATE: Final = 2
"""Accepted and dropped by duplicate detection."""
REFUSED: Final = 3
COMPLETED: Final = 4
ABANDONED: Final = 5
DEFERRED: Final = 6
DEAD_LETTERED: Final = 7
RELEASED: Final = 8

OUTCOME_NAMES: Final = {
    OK: "ok",
    EMPTY: "empty",
    DUPLICATE: "duplicate",
    REFUSED: "refused",
    COMPLETED: "completed",
    ABANDONED: "abandoned",
    DEFERRED: "deferred",
    DEAD_LETTERED: "dead-lettered",
    RELEASED: "released",
}

Row = tuple[int, int, int, int]
"""Minute, slot, count, bytes."""


def slot_of(entity: int, operation: int, outcome: int, unit: int) -> int:
    """What is counted, as one number: entity, operation, outcome, size unit."""
    return entity << 32 | operation << 24 | outcome << 16 | unit


class Tally:
    """How many operations, and of how many bytes together."""

    __slots__ = ("bytes", "count")

    def __init__(self, count: int, size: int) -> None:
        self.count: int = count
        self.bytes: int = size

    def add(self, count: int, size: int) -> None:
        self.count += count
        self.bytes += size


class Meter:
    """One queue's counts since the end of the last turn. The three that every message passes are plain numbers."""

    __slots__ = ("ages", "book", "completes", "dirty", "entity", "others", "receive_bytes", "receives", "send_bytes", "send_times", "sends")

    def __init__(self, entity: int, book: MeterBook) -> None:
        self.entity: int = entity
        self.book: MeterBook = book
        self.dirty: bool = False
        self.sends: int = 0
        self.send_bytes: int = 0
        self.receives: int = 0
        self.receive_bytes: int = 0
        self.completes: int = 0
        self.others: dict[int, Tally] = {}
        self.send_times: Histogram | None = None
        """From taking messages until they were durable, and their senders could be answered; None: there were none yet."""
        self.ages: AgeHistogram | None = None
        """How long messages had waited when they were delivered."""

    def sends_took(self, took_ms: int, count: int) -> None:
        """So many, until they were durable."""
        if self.send_times is None:
            self.send_times = Histogram()
        self.send_times.observe(took_ms, count)

    def sent(self, size: int) -> None:
        if size > UNIT_BYTES:
            self.add(SEND, OK, 1, size)
            return
        self.sends += 1
        self.send_bytes += size
        if not self.dirty:
            self._touch()

    def received(self, size: int) -> None:
        if size > UNIT_BYTES:
            self.add(RECEIVE, OK, 1, size)
        else:
            self.received_small(1, size)

    def received_small(self, count: int, size: int) -> None:
        """Messages of at most UNIT_BYTES each; `size` is that of all together."""
        self.receives += count
        self.receive_bytes += size
        if not self.dirty:
            self._touch()

    def delivery_ages(self) -> AgeHistogram:
        if self.ages is None:
            self.ages = AgeHistogram()
        return self.ages

    def completed(self, count: int) -> None:
        self.completes += count
        if not self.dirty:
            self._touch()

    def add(self, operation: int, outcome: int, count: int, size: int) -> None:
        """`count` operations of `size` bytes each."""
        unit = (size + UNIT_BYTES - 1) // UNIT_BYTES
        slot = slot_of(self.entity, operation, outcome, min(max(unit, 1), _UNIT_MAX))
        _count(self.others, slot, count, count * size)
        if not self.dirty:
            self._touch()

    def _touch(self) -> None:
        self.dirty = True
        self.book.touched(self)

    def drain(self) -> list[tuple[int, int, int]]:
        """(slot, count, bytes) of everything counted since the last time."""
        found: list[tuple[int, int, int]] = []
        if self.others:
            found = [(slot, tally.count, tally.bytes) for slot, tally in self.others.items()]
            self.others = {}
        entity = self.entity
        if self.sends:
            found.append((slot_of(entity, SEND, OK, 1), self.sends, self.send_bytes))
        if self.receives:
            found.append((slot_of(entity, RECEIVE, OK, 1), self.receives, self.receive_bytes))
        if self.completes:
            found.append((slot_of(entity, SETTLE, COMPLETED, 1), self.completes, 0))
        self.sends = self.send_bytes = self.receives = self.receive_bytes = self.completes = 0
        self.dirty = False
        return found


class _SendsOfTurn(Effect):
    """With the commit of their turn, sends were answered: how long that took is counted once for each queue, not for each message."""

    __slots__ = ("_began", "_clock", "sends")

    def __init__(self, clock: Clock, began: int) -> None:
        self._clock = clock
        self._began: int = began
        self.sends: list[tuple[Meter, int]] = []

    def done(self, error: BaseException | None) -> None:
        if error is not None:
            return
        took = max(self._clock.steady_ms() - self._began, 0)
        for meter, count in self.sends:
            meter.sends_took(took, count)


class MeterBook(Recorded):
    """The meters of one store: what was counted and is not in a file yet, and where the file ends."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._turn: Turn | None = None
        self._touched: list[Meter] = []
        self._touched_at: int = 0
        """On the steady clock: when the first of them was."""
        self.paths: dict[int, str] = {}
        """Of every entity this store has known since it was opened."""
        self.pending: dict[int, dict[int, Tally]] = {}
        """minute -> slot."""
        self.totals: dict[int, Tally] = {}
        """By slot, since this process began."""
        self.operations: dict[int, Tally] = {}
        """The same over all entities, by operation << 8 | outcome."""
        self.recent: deque[Row] = deque(maxlen=100_000)
        """Rows that are in files already, of the last hour, to be shown."""
        self.file_number: int = 1
        self.file_bytes: int = 0
        """How much of the file `file_number` is accounted for; anything behind it was written just before a crash and is written again."""

    def meter(self, entity: int, path: str, turn: Turn) -> Meter:
        self._turn = turn
        self.paths[entity] = path
        return Meter(entity, self)

    def touched(self, meter: Meter) -> None:
        if not self._touched and self._turn is not None:
            self._turn.touch_record(self)
            self._touched_at = self._turn.clock.steady_ms()
        self._touched.append(meter)

    def record(self, now: int) -> None:
        meters, self._touched = self._touched, []
        deltas: list[tuple[int, int, int]] = []
        assert self._turn is not None
        answered = _SendsOfTurn(self._turn.clock, self._touched_at)
        for meter in meters:
            if meter.sends:
                answered.sends.append((meter, meter.sends))
            counted = meter.drain()
            deltas = deltas + counted if deltas else counted
        if not deltas:
            return
        if answered.sends:
            self._journal.when_durable(answered)
        facts.write_metered(self._journal, deltas, now)
        minute = self.pending.setdefault(now // MINUTE_MS, {})
        for slot, count, size in deltas:
            _count(minute, slot, count, size)
            _count(self.totals, slot, count, size)
            _count(self.operations, slot >> 16 & 0xFFFF, count, size)

    # -- roll-up -----------------------------------------------------------------------------

    def take(self, before_minute: int) -> list[Row]:
        """Rows of all minutes before this one, oldest first; they stay here until `rolled`."""
        rows: list[Row] = []
        for minute in sorted(self.pending):
            if minute < before_minute:
                rows.extend([(minute, slot, tally.count, tally.bytes) for slot, tally in self.pending[minute].items()])
        return rows

    def rolled(self, rows: list[Row], file_number: int, file_bytes: int, now: int) -> None:
        """These rows are durable in a file that now has so many bytes."""
        for minute, slot, count, size in rows:
            slots = self.pending[minute]
            tally = slots[slot]
            tally.add(-count, -size)
            if not tally.count:
                del slots[slot]
                if not slots:
                    del self.pending[minute]
        oldest = now // MINUTE_MS - _RECENT_MINUTES
        while self.recent and self.recent[0][0] < oldest:
            self.recent.popleft()
        self.recent.extend(rows)
        self.file_number = file_number
        self.file_bytes = file_bytes
        self.write_state()

    def write_state(self) -> None:
        """METERS: replaces, on replay, everything before it."""
        if self._turn is not None and (self.pending or self.file_bytes):
            now = self._turn.now
            facts.write_meters(self._journal, self.take(1 << 32), self.file_number, self.file_bytes, now)

    # -- replay ------------------------------------------------------------------------------

    def replayed(self, kind: int, seq: int, at: int, aux: int, key: bytes) -> None:
        if kind == facts.METERED:
            minute = self.pending.setdefault(at // MINUTE_MS, {})
            for slot, count, size in facts.read_metered(key):
                _count(minute, slot, count, size)
            return
        if kind != facts.METERS:
            raise Corrupt(f"the journal holds a fact of unknown kind {kind}: it was written by a newer version")
        self.pending = {}
        self.file_number = seq
        self.file_bytes = aux
        for number, slot, count, size in facts.read_meters(key):
            _count(self.pending.setdefault(number, {}), slot, count, size)


def _count(slots: dict[int, Tally], slot: int, count: int, size: int) -> None:
    tally = slots.get(slot)
    if tally is None:
        slots[slot] = Tally(count, size)
    else:
        tally.add(count, size)


def describe(slot: int, paths: dict[int, str]) -> tuple[str, str, str, int]:
    """(entity path, operation, outcome, unit) of a slot; an entity that is gone is shown by its number."""
    entity = slot >> 32
    operation, outcome = slot >> 24 & 0xFF, slot >> 16 & 0xFF
    path = paths.get(entity) or f"#{entity}"
    return path, OPERATION_NAMES.get(operation, str(operation)), OUTCOME_NAMES.get(outcome, str(outcome)), slot & 0xFFFF
