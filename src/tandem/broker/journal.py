"""The port that remembers: what the broker needs of a store, and no more. Engines live in `stores`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from mypy_extensions import mypyc_attr

from tandem.model.errors import StoreUnavailable


class StoreState(Enum):
    """How a store is; everything but UP and DEGRADED refuses appends."""

    UP = "up"
    DEGRADED = "degraded"
    """Works, but slowly, or will not for long (a stalled sync, no room for the next segment)."""
    DOWN = "down"
    CORRUPT = "corrupt"
    RECOVERING = "recovering"
    """Not replayed yet."""


@dataclass(frozen=True, slots=True)
class StoreHealth:
    state: StoreState
    cause: str = ""
    """One line for a person; empty when UP."""
    notes: tuple[str, ...] = ()
    """What was found and done when it was opened last, a line each: a torn tail cut off, an index read anew, messages set aside."""


HEALTHY: Final = StoreHealth(StoreState.UP)


@mypyc_attr(allow_interpreted_subclasses=True)
class Effect:
    """Something that may happen only once the disk knows: a confirmation, a delivery, a reply."""

    __slots__ = ()

    def done(self, error: BaseException | None) -> None:
        """Called on the loop, in order of registration; `error` is set when the append failed."""


@mypyc_attr(allow_interpreted_subclasses=True)
class FetchEffect:
    """What waits for bodies read back from the store."""

    __slots__ = ()

    def fetched(self, bodies: list[bytes], error: BaseException | None) -> None: ...


class Unplugged:
    """The journal of a queue that is out of service: its store went on without it, and nothing it still thinks may be written."""

    pending_bytes: int = 0

    def __init__(self, cause: str) -> None:
        self._cause = cause

    @property
    def health(self) -> StoreHealth:
        return StoreHealth(StoreState.DOWN, self._cause)

    @property
    def short_of_room(self) -> str:
        return ""

    def when_room_changes(self, tell: Callable[[], None]) -> None:
        """It has none."""

    def append(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes) -> int:
        raise StoreUnavailable(self._cause)

    def when_durable(self, effect: Effect) -> None:
        raise StoreUnavailable(self._cause)

    def flush(self) -> None:
        """Nothing waits."""

    def fetch(self, locations: list[int], effect: FetchEffect) -> None:
        effect.fetched([], StoreUnavailable(self._cause))

    def forget(self, location: int) -> None:
        """Its successor counts what is alive."""

    def replay(self, tenant: Tenant) -> None:
        raise StoreUnavailable(self._cause)

    def reopen(self, tenant: Tenant) -> None:
        raise StoreUnavailable(self._cause)

    def step_compaction(self) -> bool:
        return False

    def fail(self, cause: str) -> None:
        """It has."""

    def check_stalled(self, stall_ms_max: int) -> None:
        """It does nothing that could stall."""

    def close(self) -> None:
        """It has nothing open."""


class Tenant(Protocol):
    """Whoever owns the facts: told of each one on replay, asked for what still matters on compaction."""

    def replayed(
        self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, location: int, body_bytes: int
    ) -> None: ...

    def relocate(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes, location: int) -> None: ...

    def segment_leaving(self, entities: set[int]) -> None: ...

    def numbers_begin_at(self, seq: int, entity_max: int) -> None:
        """Told before any fact by a store that was begun anew in the place of a lost one: entities up to this id had numbers before."""


class Journal(Protocol):
    """An append-only log of facts with group commit. See docs/internals/contracts.md."""

    @property
    def pending_bytes(self) -> int:
        """Appended and not yet durable."""
        ...

    @property
    def health(self) -> StoreHealth: ...

    @property
    def short_of_room(self) -> str:
        """Why no new messages should be taken although the store works: the room that is left is for settling. Empty: take them."""
        ...

    def when_room_changes(self, tell: Callable[[], None]) -> None:
        """`tell` is called on the loop whenever `short_of_room` may have changed: a disk fills up faster than anybody looks."""
        ...

    def append(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes) -> int: ...

    def when_durable(self, effect: Effect) -> None: ...

    def flush(self) -> None: ...

    def fetch(self, locations: list[int], effect: FetchEffect) -> None: ...

    def forget(self, location: int) -> None: ...

    def replay(self, tenant: Tenant) -> None: ...

    def step_compaction(self) -> bool: ...

    def reopen(self, tenant: Tenant) -> None:
        """The way back from DOWN: replays again. What was not durable when the store stopped is gone."""
        ...

    def fail(self, cause: str) -> None:
        """Stop the store as after a failed write: everybody who waits is told."""
        ...

    def check_stalled(self, stall_ms_max: int) -> None:
        """A commit that has not returned for so long takes the store down, so that nobody waits for it any longer."""
        ...

    def close(self) -> None: ...
