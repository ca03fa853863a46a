"""An attempt's claims to what it works on: with speculation Spark may run two attempts of one task, and only one may send."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tandem.engine_client.blocking import BlockingClient, TransportError
from tandem.spark.connector.connections import patiently, unreachable

if TYPE_CHECKING:
    from tandem.spark.connector.options import Where

log = logging.getLogger("tandem.spark")

CLAIM_MS: Final = 30_000
_LOOK_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Claimable:
    """What attempts compete for, as the broker knows it."""

    noun: str
    operation: str
    field: str


LEASE: Final = Claimable("lease", "com.tandem:claim-lease", "lease-id")
TASK: Final = Claimable("task", "com.tandem:claim-task", "task")


class BatchClaims:
    """Held for as long as this attempt lives; a stopped process loses them after `claim_ms` and notices when it goes on."""

    def __init__(self, where: Where, entity: str, what: Claimable = LEASE, claim_ms: int = CLAIM_MS) -> None:
        self._where = where
        self._entity = entity
        self._what = what
        self._claim_ms = claim_ms
        self.attempt = uuid.uuid4().hex
        self._held: dict[str, float] = {}
        """What -> until when, by the clock of this machine, the claim is certain."""
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="tandem-claims", daemon=True)

    def take(self, name: str) -> None:
        """Waits while another living attempt has it: whoever finished now would be taken for the winner, and that one be killed."""
        while True:
            asked = time.monotonic()
            holder = self._ask(name, held=False)
            if holder == self.attempt:
                break
            log.info("%s: %s %s is in the hands of attempt %s", self._entity, self._what.noun, name, holder)
            time.sleep(_LOOK_SECONDS)
        with self._lock:
            self._held[name] = asked + self._claim_ms / 1000
        if not self._keeper.is_alive() and not self._done.is_set():
            self._keeper.start()

    def check(self) -> None:
        """Before every send. Raises TransportError if a claim is lost, or may be: another attempt may be sending the same messages."""
        with self._lock:
            doubtful = [name for name, until in self._held.items() if time.monotonic() > until - self._claim_ms / 2_000]
        for name in doubtful:
            self._renew(name)

    def _renew(self, name: str) -> None:
        asked = time.monotonic()
        holder = self._ask(name, held=True)
        if holder != self.attempt:
            lost = f"{self._what.noun} {name} of {self._entity} is in the hands of attempt {holder} now"
            raise TransportError("com.tandem:claim-lost", lost)
        self._certain(name, asked)

    def _certain(self, name: str, asked: float) -> None:
        with self._lock:
            if name in self._held:
                self._held[name] = asked + self._claim_ms / 1000

    def _ask(self, name: str, held: bool) -> str:
        found: str = patiently(self._where, f"claim of {self._entity}", lambda client: self._request(client, name, self._claim_ms, held))
        return found

    def _request(self, client: BlockingClient, name: str, duration_ms: int, held: bool) -> str:
        body: dict[str, object] = {self._what.field: name, "attempt": self.attempt, "duration-ms": duration_ms, "held": held}
        answer = client.request(self._entity, self._what.operation, body)
        return str(answer["attempt"]) if answer is not None else ""

    def _keep(self) -> None:
        """On a connection of its own: the task may be waiting for the primary."""
        while not self._done.wait(self._claim_ms / 3_000):
            try:
                with BlockingClient(self._where.endpoint, timeout=min(5.0, self._where.timeout_seconds)) as client:
                    for name in list(self._held):
                        self._keep_one(client, name)
            except TransportError as error:
                log.info("claims could not be kept, trying again: %s", error)

    def _keep_one(self, client: BlockingClient, name: str) -> None:
        asked = time.monotonic()
        try:
            if self._request(client, name, self._claim_ms, held=True) == self.attempt:
                self._certain(name, asked)
        except TransportError as error:
            if unreachable(error):
                raise
            return  # it lapsed; whoever reads it finds out

    def release(self, after_ms: int = 0) -> None:
        """Done, one way or the other: the next attempt need not wait, or not longer than this."""
        self._done.set()
        with self._lock:
            held, self._held = list(self._held), {}
        if not held:
            return
        try:
            with BlockingClient(self._where.endpoint, timeout=min(5.0, self._where.timeout_seconds)) as client:
                for name in held:
                    self._request(client, name, after_ms, held=True)
        except TransportError as error:
            log.info("claims were not given back and end by themselves: %s", error)
