"""Clients that move messages between queues, each in a transaction, whatever is killed under them: no message is lost, none is doubled."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from tandem import amqp
from tandem.gateway.amqp.sending import BATCH_FORMAT
from tests.conformance.raw import Raw, Refused, message
from tests.gateway.amqp.coordinator import Coordinator, send_in, settle_in


class Movers:
    """`ports`: where a client may come to just now."""

    def __init__(self, ports: Callable[[], list[int]], queues: list[str], messages: int, seed: int, clients: int = 3) -> None:
        self._ports = ports
        self._queues = queues
        self._stop = threading.Event()
        self.sent = [f"{number}" for number in range(messages)]
        self.moved = 0
        """Transactions that were discharged, over two queues each."""
        self.batches = 0
        """Those that sent several messages at once, with keys that may lead to several owners."""
        self.broken = 0
        """Those whose client does not know."""
        self._threads = [threading.Thread(target=self._come_back, args=(random.Random(seed + n),), daemon=True) for n in range(clients)]

    def start(self) -> None:
        with Raw(self._ports()[0]) as raw:
            for number, text in enumerate(self.sent):
                raw.feed(self._queues[number % len(self._queues)], text)
        for thread in self._threads:
            thread.start()

    def _come_back(self, dice: random.Random) -> None:
        while not self._stop.is_set():
            try:
                with Raw(dice.choice(self._ports())) as raw:
                    self._move(raw, dice)
            except (Refused, AssertionError, OSError, KeyError, RuntimeError):
                self.broken += 1
                time.sleep(0.1)

    def _move(self, raw: Raw, dice: random.Random) -> None:
        coordinator = Coordinator(raw)
        receivers = {queue: raw.receiver(queue) for queue in self._queues}
        senders = {queue: raw.sender(queue) for queue in self._queues}
        while not self._stop.is_set():
            source, target = dice.sample(self._queues, 2)
            receiver = receivers[source]
            receiver.link.grant(2)
            raw.until(lambda receiver=receiver: bool(receiver.end.deliveries) or receiver.end.gone, 3)  # type: ignore[misc]
            if not receiver.end.deliveries:
                raise Refused(receiver.end.error)
            arrivals, receiver.end.deliveries = receiver.end.deliveries, []
            transaction = coordinator.declare()
            keys = [{"x-opt-partition-key": f"key-{dice.randrange(12)}"} for _ in arrivals]
            moving = [message(arrival.text, message_annotations=key) for arrival, key in zip(arrivals, keys, strict=True)]
            if len(moving) == 1:
                send_in(senders[target], transaction, moving[0])
            else:
                send_in(senders[target], transaction, amqp.encode_message(body=moving), message_format=BATCH_FORMAT)
            for arrival in arrivals:
                settle_in(receiver, transaction, arrival)
            coordinator.discharge(transaction)
            self.moved += 1
            self.batches += len(moving) > 1

    def end(self, seconds: float = 60) -> list[str]:
        """What is in the queues, after everybody has left and what was in doubt is known."""
        self._stop.set()
        for thread in self._threads:
            thread.join(30)
        found: list[str] = []
        deadline = time.monotonic() + seconds
        more = 2
        while more and time.monotonic() < deadline:
            for queue in self._queues:
                try:
                    with Raw(self._ports()[0]) as raw:
                        found += [arrival.text for arrival in raw.receiver(queue, delete=True).drain(1_000)]
                except (Refused, AssertionError, OSError):
                    time.sleep(0.2)
            if len(found) >= len(self.sent):  # and nothing comes twice, later
                more -= 1
                time.sleep(1)
        return sorted(found, key=int)
