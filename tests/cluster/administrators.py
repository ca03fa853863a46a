"""Administrators who make, change and delete queues at any node while nodes die, and remember what each of them was told."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.cli.broker_process import BrokerProcess
from tests.cluster.steady_traffic import TROUBLE


@dataclass
class Kept:
    """One queue as its administrator knows it since it was made for the last time."""

    accepted: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    """Their send failed: they may be there or not."""
    deliveries: int = 10


class Administrator(threading.Thread):
    """Has queues of its own, by name; what failed is done again until it is known to be done."""

    def __init__(self, name: str, nodes: dict[str, BrokerProcess], seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self._nodes = nodes
        """Those that run; may be changed meanwhile."""
        self._dice = random.Random(seed)
        self._numbers = itertools.count()
        self.queues: dict[str, Kept] = {}
        self.deleted: dict[str, set[str]] = {}
        """With the doubtful messages of each: one that was under way may still come to a queue that is made anew."""
        self.did: Counter[str] = Counter()
        self.troubles: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.ending = threading.Event()

    def run(self) -> None:
        while not self.ending.is_set():
            story = self._dice.choice([self._make, self._send, self._send, self._change, self._delete])
            try:
                story()
            except Exception as error:  # told by the test: a thread has nobody to raise it to
                self.wrong.append(f"{story.__name__}: {error!r}")
                return

    def _node(self) -> BrokerProcess:
        return self._nodes[self._dice.choice(sorted(self._nodes))]

    def _administer(self, what: str, ask: Callable[[ServiceBusAdministrationClient], object], done: type[Exception] | None = None) -> None:
        """Until it is done; `done` says that an attempt which failed has done it."""
        for attempt in itertools.count():
            node = self._node()
            trusted = str(node.directory / node.line("CA file:"))
            try:
                with ServiceBusAdministrationClient.from_connection_string(
                    node.connection_string, connection_verify=trusted, retry_total=0
                ) as client:
                    ask(client)
            except TROUBLE as error:
                if attempt and done is not None and isinstance(error, done):
                    break
                if isinstance(error, ResourceExistsError | ResourceNotFoundError):
                    raise
                self.troubles[type(error).__name__] += 1
                if attempt > 200:
                    raise
                self.ending.wait(0.1)
            else:
                break
        self.did[what] += 1

    def _make(self) -> None:
        if len(self.queues) > 5:
            return
        name = (
            self._dice.choice(sorted(self.deleted)) if self.deleted and self._dice.random() < 0.6 else f"{self.name}-{next(self._numbers)}"
        )
        partitioned = self._dice.random() < 0.4
        self._administer("made", lambda client: client.create_queue(name, enable_partitioning=partitioned), ResourceExistsError)
        self.queues[name] = Kept(doubtful=self.deleted.pop(name, set()))

    def _delete(self) -> None:
        if len(self.queues) < 3:
            return
        name = self._dice.choice(sorted(self.queues))
        self._administer("deleted", lambda client: client.delete_queue(name), ResourceNotFoundError)
        self.deleted[name] = self.queues.pop(name).doubtful

    def _change(self) -> None:
        if not self.queues:
            return
        name = self._dice.choice(sorted(self.queues))
        deliveries = self._dice.randint(11, 1000)

        def change(client: ServiceBusAdministrationClient) -> None:
            queue = client.get_queue(name)
            queue.max_delivery_count = deliveries
            client.update_queue(queue)

        self._administer("changed", change)
        self.queues[name].deliveries = deliveries

    def _send(self) -> None:
        if not self.queues:
            return
        name = self._dice.choice(sorted(self.queues))
        kept = self.queues[name]
        try:
            with (
                ServiceBusClient.from_connection_string(self._node().connection_string, retry_total=0, socket_timeout=5) as client,
                client.get_queue_sender(name) as sender,
            ):
                for _ in range(5):
                    body = f"{name}-{next(self._numbers)}"
                    kept.doubtful.add(body)
                    sender.send_messages(ServiceBusMessage(body), timeout=10)
                    kept.accepted.add(body)
                    kept.doubtful.discard(body)
                    self.did["sent"] += 1
        except TROUBLE as error:
            self.troubles[type(error).__name__] += 1
            self.ending.wait(0.1)
