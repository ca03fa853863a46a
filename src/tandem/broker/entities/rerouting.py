"""Messages without a key whose store failed before it had them for certain: another fragment takes them, and none is there twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.broker.entities.joined import key_of
from tandem.broker.recovery.transfers import settle_transfers
from tandem.model.errors import StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from tandem.broker.ports import RowId
    from tandem.broker.queue.entity import Entity
    from tandem.broker.queue.queue import Queue
    from tandem.broker.recovery.stores import Stores
    from tandem.model.message import Message


class Rerouting:
    """From fragment to fragment of one front."""

    def __init__(self, front: Entity, namespace: Stores) -> None:
        self._front: Entity = front
        self._namespace: Stores = namespace

    def reroute(self, messages: list[Message], rows: list[RowId], now: int) -> tuple[Queue, list[RowId], list[RowId]]:
        """The store that took these failed, and may or may not have kept them: another fragment takes them all, and notes which rows
        the failed store must give up if it has them. Returns that fragment, their rows in it, and all rows they may have left behind.
        Messages with a key have nowhere else to go."""
        front = self._front
        for message in messages:
            if key_of(message, front.terms.detects_duplicates) is not None:
                raise StoreUnavailable(f"The store of '{front.path}' that was to keep this message is down. Try again.")
        left = list(rows)
        while True:
            part = front.destination(messages[0])
            placed: list[RowId] = []
            try:
                for message in messages:
                    own = part.intake.rows_of(part.intake.enqueue(message, now), now)
                    if own is None:
                        raise StoreFull(f"'{front.path}' could not keep all copies of this message in one store. Try again.")
                    placed.extend(own)
                tenant = self._namespace.tenant_of(part)
                if tenant is None:
                    raise StoreUnavailable(f"The fragment of '{front.path}' is out of service.")
                for row in left:
                    tenant.note_reroute(row, part.entity_id, now)
            except StoreFull:
                raise
            except StoreUnavailable:
                part.terms.leave_service(False)
                left.extend(placed)
                continue
            return part, placed, left

    def arrived(self, rows: list[RowId]) -> None:
        """What was rerouted is on the disk of another store: the rows it left behind are nobody's."""
        ids = [(entity_id, seq) for entity_id, seq, _ in rows]
        for tenant in self._namespace.stores:
            if tenant.available:
                tenant.transfers_arrived(ids)
        settle_transfers(self._namespace)
