"""The port that remembers: what the broker needs of a store, and no more. Engines live in `stores`."""

from __future__ import annotations

from typing import Protocol


class Effect:
    """Something that may happen only once the disk knows: a confirmation, a delivery, a reply."""

    __slots__ = ()

    def done(self, error: BaseException | None) -> None:
        """Called on the loop, in order of registration; `error` is set when the append failed."""


class FetchEffect:
    """What waits for bodies read back from the store."""

    __slots__ = ()

    def fetched(self, bodies: list[bytes], error: BaseException | None) -> None: ...


class Tenant(Protocol):
    """Whoever owns the facts: told of each one on replay, asked for what still matters on compaction."""

    def replayed(
        self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, location: int, body_bytes: int
    ) -> None: ...

    def relocate(
        self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes, location: int
    ) -> None: ...

    def segment_leaving(self, entities: set[int]) -> None: ...


class Journal(Protocol):
    """An append-only log of facts with group commit. See docs/internals/contracts.md."""

    pending_bytes: int

    def append(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes) -> int: ...

    def when_durable(self, effect: Effect) -> None: ...

    def flush(self) -> None: ...

    def fetch(self, locations: list[int], effect: FetchEffect) -> None: ...

    def forget(self, location: int) -> None: ...

    def replay(self, tenant: Tenant) -> None: ...

    def step_compaction(self) -> bool: ...

    def close(self) -> None: ...
