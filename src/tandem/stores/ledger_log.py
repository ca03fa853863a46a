"""Blocks in a ledger: nothing is announced before the engine has it on its quorum, and what is in doubt is confirmed, not guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tandem.broker.ports import StoreHealth, StoreState, Tenant
from tandem.model.clock import Clock
from tandem.model.errors import BusError, Corrupt, EngineAway
from tandem.model.store_row import StoreRow
from tandem.stores.block_log import BlockLog, Continuation, Replayed
from tandem.stores.blocks import SEGMENT_HEADER_BYTES, seed_of
from tandem.stores.committer import Group, SealedBlock
from tandem.stores.ledger import BlockLedger, InDoubt, NoRoom, NotOurs
from tandem.stores.ledger_entries import LedgerRecovery, seal_entry
from tandem.stores.ledger_upkeep import LedgerUpkeep, Patience, SegmentOffsets
from tandem.stores.recovery import SegmentStats
from tandem.stores.segment_index import SegmentTotals
from tandem.stores.settings import LogSettings
from tandem.stores.worker import Worker

_FIRST_PAUSE_SECONDS: Final = 0.02
_LONGEST_PAUSE_SECONDS: Final = 0.5
_PATIENCE_PART: Final = 3
"""A call is given up, and made again elsewhere, after this part of what the store may be stalled for."""


class LedgerLog(BlockLog):
    """One store of an engine that several nodes share; it is ours under an epoch."""

    def __init__(
        self,
        ledger: BlockLedger,
        settings: LogSettings,
        clock: Clock,
        new_worker: Callable[[str], Worker],
        wait: Callable[[float], None] | None,
    ) -> None:
        super().__init__(ledger.where, "engine")
        self._ledger = ledger
        self._settings = settings
        self._clock = clock
        self._new_worker = new_worker
        self._wait = wait
        """How to wait so many seconds on the committer's thread; None: by waiting."""
        self._patience = Patience(wait)
        self._blocks: dict[int, SegmentOffsets] = {}
        self._stats: dict[int, SegmentStats] = {}
        self._seed: int = 0
        self._row: StoreRow
        self._recovery: LedgerRecovery
        self._upkeep: LedgerUpkeep | None = None
        self._written_segment = 0
        """The segment that blocks go to, as the engine knows."""
        self._doubt = ""
        """Why the engine does not confirm what was sent; kept while nothing may be delivered."""
        self._held = ""
        """Why whoever drives the node wants nothing to be delivered."""
        self._closing = False
        self._taken: StoreRow | None = None
        self._elsewhere = ""
        """Why it is not ours; empty: it is, or should be."""
        self.epoch: int = 0
        """Under which it is ours; raised with every opening."""
        self.doubts = {"landed": 0, "sent again": 0}
        """Blocks that were in doubt, and what became of them."""

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self) -> StoreRow:
        """On a thread, before it is replayed: from now on the store is ours."""
        taken = self._taken = self._acquired()
        return taken

    def _acquired(self) -> StoreRow:
        try:
            row = self._ledger.acquire()
        except NotOurs as error:
            self._elsewhere = error.description
            raise
        self._elsewhere = ""
        return row

    def replay(self, tenant: Tenant, stats: dict[int, SegmentStats], trusted: int, trusted_number: int) -> Replayed:
        self._patience = Patience(self._wait)
        self._doubt = ""
        self._closing = False
        row, self._taken = self._taken or self._acquired(), None
        self._row, self._stats = row, stats
        self._seed = seed_of(row.journal)
        recovery = self._recovery = LedgerRecovery(self._ledger, row, self._seed, tenant, stats)
        if row.begins_at:
            tenant.numbers_begin_at(row.begins_at, row.entity_max)
        try:
            recovery.run()
        except Corrupt:
            # who was deposed while he read may have seen half of what his successor did; asking says so
            self._ledger.confirm(row.last_segment)
            raise
        self._blocks = {
            segment: SegmentOffsets(stats[segment].totals.first_number or recovery.number, offsets)
            for segment, offsets in recovery.offsets.items()
        }
        upkeep = self._upkeep = LedgerUpkeep(
            self._ledger,
            row.first_segment,
            self._blocks,
            self._patience,
            stats,
            self._settings,
            self._clock,
            self._call_loop,
            self._new_worker,
            self._stop,
            self._tell_room,
            self._seed,
        )
        return Replayed(self._seed, recovery.report, upkeep, recovery.report.told(), self._write, {})

    def begin_writing(self) -> Continuation:
        row, upkeep, stats = self._row, self._upkeep, self._stats
        assert upkeep is not None
        segment, end = row.last_segment, self._recovery.end
        # an empty first segment may lack its table; a full one is followed by the next
        self._written_segment = segment if stats[segment].totals.blocks else 0
        if end >= self._settings.segment_bytes:
            segment, end = segment + 1, SEGMENT_HEADER_BYTES
            stats[segment] = SegmentStats()
        self.epoch = row.epoch
        upkeep.prepare(segment + 1)
        upkeep.drop_retired()
        upkeep.keep_reserve()
        return Continuation(segment, end, self._recovery.number)

    # ── the committer's thread ───────────────────────────────────────────────────────────────────────────────────────────────

    def _write(self, group: Group, totals: SegmentTotals) -> None:
        try:
            block = SealedBlock(group, self._seed)
            entry = seal_entry(block.entry(group), self._seed)
            self._keep(group, entry, block.header + block.payload)
            block.count_in(totals, group)
            group.finish(None)
        except BusError as error:
            group.finish(error)
        self._announce()

    def _keep(self, group: Group, entry: bytes, block: bytes) -> None:
        """Returns when the block is on the quorum, whatever it takes; gives up when the store has stopped, or is not ours any more."""
        segment = group.segment
        if segment != self._written_segment:
            self._begin(segment, group.number)
        pause = _FIRST_PAUSE_SECONDS
        while True:
            if self._patience.stopped:
                raise EngineAway("the store has stopped")
            try:
                self._ledger.append(segment, group.number, group.offset, entry, block)
            except InDoubt as doubt:
                self._is_in_doubt(doubt)
                if self._patience.stopped:
                    raise EngineAway("the store has stopped") from doubt
                if not self._landed(segment, group.number):
                    self.doubts["sent again"] += 1
                    self._patience.pause(pause)
                    pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                    continue
                self.doubts["landed"] += 1
            self._blocks[segment].offsets.append(group.offset)
            if self._doubt:
                self._suspend("")
            return

    def _begin(self, segment: int, number: int) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                self._ledger.begin_segment(segment)
                break
            except InDoubt as doubt:
                self._is_in_doubt(doubt)
                self._patience.pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        if segment not in self._blocks or not self._blocks[segment].offsets:
            self._blocks[segment] = SegmentOffsets(number, [])
        self._written_segment = segment
        if self._upkeep is not None:
            self._upkeep.prepare(segment + 1)

    def _is_in_doubt(self, doubt: InDoubt) -> None:
        self._suspend(str(doubt))
        if isinstance(doubt, NoRoom) and self._upkeep is not None:
            self._upkeep.has_no_room(str(doubt))
            try:
                self._ledger.use_reserve()
            except EngineAway as error:
                self._suspend(error.description)

    def _landed(self, segment: int, number: int) -> bool:
        """Whether a block that was in doubt is in the engine. Asked until there is an answer."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            try:
                last = self._ledger.confirm(segment)
                break
            except EngineAway as error:
                self._suspend(error.description)
                self._patience.pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        if last == number:
            return True
        if last == number - 1 or (last == 0 and not self._blocks[segment].offsets):
            return False
        raise Corrupt(
            f"{self.where}: segment {segment}: the engine ends with block {last}, and {number - 1} had been confirmed: "
            "it has forgotten what it acknowledged, or somebody else wrote"
        )

    # ── suspended ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _suspend(self, why: str) -> None:
        """On the committer's thread."""
        if why != self._doubt:
            self._doubt = why
            self._call_loop(self._tell_room)

    def hold(self, why: str) -> None:
        if why != self._held:
            self._held = why
            self._tell_room()

    def health(self, seen: StoreHealth) -> StoreHealth:
        why = self._held or self._doubt
        if why and seen.state in (StoreState.UP, StoreState.DEGRADED):
            return StoreHealth(StoreState.SUSPENDED, why, seen.notes)
        if self._elsewhere and seen.state is StoreState.DOWN:
            return StoreHealth(StoreState.ELSEWHERE, self._elsewhere)
        return seen

    # ── stopping ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def doubted(self) -> str:
        return self._doubt

    def stalled_after(self, milliseconds: int) -> None:
        self._ledger.give_up_after(milliseconds // _PATIENCE_PART)

    def closes(self) -> None:
        """Whoever wants the store may have it once it is released."""
        self._closing = True

    def is_elsewhere(self, why: str) -> None:
        self._elsewhere = why

    def lose(self, why: str) -> None:
        """The store is somebody else's already."""
        self._elsewhere = why
        self.epoch = 0

    def abandon(self) -> None:
        self._patience.stop()
        self._ledger.abandon()

    def give_up_waiting(self) -> None:
        """Its row stays ours: a call that is under way is not to meet another on its connection. Others find out by our beats."""
        self._closing = False
        self.abandon()

    def release(self) -> None:
        self._patience.stop()
        if self.epoch and self._closing:
            self._ledger.release()
        self.epoch = 0
        self._ledger.close()
