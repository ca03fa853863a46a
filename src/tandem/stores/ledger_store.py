"""A store over a ledger: nothing is announced before the engine has it on its quorum, and what is in doubt is confirmed, not guessed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tandem.broker.ports import StoreHealth, StoreState, Tenant
from tandem.model.clock import Clock
from tandem.model.errors import BusError, Corrupt, EngineAway
from tandem.model.store_row import StoreRow
from tandem.stores.blocks import SEGMENT_HEADER_BYTES, seed_of
from tandem.stores.committer import Group, SealedBlock
from tandem.stores.group_commit import STOPPED, GroupCommitStore
from tandem.stores.ledger import BlockLedger, InDoubt, NotOurs
from tandem.stores.ledger_entries import LedgerRecovery, seal_entry
from tandem.stores.ledger_upkeep import LedgerUpkeep, Patience, SegmentOffsets
from tandem.stores.recovery import SegmentStats
from tandem.stores.segment_index import SegmentTotals
from tandem.stores.settings import LogSettings
from tandem.stores.worker import ThreadWorker, Worker

_FIRST_PAUSE_SECONDS: Final = 0.02
_LONGEST_PAUSE_SECONDS: Final = 0.5
_PATIENCE_PART: Final = 3
"""A call is given up, and made again elsewhere, after this part of what the store may be stalled for."""


class LedgerStore(GroupCommitStore):
    """One store of an engine, one failure domain. All methods are called on the loop's thread."""

    def __init__(
        self,
        ledger: BlockLedger,
        name: str,
        loop_call: Callable[[Callable[[], None]], None],
        settings: LogSettings,
        clock: Clock,
        new_worker: Callable[[str], Worker] = ThreadWorker,
        wait: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__(name, ledger.where, "engine", loop_call, settings, clock, new_worker)
        self._ledger = ledger
        self._wait = wait
        """How to wait so many seconds on the committer's thread; None: by waiting."""
        self._patience = Patience(wait)
        self._blocks: dict[int, SegmentOffsets] = {}
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
        self.epoch = 0
        """Under which it is ours; raised with every opening."""
        self.doubts = {"landed": 0, "sent again": 0}
        """Blocks that were in doubt, and what became of them."""

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self) -> StoreRow:
        """On a thread, before `reopen`: from now on the store is ours. What it holds is read when it is known what that means."""
        self._come_to_rest()
        self._release()
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

    def _recover(self, tenant: Tenant) -> None:
        self._patience = Patience(self._wait)
        self._doubt = ""
        self._closing = False
        row, self._taken = self._taken or self._acquired(), None
        self._seed = seed_of(row.journal)
        recovery = LedgerRecovery(self._ledger, row, self._seed, tenant)
        # the tenant forgets bodies while it replays: it has to find where they are counted
        self._stats = recovery.stats
        if row.begins_at:
            tenant.numbers_begin_at(row.begins_at, row.entity_max)
        try:
            recovery.run()
        except Corrupt:
            # who was deposed while he read may have seen half of what his successor did; asking says so
            self._ledger.confirm(row.last_segment)
            raise
        self.recovery = recovery.report
        self._blocks = {
            segment: SegmentOffsets(recovery.stats[segment].totals.first_number or recovery.number, offsets)
            for segment, offsets in recovery.offsets.items()
        }
        upkeep = LedgerUpkeep(
            self._ledger,
            row.first_segment,
            self._blocks,
            self._patience,
            self._stats,
            self._settings,
            self._clock,
            self._call_loop,
            self._new_worker,
            self.compaction_failed,
            self._seed,
        )
        self._upkeep = upkeep
        self._serve(tenant, upkeep, recovery.report.told())
        segment, end = row.last_segment, recovery.end
        # an empty first segment may lack its table; a full one is followed by the next
        self._written_segment = segment if recovery.stats[segment].totals.blocks else 0
        if end >= self._settings.segment_bytes:
            segment, end = segment + 1, SEGMENT_HEADER_BYTES
            self._stats[segment] = SegmentStats()
        self.epoch = row.epoch
        self._continue_at(segment, end, recovery.number)
        upkeep.prepare(segment + 1)
        upkeep.drop_retired()

    def _bytes_of(self, segment: int) -> int:
        return self._settings.segment_bytes

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
        while True:
            if self._patience.stopped:
                raise EngineAway("the store has stopped")
            try:
                self._ledger.append(segment, group.number, group.offset, entry, block)
            except InDoubt as doubt:
                self._suspend(str(doubt))
                if not self._landed(segment, group.number):
                    self.doubts["sent again"] += 1
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
                self._suspend(str(doubt))
                self._patience.pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        if segment not in self._blocks or not self._blocks[segment].offsets:
            self._blocks[segment] = SegmentOffsets(number, [])
        self._written_segment = segment
        if self._upkeep is not None:
            self._upkeep.prepare(segment + 1)

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
            f"{self._where}: segment {segment}: the engine ends with block {last}, and {number - 1} had been confirmed: "
            "it has forgotten what it acknowledged, or somebody else wrote"
        )

    # ── suspended ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _suspend(self, why: str) -> None:
        """On the committer's thread."""
        if why != self._doubt:
            self._doubt = why
            self._call_loop(self._tell_suspended)

    def hold(self, why: str) -> None:
        """Nothing may be delivered until it is held for no reason (an empty text) again."""
        if why != self._held:
            self._held = why
            self._tell_suspended()

    def _tell_suspended(self) -> None:
        if self._room_changed is not None:
            self._room_changed()

    @property
    def health(self) -> StoreHealth:
        why = self._held or self._doubt
        if why and self._state is StoreState.UP and self._limit != STOPPED:
            return StoreHealth(StoreState.SUSPENDED, why, self._maintenance.healthy.notes)
        if self._elsewhere and self._state is StoreState.DOWN:
            return StoreHealth(StoreState.ELSEWHERE, self._elsewhere)
        return self._health()

    # ── stopping ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def check_stalled(self, stall_ms_max: int) -> None:
        self._ledger.give_up_after(stall_ms_max // _PATIENCE_PART)
        super().check_stalled(stall_ms_max)

    def close(self) -> None:
        self._closing = True
        super().close()

    def hand_back(self, why: str) -> None:
        """The store is somebody else's already: what still waits is told so."""
        self._elsewhere = why
        self.epoch = 0
        self.fail(why)
        self._abandon()

    def move_away(self, why: str) -> None:
        """The store will be somebody else's: what was appended is finished first, and whoever waited is told that it is kept."""
        self.close()
        self._elsewhere = self._cause = why

    def _abandon(self) -> None:
        self._patience.stop()
        self._ledger.abandon()

    def _release(self) -> None:
        self._patience.stop()
        if self.epoch and self._closing:
            self._ledger.release()
        self.epoch = 0
        self._ledger.close()
