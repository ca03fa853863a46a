"""Where the blocks of a store are kept: what group commit needs of files, and of an engine."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

from tandem.broker.ports import StoreHealth, Tenant
from tandem.stores.committer import Group
from tandem.stores.recovery import RecoveryReport, SegmentStats
from tandem.stores.segment_index import SegmentTotals
from tandem.stores.upkeep import Upkeep


class Replayed:
    """What was found on opening, and who goes on from there."""

    __slots__ = ("report", "seed", "short", "told", "upkeep", "write")

    def __init__(
        self,
        seed: int,
        report: RecoveryReport,
        upkeep: Upkeep,
        told: tuple[str, ...],
        write: Callable[[Group, SegmentTotals], None],
        short: dict[int, int],
    ) -> None:
        self.seed: int = seed
        """Of the checksums of its blocks."""
        self.report = report
        self.upkeep = upkeep
        """Its threads run from here on."""
        self.told = told
        self.write = write
        """On the committer's thread: the block is durable, or `group.error` is set, when it is announced."""
        self.short = short
        """Segments that are closed by the first block that ends beyond this, and not beyond what is set for all."""


class Continuation:
    """Where the next block goes."""

    __slots__ = ("number", "offset", "segment")

    def __init__(self, segment: int, offset: int, number: int) -> None:
        self.segment: int = segment
        self.offset: int = offset
        self.number: int = number


class BlockLog:
    """Of one store. Called on the loop's thread unless a method says otherwise."""

    def __init__(self, where: str, medium: str) -> None:
        self.where = where
        """In what operators are told."""
        self.medium = medium
        """What is waited for: a disk, an engine."""
        self._call_loop: Callable[[Callable[[], None]], None]
        self._announce: Callable[[], None]
        self._stop: Callable[[Exception], None]
        self._room_changed: Callable[[], None] | None = None

    def serve(
        self, call_loop: Callable[[Callable[[], None]], None], announce: Callable[[], None], stop: Callable[[Exception], None]
    ) -> None:
        """Whom it serves: `announce` is called on any thread when a group is finished, `stop` on the loop when damage is found."""
        self._call_loop = call_loop
        self._announce = announce
        self._stop = stop

    def when_room_changes(self, tell: Callable[[], None]) -> None:
        """Called on the loop."""
        self._room_changed = tell

    def stopped(self) -> None:
        """On the loop: the store has."""
        self._tell_room()

    def _tell_room(self) -> None:
        """Whether new messages may be taken, or anything delivered, may have changed."""
        if self._room_changed is not None:
            self._room_changed()

    @abstractmethod
    def replay(self, tenant: Tenant, stats: dict[int, SegmentStats], trusted: int, trusted_number: int) -> Replayed:
        """Find the blocks, and tell the tenant of them: it forgets bodies meanwhile, in `stats`. Nothing beyond `trusted` is believed."""

    @abstractmethod
    def begin_writing(self) -> Continuation:
        """After `replay`, when whoever is told of troubles is there."""

    @abstractmethod
    def release(self) -> None:
        """Nothing of what is kept is held open any more."""

    @abstractmethod
    def abandon(self) -> None:
        """A call that does not return is given up."""

    def give_up_waiting(self) -> None:
        """At the end, for a commit that does not return."""

    def doubted(self) -> str:
        """Why what is under way takes so long, if that is known."""
        return ""

    def health(self, seen: StoreHealth) -> StoreHealth:
        """What is known here besides what the store knows."""
        return seen
