"""A store over a ledger, which is one node's at a time: taken, held, moved away."""

from __future__ import annotations

from collections.abc import Callable

from tandem.model.clock import Clock
from tandem.model.store_row import StoreRow
from tandem.stores.group_commit import GroupCommitStore
from tandem.stores.ledger import BlockLedger
from tandem.stores.ledger_log import LedgerLog
from tandem.stores.settings import LogSettings
from tandem.stores.worker import ThreadWorker, Worker


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
        self._ledger_log = LedgerLog(ledger, settings, clock, new_worker, wait)
        super().__init__(name, self._ledger_log, loop_call, settings, clock, new_worker)
        self.doubts = self._ledger_log.doubts
        """Blocks that were in doubt, and what became of them."""

    @property
    def epoch(self) -> int:
        """Under which it is ours; 0: it is not."""
        return self._ledger_log.epoch

    def take(self) -> StoreRow:
        """On a thread, before `reopen`: from now on the store is ours. What it holds is read when it is known what that means."""
        self._come_to_rest()
        self._ledger_log.release()
        return self._ledger_log.take()

    def hold(self, why: str) -> None:
        """Nothing may be delivered until it is held for no reason (an empty text) again."""
        self._ledger_log.hold(why)

    def check_stalled(self, stall_ms_max: int) -> None:
        self._ledger_log.stalled_after(stall_ms_max)
        super().check_stalled(stall_ms_max)

    def close(self) -> None:
        self._ledger_log.closes()
        super().close()

    def hand_back(self, why: str, engine_away: bool = False) -> None:
        """The store is somebody else's already: what still waits is told so. `engine_away`: nobody's, but nobody waits for its engine any
        longer, and it is opened again when that answers."""
        if not engine_away:
            self._ledger_log.lose(why)
        self.fail(why)
        self._ledger_log.abandon()

    def move_away(self, why: str) -> None:
        """The store will be somebody else's: what was appended is finished first, and whoever waited is told that it is kept."""
        self.close()
        self._ledger_log.is_elsewhere(why)
        self._cause = why
        self._ledger_log.stopped()
