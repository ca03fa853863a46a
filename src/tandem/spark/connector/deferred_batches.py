"""The driver's side against a broker without leases: receive, defer, remember the sequence numbers; deleted once Spark has committed."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tandem.engine_client.blocking import BlockingClient, TransportError
from tandem.engine_client.message_rows import MARK, mark_of, sequence_number_of, state_of
from tandem.model.ranges import pack_ranges, unpack_ranges
from tandem.spark.connector.connections import LEASE_LOST
from tandem.spark.connector.offsets import BatchShare, cut
from tandem.spark.connector.options import Where
from tandem.spark.connector.peek import peek_from

log = logging.getLogger("tandem.spark")

_RECEIVE_MAX = 2_000
_SETTLE_MAX = 500
_DELETE_MAX = 250
_NOT_FOUND = ("com.microsoft:message-not-found", "amqp:not-found")


class DeferredBatches:
    """Every deferred message is marked with the query's id, so that a query that died before it logged a batch finds its orphans."""

    def __init__(self, where: Where, messages_per_task: int) -> None:
        self._where = where
        self._messages_per_task = messages_per_task
        self._client: BlockingClient | None = None
        self._orphans: dict[str, list[int]] = {}
        self._query = ""
        self._entities: Sequence[str] = ()
        self._doubtful: set[str] = set()
        """Entities of which messages may have been deferred unheard."""
        self._strange: dict[str, set[int]] = defaultdict(set)
        """Logged in the checkpoint and not deferred by this query: gone, or another's message if the checkpoint is of another namespace."""

    @property
    def client(self) -> BlockingClient:
        if self._client is None:
            self._client = BlockingClient(self._where.endpoint, timeout=self._where.timeout_seconds)
        return self._client

    def lost(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        self._doubtful.update(self._entities)

    def close(self) -> None:
        self.lost()

    def begin(self, entities: Sequence[str], query: str, known: Sequence[BatchShare]) -> None:
        """One look at everything deferred: ours that no offset knows go into the next batch."""
        self._entities, self._query = entities, query
        for entity in entities:
            logged = {number for share in known if share.entity == entity for number in unpack_ranges(share.ranges)}
            self._strange[entity] = logged - self._look(entity, logged)

    def _look(self, entity: str, logged: set[int]) -> set[int]:
        """What this query has deferred there; of it, what was never logged comes next."""
        marked = self._marked(entity)
        found = [number for number in marked if number not in logged]
        if found:
            log.warning("%d messages of %s were deferred by this query and never logged: they come next", len(found), entity)
        self._orphans[entity] = found
        self._doubtful.discard(entity)
        return set(marked)

    def _marked(self, entity: str) -> list[int]:
        """What this query has deferred there."""
        pages = peek_from(self._where, entity)
        ours = (payload for page in pages for _, payload in page if state_of(payload) == 1 and mark_of(payload) == self._query)
        return [sequence_number_of(payload) for payload in ours]

    def take(
        self, query: str, number: int, budgets: dict[str, int], bytes_max: int, wait_seconds: float, by: int = 0
    ) -> dict[str, BatchShare]:
        """`by` cannot be asked of such a broker: what is available now is counted instead."""
        shares: dict[str, BatchShare] = {}
        wait = max(0.05, wait_seconds / max(1, len(budgets)))
        for entity, most in budgets.items():
            if entity in self._doubtful:
                self._look(entity, set())  # whatever was logged is committed and deleted by now
            orphans = self._orphans.get(entity, [])
            numbers = orphans[:most]
            while len(numbers) < most:
                taken, size = self._defer_some(entity, query, min(_RECEIVE_MAX, most - len(numbers)), wait)
                numbers += taken
                bytes_max -= size
                if not taken or bytes_max <= 0:
                    break
                wait = 0.05
            self._orphans[entity] = orphans[most:]
            if numbers:
                self._strange[entity].difference_update(numbers)
                ranges = pack_ranges(sorted(numbers))
                shares[entity] = BatchShare(entity, "", len(numbers), ranges, cut(len(numbers), self._messages_per_task))
                wait = 0.05
        return shares

    def _defer_some(self, entity: str, query: str, most: int, wait: float) -> tuple[list[int], int]:
        """(sequence numbers, bytes). A message whose lock has lapsed meanwhile is not ours and not among them."""
        received = self.client.receive(entity, most, wait)
        numbers: list[int] = []
        for part in _parts(received, _SETTLE_MAX):
            body: dict[str, object] = {
                "disposition-status": "defered",
                "lock-tokens": self.client.uuids([token for token, _ in part]),
                "properties-to-modify": {MARK: query},
            }
            self.client.request(entity, "com.microsoft:update-disposition", body)
            numbers += [sequence_number_of(payload) for _, payload in part]
        return numbers, sum(len(payload) for _, payload in received)

    def secure(self, shares: Sequence[BatchShare]) -> None:
        """Deferred messages stay where they are until somebody asks for them by number; those that are not ours are not read."""
        for share in shares:
            strange = self._strange[share.entity].intersection(unpack_ranges(share.ranges))
            if strange:
                said = f"message {min(strange)} of {share.entity} is gone, or was never deferred by this query"
                raise TransportError(LEASE_LOST, f"{said}: is the checkpoint of another namespace?")

    def complete(self, shares: Iterable[BatchShare]) -> None:
        for share in shares:
            strange = self._strange[share.entity]
            ours = [number for number in unpack_ranges(share.ranges) if number not in strange]
            for part in _parts(ours, _DELETE_MAX):
                self._delete(share.entity, part)

    def _delete(self, entity: str, numbers: list[int]) -> None:
        """All or none is what the operation offers: when one is gone already, halves find out which."""
        try:
            body: dict[str, object] = {"sequence-numbers": self.client.longs(numbers), "receiver-settle-mode": self.client.uint32(0)}
            self.client.request(entity, "com.microsoft:receive-by-sequence-number", body)
        except TransportError as error:
            if error.condition not in _NOT_FOUND:
                raise
            if len(numbers) > 1:
                half = len(numbers) // 2
                self._delete(entity, numbers[:half])
                self._delete(entity, numbers[half:])

    def counts(self, entity: str) -> dict[str, int]:
        """By peeking, which does not tell active from locked. What this query has deferred counts as leased."""
        active = sum(1 for page in peek_from(self._where, entity) for _, payload in page if state_of(payload) == 0)
        return {"active": active, "locked": active, "leased": len(self._marked(entity)), "at": 0}


def _parts(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    for at in range(0, len(items), size):
        yield list(items[at : at + size])
