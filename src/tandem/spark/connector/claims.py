"""An attempt's claim to the leases it works on: with speculation Spark may run two attempts of one task, and only one may send."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import TYPE_CHECKING, Final

from tandem.engine_client.blocking import BlockingClient, TransportError
from tandem.spark.connector.connections import patiently, unreachable

if TYPE_CHECKING:
    from tandem.spark.connector.options import Where

log = logging.getLogger("tandem.spark.syphon")

CLAIM_MS: Final = 30_000
_LOOK_SECONDS: Final = 0.5


class LeaseClaims:
    """Held for as long as this attempt lives; a stopped process loses them after half a minute and notices when it goes on."""

    def __init__(self, where: Where, queue: str, claim_ms: int = CLAIM_MS) -> None:
        self._where = where
        self._queue = queue
        self._claim_ms = claim_ms
        self.attempt = uuid.uuid4().hex
        self._held: dict[str, float] = {}
        """Lease -> until when, by the clock of this machine, the claim is certain."""
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="tandem-claims", daemon=True)

    def take(self, lease: str) -> None:
        """Waits while another living attempt has it: whoever finished now would be taken for the winner, and that one be killed."""
        while True:
            asked = time.monotonic()
            holder = self._ask(lease, held=False)
            if holder == self.attempt:
                break
            log.info("%s: lease %s is in the hands of attempt %s", self._queue, lease, holder)
            time.sleep(_LOOK_SECONDS)
        with self._lock:
            self._held[lease] = asked + self._claim_ms / 1000
        if not self._keeper.is_alive() and not self._done.is_set():
            self._keeper.start()

    def check(self) -> None:
        """Before every send. Raises TransportError if a claim is lost, or may be: another attempt may be sending the same messages."""
        with self._lock:
            doubtful = [lease for lease, until in self._held.items() if time.monotonic() > until - self._claim_ms / 2_000]
        for lease in doubtful:
            self._renew(lease)

    def _renew(self, lease: str) -> None:
        asked = time.monotonic()
        holder = self._ask(lease, held=True)
        if holder != self.attempt:
            raise TransportError("com.tandem:claim-lost", f"lease {lease} of {self._queue} is in the hands of attempt {holder} now")
        with self._lock:
            if lease in self._held:
                self._held[lease] = asked + self._claim_ms / 1000

    def _ask(self, lease: str, held: bool) -> str:
        body: dict[str, object] = {"lease-id": lease, "attempt": self.attempt, "duration-ms": self._claim_ms, "held": held}

        def step(client: BlockingClient) -> str:
            answer = client.request(self._queue, "com.tandem:claim-lease", body)
            return str(answer["attempt"]) if answer is not None else ""

        found: str = patiently(self._where, f"claim of {self._queue}", step)
        return found

    def _keep(self) -> None:
        """On a connection of its own: the task may be waiting for the primary."""
        while not self._done.wait(self._claim_ms / 3_000):
            try:
                with BlockingClient(self._where.endpoint, timeout=min(5.0, self._where.timeout_seconds)) as client:
                    for lease in list(self._held):
                        self._keep_one(client, lease)
            except TransportError as error:
                log.info("claims could not be kept, trying again: %s", error)

    def _keep_one(self, client: BlockingClient, lease: str) -> None:
        asked = time.monotonic()
        body: dict[str, object] = {"lease-id": lease, "attempt": self.attempt, "duration-ms": self._claim_ms, "held": True}
        try:
            answer = client.request(self._queue, "com.tandem:claim-lease", body)
        except TransportError as error:
            if unreachable(error):
                raise
            return  # it lapsed; whoever reads it finds out
        if answer is not None and answer["attempt"] == self.attempt:
            with self._lock:
                if lease in self._held:
                    self._held[lease] = asked + self._claim_ms / 1000

    def release(self) -> None:
        """Done, one way or the other: the next attempt need not wait."""
        self._done.set()
        with self._lock:
            held, self._held = list(self._held), {}
        if not held:
            return
        try:
            with BlockingClient(self._where.endpoint, timeout=min(5.0, self._where.timeout_seconds)) as client:
                for lease in held:
                    body: dict[str, object] = {"lease-id": lease, "attempt": self.attempt, "duration-ms": 0, "held": True}
                    client.request(self._queue, "com.tandem:claim-lease", body)
        except TransportError as error:
            log.info("claims were not given back and end by themselves: %s", error)
