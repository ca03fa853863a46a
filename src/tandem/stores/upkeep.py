"""What every log needs besides its committer: threads, troubles and notes, and when its oldest segment is worth compacting."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence

from tandem.broker.ports import StoreHealth, StoreState
from tandem.model.clock import Clock
from tandem.model.errors import Corrupt, StoreUnavailable
from tandem.stores.fetching import Fetch
from tandem.stores.recovery import TOLD_MAX, SegmentStats
from tandem.stores.relocated_bytes import RelocatedBytes
from tandem.stores.salvage import Salvaged
from tandem.stores.settings import LogSettings
from tandem.stores.worker import Worker

Blocks = list[tuple[int, Salvaged]]


class Upkeep:
    """Methods are called on the loop unless they say otherwise.

    `stop` is called back when damage is found, `room_changed` when a disk fills up or empties.
    """

    def __init__(
        self,
        stats: dict[int, SegmentStats],
        settings: LogSettings,
        clock: Clock,
        loop_call: Callable[[Callable[[], None]], None],
        new_worker: Callable[[str], Worker],
        stop: Callable[[Exception], None],
        room_changed: Callable[[], None],
    ) -> None:
        self._stats = stats
        self._settings = settings
        self._clock = clock
        self._loop_call = loop_call
        self._stop = stop
        self._reading = new_worker("tandem-reader")
        self._maintaining = new_worker("tandem-maintenance")
        self._checked_at = 0
        self.relocated = RelocatedBytes()
        self.troubles: dict[str, str] = {}
        """What does not work at the moment, and why; a store with troubles is DEGRADED."""
        self.healthy = StoreHealth(StoreState.UP)
        """With what there is to tell about what is kept."""
        self._room_changed = room_changed

    # ── what a subclass has ──────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def fetch(self, fetch: Fetch) -> None:
        """Read it on the reader's thread, deliver it on the loop."""

    @abstractmethod
    def read_blocks(self, segment: int, begin: bool, done: Callable[[Blocks, Exception | None], None]) -> None:
        """The next blocks of a segment that is compacted, none at its end. `done` is called on the maintenance thread."""

    @abstractmethod
    def remove_head(self, segment: int, active: int, removed: Callable[[], None]) -> None:
        """Only once all that it held and still matters is durable elsewhere; `removed` is called on the loop."""

    @abstractmethod
    def check(self, active: int) -> None:
        """Now and then."""

    @abstractmethod
    def _first_segment(self) -> int: ...

    @abstractmethod
    def _worth_it(self, head: int, active: int) -> bool:
        """Whether compacting the oldest segment wins room, while room is short."""

    @abstractmethod
    def _close(self) -> None:
        """Both threads have ended."""

    # ── what all have ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def tell(self, lines: Sequence[str]) -> None:
        """What was found in the files is part of the store's health until it is opened again; each line once."""
        notes = self.healthy.notes
        fresh = [line for line in dict.fromkeys(lines) if line not in notes][: TOLD_MAX - len(notes)]
        if fresh:
            self.healthy = StoreHealth(StoreState.UP, "", (*notes, *fresh))

    def tell_later(self, line: str) -> None:
        """On any thread."""
        self._loop_call(lambda: self.tell((line,)))

    def head_to_compact(self, active: int) -> tuple[int, int]:
        """The oldest segment, once more bytes are dead than live plus two segments, and by how many segments more; 0 before."""
        head = self._first_segment()
        if len(self._stats) <= 2 or head >= active or head not in self._stats:
            return 0, 0
        total = live = 0
        for stats in self._stats.values():
            total += stats.totals.segment_bytes
            live += stats.live_bytes()
        live += self.relocated.total
        excess = total - 2 * live - 2 * self._settings.segment_bytes
        if excess > 0:
            return head, excess // self._settings.segment_bytes
        if self.short_of_room and self._worth_it(head, active):
            return head, 0
        return 0, 0

    def _wanted_bytes(self, segment: int) -> int:
        """Bodies, and the heads and keys that go with them or were carried here, with their part of the blocks around them."""
        stats = self._stats[segment]
        totals = stats.totals
        around = totals.segment_bytes - totals.body_bytes
        heads = around * max(totals.bodies - stats.forgotten, 0) // max(totals.records, 1)
        relocated = self.relocated.of(segment)
        return min(totals.segment_bytes, stats.live_bytes() + max(heads, relocated + relocated // 8))

    @property
    def short_of_room(self) -> str:
        """Why what is left should be kept for settling."""
        return self.troubles.get("room") or self.troubles.get("space") or ""

    def report(self, what: str, why: str) -> None:
        """On any thread."""
        if why or what in self.troubles:
            self._loop_call(lambda: self._note(what, why))

    def _note(self, what: str, why: str) -> None:
        if what == "damage":
            self._stop(Corrupt(why))
        elif what == "gone":
            self._stop(StoreUnavailable(why))
        elif why:
            self.troubles[what] = why
        else:
            self.troubles.pop(what, None)
        if what in ("room", "space"):
            self._room_changed()

    def end(self, timeout_seconds: float) -> bool:
        """False if a call did not return in time."""
        if not self._reading.stop(timeout_seconds) or not self._maintaining.stop(timeout_seconds):
            return False
        self._close()
        return True
