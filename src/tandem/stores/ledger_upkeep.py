"""Upkeep of a log in an engine: bodies are read in batches, the next segment is made ahead, what is given up is dropped."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import Final, TypeVar

from tandem.model.clock import Clock
from tandem.model.errors import BusError, Corrupt, EngineAway
from tandem.stores.blocks import RECORD, RECORD_BYTES
from tandem.stores.checksum import crc32
from tandem.stores.fetching import Fetch
from tandem.stores.ledger import BlockLedger, Deposed, Part
from tandem.stores.ledger_entries import Columns, entry_from_block, is_whole
from tandem.stores.recovery import SegmentStats
from tandem.stores.salvage import Salvaged, lost_body, substitute
from tandem.stores.settings import LogSettings
from tandem.stores.upkeep import Blocks, Upkeep
from tandem.stores.worker import Worker

_T = TypeVar("_T")

TAIL_BYTES: Final = 4_096
"""Read with the last record of a run, whose length is not known yet."""
_PARTS_MAX: Final = 100
"""Runs read with one statement."""
_ENTRIES_AT_ONCE: Final = 32
"""Read at a time when a segment is compacted: about 80 KB each in a busy store."""
_PAUSE_SECONDS: Final = 0.2
_AUDIT_LOOK_MS: Final = 60_000
_RESERVE_LOOK_MS: Final = 5_000
_RESERVE_PART: Final = 16
"""The part of a segment that is kept in reserve for when the engine's disk is full."""


class Patience:
    """Calls that the engine cannot answer now are made again, until the store stops."""

    def __init__(self, wait: Callable[[float], None] | None = None) -> None:
        self._stopped = threading.Event()
        self._wait = wait
        """None: time passes by itself."""

    def stop(self) -> None:
        self._stopped.set()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def pause(self, seconds: float) -> None:
        """EngineAway if the store has stopped meanwhile."""
        if self._wait is not None:
            self._wait(seconds)
            seconds = 0.0
        if self._stopped.wait(seconds):
            raise EngineAway("the store has stopped")

    def asked(self, call: Callable[[], _T]) -> _T:
        while True:
            try:
                return call()
            except EngineAway:
                self.pause(_PAUSE_SECONDS)


class LedgerReader:
    """Bodies by location, on the reader's thread; each is checked against its checksum before anybody sees it."""

    def __init__(self, ledger: BlockLedger, blocks: dict[int, SegmentOffsets], settings: LogSettings, patience: Patience) -> None:
        self._ledger = ledger
        self._blocks = blocks
        self._settings = settings
        self._patience = patience

    def read(self, locations: list[int], damaged: list[str]) -> list[bytes]:
        bodies: list[bytes] = []
        runs: list[list[int]] = []
        for location in locations:
            run = runs[-1] if runs else None
            if run is None or not self._joins(run, location):
                if run is not None and (len(runs) == _PARTS_MAX or run[0] >> 32 != location >> 32):
                    self._read_runs(runs, bodies, damaged)
                    runs = []
                runs.append([location])
            else:
                run.append(location)
        if runs:
            self._read_runs(runs, bodies, damaged)
        return bodies

    def _joins(self, run: list[int], location: int) -> bool:
        """Neighbours in one block are read together."""
        last = run[-1]
        if location < last or location - last > self._settings.read_gap_bytes_max or location - run[0] > self._settings.read_bytes_max:
            return False
        return self._place(run[0])[0] == self._place(location)[0]

    def _place(self, location: int) -> tuple[int, int]:
        """(block number, offset in the block)."""
        segment, offset = location >> 32, location & 0xFFFF_FFFF
        known = self._blocks.get(segment)
        at = bisect_right(known.offsets, offset) - 1 if known is not None else -1
        if known is None or at < 0:
            raise Corrupt(f"{self._ledger.where}: segment {segment}: missing, but a message is in it")
        return known.first_number + at, offset - known.offsets[at]

    def _parts(self, segment: int, parts: list[Part]) -> list[bytes]:
        return self._patience.asked(lambda: self._ledger.read_parts(segment, parts))

    def _read_runs(self, runs: list[list[int]], bodies: list[bytes], damaged: list[str]) -> None:
        segment = runs[0][0] >> 32
        parts: list[Part] = [(*self._place(run[0]), run[-1] - run[0] + TAIL_BYTES) for run in runs]
        found = self._parts(segment, parts)
        for run, (number, offset, _), raw in zip(runs, parts, found, strict=True):
            for location in run:
                at = location - run[0]
                if at + RECORD_BYTES > len(raw):
                    where = f"{self._ledger.where}: segment {segment}: block {number}: offset {offset + at}"
                    raise Corrupt(f"{where}: the record is cut off")
                kind, _, entity, seq, _, _, key_bytes, body_bytes, crc = RECORD.unpack_from(raw, at)
                body_at = at + RECORD_BYTES + key_bytes
                body = raw[body_at : body_at + body_bytes] if body_at <= len(raw) else b""
                if len(body) < body_bytes:
                    body = self._parts(segment, [(number, offset + body_at, body_bytes)])[0]
                if kind == 0 or len(body) != body_bytes or crc32(body) != crc:
                    where = f"{self._ledger.where}: segment {segment}: block {number}: offset {offset + at}"
                    key = raw[at + RECORD_BYTES : body_at] if body_at <= len(raw) else b""
                    damaged.append(lost_body(where, kind, entity, seq, key))
                    body = substitute(kind, key, where)
                bodies.append(body)


class SegmentOffsets:
    """Where the blocks of one segment begin: grown by the committer's thread, read by the reader's."""

    __slots__ = ("first_number", "offsets")

    def __init__(self, first_number: int, offsets: list[int]) -> None:
        self.first_number = first_number
        self.offsets = offsets


class LedgerUpkeep(Upkeep):
    """Of one store of an engine."""

    def __init__(
        self,
        ledger: BlockLedger,
        first_segment: int,
        blocks: dict[int, SegmentOffsets],
        patience: Patience,
        stats: dict[int, SegmentStats],
        settings: LogSettings,
        clock: Clock,
        loop_call: Callable[[Callable[[], None]], None],
        new_worker: Callable[[str], Worker],
        stop: Callable[[Exception], None],
        room_changed: Callable[[], None],
        seed: int,
    ) -> None:
        super().__init__(stats, settings, clock, loop_call, new_worker, stop, room_changed)
        self._ledger = ledger
        self._seed = seed
        self._first = first_segment
        self._blocks = blocks
        self._patience = patience
        self._reader = LedgerReader(ledger, blocks, settings, patience)
        self._dropped_at = clock.steady_ms()
        """When it was last looked for segments that were kept long enough."""
        self._reserved_at = clock.steady_ms()
        """When it was last looked whether there is room for the reserve."""
        self._walked = 0
        """Number of the last block of the segment being compacted that was read."""

    def fetch(self, fetch: Fetch) -> None:
        def read() -> None:
            fetch.read(self._reader)
            self._loop_call(fetch.deliver)

        self._reading.submit(read)

    def prepare(self, segment: int) -> None:
        def make() -> None:
            try:
                self._ledger.prepare_segment(segment)
            except EngineAway as error:
                self.report("segment", f"segment {segment} cannot be made ahead: {error.description}")
            else:
                self.report("segment", "")

        self._maintaining.submit(make)

    def read_blocks(self, segment: int, begin: bool, done: Callable[[Blocks, Exception | None], None]) -> None:
        if begin:
            self._walked = self._stats[segment].totals.first_number - 1

        def read() -> None:
            try:
                blocks = self._next_blocks(segment)
            except BusError as error:
                done([], error)
            else:
                done(blocks, None)

        self._maintaining.submit(read)

    def _next_blocks(self, segment: int) -> Blocks:
        after = self._walked
        blocks: Blocks = []
        for number, _, at, entry in self._patience.asked(lambda: self._ledger.walk_entries(segment, after, _ENTRIES_AT_ONCE)):
            where = f"{self._ledger.where}: segment {segment}: block {number}"
            if number != self._walked + 1:
                raise Corrupt(f"{where}: block {self._walked + 1} is missing")
            blocks.append((at, self._block(segment, number, at, entry, where)))
            self._walked = number
        return blocks

    def _block(self, segment: int, number: int, at: int, entry: bytes, where: str) -> Salvaged:
        """Without its bodies: most are dead, and whoever wants one fetches it."""
        if not is_whole(entry, self._seed):
            entry = self._patience.asked(lambda: entry_from_block(self._ledger, segment, number, self._seed))
        columns = Columns(entry, number, at, where)
        return Salvaged(columns.heads_and_keys, columns.count, columns.crc, [], columns.end, bare=True)

    def remove_head(self, segment: int, active: int, removed: Callable[[], None]) -> None:
        totals = self._stats.pop(segment).totals
        self.relocated.drop(segment)

        def forget() -> None:
            # reads that were asked for while the segment was there come before this on the same thread
            self._blocks.pop(segment, None)
            self._maintaining.submit(retire)

        def retire() -> None:
            try:
                self._patience.asked(lambda: self._ledger.retire(segment + 1, totals.last_number + 1))
            except Deposed as error:
                self.report("gone", error.description)
            except BusError as error:
                self.report("compaction", f"segment {segment} cannot be given up: {error.description}")
            else:
                self._first = segment + 1
                self._drop()
                self._loop_call(removed)

        self._reading.submit(forget)

    def check(self, active: int) -> None:
        steady = self._clock.steady_ms()
        if steady - self._checked_at < self._settings.check_ms:
            return
        self._checked_at = steady
        keep_ms = self._settings.audit_retention_ms
        if "drop" in self.troubles or (keep_ms and steady - self._dropped_at >= min(keep_ms, _AUDIT_LOOK_MS)):
            self._dropped_at = steady
            self._maintaining.submit(self._drop)
        if "segment" in self.troubles:
            self.prepare(active + 1)
        if "room" in self.troubles and steady - self._reserved_at >= _RESERVE_LOOK_MS:
            self._reserved_at = steady
            self.keep_reserve()
        if self._settings.engine_bytes_max:
            self._maintaining.submit(self._look_at_size)

    def drop_retired(self) -> None:
        self._maintaining.submit(self._drop)

    def _drop(self) -> None:
        try:
            dropped = self._ledger.drop_retired()
        except EngineAway as error:
            self.report("drop", f"segments that are no longer needed cannot be dropped: {error.description}")
        else:
            self.report("drop", "" if dropped else "somebody reads a segment that is no longer needed; it is dropped when that ends")

    def keep_reserve(self) -> None:
        """New messages are taken when there is one: with what it gives back those that are there can be settled on a full disk."""

        def keep() -> None:
            try:
                why = self._ledger.keep_reserve(self._settings.segment_bytes // _RESERVE_PART)
            except EngineAway:
                return  # whoever writes says so
            if why:
                self.has_no_room(why)
            else:
                self.report("room", "")

        self._maintaining.submit(keep)

    def has_no_room(self, why: str) -> None:
        """On any thread."""
        self.report("room", f"the engine's disk is full ({why}): make room there")

    def _look_at_size(self) -> None:
        most = self._settings.engine_bytes_max
        try:
            size = self._ledger.size_bytes()
        except EngineAway:
            return  # whoever writes says so
        full = f"the engine's database has {size} bytes, and cluster.engine_bytes_max allows {most}: make room there, or allow more"
        self.report("space", full if size > most else "")

    def end(self, timeout_seconds: float) -> bool:
        self._patience.stop()  # whoever waits for the engine to come back waits no longer
        return super().end(timeout_seconds)

    def _first_segment(self) -> int:
        return self._first

    def _worth_it(self, head: int, active: int) -> bool:
        size = self._settings.segment_bytes
        dead = sum(stats.totals.segment_bytes - self._wanted_bytes(segment) for segment, stats in self._stats.items())
        return dead >= size

    def _close(self) -> None:
        """The store closes the ledger."""
