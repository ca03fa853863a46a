"""The journal of what is out of service: takes nothing, gives nothing, says why."""

from __future__ import annotations

from collections.abc import Callable

from tandem.broker.ports import Effect, FetchEffect, Journal, StoreHealth, StoreState, Tenant
from tandem.model.errors import StoreMissing, StoreUnavailable


class Unplugged(Journal):
    """The journal of a queue that is out of service: its store went on without it, and nothing it still thinks may be written."""

    def __init__(self, cause: str) -> None:
        self._cause = cause

    @property
    def pending_bytes(self) -> int:
        return 0

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


class Elsewhere(Unplugged):
    """The journal, here, of a store that another node serves."""

    @property
    def health(self) -> StoreHealth:
        return StoreHealth(StoreState.ELSEWHERE, self._cause)

    def replay(self, tenant: Tenant) -> None:
        raise StoreMissing(self._cause)
