"""An engine for ledgers that lies as real ones do: it hangs, does what it does not tell, shows what it does not keep, and fails over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Final, Generic, Protocol, Self, TypeVar

from tandem.model.errors import EngineAway
from tandem.model.store_row import StoreRow
from tandem.stores.ledger import Block, Deposed, Entry, InDoubt, NotOurs, Part

_ACQUIRE_TRIES: Final = 5


class EngineFate(Enum):
    """What becomes of one write."""

    DONE = "done"
    BROKEN = "nothing was done, and the connection broke"
    UNTOLD = "done on the quorum, and the caller is not told"
    LOCAL = "done on the primary alone: visible, not durable, and the caller waits in vain"
    LATE = "done some time after the caller has given up"


Segments = dict[int, dict[int, tuple[int, int, bytes, bytes]]]
"""By segment and number: epoch, offset, entry, block."""


class LedgerState:
    """What one machine of the engine has of one store."""

    def __init__(self, row: StoreRow, segments: Segments | None = None, beats: dict[str, int] | None = None) -> None:
        self.row = row
        self.segments = segments or {}
        self.beats = beats or {}
        """By node, how often it has said that it lives."""

    def copy(self) -> LedgerState:
        return LedgerState(self.row, {segment: dict(rows) for segment, rows in self.segments.items()}, dict(self.beats))


class ReplicatedState(Protocol):
    """What one machine of an engine has."""

    def copy(self) -> Self: ...


_S = TypeVar("_S", bound=ReplicatedState)


class Replicated(Generic[_S]):
    """A primary and a quorum. `fate` is asked for each write, `pause` is called before each call: what happens meanwhile happens there."""

    def __init__(self, state: _S, fate: Callable[[], EngineFate], pause: Callable[[], None]) -> None:
        self._primary = state
        self._quorum = state.copy()
        self._fate = fate
        self._pause = pause
        self._late: list[Callable[[_S], object]] = []
        self._old = self._quorum
        """What a primary that was replaced still shows."""
        self.reachable = True
        self.fail_overs = 0

    def write(self, change: Callable[[_S], object], connection: int = -1) -> object:
        """One transaction. Commits have one order: one that is on the quorum has all before it there too.

        `connection`: a statement that belongs to one before it fails if that was said to another primary.
        """
        self._pause()
        fate = self._fate()
        if not self.reachable or fate is EngineFate.BROKEN or connection not in (-1, self.fail_overs):
            raise EngineAway("the connection broke")
        if fate is EngineFate.LATE:
            self._late.append(change)
            raise EngineAway("no answer")
        answer = change(self._primary)
        if fate is EngineFate.LOCAL:
            raise EngineAway("no answer: the standby is away")
        self._quorum = self._primary.copy()
        if fate is EngineFate.UNTOLD:
            raise EngineAway("the connection broke")
        return answer

    def read(self, look: Callable[[_S], object]) -> object:
        self._pause()
        if not self.reachable:
            raise EngineAway("the connection broke")
        return look(self._primary)

    def read_old(self, look: Callable[[_S], object]) -> object:
        """Whoever is still connected to a primary that was replaced sees what was, and more: what was never durable."""
        return look(self._old)

    def reach(self, reachable: bool) -> None:
        """Whether it answers from now on."""
        self.reachable = reachable

    def run_late(self) -> None:
        """Statements that were given up arrive after all."""
        late, self._late = self._late, []
        for change in late:
            change(self._primary)

    def fail_over(self) -> None:
        """Exactly what no quorum had is forgotten, and statements on their way to the old primary with it."""
        self._old = self._primary
        self._primary = self._quorum.copy()
        self._late = []
        self.fail_overs += 1


class LedgerEngine(Protocol):
    """The engine of one store, as a ledger reaches it."""

    @property
    def row(self) -> StoreRow: ...

    @property
    def fail_overs(self) -> int: ...

    def write(self, change: Callable[[LedgerState], object], connection: int = -1) -> object: ...

    def read(self, look: Callable[[LedgerState], object]) -> object: ...


class SimEngine(Replicated[LedgerState]):
    """Of one store."""

    def __init__(
        self,
        fate: Callable[[], EngineFate] = lambda: EngineFate.DONE,
        pause: Callable[[], None] = lambda: None,
        number: int = 0,
        name: str = "",
    ) -> None:
        """`number`: of its store; `name`: of an engine beside the first."""
        super().__init__(LedgerState(StoreRow(1, "tandem", number, bytes(range(16)), 2, 0, "", 0, "", 1, 1, 1, engine=name)), fate, pause)

    def beat(self, node: str) -> None:
        def raise_it(state: LedgerState) -> None:
            state.beats[node] = state.beats.get(node, 0) + 1

        self.write(raise_it)

    def look(self) -> tuple[dict[str, int], StoreRow]:
        """Who has beaten how often, and the store, at one moment."""
        found = self.read(lambda state: (dict(state.beats), state.row))
        assert isinstance(found, tuple)
        return found

    def want(self, node: str) -> None:
        """An operator moves the store."""

        def note(state: LedgerState) -> None:
            state.row = replace(state.row, wanted=node)

        self.write(note)

    @property
    def kept(self) -> Segments:
        """On the quorum."""
        return self._quorum.segments

    @property
    def row(self) -> StoreRow:
        return self._quorum.row


class SimLedger:
    """The ledger of a node on such an engine."""

    def __init__(self, engine: LedgerEngine, node: str, may_take: Callable[[StoreRow], bool] = lambda row: True) -> None:
        self._engine = engine
        self._node = node
        self._may_take = may_take
        self._epoch = 0
        self.where = f"store-{engine.row.number} of {node}"

    # -- whoever opens the store -------------------------------------------------------------

    def acquire(self) -> StoreRow:
        for _ in range(_ACQUIRE_TRIES):
            seen = self._look()
            if not self._may_take(seen):
                raise NotOurs(f"served by node {seen.owner}" if seen.owner else "between two owners")
            taken = self._engine.write(self._taking(seen))
            if isinstance(taken, StoreRow):
                self._epoch = taken.epoch
                return taken
        raise NotOurs("others were faster")

    def _look(self) -> StoreRow:
        seen = self._engine.read(lambda state: state.row)
        assert isinstance(seen, StoreRow)
        return seen

    def _taking(self, seen: StoreRow) -> Callable[[LedgerState], StoreRow | None]:
        def take(state: LedgerState) -> StoreRow | None:
            if state.row.epoch != seen.epoch:
                return None
            wanted = state.row.wanted if state.row.wanted == self._node else ""
            state.row = replace(state.row, epoch=seen.epoch + 1, owner=self._node, incarnation=1, wanted=wanted)
            return state.row

        return take

    def read_entries(self, segment: int, after: int, most: int) -> list[Entry]:
        def look(state: LedgerState) -> list[Entry]:
            rows = sorted(state.segments.get(segment, {}).items())
            return [(number, epoch, at, entry) for number, (epoch, at, entry, _) in rows if number > after][:most]

        found = self._engine.read(look)
        assert isinstance(found, list)
        return found

    def release(self) -> None:
        try:
            self._change(lambda row: replace(row, owner="", incarnation=0))
        except (EngineAway, Deposed):
            return  # others find out by our beats

    def close(self) -> None:
        """Nothing is open."""

    def _change(self, change: Callable[[StoreRow], StoreRow], connection: int = -1) -> None:
        epoch = self._epoch

        def do(state: LedgerState) -> bool:
            if state.row.epoch != epoch:
                return False
            state.row = change(state.row)
            return True

        if not self._engine.write(do, connection):
            raise Deposed(f"{self.where}: another node has taken the store over")

    # -- the committer's thread --------------------------------------------------------------

    def append(self, segment: int, number: int, at: int, entry: bytes, block: bytes) -> None:
        epoch = self._epoch

        def do(state: LedgerState) -> bool:
            rows = state.segments.setdefault(segment, {})
            if state.row.epoch != epoch or number in rows:
                return False
            rows[number] = (epoch, at, entry, block)
            return True

        try:
            done = self._engine.write(do)
        except EngineAway as error:
            raise InDoubt(error.description) from error
        if not done:
            raise InDoubt("the engine took no block under our epoch")

    def confirm(self, segment: int) -> int:
        self._change(lambda row: row)
        found = self._engine.read(lambda state: (self._engine.fail_overs, max(state.segments.get(segment, {}), default=0)))
        assert isinstance(found, tuple)
        connection, last = found
        self._change(lambda row: row, connection)
        return int(last)

    def begin_segment(self, segment: int) -> None:
        try:
            self._change(lambda row: replace(row, last_segment=max(row.last_segment, segment)))
        except EngineAway as error:
            raise InDoubt(error.description) from error

    def use_reserve(self) -> None:
        """Room costs nothing here."""

    # -- the reader's and the maintenance thread -----------------------------------------------

    def read_parts(self, segment: int, parts: list[Part]) -> list[bytes]:
        def look(state: LedgerState) -> list[bytes]:
            rows = state.segments.get(segment, {})
            return [rows[number][3][offset : offset + size] if number in rows else b"" for number, offset, size in parts]

        found = self._engine.read(look)
        assert isinstance(found, list)
        return found

    def walk_entries(self, segment: int, after: int, most: int) -> list[Entry]:
        return self.read_entries(segment, after, most)

    def read_blocks(self, segment: int, after: int, most: int) -> list[Block]:
        def look(state: LedgerState) -> list[Block]:
            rows = sorted(state.segments.get(segment, {}).items())
            return [(number, at, block) for number, (_, at, _, block) in rows if number > after][:most]

        found = self._engine.read(look)
        assert isinstance(found, list)
        return found

    def prepare_segment(self, segment: int) -> None:
        """Tables cost nothing here."""

    def retire(self, first_segment: int, first_block: int) -> None:
        self._change(
            lambda row: replace(row, first_segment=max(row.first_segment, first_segment), first_block=max(row.first_block, first_block))
        )

    def drop_retired(self) -> bool:
        def drop(state: LedgerState) -> None:
            for segment in [segment for segment in state.segments if segment < state.row.first_segment]:
                del state.segments[segment]

        self._engine.write(drop)
        return True

    def keep_reserve(self, size: int) -> str:
        return ""

    def size_bytes(self) -> int:
        return 0

    # -- any thread --------------------------------------------------------------------------

    def give_up_after(self, milliseconds: int) -> None:
        """Whoever decides fates decides when."""

    def abandon(self) -> None:
        """Nothing is under way between two calls."""
