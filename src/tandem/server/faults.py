"""Faults on purpose: what an operator has asked to fail, for how long, how often, and for whom."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tandem.model.errors import ArgumentRefused, BusError

FAULTS_MAX: Final = 100


class FaultKind(enum.Enum):
    """What can be made to fail. The value is its name over HTTP and on the command line."""

    STORE_DOWN = "store-down"
    """The store stops as after a failed write; it comes back when the fault is healed."""
    STORE_SLOW = "store-slow"
    """Each sync takes `delay_ms` longer."""
    STORE_ERROR = "store-error"
    """Syncs fail with an I/O error."""
    STORE_FULL = "store-full"
    """Writes find no space."""
    ENTITY_ERROR = "entity-error"
    """Sends to, and attaches at, an entity are refused with `condition`."""
    ENTITY_UNREACHABLE = "entity-unreachable"
    """Sends to, and attaches at, an entity are never answered."""
    REFUSE_CONNECTIONS = "refuse-connections"
    """New connections are hung up at once."""
    DROP_CONNECTIONS = "drop-connections"
    """All connections are cut, once; with a duration, new ones too."""
    BLACK_HOLE = "black-hole"
    """Connections stay open, nothing is read or answered."""
    LOSE_ACKNOWLEDGEMENT = "lose-acknowledgement"
    """A send is accepted and stored, but its sender never hears: the connection is cut instead."""
    SLOW_DISPOSITIONS = "slow-dispositions"
    """Answers to sends and settlements come `delay_ms` late."""
    FORCE_DETACH = "force-detach"
    """All links of an entity are detached, once."""
    LOSE_LOCKS = "lose-locks"
    """All message and session locks of an entity are gone, once."""
    EXPIRE_TOKENS = "expire-tokens"
    """All tokens count as expired, once."""


STORE_KINDS: Final = frozenset({FaultKind.STORE_DOWN, FaultKind.STORE_SLOW, FaultKind.STORE_ERROR, FaultKind.STORE_FULL})
ONE_SHOT_KINDS: Final = frozenset({FaultKind.FORCE_DETACH, FaultKind.LOSE_LOCKS, FaultKind.EXPIRE_TOKENS})
DELAYED_KINDS: Final = frozenset({FaultKind.STORE_SLOW, FaultKind.SLOW_DISPOSITIONS})
"""Those that need to be told how long."""
ENTITY_KINDS: Final = frozenset(
    {
        FaultKind.ENTITY_ERROR,
        FaultKind.ENTITY_UNREACHABLE,
        FaultKind.LOSE_ACKNOWLEDGEMENT,
        FaultKind.SLOW_DISPOSITIONS,
        FaultKind.FORCE_DETACH,
        FaultKind.LOSE_LOCKS,
    }
)


class InjectedError(BusError):
    """An error somebody asked for."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.chosen = condition

    @property
    def condition(self) -> str:  # type: ignore[override]
        return self.chosen


@dataclass(slots=True, kw_only=True)
class Fault:
    """One fault that is in force."""

    id: int
    kind: FaultKind
    entity: str = ""
    """Casefolded path; empty means every entity."""
    store: int | None = None
    condition: str = "amqp:internal-error"
    delay_ms: int = 0
    fraction: float = 1.0
    """Of the occasions it strikes at."""
    until: int = 0
    """Ends by itself at this instant; 0 = when healed."""
    count_left: int | None = None
    """Ends after so many strikes; None = no limit."""
    struck: int = 0
    created_at: int = 0

    def shift(self, by_ms: int) -> None:
        """It lasts as long as before."""
        if self.until:
            self.until += by_ms

    def strike(self) -> bool:
        """True: for the last time."""
        self.struck += 1
        if self.count_left is None:
            return False
        self.count_left -= 1
        return self.count_left <= 0

    def describe(self) -> dict[str, object]:
        return {
            "id": self.id,
            "kind": self.kind.value,
            "entity": self.entity or None,
            "store": self.store,
            "condition": self.condition if self.kind is FaultKind.ENTITY_ERROR else None,
            "delay_ms": self.delay_ms or None,
            "fraction": self.fraction,
            "until_ms": self.until or None,
            "count_left": self.count_left,
            "struck": self.struck,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRequest:
    """What somebody asks for, not yet checked."""

    kind: str
    entity: str = ""
    store: int | None = None
    condition: str = "amqp:internal-error"
    delay_ms: int = 0
    fraction: float = 1.0
    for_ms: int = 0
    count: int | None = None


@dataclass(slots=True)
class Faults:
    """The faults of one namespace. `chance` gives a number in [0, 1): seeded in tests."""

    chance: Callable[[], float]
    stores: int
    active: dict[int, Fault] = field(default_factory=dict)
    injected: int = 0
    on_change: Callable[[], None] = lambda: None

    def inject(self, request: FaultRequest, now: int) -> Fault:
        """Checks the request and puts it in force. Raises ArgumentRefused saying what is allowed."""
        try:
            kind = FaultKind(request.kind)
        except ValueError:
            raise ArgumentRefused(f"unknown fault {request.kind!r}; known are {', '.join(k.value for k in FaultKind)}") from None
        if len(self.active) >= FAULTS_MAX:
            raise ArgumentRefused(f"{FAULTS_MAX} faults are in force already; heal some first")
        if kind in STORE_KINDS and (request.store is None or not 0 <= request.store < self.stores):
            raise ArgumentRefused(f"{kind.value} needs a store from 0 to {self.stores - 1}, found {request.store}")
        if kind not in STORE_KINDS and request.store is not None:
            raise ArgumentRefused(f"{kind.value} does not concern a store")
        if request.entity and kind not in ENTITY_KINDS:
            raise ArgumentRefused(f"{kind.value} does not concern an entity")
        if not 0 < request.fraction <= 1:
            raise ArgumentRefused(f"fraction must be more than 0 and at most 1, found {request.fraction}")
        if request.for_ms < 0 or request.delay_ms < 0 or (request.count is not None and request.count < 1):
            raise ArgumentRefused("durations must not be negative, a count must be 1 or more")
        if kind in DELAYED_KINDS and request.delay_ms == 0:
            raise ArgumentRefused(f"{kind.value} needs delay_ms")
        self.injected += 1
        fault = Fault(
            id=self.injected,
            kind=kind,
            entity=request.entity.strip("/").casefold(),
            store=request.store,
            condition=request.condition,
            delay_ms=request.delay_ms,
            fraction=request.fraction,
            until=now + request.for_ms if request.for_ms else 0,
            count_left=request.count,
            created_at=now,
        )
        if kind not in ONE_SHOT_KINDS:
            self.active[fault.id] = fault
        self.on_change()
        return fault

    def heal(self, id_: int | None) -> list[Fault]:
        """End one fault, or all of them."""
        healed = [f for f in self.active.values() if id_ is None or f.id == id_]
        if id_ is not None and not healed:
            raise ArgumentRefused(f"there is no fault {id_} in force")
        for fault in healed:
            del self.active[fault.id]
        self.on_change()
        return healed

    def shift(self, by_ms: int) -> None:
        """The clock was set: every fault lasts as long as before."""
        for fault in self.active.values():
            fault.shift(by_ms)

    def expire(self, now: int) -> None:
        late = [f.id for f in self.active.values() if f.until and f.until <= now]
        for id_ in late:
            del self.active[id_]
        if late:
            self.on_change()

    def find(self, kind: FaultKind, entity: str = "", store: int | None = None) -> Fault | None:
        """The fault of this kind that concerns this entity or store, without striking."""
        for fault in self.active.values():
            if fault.kind is kind and (not fault.entity or fault.entity == entity) and (store is None or fault.store == store):
                return fault
        return None

    def strike(self, kind: FaultKind, entity: str, now: int) -> Fault | None:
        """Does a fault of this kind hit now? Counts it."""
        fault = self.find(kind, entity.casefold())
        if fault is None:
            return None
        if fault.until and fault.until <= now:
            self.expire(now)
            return None
        if fault.fraction < 1 and self.chance() >= fault.fraction:
            return None
        if fault.strike():
            del self.active[fault.id]
            self.on_change()
        return fault
