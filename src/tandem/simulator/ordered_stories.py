"""The outage story with sessions kept in order: several processes that are killed and begin again, and every session stays in order."""

from __future__ import annotations

import asyncio
import bisect
import contextvars
from random import Random

from azure.servicebus import ServiceBusMessage

from tandem.model.entity import QueueDescription
from tandem.simulator.agenda import MACHINE, Machine
from tandem.simulator.amqp_client import AmqpClient
from tandem.simulator.paired_stories import pair_up
from tandem.simulator.story import SEQUENCE_NUMBER, Actor, Story, body_of
from tandem.simulator.world import Entities, World

_PROCESSES = 2
_SESSIONS = 3
"""Of each process: what several send to one session has no order between them."""
_TIMEOUT = 30.0
_LIFE_SECONDS = 120.0


class SessionBook:
    """Messages of one session in the order in which their sends returned, and the places they have in the queue."""

    def __init__(self) -> None:
        self._turn: dict[str, int] = {}
        self._number: dict[str, int] = {}
        self._known: list[tuple[int, int, str]] = []

    def accepted(self, key: str) -> str:
        self._turn[key] = len(self._turn)
        return self._check(key)

    def delivered(self, key: str, number: int) -> str:
        if key in self._number:
            return ""
        self._number[key] = number
        return self._check(key)

    def _check(self, key: str) -> str:
        """What is out of order, once both are known."""
        turn, number = self._turn.get(key), self._number.get(key)
        if turn is None or number is None:
            return ""
        at = bisect.bisect(self._known, (turn, number, key))
        self._known.insert(at, (turn, number, key))
        if at and self._known[at - 1][1] > number:
            return f"{key} stands before {self._known[at - 1][2]}, which was sent earlier"
        if at + 1 < len(self._known) and self._known[at + 1][1] < number:
            return f"{key} stands behind {self._known[at + 1][2]}, which was sent later"
        return ""


class InOrder(Story):
    """Each process sends one message after the other, with `keep_session_order`; duplicates of unsure sends are the primary's to drop."""

    queue = "steps"
    gap_seconds = 2.5

    def __init__(self, world: World, host: str, dice: Random) -> None:
        super().__init__(world, host, dice)
        self._books: dict[str, SessionBook] = {}
        self._owner: dict[str, str] = {}
        self._sending = [False] * _PROCESSES

    def entities(self) -> Entities:
        queue = QueueDescription(
            name=self.queue,
            lock_duration_ms=self.lock_ms,
            max_delivery_count=1_000_000,
            requires_duplicate_detection=True,
            duplicate_detection_history_ms=3_600_000 * 24,
        )
        return Entities(queues=(queue,))

    def actors(self) -> list[Actor]:
        return [self.consume]

    def start(self) -> None:
        super().start()
        for number in range(_PROCESSES):
            self.tasks.append(asyncio.ensure_future(self._operate(number)))

    async def _operate(self, number: int) -> None:
        """Run a process, kill it after a while, run it again."""
        life = 0
        while not self.draining:
            life += 1
            machine = Machine(f"sender-{number}#{life}")
            context = contextvars.copy_context()
            context.run(MACHINE.set, machine)
            task = self.world.loop.create_task(self._process(number), context=context)
            if not await self._lives():
                return
            self.world.trace.happened(f"{machine.name} is killed")
            machine.alive = False
            self.world.loop.keep(task)
            self.world.net.machine_died(machine, self.dice.random() < 0.7)
            self._sending[number] = False
            await asyncio.sleep(self.dice.uniform(0.1, 20.0))

    async def _lives(self) -> bool:
        """False when it may live on: nobody is killed while everything is drained."""
        await asyncio.sleep(self.dice.expovariate(1 / _LIFE_SECONDS))
        return not self.draining

    async def _process(self, number: int) -> None:
        pair = await pair_up(self.world, self.dice, enable_syphon=self.dice.random() < 0.5, keep_session_order=True)
        assert pair.order is not None
        await pair.order.looked.wait()  # one that sends before gives up the order with what an earlier one left
        pair.subscribe(lambda event: self.world.trace.happened(f"steps {number}: {event.kind} {event.path}"))
        sender = pair.get_queue_sender(self.queue)
        while await self.pace():
            session = f"{number}-{self.dice.randrange(_SESSIONS)}"
            key = self.next_key()
            self._owner[key] = session
            self.checker.sending(key)
            self._sending[number] = True
            try:
                await sender.send_messages(ServiceBusMessage(body_of(key), message_id=key, session_id=session), timeout=_TIMEOUT)
            except Exception as error:  # noqa: BLE001 - both namespaces may be away; whatever became of it has no order
                self.world.trace.happened(f"{key} failed: {error!r}"[:200])
            else:
                self.checker.accepted(key)
                self._look(self._book(session).accepted(key))
            self._sending[number] = False

    def _book(self, session: str) -> SessionBook:
        return self._books.setdefault(session, SessionBook())

    def _look(self, wrong: str) -> None:
        if wrong:
            self.wrong(wrong)

    async def is_empty(self, client: AmqpClient) -> bool:
        return not any(self._sending) and await super().is_empty(client)

    async def consume(self, client: AmqpClient) -> None:
        receiver = await self.receiver(client, self.queue, credit=10)
        while True:
            incoming, key, found = await self.get(receiver)
            number = int(found.message_annotations[SEQUENCE_NUMBER])  # type: ignore[call-overload]
            self._look(self._book(self._owner[key]).delivered(key, number))
            self.settle(receiver, incoming, key)
