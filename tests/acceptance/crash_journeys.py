"""What clients do while the broker is being killed, for messages that go further: fragments, filters, forwarding, transactions, leases."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, ClassVar

from tandem import amqp
from tandem.simulator.amqp_client import AmqpClient, AmqpSender, Gone, PeerRefused
from tandem.simulator.checker import Checker
from tests.acceptance.crash_stories import ABANDONED, Actor, FannedOut, Plain, Sessions
from tests.acceptance.crashing import CrashingBroker, Story, body_of, message, peek, read
from tests.gateway.amqp.coordinator import transactional_transfer


class Partitioned(Plain):
    """As Plain, over fragments in all stores."""

    queue = "fragments"
    properties: ClassVar[dict[str, object]] = {"enable_partitioning": True}


class PartitionedSessions(Sessions):
    """As Sessions, each in a fragment of its own."""

    queue = "session-fragments"
    properties: ClassVar[dict[str, object]] = {"requires_session": True, "enable_partitioning": True}


class Filtered(FannedOut):
    """One subscription gets everything, the other what its rule lets through, changed by its action; each exactly that."""

    queue = "filtered"
    subscriptions = ("all", "thirds")

    def config(self) -> str:
        rule = ["[[topic.subscription.rule]]", 'name = "thirds"', 'sql = "n % 3 = 0"', "action = \"SET seen = 'yes'\""]
        return super().config() + "\n".join(rule) + "\n"

    async def produce(self, client: AmqpClient) -> None:
        sender = await client.sender(self.queue)
        while await self.room():
            if not sender.link.attached:
                raise Gone("crashed")
            key = self.next_key()
            views = [view for name, view in self.views.items() if name == "all" or self._number % 3 == 0]
            for view in views:
                view.sending(key)
            self.waiting += 1
            payload = amqp.encode_message(
                properties={"message-id": key}, application_properties={"key": key, "n": self._number}, body=[body_of(key)]
            )
            sender.send(payload).add_done_callback(lambda answer, key=key, views=views: self._heard(answer, key, views))

    def _heard(self, answer: asyncio.Future[None], key: str, views: list[Checker]) -> None:
        if answer.exception() is None:
            for view in views:
                view.accepted(key)
        else:
            self.waiting -= 1


class Forwarded(Story):
    """Sent to the first of three queues, which forward to each other across stores; received from the last, once."""

    queue = "chain-1"
    chain = ("chain-1", "chain-2", "chain-3")

    def config(self) -> str:
        text = ""
        for name, target in zip(self.chain, (*self.chain[1:], ""), strict=True):
            text += f'[[queue]]\nname = "{name}"\nlock_duration = "5m"\nmax_delivery_count = 2000\n'
            text += f'forward_to = "{target}"\n' if target else ""
        return text

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume]

    async def consume(self, client: AmqpClient) -> None:
        receiver = await client.receiver(self.chain[-1], credit=20)
        while True:
            incoming = await receiver.get()
            key, number, _ = read(self.checker, incoming.payload)
            self.checker.delivered(key, number)
            self.settle(receiver, incoming, key)

    async def is_empty(self, client: AmqpClient) -> bool:
        for name in self.chain:
            if await peek(client, name):
                return False
        return True


class Transactional(Story):
    """Each message of one queue becomes one in another, in a transaction: both happen or none, and what is rolled back never happened."""

    queue = "tx-in"
    target = "tx-out"

    def __init__(self, broker: CrashingBroker, dice: random.Random) -> None:
        super().__init__(broker, dice)
        self.out = Checker(self.target)
        self._rolled_back = 0

    def config(self) -> str:
        return super().config() + f'[[queue]]\nname = "{self.target}"\nlock_duration = "5m"\nmax_delivery_count = 2000\n'

    def checkers(self) -> list[Checker]:
        return [self.checker, self.out]

    def actors(self) -> list[Actor]:
        return [self.produce, self.work, self.consume]

    async def work(self, client: AmqpClient) -> None:
        transactions = await Transactions.open(client)
        sender = await client.sender(self.target)
        receiver = await client.receiver(self.queue, credit=5)
        while True:
            incoming = await receiver.get()
            key, number, _ = read(self.checker, incoming.payload)
            self.checker.delivered(key, number)
            transaction = await transactions.declare()
            if self.dice.random() < 0.1:
                self._rolled_back += 1
                undone = f"{self.target}-undone-{self._rolled_back}"
                self.out.sending(undone)
                self.out.refused(undone)
                await transactions.send(sender, transaction, message(undone, body_of(undone)))
                await transactions.discharge(transaction, fail=True)
                await receiver.settle(incoming, ABANDONED)
                continue
            self.out.sending(key)
            self.checker.settling(key)
            await transactions.send(sender, transaction, message(key, body_of(key)))
            await receiver.settle(incoming, amqp.encode_transactional(transaction, amqp.ACCEPTED))
            await transactions.discharge(transaction)
            self.checker.settled(key)
            self.out.accepted(key)
            self.waiting -= 1

    async def consume(self, client: AmqpClient) -> None:
        receiver = await client.receiver(self.target, credit=20)
        while True:
            while not self.draining and self.out.open_count < 5:
                await asyncio.sleep(0.01)  # so that crashes find some waiting
            incoming = await receiver.get()
            key, number, _ = read(self.out, incoming.payload)
            self.out.delivered(key, number)
            # It is here, so it must not be there any more, whatever became of the answer.
            self.checker.settling(key)
            self.checker.settled(key)
            self.out.settling(key)
            receiver.settle(incoming).add_done_callback(lambda answer, key=key: self._settled(answer, key))

    def _settled(self, answer: asyncio.Future[None], key: str) -> None:
        if answer.exception() is None:
            self.out.settled(key)

    async def is_empty(self, client: AmqpClient) -> bool:
        return not await peek(client, self.queue) and not await peek(client, self.target)


class Transactions(amqp.LinkHandler):
    """The coordinator of one connection."""

    link: amqp.SenderLink

    def __init__(self, client: AmqpClient) -> None:
        self._client = client
        self._tags = 0
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unanswered: set[asyncio.Future[amqp.Outcome]] = set()

    @classmethod
    async def open(cls, client: AmqpClient) -> Transactions:
        self = cls(client)
        session: Any = client._running().begin()
        target = amqp.Coordinator(["amqp:local-transactions"])
        self.link = session.attach_sender("coordinator", amqp.Terminus("here"), target, self)
        client.plan_flush()
        await self._ready
        return self

    async def declare(self) -> bytes:
        outcome = await self._ask(amqp.Described(amqp.ULong(0x31), [None]))
        assert outcome.txn_id
        return outcome.txn_id

    async def discharge(self, transaction: bytes, fail: bool = False) -> None:
        await self._ask(amqp.Described(amqp.ULong(0x32), [transaction, fail]))

    async def send(self, sender: AmqpSender, transaction: bytes, payload: bytes) -> None:
        """Done when the broker has taken it under the transaction."""
        if not sender.link.attached:
            raise Gone("the link is gone")
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # A transactional state counts as an answer to a sender that only knows `accepted`: it fails with what it was, see below.
        transactional_transfer(sender.link, transaction, payload, answer)
        sender.follow(answer)
        self._client.plan_flush()
        done, _ = await asyncio.wait([answer, self._client.ended], return_when=asyncio.FIRST_COMPLETED)
        if answer not in done:
            raise Gone("the connection ended")
        error = answer.exception()
        if error is not None and not str(error).startswith("not accepted, outcome 0x34"):
            raise error

    async def _ask(self, body: object) -> amqp.Outcome:
        if not self.link.attached:
            raise Gone("the link is gone")
        answer: asyncio.Future[amqp.Outcome] = asyncio.get_running_loop().create_future()
        self._tags += 1
        self.link.send(amqp.encode_message(body=body, body_kind=0x77), self._tags.to_bytes(4, "big"), False, answer)
        self._unanswered.add(answer)
        self._client.plan_flush()
        outcome = await answer
        if outcome.error is not None:
            raise PeerRefused(outcome.error, "the coordinator refused")
        return outcome

    def on_attached(self, link: amqp.Link) -> None:
        self._ready.set_result(None)

    def on_disposition(self, link: amqp.SenderLink, deliveries: list[amqp.Delivery], outcome: amqp.Outcome, settled: bool) -> None:
        for delivery in deliveries:
            answer: Any = delivery.context
            self._unanswered.discard(answer)
            if not answer.done():
                answer.set_result(outcome)

    def on_detach(self, link: amqp.Link, error: amqp.AmqpError | None) -> None:
        for answer in (self._ready, *self._unanswered):
            if not answer.done():
                answer.set_exception(Gone("the link ended"))


class Leased(Story):
    """Batches under a lease: read as often as wanted, completed or given back as one, also by a client that had to come back."""

    queue = "leased"
    lease_ms = 120_000

    def __init__(self, broker: CrashingBroker, dice: random.Random) -> None:
        super().__init__(broker, dice)
        self._leases = 0
        self.current: tuple[str, float, list[str] | None] | None = None
        """Lease id, when it ends at the earliest, what was read under it first."""

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume]

    async def consume(self, client: AmqpClient) -> None:
        while not self.ended:
            if self.current is None:
                await self._take(client)
            else:
                await self._work(client, *self.current)

    async def _take(self, client: AmqpClient) -> None:
        self._leases += 1
        lease_id = f"{self.queue}-{self._leases}"
        ends = time.monotonic() + self.lease_ms / 1000
        # Kept before the answer: a crash in between leaves a lease that only its name leads back to.
        self.current = (lease_id, ends, None)
        request = {"lease-id": lease_id, "max-messages": 20, "max-bytes": 1_000_000, "duration-ms": self.lease_ms, "wait-ms": 200}
        status, _ = await client.request(self.queue, "com.tandem:lease-batch", request)
        if status != 200:
            self.current = None

    async def _work(self, client: AmqpClient, lease_id: str, ends: float, before: list[str] | None) -> None:
        try:
            keys = await self._read(client, lease_id)
            if before is not None and keys != before:
                self.checker.wrong(f"lease {lease_id} held {before}, and holds {keys} now")
            self.current = (lease_id, ends, keys)
            luck = self.dice.random()
            if luck < 0.2:
                return  # read again
            if luck < 0.3:
                self.current = None
                await client.request(self.queue, "com.tandem:abandon-lease", {"lease-id": lease_id})
                return
            for key in keys:
                self.checker.settling(key)
            await client.request(self.queue, "com.tandem:complete-lease", {"lease-id": lease_id})
        except PeerRefused as refused:
            if "lease-lost" not in refused.condition:
                raise
            if before and time.monotonic() < ends and all(self.checker.is_open(key) for key in before):
                self.checker.wrong(f"lease {lease_id} was lost before its end")
            self.current = None
            return
        for key in keys:
            self.checker.settled(key)
            self.waiting -= 1
        self.current = None

    async def _read(self, client: AmqpClient, lease_id: str) -> list[str]:
        keys: list[str] = []
        at = 0
        while True:
            status, body = await client.request(self.queue, "com.tandem:read-lease", {"lease-id": lease_id, "skip": at, "top": 8})
            if status == 204:
                return keys
            for payload in body["messages"]:
                key, number, _ = read(self.checker, payload)
                self.checker.delivered(key, number)
                keys.append(key)
            at = int(body["next"])


JOURNEYS: tuple[type[Story], ...] = (Partitioned, PartitionedSessions, Filtered, Forwarded, Transactional, Leased)
