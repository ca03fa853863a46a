"""Stories of messages that go further: to the dead-letter queue, to subscriptions, to another queue, into a lease; and at most once."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import Any, ClassVar

from tandem import amqp
from tandem.model.entity import QueueDescription, RuleDescription, SqlFilter, SubscriptionDescription, TopicDescription
from tandem.simulator.amqp_client import AmqpClient, Gone, PeerRefused
from tandem.simulator.checker import Checker
from tandem.simulator.queue_stories import (
    MANY,
    Deferred,
    Partitioned,
    PartitionedSessions,
    Plain,
    QueueStory,
    Scheduled,
    Selected,
    SelectedInFragments,
    Sessions,
)
from tandem.simulator.story import Actor, Story, message
from tandem.simulator.world import Entities, World


class DeadLettered(QueueStory):
    """Half of the messages are dead-lettered with their own name as the reason: each is in one place, never in two, never in none."""

    queue = "dead"

    def __init__(self, world: World, host: str, dice: Random) -> None:
        super().__init__(world, host, dice)
        self.dead: set[str] = set()

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume, self.bury]

    def addresses(self) -> list[str]:
        return [self.queue, f"{self.queue}/$DeadLetterQueue"]

    async def produce(self, client: AmqpClient) -> None:
        await self.send_steadily(client, message)

    async def consume(self, client: AmqpClient) -> None:
        receiver = await self.receiver(client, self.queue, credit=10)
        while True:
            incoming, key, _ = await self.get(receiver)
            if key in self.dead:
                self.wrong(f"{key} was dead-lettered, and is delivered")
            if self.dice.random() < 0.5:
                self.checker.moved(key)
                self.released(key)
                reason = amqp.AmqpError("com.microsoft:dead-letter", None, {amqp.Symbol("DeadLetterReason"): key})
                receiver.settle(incoming, amqp.encode_rejected(reason)).add_done_callback(partial(self._buried, key))
            else:
                self.settle(receiver, incoming, key)

    def _buried(self, key: str, answer: asyncio.Future[None]) -> None:
        if answer.exception() is None:
            self.dead.add(key)

    async def bury(self, client: AmqpClient) -> None:
        address = f"{self.queue}/$DeadLetterQueue"
        receiver = await self.receiver(client, address, credit=10)
        while True:
            incoming, key, found = await self.get(receiver)
            self.dead.add(key)
            if found.application_properties.get("DeadLetterReason") not in (key, "MessageDamaged"):
                self.wrong(f"{key} was dead-lettered for {found.application_properties.get('DeadLetterReason')!r}")
            self.settle(receiver, incoming, key)


class Once(QueueStory):
    """Duplicate detection: every message is sent until it is accepted, and some once more; each is there once."""

    queue = "once"
    properties: ClassVar[dict[str, Any]] = {"requires_duplicate_detection": True, "duplicate_detection_history_ms": 3_600_000 * 24}

    def __init__(self, world: World, host: str, dice: Random) -> None:
        super().__init__(world, host, dice)
        self.unsure: list[str] = []
        self.recent: list[str] = []

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume]

    async def produce(self, client: AmqpClient) -> None:
        sender = await self.sender(client)
        while await self.pace() or not self.ended:
            if not sender.link.attached:
                raise Gone("the link is gone")
            if self.draining:
                await asyncio.sleep(1.0)
            if self.unsure:
                key = self.unsure.pop()
            elif self.recent and self.dice.random() < 0.15:
                key = self.recent.pop(self.dice.randrange(len(self.recent)))
            elif self.draining:
                continue
            else:
                key = self.next_key()
            self.checker.sending(key)
            sender.send(message(key)).add_done_callback(partial(self._answered, key))

    def _answered(self, key: str, answer: asyncio.Future[None]) -> None:
        error = answer.exception()
        if error is None:
            self.checker.accepted(key)
            self.recent.append(key)
            del self.recent[:-50]
            return
        if isinstance(error, PeerRefused):
            self.judge(error, f"{key} was refused")
        self.unsure.append(key)

    async def consume(self, client: AmqpClient) -> None:
        receiver = await self.receiver(client, self.queue, credit=10)
        while True:
            incoming, key, _ = await self.get(receiver)
            self.settle(receiver, incoming, key)

    async def is_empty(self, client: AmqpClient) -> bool:
        return not self.unsure and await super().is_empty(client)


class AtMostOnce(QueueStory):
    """Receive and delete: never twice, and lost only what was on its way when something broke."""

    queue = "at-most-once"
    credit = 4

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume]

    async def produce(self, client: AmqpClient) -> None:
        await self.send_steadily(client, message)

    async def consume(self, client: AmqpClient) -> None:
        receiver = await self.receiver(client, self.queue, delete=True)
        while True:
            receiver.grant(self.credit)
            self.checker.lost_allowed += self.credit
            for _ in range(self.credit):
                _, key, _ = await self.get(receiver)
                self.checker.lost_allowed -= 1
                self.checker.settling(key)
                self.checker.settled(key)


class FannedOut(Story):
    """A topic: one subscription gets everything, another what its filter lets through; both exactly that."""

    queue = "topic"
    partitioned = False

    def __init__(self, world: World, host: str, dice: Random) -> None:
        super().__init__(world, host, dice)
        self.views = {name: Checker(f"{host}/{self.queue}/{name}") for name in ("all", "some")}

    def entities(self) -> Entities:
        rule = RuleDescription(name="some", filter=SqlFilter(expression="n % 3 = 0"))
        common: dict[str, Any] = {"topic": self.queue, "lock_duration_ms": self.lock_ms, "max_delivery_count": MANY}
        return Entities(
            topics=(TopicDescription(name=self.queue, enable_partitioning=self.partitioned),),
            subscriptions=(
                SubscriptionDescription(name="all", **common),
                SubscriptionDescription(name="some", rules=(rule,), **common),
            ),
        )

    def checkers(self) -> list[Checker]:
        return list(self.views.values())

    def addresses(self) -> list[str]:
        return [f"{self.queue}/Subscriptions/{name}" for name in self.views]

    def actors(self) -> list[Actor]:
        return [self.produce, *(self._consumer(name, view) for name, view in self.views.items())]

    async def produce(self, client: AmqpClient) -> None:
        sender = await self.sender(client)
        while await self.pace():
            if not sender.link.attached:
                raise Gone("the link is gone")
            key = self.next_key()
            number = self._number
            views = [self.views["all"]] + ([self.views["some"]] if number % 3 == 0 else [])
            for view in views:
                view.sending(key)
            answer = sender.send(message(key, properties={"n": number}))
            answer.add_done_callback(partial(self._answered, key, views))

    def _answered(self, key: str, views: list[Checker], answer: asyncio.Future[None]) -> None:
        error = answer.exception()
        if error is None:
            for view in views:
                view.accepted(key)
        elif isinstance(error, PeerRefused):
            self.judge(error, f"{key} was refused")

    def _consumer(self, name: str, view: Checker) -> Actor:
        async def consume(client: AmqpClient) -> None:
            address = f"{self.queue}/Subscriptions/{name}"
            receiver = await self.receiver(client, address, checker=view, credit=10)
            while True:
                incoming, key, _ = await self.get(receiver)
                self.settle(receiver, incoming, key, view)

        return consume


class FannedOutInFragments(FannedOut):
    """The same over fragments in all stores."""

    queue = "topic-fragments"
    partitioned = True


class Forwarded(Story):
    """What is sent to one queue arrives in another, which lives in another store: once, and in the order of its arrival."""

    queue = "from"
    target = "to"
    partitioned = False

    def entities(self) -> Entities:
        properties: dict[str, Any] = {"lock_duration_ms": self.lock_ms, "max_delivery_count": MANY}
        return Entities(
            queues=(
                QueueDescription(name=self.queue, forward_to=self.target, **properties),
                QueueDescription(name=self.target, enable_partitioning=self.partitioned, **properties),
            )
        )

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume]

    def addresses(self) -> list[str]:
        return [self.queue, self.target]

    async def produce(self, client: AmqpClient) -> None:
        await self.send_steadily(client, message)

    async def consume(self, client: AmqpClient) -> None:
        receiver = await self.receiver(client, self.target, credit=10)
        while True:
            incoming, key, _ = await self.get(receiver)
            self.settle(receiver, incoming, key)


class ForwardedToFragments(Forwarded):
    """The same into fragments in all stores."""

    queue = "from-one"
    target = "to-fragments"
    partitioned = True


class Leased(QueueStory):
    """Batches under a lease: read as often as wanted, completed or given back as one, also by a client that had to come back."""

    queue = "leased"
    gap_seconds = 2.0

    def __init__(self, world: World, host: str, dice: Random) -> None:
        super().__init__(world, host, dice)
        self._leases = 0
        self.current: tuple[str, int, list[str] | None] | None = None
        """Lease id, when it ends at the earliest, what was read under it first."""

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume]

    async def produce(self, client: AmqpClient) -> None:
        await self.send_steadily(client, message)

    async def consume(self, client: AmqpClient) -> None:
        while not self.ended:
            if self.current is None:
                await asyncio.sleep(self.dice.uniform(0.5, 3.0))
                await self._take(client)
            else:
                await self._work(client, *self.current)

    async def _take(self, client: AmqpClient) -> None:
        self._leases += 1
        lease_id = f"{self.queue}-{self._leases}"
        duration = self.dice.choice((15_000, 60_000))
        ends = self.world.clock.now_ms() + duration
        request = {"lease-id": lease_id, "max-messages": 12, "max-bytes": 1_000_000, "duration-ms": duration, "wait-ms": 5_000}
        status, _ = await self.ask(client, self.queue, "com.tandem:lease-batch", request)
        if status == 200:
            self.current = (lease_id, ends, None)

    async def _work(self, client: AmqpClient, lease_id: str, ends: int, before: list[str] | None) -> None:
        try:
            keys = await self._read(client, lease_id)
            if before is not None and keys != before:
                self.wrong(f"lease {lease_id} held {before}, and holds {keys} now")
            self.current = (lease_id, ends, keys)
            luck = self.dice.random()
            if luck < 0.2:
                return  # read again
            if luck < 0.3:
                self.current = None
                await self.ask(client, self.queue, "com.tandem:abandon-lease", {"lease-id": lease_id})
                return
            for key in keys:
                self.checker.settling(key)
            await self.ask(client, self.queue, "com.tandem:complete-lease", {"lease-id": lease_id})
        except PeerRefused as refused:
            if refused.condition != "com.tandem:lease-lost":
                raise
            if before is not None and self.world.clock.now_ms() < ends and not self._asked_to_complete(before):
                self.wrong(f"lease {lease_id} was lost before its end")
            self.current = None
            return
        for key in keys:
            self.checker.settled(key)
        self.current = None

    def _asked_to_complete(self, keys: list[str]) -> bool:
        return any(not self.checker.is_open(key) for key in keys)

    async def _read(self, client: AmqpClient, lease_id: str) -> list[str]:
        keys: list[str] = []
        at = 0
        while True:
            status, body = await self.ask(client, self.queue, "com.tandem:read-lease", {"lease-id": lease_id, "skip": at, "top": 5})
            if status == 204:
                return keys
            for payload in body["messages"]:
                key, _ = self.took(payload)
                keys.append(key)
            at = int(body["next"])


ALL: tuple[type[Story], ...] = (
    Plain,
    Partitioned,
    Sessions,
    PartitionedSessions,
    Scheduled,
    Deferred,
    DeadLettered,
    Once,
    AtMostOnce,
    FannedOut,
    FannedOutInFragments,
    Forwarded,
    ForwardedToFragments,
    Leased,
    Selected,
    SelectedInFragments,
)
