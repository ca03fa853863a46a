"""Messages taken in hand by number, to be completed or given back: by a lease if they are active, by locks if they are deferred."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.broker.ports import Consumer
from tandem.broker.queue.index import DEFERRED, READY
from tandem.gateway import verbs
from tandem.gateway.waiting import Durable, durable
from tandem.model.errors import BusError, LockLost

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.broker.queue.locks import Lock
    from tandem.broker.queue.sessions import MessageSession

_LEASE_MS: Final = 60_000
"""If the broker stops meanwhile, what was taken is back after so long."""


class Taken:
    """Give every one of them back, or complete it. `skipped` says why a message could not be taken."""

    def __init__(self, entity: Entity, lease_id: str) -> None:
        self._entity = entity
        self._lease_id = lease_id
        self._leased: set[int] = set()
        self._locks: dict[int, Lock] = {}
        self._sessions: list[tuple[MessageSession, Consumer]] = []
        self.skipped: dict[int, str] = {}

    @property
    def seqs(self) -> list[int]:
        return sorted({*self._leased, *self._locks})

    def take(self, seqs: list[int], now: int) -> None:
        ready: list[int] = []
        deferred: dict[str | None, list[int]] = {}
        for seq in seqs:
            rows = self._entity.part_of(seq).rows
            state = rows.index.state(seq)
            session = rows.session_of(seq) if state else None
            if session is not None and session.holder is not None:
                self.skipped[seq] = f"session '{session.id}' is in use"
            elif state == READY:
                ready.append(seq)
            elif state == DEFERRED:
                deferred.setdefault(session.id if session is not None else None, []).append(seq)
            else:
                self.skipped[seq] = "it is in somebody else's hands" if state else "it is gone"
        if ready:
            self._entity.leases.lease_again(self._lease_id, ready, _LEASE_MS, now)
            self._leased.update(ready)
        for session_id, numbers in deferred.items():
            if session_id is not None:
                holder = Consumer(True)
                self._sessions.append((self._entity.sessions.accept(session_id, holder, now), holder))
            for lock in self._entity.browsing.receive_deferred(numbers, session_id, now):
                self._locks[lock.seq] = lock

    async def complete(self, seqs: list[int], now: int) -> int:
        """These are done, durably. Returns how many were still in hand."""
        leased = [seq for seq in seqs if seq in self._leased]
        done = self._entity.leases.complete_part(self._lease_id, leased, now) if leased else 0
        self._leased.difference_update(leased)
        for seq in seqs:
            lock = self._locks.pop(seq, None)
            if lock is not None:
                try:
                    self._entity.part_of(lock.seq).settlement.complete(lock, now)
                except LockLost as error:
                    self.skipped[seq] = error.description
                else:
                    done += 1
        await durable(self._entity)
        return done

    async def dead_letter(self, reason: str, description: str, now: int) -> int:
        """All of them."""
        done = 0
        for seq in sorted(self._leased):
            effect = Durable()
            if self._entity.leases.dead_letter_part(self._lease_id, seq, reason, description, now, effect):
                await effect.future
                done += 1
            self._leased.discard(seq)
        how = verbs.SettlementArguments(verbs.DEAD_LETTER, reason=reason, description=description)
        for effect in verbs.settle_all(self._entity, how, list(self._locks.values()), now):
            await effect.future
            done += 1
        self._locks.clear()
        return done

    async def give_back(self, now: int) -> None:
        """What is still in hand, as it was."""
        self._entity.leases.abandon(self._lease_id, now)
        self._leased.clear()
        for lock in self._locks.values():
            if lock.held:
                self._entity.part_of(lock.seq).settlement.release(lock, now)
        self._locks.clear()
        for session, holder in self._sessions:
            self._entity.sessions.close(session, holder, now)
        self._sessions.clear()


def reason_of(error: BusError) -> str:
    return error.description.partition(" TrackingId:")[0]
