"""The injected faults of one namespace: put in force, asked for by the doors, healed. What they may be: faults.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tandem.broker.entities.namespace import Namespace
from tandem.model.errors import SessionLockLost
from tandem.server.faults import STORE_KINDS, Fault, FaultKind, FaultRequest, Faults, InjectedError
from tandem.server.served_connection import ServedConnection


class FaultPoints:
    """Made only where faults may be injected; a door that knows of them asks while `active`."""

    def __init__(
        self,
        namespace: Namespace,
        faults: Faults,
        connections: Iterable[ServedConnection],
        log: Callable[[str], None],
        apply_store_faults: Callable[[], None],
    ) -> None:
        self.faults = faults
        self.active: bool = False
        """A fault is in force."""
        self._namespace = namespace
        self._turn = namespace.turn
        self._connections = connections
        self._log = log
        self._apply_store_faults = apply_store_faults
        """Store faults changed: the disks are told."""
        faults.on_change = self._changed

    def _changed(self) -> None:
        self.active = bool(self.faults.active)

    # -- asked on the way --------------------------------------------------------------------

    def strike(self, kind: FaultKind, entity: str = "") -> Fault | None:
        """Does a fault of this kind hit now? It is counted."""
        return self.faults.strike(kind, entity, self._turn.now) if self.active else None

    def refuses_connection(self) -> bool:
        return any(self.strike(kind) for kind in (FaultKind.REFUSE_CONNECTIONS, FaultKind.DROP_CONNECTIONS))

    def swallows(self) -> bool:
        """Bytes in and out are dropped without a word."""
        return self.active and self.faults.find(FaultKind.BLACK_HOLE) is not None

    def refusal(self, entity: str) -> InjectedError | None:
        fault = self.strike(FaultKind.ENTITY_ERROR, entity)
        if fault is None:
            return None
        return InjectedError(fault.condition, f"An injected fault refuses '{entity}' (fault {fault.id}). Heal it to go on.")

    # -- put in force ------------------------------------------------------------------------

    def inject(self, wanted: FaultRequest) -> Fault:
        fault = self.faults.inject(wanted, self._turn.begin())
        kind = fault.kind
        if kind is FaultKind.DROP_CONNECTIONS:
            for connection in list(self._connections):
                connection.cut()
            if not fault.until and fault.count_left is None:
                self.faults.heal(fault.id)
        elif kind is FaultKind.FORCE_DETACH:
            error = InjectedError("amqp:link:detach-forced", f"The link was detached by an injected fault (fault {fault.id}).")
            for connection in list(self._connections):
                connection.detach_links(fault.entity, error)
        elif kind is FaultKind.LOSE_LOCKS:
            self._lose_locks(fault)
        elif kind is FaultKind.EXPIRE_TOKENS:
            for connection in list(self._connections):
                connection.expire_tokens()
        if kind in STORE_KINDS:
            self._apply_store_faults()
        self._log(f"fault {fault.id} injected: {kind.value} {fault.entity or ''}".strip())
        self._turn.schedule()
        return fault

    def heal(self, id_: int | None) -> list[Fault]:
        self._turn.begin()
        healed = self.faults.heal(id_)
        self._apply_store_faults()
        for fault in healed:
            self._log(f"fault {fault.id} healed: {fault.kind.value}")
        return healed

    def clock_jumped(self, by_ms: int) -> None:
        self.faults.shift(by_ms)

    def look_after(self, now: int) -> None:
        """Faults that end by themselves."""
        before = len(self.faults.active)
        self.faults.expire(now)
        if len(self.faults.active) != before:
            self._apply_store_faults()

    def _lose_locks(self, fault: Fault) -> None:
        now = self._turn.now
        for tenant in self._namespace.stores:
            for queue in tenant.queues.values():
                if not fault.entity or queue.path.casefold() == fault.entity:
                    queue.lose_locks(SessionLockLost(f"The session lock was taken away by an injected fault (fault {fault.id})."), now)
