"""Senders and receivers of the official SDK that go on whatever happens to the nodes, and know what became of each message."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver

from tests.cli.broker_process import BrokerProcess
from tests.cluster.nodes import until

TROUBLE = Exception
"""What an SDK raises whose node died: errors of its own, and whatever its inside makes of a link that was closed under its feet."""


@dataclass
class Counted:
    """Of one queue. A message whose send failed may be there or not, one whose completion failed too; one that was completed must not come
    again."""

    accepted: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    completed: set[str] = field(default_factory=set)
    completing: set[str] = field(default_factory=set)
    """It is not known whether they are."""
    duplicated: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    @property
    def lost(self) -> set[str]:
        return self.accepted - self.completed - self.completing


class Traffic:
    """`with Traffic(nodes, queues)`: one sender and one receiver for each queue, each at a node that is changed after every trouble."""

    def __init__(self, nodes: dict[str, BrokerProcess], queues: list[str], keyed: frozenset[str] = frozenset()) -> None:
        self._nodes = nodes
        """Those that run; may be changed meanwhile."""
        self._keyed = keyed
        self.counted = {queue: Counted() for queue in queues}
        self.troubles: Counter[str] = Counter()
        """What clients have met, by the name of the error."""
        self._ending = threading.Event()
        self._turns = itertools.count()
        self._drained = threading.Event()
        self._senders = [threading.Thread(target=self._send, args=(queue,), daemon=True) for queue in queues]
        self._receivers = [threading.Thread(target=self._receive, args=(queue,), daemon=True) for queue in queues]
        for thread in (*self._senders, *self._receivers):
            thread.start()

    @contextmanager
    def _client(self) -> Iterator[ServiceBusClient]:
        nodes = sorted(self._nodes)
        node = self._nodes[nodes[next(self._turns) % len(nodes)]]
        with ServiceBusClient.from_connection_string(node.connection_string, retry_total=0, socket_timeout=5) as client:
            yield client

    def _send(self, queue: str) -> None:
        counted = self.counted[queue]
        numbers = itertools.count()
        while not self._ending.is_set():
            try:
                with self._client() as client, client.get_queue_sender(queue) as sender:
                    while not self._ending.is_set():
                        name = f"{queue}-{next(numbers)}"
                        key = f"key-{len(counted.accepted) % 7}" if queue in self._keyed else None
                        message = ServiceBusMessage(name, message_id=name, partition_key=key)
                        counted.doubtful.add(name)
                        sender.send_messages(message, timeout=20)
                        counted.accepted.add(name)
                        counted.doubtful.discard(name)
                        self._ending.wait(0.01)
            except TROUBLE as error:
                self.troubles[type(error).__name__] += 1
                self._ending.wait(0.1)

    def _receive(self, queue: str) -> None:
        while not self._drained.is_set():
            try:
                with self._client() as client, client.get_queue_receiver(queue, prefetch_count=20) as receiver:
                    while not self._drained.is_set():
                        self._take(self.counted[queue], receiver)
            except TROUBLE as error:
                self.troubles[type(error).__name__] += 1
                self._drained.wait(0.1)

    def _take(self, counted: Counted, receiver: ServiceBusReceiver) -> None:
        for message in receiver.receive_messages(20, max_wait_time=1):
            name = str(message)
            if name not in counted.accepted and name not in counted.doubtful:
                counted.unexpected.append(name)
            if name in counted.completed:
                counted.duplicated.append(name)
            counted.completing.add(name)
            receiver.complete_message(message)
            counted.completed.add(name)
            counted.completing.discard(name)

    def goes_on(self) -> None:
        """Every queue has taken and given something since now."""
        before = {queue: (len(one.accepted), len(one.completed)) for queue, one in self.counted.items()}

        def moved(queue: str) -> Callable[[], bool]:
            counted, (accepted, completed) = self.counted[queue], before[queue]
            return lambda: len(counted.accepted) > accepted + 3 and len(counted.completed) > completed + 3

        for queue in self.counted:
            until(moved(queue), 60, f"{queue} goes on; {dict(self.troubles)}, {before[queue]}")

    def end(self) -> dict[str, tuple[int, int, int]]:
        """By queue: lost, duplicated, unexpected."""
        self._ending.set()
        for thread in self._senders:
            thread.join(60)
        for counted in self.counted.values():
            until(lambda counted=counted: not counted.lost, 60, "the arrival of all that was accepted")  # type: ignore[misc]
        self._drained.set()
        for thread in self._receivers:
            thread.join(60)
        return {queue: (len(one.lost), len(one.duplicated), len(one.unexpected)) for queue, one in self.counted.items()}
