"""Where every message of a queue stands, in columns: 35 bytes a message, whatever the backlog."""

from __future__ import annotations

from array import array
from typing import Final, SupportsIndex

GONE: Final = 0
READY: Final = 1
LOCKED: Final = 2
DEFERRED: Final = 3
SCHEDULED: Final = 4
# 5 was: chosen for receive-and-delete
DELAYED: Final = 6
"""Abandoned with a delivery time still to come."""
LEASED: Final = 7
MOVING: Final = 8
"""On its way to another (sub-)queue; its body is being read."""
DEFERRED_LOCKED: Final = 9
"""A deferred message in somebody's hands: returns to deferred, not to active."""

STATES: Final = 10
BITS: Final = 10
"""Fewer rows: more chunks in a backlog. More rows: a queue that is empty again and again makes a larger one each time."""
_ROWS: Final = 1 << BITS
# A row that several columns are asked for is a `SupportsIndex` here: compiled, its number is made an object once and not for each of them.
MASK: Final = _ROWS - 1


class Chunk:
    """1,024 consecutive sequence numbers."""

    __slots__ = ("counts", "enqueued", "expires", "live", "locations", "min_expires", "owners", "sizes", "states")

    def __init__(self) -> None:
        zeros = bytes(8 * _ROWS)
        self.locations = array("Q", zeros)
        self.enqueued = array("Q", zeros)
        self.expires = array("Q", zeros)
        self.sizes = array("I", zeros[: 4 * _ROWS])
        self.counts = array("I", zeros[: 4 * _ROWS])
        self.states = bytearray(_ROWS)
        self.owners: array[int] | None = None
        """Numbers of message sessions, in queues that have them."""
        self.live: int = 0
        self.min_expires: int = 0
        """No row expires before this instant; 0 when none expires at all."""

    def add(self, row: int, state: int, location: int, size: int, enqueued_at: int, expires_at: int, count: int) -> None:
        at: SupportsIndex = row
        assert self.states[at] == GONE, "sequence number used twice"
        self.states[at] = state
        self.locations[at] = location
        self.sizes[at] = size
        self.enqueued[at] = enqueued_at
        if expires_at:
            self.expires[at] = expires_at
            if self.min_expires == 0 or expires_at < self.min_expires:
                self.min_expires = expires_at
        if count:
            self.counts[at] = count
        self.live += 1

    def one_left(self) -> int:
        """How many are there now."""
        self.live -= 1
        return self.live

    def set_owner(self, row: int, number: int) -> None:
        if self.owners is None:
            self.owners = array("I", bytes(4 * _ROWS))
        self.owners[row] = number

    def shift_expiry(self, by_ms: int) -> None:
        if self.min_expires == 0:
            return
        self.min_expires = max(self.min_expires + by_ms, 1)
        expires = self.expires
        for row in range(_ROWS):
            at: int = expires[row]
            if at:
                expires[row] = max(at + by_ms, 1)

    def look_again(self, row: int, at: int) -> None:
        if self.expires[row] and (self.min_expires == 0 or at < self.min_expires):
            self.min_expires = at

    def expired(self, now: int, most: int) -> list[int]:
        """Up to `most` active rows whose time has passed; locked and deferred ones are not touched by it."""
        found: list[int] = []
        if self.min_expires == 0 or self.min_expires > now:
            return found
        remaining = 0
        for row, at in enumerate(self.expires):
            state = self.states[row] if at else GONE
            if state == GONE:
                continue
            if at <= now and state in (READY, DELAYED):
                if len(found) == most:
                    remaining = now
                    break
                found.append(row)
            elif state != DEFERRED and (remaining == 0 or at < remaining):
                # Locked past its time: looked at again when the lock ends, at the latest in a second.
                remaining = max(at, now + 1000)
        self.min_expires = remaining
        return found


class Index:
    """Rows by sequence number. A row exists from `add` to `remove`; asking for another is a defect of the caller."""

    __slots__ = ("_last", "_last_number", "by_state", "chunks", "size_bytes", "total")

    def __init__(self) -> None:
        self.chunks: dict[int, Chunk] = {}
        self._last: Chunk | None = None
        """The one asked for last, and its number: the next question is mostly about the same."""
        self._last_number: int = -1
        self.by_state: list[int] = [0] * STATES
        self.total: int = 0
        self.size_bytes: int = 0

    def add(self, seq: int, state: int, location: int, size: int, enqueued_at: int, expires_at: int, count: int) -> None:
        chunk = self.find(seq)
        if chunk is None:
            chunk = Chunk()
            self.chunks[seq >> BITS] = chunk
        chunk.add(seq & MASK, state, location, size, enqueued_at, expires_at, count)
        self.by_state[state] += 1
        self.total += 1
        self.size_bytes += size

    def find(self, seq: int) -> Chunk | None:
        """The chunk of this row, if there are rows in it."""
        number = seq >> BITS
        if number != self._last_number or self._last is None:
            self._last = self.chunks.get(number)
            self._last_number = number
        return self._last

    def chunk_of(self, seq: int) -> Chunk:
        """As `find`, for a row that is there."""
        chunk = self.find(seq)
        assert chunk is not None, "no such row"
        return chunk

    def remove(self, seq: int) -> int:
        """Forget a row; returns its location."""
        return self.remove_all([seq])[0]

    def remove_all(self, seqs: list[int]) -> list[int]:
        """As `remove`, for several."""
        by_state = self.by_state
        locations: list[int] = []
        size_bytes = 0
        for seq in seqs:
            chunk = self.chunk_of(seq)
            row: SupportsIndex = seq & MASK
            state = chunk.states[row]
            assert state != GONE, "removed twice"
            chunk.states[row] = GONE
            by_state[state] -= 1
            size: int = chunk.sizes[row]
            size_bytes += size
            locations.append(chunk.locations[row])
            if chunk.one_left() == 0:
                del self.chunks[seq >> BITS]
                self._last = None
            elif chunk.expires[row]:
                chunk.expires[row] = 0
        self.total -= len(seqs)
        self.size_bytes -= size_bytes
        return locations

    def state(self, seq: int) -> int:
        chunk = self.find(seq)
        return GONE if chunk is None else chunk.states[seq & MASK]

    def set_state(self, seq: int, state: int) -> None:
        chunk = self.chunk_of(seq)
        row = seq & MASK
        self.by_state[chunk.states[row]] -= 1
        self.by_state[state] += 1
        chunk.states[row] = state

    def lock(self, chunk: Chunk, row: SupportsIndex) -> None:
        """`set_state` of a ready row to locked, for who has found it already."""
        self.by_state[READY] -= 1
        self.by_state[LOCKED] += 1
        chunk.states[row] = LOCKED

    def owner(self, seq: int) -> int:
        owners = self.chunk_of(seq).owners
        return 0 if owners is None else owners[seq & MASK]

    def set_owner(self, seq: int, number: int) -> None:
        chunk = self.chunk_of(seq)
        chunk.set_owner(seq & MASK, number)

    def location(self, seq: int) -> int:
        location: int = self.chunk_of(seq).locations[seq & MASK]
        return location

    def set_location(self, seq: int, location: int) -> None:
        self.chunk_of(seq).locations[seq & MASK] = location

    def set_body(self, seq: int, location: int, size: int) -> None:
        """The message was written again, changed."""
        chunk = self.chunk_of(seq)
        row = seq & MASK
        chunk.locations[row] = location
        self.size_bytes += size - chunk.sizes[row]
        chunk.sizes[row] = size

    def enqueued_at(self, seq: int) -> int:
        at: int = self.chunk_of(seq).enqueued[seq & MASK]
        return at

    def expires_at(self, seq: int) -> int:
        at: int = self.chunk_of(seq).expires[seq & MASK]
        return at

    def size(self, seq: int) -> int:
        size: int = self.chunk_of(seq).sizes[seq & MASK]
        return size

    def count(self, seq: int) -> int:
        count: int = self.chunk_of(seq).counts[seq & MASK]
        return count

    def set_count(self, seq: int, count: int) -> None:
        self.chunk_of(seq).counts[seq & MASK] = count

    def count_deliveries(self, seqs: list[int]) -> None:
        """One more each, of those that are there."""
        for seq in seqs:
            chunk = self.find(seq)
            row: SupportsIndex = seq & MASK
            if chunk is not None and chunk.states[row]:
                chunk.counts[row] += 1

    def next_in_state(self, state: int, start: int, end: int) -> int:
        """The first row from `start` to below `end` in this state; `end` when there is none."""
        at = start
        while at < end:
            number = at >> BITS
            chunk = self.chunks.get(number)
            if chunk is not None:
                row = chunk.states.find(state, at & MASK)
                if row >= 0:
                    found = (number << BITS) + row
                    return found if found < end else end
            at = (number + 1) << BITS
            if chunk is None and len(self.chunks) < 256:
                at = self._skip_gap(at, end)
        return end

    def first_in_state(self, state: int) -> int:
        """The first row of all in this state; -1 when there is none."""
        if not self.by_state[state]:
            return -1
        end = (max(self.chunks) + 1) << BITS
        at = self.next_in_state(state, min(self.chunks) << BITS, end)
        return at if at < end else -1

    def _skip_gap(self, at: int, end: int) -> int:
        """After a hole, go straight to the next chunk there is: sequence numbers may lie far apart."""
        number = at >> BITS
        following = [n for n in self.chunks if n >= number]
        return min(following) << BITS if following else end

    def seqs_from(self, start: int, most: int) -> list[int]:
        """Up to `most` existing rows from `start` on, in order."""
        found: list[int] = []
        for number in sorted(n for n in self.chunks if n >= start >> BITS):
            states = self.chunks[number].states
            base = number << BITS
            for row in range(start - base if start > base else 0, _ROWS):
                if states[row]:
                    found.append(base + row)
                    if len(found) == most:
                        return found
        return found

    def shift_expiry(self, by_ms: int) -> None:
        """The clock was set: every message lives as long as before."""
        for chunk in self.chunks.values():
            chunk.shift_expiry(by_ms)

    def next_expiry(self) -> int:
        """No row expires before this; 0 = none ever."""
        earliest = 0
        for chunk in self.chunks.values():
            at = chunk.min_expires
            if at and (earliest == 0 or at < earliest):
                earliest = at
        return earliest

    def look_again(self, seq: int, at: int) -> None:
        """A row that `expired` has told of stayed: it is told of again from this instant on, if it expires."""
        self.chunk_of(seq).look_again(seq & MASK, at)

    def expired(self, now: int, most: int) -> list[int]:
        """Up to `most` active rows whose time has passed; locked and deferred ones are not touched by it."""
        found: list[int] = []
        for number in sorted(self.chunks):
            base = number << BITS
            found.extend([base + row for row in self.chunks[number].expired(now, most - len(found))])
            if len(found) == most:
                break
        return found
