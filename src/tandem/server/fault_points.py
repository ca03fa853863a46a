"""Where injected faults strike: asked by links, nodes and connections only while a fault is in force."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tandem.amqp.outcomes import encode_rejected
from tandem.model.address import Address
from tandem.model.errors import SessionLockLost
from tandem.server.faults import STORE_KINDS, Fault, FaultKind, Faults, FaultWish, InjectedError

if TYPE_CHECKING:
    from tandem.amqp.link import Link, ReceiverLink
    from tandem.broker.queue.queue import Queue
    from tandem.gateway.amqp.answers import PendingDisposition
    from tandem.gateway.amqp.connection import PeerConnection
    from tandem.server.context import NamespaceContext


class FaultPoints:
    """The faults of one namespace at work."""

    def __init__(self, context: NamespaceContext, faults: Faults) -> None:
        self._context = context
        self.faults = faults
        faults.on_change = self._changed

    def _changed(self) -> None:
        self._context.faults_active = bool(self.faults.active)

    @property
    def _now(self) -> int:
        return self._context.turn.now

    # -- asked on the way --------------------------------------------------------------------

    def refuses_connection(self) -> bool:
        return any(self.faults.strike(kind, "", self._now) for kind in (FaultKind.REFUSE_CONNECTIONS, FaultKind.DROP_CONNECTIONS))

    def swallows(self) -> bool:
        """Bytes in and out are dropped without a word."""
        return self.faults.find(FaultKind.BLACK_HOLE) is not None

    def at_attach(self, address: Address) -> bool:
        """True: leave the attach unanswered. Raises when it is to be refused."""
        if self.faults.strike(FaultKind.ENTITY_UNREACHABLE, address.entity, self._now):
            return True
        self._raise(address.entity)
        return False

    def _raise(self, entity: str) -> None:
        fault = self.faults.strike(FaultKind.ENTITY_ERROR, entity, self._now)
        if fault is not None:
            raise InjectedError(fault.condition, f"An injected fault refuses '{entity}' (fault {fault.id}). Heal it to go on.")

    def at_send(self, client: PeerConnection, queue: Queue, link: ReceiverLink, delivery_id: int, settled: bool) -> bool:
        """True: the transfer has been dealt with and must not be stored."""
        if self.faults.strike(FaultKind.ENTITY_UNREACHABLE, queue.path, self._now):
            return True
        try:
            self._raise(queue.path)
        except InjectedError as error:
            if not settled:
                state = encode_rejected(client.error_of(error, queue.path))
                link.session.send_disposition(True, delivery_id, delivery_id, True, state)
                client.touch()
            return True
        return False

    def at_answer(self, pending: PendingDisposition) -> bool:
        """True: the answer is not to be sent now (late, or never)."""
        client = pending.client
        if pending.receiver_role and self.faults.strike(FaultKind.LOSE_ACKNOWLEDGEMENT, pending.entity, self._now):
            client.cut()
            return True
        fault = self.faults.strike(FaultKind.SLOW_DISPOSITIONS, pending.entity, self._now)
        if fault is None:
            return False
        asyncio.get_running_loop().call_later(fault.delay_ms / 1000, pending.send)
        return True

    # -- put in force ------------------------------------------------------------------------

    def inject(self, wish: FaultWish) -> Fault:
        fault = self.faults.inject(wish, self._context.turn.begin())
        kind = fault.kind
        if kind is FaultKind.DROP_CONNECTIONS:
            for client in list(self._context.connections):
                client.cut()
            if not fault.until and fault.count_left is None:
                self.faults.heal(fault.id)
        elif kind is FaultKind.FORCE_DETACH:
            self._force_detach(fault)
        elif kind is FaultKind.LOSE_LOCKS:
            self._lose_locks(fault)
        elif kind is FaultKind.EXPIRE_TOKENS:
            for client in list(self._context.connections):
                client.grants.clear()
                client.drop_lapsed()
        if kind in STORE_KINDS:
            self._context.apply_store_faults()
        self._context.log(f"fault {fault.id} injected: {kind.value} {fault.entity or ''}".strip())
        self._context.turn.schedule()
        return fault

    def heal(self, id_: int | None) -> list[Fault]:
        self._context.turn.begin()
        healed = self.faults.heal(id_)
        self._context.apply_store_faults()
        for fault in healed:
            self._context.log(f"fault {fault.id} healed: {fault.kind.value}")
        return healed

    def clock_jumped(self, by_ms: int) -> None:
        self.faults.shift(by_ms)

    def look_after(self, now: int) -> None:
        """Faults that end by themselves."""
        before = len(self.faults.active)
        self.faults.expire(now)
        if len(self.faults.active) != before:
            self._context.apply_store_faults()

    def _links(self, fault: Fault) -> list[tuple[PeerConnection, Link]]:
        return [
            (client, link)
            for client in self._context.connections
            for link, (address, _) in client.links.items()
            if not fault.entity or address.key == fault.entity
        ]

    def _force_detach(self, fault: Fault) -> None:
        error = InjectedError("amqp:link:detach-forced", f"The link was detached by an injected fault (fault {fault.id}).")
        for client, link in self._links(fault):
            link.detach(client.error_of(error, ""))
            client.touch()

    def _lose_locks(self, fault: Fault) -> None:
        now = self._now
        for tenant in self._context.namespace.stores:
            for queue in tenant.queues.values():
                if not fault.entity or queue.path.casefold() == fault.entity:
                    queue.lose_locks(SessionLockLost(f"The session lock was taken away by an injected fault (fault {fault.id})."), now)
