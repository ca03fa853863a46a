"""Watches the stores of a namespace: a store that fails takes down its entities and nothing else, and comes back by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from tandem.broker.entities.reopening import Reopening
from tandem.broker.ports import IN_SERVICE, StoreHealth, StoreState
from tandem.broker.recovery.tenant import StoreTenant
from tandem.model.errors import BusError, Corrupt, StoreMissing, StoreUnavailable
from tandem.server.context import NamespaceContext
from tandem.server.faults import FaultKind, Faults

_FIRST_PAUSE_MS: Final = 250
_LONGEST_PAUSE_MS: Final = 10_000
_STEADY_MS: Final = 30_000
"""Up for so long, a store has recovered."""
_CORRUPT_PAUSE_MS: Final = 60_000
"""A damaged store is looked at again now and then: somebody may have put its files right."""
_OPENING_PATIENCE: Final = 3
"""What is read of an engine at once, while a store is opened, takes longer than a commit."""


_DELIVERING: Final = (StoreState.UP, StoreState.DEGRADED)


class SetFaults(Protocol):
    def __call__(self, namespace: str, index: int, *, down: bool, failing: bool, full: bool, sync_delay_ms: int) -> None: ...


class Keeper(Protocol):
    """Says which stores of a namespace this node may open, where several nodes share them."""

    def should_open(self, store: int) -> bool: ...

    def is_down(self, store: int) -> None:
        """It is down here, and nobody opens it now: if another node serves it, its journal is told so."""

    async def acquire(self, store: int) -> None:
        """The store is this node's from now on, and everything that it may speak of is known. BusError if it cannot be had."""

    def replayed(self, store: int, last_instant: int) -> None:
        """What it holds was written up to this instant; it is about to be served."""

    def opened(self, store: int) -> None:
        """It is served from now on; if another node has acquired it while it was read, its journal is told so."""


class StoreSupervisor:
    """One per namespace. `look_after` is called a few times a second."""

    def __init__(
        self, context: NamespaceContext, stall_ms_max: int, note_event: Callable[[str, str, str], None], keeper: Keeper | None = None
    ) -> None:
        self._context = context
        self._keeper = keeper
        """None: all stores are ours alone."""
        self._stall_ms_max = stall_ms_max
        self._record_event = note_event
        """(store name, state, cause)."""
        self._states: list[StoreState] = [StoreState.UP] * len(context.namespace.stores)
        self._retry_at: dict[int, int] = {}
        self._pause_ms: dict[int, int] = {}
        self._up_since: dict[int, int] = {}
        self._reopening: set[int] = set()
        self._refused: dict[int, str] = {}
        """Why a store could not be reopened, as the operator was told last."""
        self._faulty: set[int] = set()
        """Stores that were given a fault on purpose."""
        self._told: list[tuple[str, ...]] = [()] * len(context.namespace.stores)
        """What each store found when it was opened, as far as it was told."""
        self._missing: list[tuple[str, ...]] = [()] * len(context.namespace.stores)
        """What each store has of entities that the metadata does not have, as far as it was told."""
        for tenant in context.namespace.stores:
            tenant.journal.when_room_changes(self._look_at_room)

    def health(self) -> list[StoreHealth]:
        return [
            StoreHealth(StoreState.RECOVERING, "replaying its journal") if index in self._reopening else _health_of(tenant)
            for index, tenant in enumerate(self._context.namespace.stores)
        ]

    def apply_faults(self, faults: Faults, set_faults: SetFaults) -> None:
        """Tell the disks what is in force now."""
        healed = False
        for index in range(len(self._states)):
            slow = faults.find(FaultKind.STORE_SLOW, store=index)
            down = faults.find(FaultKind.STORE_DOWN, store=index) is not None
            failing = faults.find(FaultKind.STORE_ERROR, store=index) is not None
            full = faults.find(FaultKind.STORE_FULL, store=index) is not None
            delay_ms = slow.delay_ms if slow is not None else 0
            set_faults(self._context.namespace.name, index, down=down, failing=failing, full=full, sync_delay_ms=delay_ms)
            if down:
                self._context.namespace.stores[index].journal.fail("the store was taken down by an injected fault")
            if down or failing or full or delay_ms:
                self._faulty.add(index)
            elif index in self._faulty:
                self._faulty.discard(index)
                self._retry_at.pop(index, None)
                self._pause_ms.pop(index, None)
                self._up_since.pop(index, None)
                healed = True
        if healed:  # nobody waits for the end of a pause that was made while the store could not come back
            self.look_after(self._context.turn.now)

    def tell_opening(self) -> None:
        """What the stores found when they were opened with the broker; states are told by the first look."""
        for index, tenant in enumerate(self._context.namespace.stores):
            self._tell_notes(index, tenant.journal.health)
            self._tell_missing(index, tenant.entities.missing)

    def _look_at_room(self) -> None:
        for tenant in self._context.namespace.stores:
            tenant.backing.short_of_room = tenant.journal.short_of_room
            # One that has stopped too, until it is taken out of service: it may be somebody else's, who hands out the same messages.
            suspended = tenant.journal.health.state not in _DELIVERING
            if suspended is not tenant.backing.suspended:
                tenant.backing.suspended = suspended
                for queue in () if suspended else tenant.queues.values():
                    queue.slot.touch()

    def clock_jumped(self, by_ms: int) -> None:
        for kept in (self._retry_at, self._up_since):
            for index in kept:
                kept[index] += by_ms

    def look_after(self, now: int) -> None:
        self._look_at_room()
        for index, tenant in enumerate(self._context.namespace.stores):
            if index in self._reopening:
                if self._keeper is not None:  # an engine that hangs is given up here as well: there may be another primary by now
                    tenant.journal.check_stalled(_OPENING_PATIENCE * self._stall_ms_max)
                continue
            if self._keeper is None and tenant.elsewhere:
                continue
            journal = tenant.journal
            journal.check_stalled(self._stall_ms_max)
            health = journal.health
            if health.state is StoreState.DOWN and self._keeper is not None:
                self._keeper.is_down(index)
                health = journal.health
            if health.notes is not self._told[index]:
                self._tell_notes(index, health)
            if tenant.entities.missing is not self._missing[index]:
                self._tell_missing(index, tenant.entities.missing)
            if health.state is not self._states[index]:
                self._changed(index, health)
            if health.state not in IN_SERVICE and now >= self._retry_at.get(index, 0) and self._may_open(index):
                self._reopening.add(index)
                self._context.spawn(self._reopen(index))

    def _may_open(self, index: int) -> bool:
        return self._keeper is None or self._keeper.should_open(index)

    async def open_ours(self) -> None:
        """Before serving: what is ours to open is open when this returns, or is being tried."""
        for index in range(len(self._states)):
            idle = self._context.namespace.stores[index].journal.health.state not in IN_SERVICE
            if idle and index not in self._reopening and self._may_open(index):
                self._reopening.add(index)
                await self._reopen(index)

    def _tell_notes(self, index: int, health: StoreHealth) -> None:
        """What a store did to its files while it was opened is news, whatever its state: each note is an event and a line."""
        for note in health.notes:
            if note not in self._told[index]:
                self._record_event(f"store-{index}", "recovered", note)
                self._context.warn(f"{self._context.namespace.name} store-{index} has found and put in order: {note}")
        self._told[index] = health.notes

    def _tell_missing(self, index: int, missing: tuple[str, ...]) -> None:
        """Messages that nobody can reach are news as well."""
        for line in missing:
            self._record_event(f"store-{index}", "dropped", line)
            self._context.warn(f"{self._context.namespace.name} store-{index}: {line}")
        self._missing[index] = missing

    def _changed(self, index: int, health: StoreHealth) -> None:
        was, self._states[index] = self._states[index], health.state
        name = f"store-{index}"
        self._record_event(name, health.state.value, health.cause)
        self._context.log(f"{self._context.namespace.name} {name} is {health.state.value}" + (f": {health.cause}" if health.cause else ""))
        if health.state is StoreState.ELSEWHERE:
            self._context.spawn(self._left())
        if health.state not in IN_SERVICE and was in IN_SERVICE:
            self._take_down(index, health)
            now = self._context.turn.now
            if health.state is StoreState.CORRUPT:
                self._retry_at[index] = now + _CORRUPT_PAUSE_MS
            elif now - self._up_since.get(index, -_STEADY_MS) < _STEADY_MS:
                self._retry_at[index] = now + self._longer_pause(index)  # it came back only to fail again
            else:
                self._pause_ms.pop(index, None)

    async def _left(self) -> None:
        """A store went to another node: what waited for it is asked for there."""
        self._context.turn.begin()
        self._context.namespace.settle_between()
        self._context.turn.schedule()

    def _take_down(self, index: int, health: StoreHealth) -> None:
        """Whoever receives from an entity of this store is told at once, senders with their next message; nobody else notices."""
        tenant = self._context.namespace.stores[index]
        tenant.take_out_of_service()
        error = StoreUnavailable(health.refusal())
        for queue in list(tenant.queues.values()):
            queue.tell_all(error)

    def _longer_pause(self, index: int) -> int:
        pause = self._pause_ms[index] = min(self._pause_ms.get(index, _FIRST_PAUSE_MS // 2) * 2, _LONGEST_PAUSE_MS)
        return pause

    async def _reopen(self, index: int) -> None:
        """Read the journal again into fresh queues, beside the loop; swap them in when they are complete."""
        namespace = self._context.namespace
        old = namespace.stores[index]
        try:
            if self._keeper is not None:
                await self._keeper.acquire(index)
            reopening = Reopening(namespace, index)
            fresh = reopening.tenant
            await asyncio.to_thread(old.journal.reopen, fresh)
        except (BusError, OSError) as error:
            damaged = isinstance(error, Corrupt)
            pause = _CORRUPT_PAUSE_MS if damaged else self._longer_pause(index)
            self._retry_at[index] = self._context.turn.begin() + pause
            if isinstance(error, StoreMissing) and self._keeper is not None:
                self._retry_at[index] = self._context.turn.now  # somebody else was faster: whoever counts beats says when to look again
            elif str(error) != self._refused.get(index) and (not damaged or self._states[index] is not StoreState.CORRUPT):
                self._refused[index] = str(error)  # once: it may go on for days
                self._context.warn(f"{namespace.name} store-{index} could not be reopened ({error}); it is tried again until it can")
        else:
            if self._keeper is not None:
                self._keeper.replayed(index, fresh.last_instant)
            self._context.turn.begin()
            reopening.swap()
            self._look_at_room()  # it may be held
            self._refused.pop(index, None)
            self._up_since[index] = self._context.turn.now
            # At once: if it stops again before the next look, its new queues have to be taken out of service too.
            health = fresh.journal.health
            self._tell_notes(index, health)
            self._changed(index, health)
            if self._keeper is not None:  # only now: what is handed back is taken out of service by the next look
                self._keeper.opened(index)
                self._look_at_room()
        finally:
            self._reopening.discard(index)
            self._context.turn.schedule()


def _health_of(tenant: StoreTenant) -> StoreHealth:
    """With what it has of entities that the metadata does not have."""
    health, missing = tenant.journal.health, tenant.entities.missing
    return replace(health, notes=(*health.notes, *missing)) if missing else health
