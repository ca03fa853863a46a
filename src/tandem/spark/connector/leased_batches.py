"""The driver's side of leases: take the next batch by one long poll per entity, keep leases alive, complete what Spark has committed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

from tandem.engine_client.blocking import BlockingClient, Pending, TransportError
from tandem.spark.connector.connections import LEASE_LOST, unreachable
from tandem.spark.connector.offsets import BatchShare, cut
from tandem.spark.connector.options import Where

log = logging.getLogger("tandem.spark")

_GRACE_SECONDS = 0.02
"""When one entity has answered, others that have messages answer within this time."""


class Renewer(threading.Thread):
    """Extends every lease it was told of, on a connection of its own, until it is told to forget it."""

    def __init__(self, where: Where, lease_seconds: int) -> None:
        super().__init__(name="tandem-lease-renewer", daemon=True)
        self._where = where
        self._lease_seconds = lease_seconds
        self._held: dict[str, str] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()

    def hold(self, entity: str, lease: str) -> None:
        with self._lock:
            self._held[lease] = entity

    def forget(self, lease: str) -> None:
        with self._lock:
            self._held.pop(lease, None)

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        pause = max(1.0, self._lease_seconds / 3)
        while not self._stopping.wait(pause):
            with self._lock:
                held = dict(self._held)
            pause = max(1.0, self._lease_seconds / 3) if self._renew(held) else 1.0

    def _renew(self, held: dict[str, str]) -> bool:
        """False when the broker could not be reached: try again soon."""
        if not held:
            return True
        try:
            with BlockingClient(self._where.endpoint, timeout=min(10.0, self._where.timeout_seconds)) as client:
                for lease, entity in held.items():
                    self._renew_one(client, entity, lease)
        except TransportError as error:
            log.warning("leases could not be renewed, trying again: %s", error)
            return False
        return True

    def _renew_one(self, client: BlockingClient, entity: str, lease: str) -> None:
        try:
            client.request(entity, "com.tandem:renew-lease", {"lease-id": lease, "duration-ms": self._lease_seconds * 1000})
        except TransportError as error:
            if unreachable(error):
                raise
            # Its readers find out by themselves; nothing is left to renew.
            log.warning("lease %s of %s: %s", lease, entity, error)
            self.forget(lease)


class LeasedBatches:
    """One connection; one outstanding long poll per entity, kept between plans so that an idle trigger costs nothing."""

    def __init__(self, where: Where, lease_seconds: int, wait_seconds: int, messages_per_task: int) -> None:
        self._where = where
        self._lease_seconds = lease_seconds
        self._wait_seconds = wait_seconds
        self._messages_per_task = messages_per_task
        self._client: BlockingClient | None = None
        self._waiting: dict[str, tuple[str, Pending]] = {}
        """By entity: the id asked for, and the answer to come."""
        self.renewer = Renewer(where, lease_seconds)
        self.renewer.start()

    # -- connection --------------------------------------------------------------------------

    @property
    def client(self) -> BlockingClient:
        if self._client is None:
            self._client = BlockingClient(self._where.endpoint, timeout=self._where.timeout_seconds)
        return self._client

    def lost(self) -> None:
        """The connection failed: long polls are asked again, under the same ids, so that a lease granted unheard is found."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def close(self) -> None:
        self.renewer.stop()
        self.lost()

    def request(self, entity: str, operation: str, body: dict[str, object]) -> dict[str, Any] | None:
        return self.client.request(entity, operation, body)

    # -- taking ------------------------------------------------------------------------------

    def begin(self, entities: Sequence[str], query: str, known: Sequence[BatchShare]) -> None:
        """Leases of this query that no checkpoint knows were granted to a driver that died before it could log them: give them back."""
        leases = {share.lease for share in known}
        for entity in entities:
            answer = self.request(entity, "com.tandem:list-leases", {})
            for lease in answer["leases"] if answer is not None else []:
                found = str(lease["lease-id"])
                if found.startswith(f"{query}/") and found not in leases:
                    self.request(entity, "com.tandem:abandon-lease", {"lease-id": found})

    def take(
        self, query: str, number: int, budgets: dict[str, int], bytes_max: int, wait_seconds: float, by: int = 0
    ) -> dict[str, BatchShare]:
        """Lease for these entities (entity -> messages at most); what has come after at most `wait_seconds`.

        With `by`, an instant of the broker's, no messages that came later. A negative wait asks without waiting in the broker;
        otherwise the question stays open between calls.
        """
        client = self.client
        waits = wait_seconds >= 0
        for place, (entity, most) in enumerate(budgets.items()):
            known = self._waiting.get(entity)
            if known is not None and known[1].belongs_to(client):
                continue
            # After a lost connection the same id is asked for: a lease granted unheard is the answer then.
            lease = known[0] if known is not None else f"{query}/{number}/{place}"
            body: dict[str, object] = {
                "lease-id": lease,
                "max-messages": most,
                "max-bytes": bytes_max,
                "duration-ms": self._lease_seconds * 1000,
                "wait-ms": self._wait_seconds * 1000 if waits else 0,
            }
            if by:
                body["enqueued-by"] = client.instant(by)
            patience = self._where.timeout_seconds + (self._wait_seconds if waits else 0)
            self._waiting[entity] = (lease, client.post(entity, "com.tandem:lease-batch", body, patience))
        self._pump(client, wait_seconds if waits else float(self._where.timeout_seconds), any_will_do=waits)
        return self._collect()

    def _pump(self, client: BlockingClient, seconds: float, any_will_do: bool) -> None:
        deadline = time.monotonic() + seconds
        enough = any if any_will_do else all
        while not enough(pending.done() for _, pending in self._waiting.values()):
            left = deadline - time.monotonic()
            if left <= 0:
                return
            client.pump(left)
        while not all(pending.done() for _, pending in self._waiting.values()) and client.pump(_GRACE_SECONDS):
            pass

    def _collect(self) -> dict[str, BatchShare]:
        found: dict[str, BatchShare] = {}
        for entity, (lease, pending) in list(self._waiting.items()):
            if not pending.done():
                continue
            del self._waiting[entity]
            answer = pending.result()
            if answer is not None:
                found[entity] = self._share(entity, lease, answer)
                self.renewer.hold(entity, lease)
        return found

    def _share(self, entity: str, lease: str, answer: dict[str, Any]) -> BatchShare:
        count = int(answer["message-count"])
        runs = answer.get("sessions")
        cuts = cut(count, self._messages_per_task, None if runs is None else [int(run) for run in runs.values])
        last_came, made = int(answer.get("enqueued-by", 0)), int(answer.get("entity-created-at", 0))
        return BatchShare(entity, lease, count, str(answer["ranges"]), cuts, last_came, made)

    # -- what was taken before ---------------------------------------------------------------

    def secure(self, shares: Iterable[BatchShare]) -> None:
        """These are about to be read, perhaps long after they were planned: alive, or taken again with the very same messages."""
        for share in shares:
            if not self._renewed(share):
                self._take_again(share)
            self.renewer.hold(share.entity, share.lease)

    def _renewed(self, share: BatchShare) -> bool:
        try:
            self.request(share.entity, "com.tandem:renew-lease", {"lease-id": share.lease, "duration-ms": self._lease_seconds * 1000})
        except TransportError as error:
            if error.condition != LEASE_LOST:
                raise
            return False
        return True

    def _take_again(self, share: BatchShare) -> None:
        body: dict[str, object] = {"lease-id": share.lease, "ranges": share.ranges, "duration-ms": self._lease_seconds * 1000}
        if share.enqueued_by:
            body["enqueued-by"] = self.client.instant(share.enqueued_by)
        if share.entity_created_at:
            body["entity-created-at"] = self.client.instant(share.entity_created_at)
        self.request(share.entity, "com.tandem:lease-batch", body)

    def complete(self, shares: Iterable[BatchShare]) -> None:
        """Spark has committed these: their messages leave the queue. Again is no harm."""
        for share in shares:
            self.renewer.forget(share.lease)
            try:
                self._complete(share)
            except TransportError as error:
                if error.condition != LEASE_LOST:
                    raise
                self._complete_late(share)

    def _complete(self, share: BatchShare) -> None:
        self.request(share.entity, "com.tandem:complete-lease", {"lease-id": share.lease})

    def _complete_late(self, share: BatchShare) -> None:
        """Its lease lapsed before it was completed. What nobody else has taken meanwhile need not come again."""
        try:
            self._take_again(share)
            self._complete(share)
        except TransportError as error:
            if error.condition != LEASE_LOST:
                raise
            log.warning(
                "lease %s of %s lapsed before it was completed: some of its %d messages may come again: %s",
                share.lease, share.entity, share.count, error,
            )  # fmt: skip

    def counts(self, entity: str) -> dict[str, int]:
        answer = self.request(entity, "com.tandem:message-counts", {})
        return {name: int(count) for name, count in (answer or {}).items()}
