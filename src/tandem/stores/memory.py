"""The journal port without a disk: the same order, the same effects, the same compaction, and nothing survives the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tandem.broker.facts import SETTLED
from tandem.broker.ports import Effect, FetchEffect, Journal, StoreHealth, StoreState, Tenant, run_effects
from tandem.model.errors import Corrupt, StoreUnavailable
from tandem.stores.relocated_bytes import RelocatedBytes
from tandem.stores.settings import LogSettings

RECORD_BYTES: Final = 42
"""What a record without key and body is taken to weigh, as on disk."""

Fact = tuple[int, int, int, int, int, int, bytes, int, int]
"""kind, flags, entity, seq, at, aux, key, location, body bytes."""


class MemorySegment:
    """As many facts as fit in `segment_bytes`; they leave together."""

    __slots__ = ("body_bytes", "bytes", "facts", "forgotten_bytes")

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.bytes = 0
        self.body_bytes = 0
        self.forgotten_bytes = 0

    def add(self, fact: Fact, body_bytes: int) -> None:
        self.facts.append(fact)
        self.bytes += RECORD_BYTES + len(fact[6]) + body_bytes
        self.body_bytes += body_bytes

    def forget(self, body_bytes: int) -> None:
        self.forgotten_bytes += body_bytes


class Shelf:
    """What a memory store remembers. Handing the same shelf to a second store is a restart."""

    __slots__ = ("bodies", "segments")

    def __init__(self) -> None:
        self.segments: dict[int, MemorySegment] = {}
        self.bodies: dict[int, bytes] = {}


class MemoryStore(Journal):
    """For tests and `--memory`. Bodies go when they are forgotten, facts when their segment is compacted."""

    def __init__(
        self,
        loop_call: Callable[[Callable[[], None]], None],
        settings: LogSettings | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        self._loop_call = loop_call
        self._settings = settings or LogSettings(segment_bytes=8_388_608)
        self._shelf = shelf or Shelf()
        self._tenant: Tenant | None = None
        self._state = StoreState.RECOVERING
        self._cause = ""
        self.held_down = False
        """By an injected fault: it cannot be reopened."""
        self._pending: list[tuple[Fact, bytes]] = []
        self._pending_bytes = 0
        self._forgotten: set[int] = set()
        self._waiters: list[Effect] = []
        self._groups: list[list[Effect]] = []
        self._segment = 1
        self._offset = 0
        self._leaving: _Walk | None = None
        self._relocated = RelocatedBytes()

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    @property
    def short_of_room(self) -> str:
        return ""

    def when_room_changes(self, tell: Callable[[], None]) -> None:
        """It does not look."""

    @property
    def health(self) -> StoreHealth:
        return StoreHealth(self._state, self._cause)

    @property
    def segment_count(self) -> int:
        return len(self._shelf.segments)

    def append(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes) -> int:
        if self._state is not StoreState.UP:
            raise self._refusal()
        size = RECORD_BYTES + len(key) + len(body)
        location = self._segment << 32 | self._offset
        self._pending.append(((kind, flags, entity, seq, at, aux, bytes(key), location, len(body)), bytes(body)))
        self._pending_bytes += size
        self._offset += size
        if self._offset >= self._settings.segment_bytes:
            self._segment += 1
            self._offset = 0
        return location

    def when_durable(self, effect: Effect) -> None:
        if self._state is not StoreState.UP:
            raise self._refusal()
        self._waiters.append(effect)

    def flush(self) -> None:
        if self._state is not StoreState.UP:
            return
        if self._pending:
            self._shelve()
        if self._waiters:
            self._groups.append(self._waiters)
            self._waiters = []
            if len(self._groups) == 1:
                self._loop_call(self._release)

    def fetch(self, locations: list[int], effect: FetchEffect) -> None:
        bodies: list[bytes] = []
        error: BaseException | None = None if self._state is StoreState.UP else self._refusal()
        pending = {fact[7]: body for fact, body in self._pending} if self._pending else {}
        kept = self._shelf.bodies
        for location in locations:
            body = kept.get(location)
            if body is None:
                body = pending.get(location)
            if body is None:
                error = error or Corrupt(f"no body at location {location:#x}: it was forgotten, or never written")
                break
            bodies.append(body)
        self._loop_call(_FetchAnswer(effect, [] if error else bodies, error).deliver)

    def forget(self, location: int) -> None:
        body = self._shelf.bodies.pop(location, None)
        if body is not None:
            self._shelf.segments[location >> 32].forget(len(body))
        elif self._pending:
            self._forgotten.add(location)

    def replay(self, tenant: Tenant) -> None:
        if self._state is StoreState.UP:
            raise StoreUnavailable("the store was replayed already; reopen it to replay again")
        self._tenant = tenant
        for number in sorted(self._shelf.segments):
            self._segment = number + 1
            for kind, flags, entity, seq, at, aux, key, location, body_bytes in list(self._shelf.segments[number].facts):
                tenant.replayed(kind, flags, entity, seq, at, aux, key, location, body_bytes)
        self._offset = 0
        self._state = StoreState.UP
        self._cause = ""

    def step_compaction(self) -> bool:
        """True while compaction is under way. Call it now and then: it looks whether compaction is due, and that goes on by itself."""
        if self._state is StoreState.UP and self._leaving is None:
            self._leaving = self._next_leaving()
            if self._leaving is not None:
                self._loop_call(self._walk_on)
        return self._leaving is not None

    def _walk_on(self) -> None:
        walk, tenant = self._leaving, self._tenant
        if walk is None or walk.done or tenant is None or self._state is not StoreState.UP:
            return
        facts = self._shelf.segments[walk.segment].facts
        end = min(walk.at + self._settings.compaction_records_per_step, len(facts))
        bodies = self._shelf.bodies
        for kind, flags, entity, seq, at, aux, key, location, body_bytes in facts[walk.at : end]:
            walk.entities.add(entity)
            if kind != SETTLED:  # what it buried stood before it
                before = self._pending_bytes
                if tenant.relocate(kind, flags, entity, seq, at, aux, key, None if body_bytes else b"", location):
                    tenant.relocate(kind, flags, entity, seq, at, aux, key, bodies[location], location)
                self._relocated.add(self._segment, self._pending_bytes - before, body_bytes)
        if walk.go_on(end, len(facts)):
            before = self._pending_bytes
            tenant.segment_leaving(walk.entities)
            self._relocated.add(self._segment, self._pending_bytes - before, 0)
            self.when_durable(_Remove(self, walk.segment))
            self.flush()
        else:
            self._loop_call(self._walk_on)

    def hold_down(self, down: bool) -> None:
        """While it is, it cannot be reopened."""
        self.held_down = down
        if down:
            self.fail("the store was taken down by an injected fault")

    def fail(self, cause: str) -> None:
        """Stop, as a disk that returned an error would make the other engines stop: for tests and injected faults."""
        if self._state is not StoreState.UP:
            return
        self._state = StoreState.DOWN
        self._cause = cause
        groups, self._groups = [*self._groups, self._waiters], []
        self._waiters = []
        self._pending = []
        self._pending_bytes = 0
        self._leaving = None
        self._loop_call(_Failure([effect for group in groups for effect in group], self._refusal()).deliver)

    def check_stalled(self, stall_ms_max: int) -> None:
        """Memory never stalls."""

    def reopen(self, tenant: Tenant) -> None:
        if self._state is StoreState.UP:
            raise StoreUnavailable("the store is up; only a store that stopped can be reopened")
        if self.held_down:
            raise StoreUnavailable("an injected fault keeps the store down")
        self._state = StoreState.RECOVERING
        self.replay(tenant)

    def close(self) -> None:
        if self._state is StoreState.UP:
            self.flush()
            while self._groups:
                self._release()
        self._state = StoreState.DOWN
        self._cause = "closed"

    def _refusal(self) -> StoreUnavailable:
        return StoreUnavailable(f"the store is {self._state.value}" + (f": {self._cause}" if self._cause else ""))

    def _shelve(self) -> None:
        segments, bodies = self._shelf.segments, self._shelf.bodies
        for fact, body in self._pending:
            number = fact[7] >> 32
            segment = segments.get(number)
            if segment is None:
                segment = segments[number] = MemorySegment()
            segment.add(fact, len(body))
            bodies[fact[7]] = body
        self._pending = []
        self._pending_bytes = 0
        for location in self._forgotten:
            self.forget(location)
        self._forgotten.clear()

    def _release(self) -> None:
        if not self._groups:
            return
        groups, self._groups = self._groups, []
        run_effects([effect for group in groups for effect in group], None)
        self.flush()

    def _next_leaving(self) -> _Walk | None:
        segments = self._shelf.segments
        if len(segments) < 3:
            return None
        total = sum(segment.bytes for segment in segments.values())
        live = self._relocated.total + sum(segment.body_bytes - segment.forgotten_bytes for segment in segments.values())
        if total - live <= live + 2 * self._settings.segment_bytes:
            return None
        first = min(segments)
        return None if first == self._segment else _Walk(first)

    def _remove(self, number: int) -> None:
        segment = self._shelf.segments.pop(number, None)
        self._relocated.drop(number)
        self._leaving = None
        self.step_compaction()
        if segment is not None:
            for fact in segment.facts:
                self._shelf.bodies.pop(fact[7], None)


class _Walk:
    __slots__ = ("at", "done", "entities", "segment")

    def __init__(self, segment: int) -> None:
        self.segment = segment
        self.at = 0
        self.done = False
        self.entities: set[int] = set()

    def go_on(self, at: int, end: int) -> bool:
        """So far by now; True when that is all."""
        self.at = at
        self.done = at == end
        return self.done


class _Remove(Effect):
    __slots__ = ("number", "store")

    def __init__(self, store: MemoryStore, number: int) -> None:
        self.store = store
        self.number = number

    def done(self, error: BaseException | None) -> None:
        if error is None:
            self.store._remove(self.number)


class _FetchAnswer:
    __slots__ = ("bodies", "effect", "error")

    def __init__(self, effect: FetchEffect, bodies: list[bytes], error: BaseException | None) -> None:
        self.effect = effect
        self.bodies = bodies
        self.error = error

    def deliver(self) -> None:
        self.effect.fetched(self.bodies, self.error)


class _Failure:
    __slots__ = ("effects", "error")

    def __init__(self, effects: list[Effect], error: BaseException) -> None:
        self.effects = effects
        self.error = error

    def deliver(self) -> None:
        run_effects(self.effects, self.error)
