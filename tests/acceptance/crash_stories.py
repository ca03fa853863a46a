"""What clients do while the broker is being killed: one story for each way a message can take."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import ClassVar

from tandem import amqp
from tandem.simulator.amqp_client import NEXT_SESSION, AmqpClient, AmqpReceiver, Gone, PeerRefused
from tandem.simulator.checker import Checker
from tests.acceptance.crashing import CrashingBroker, Story, body_of, message, peek, read

Actor = Callable[[AmqpClient], Awaitable[None]]
ABANDONED = amqp.encode_modified(True, False)
DEFERRED = amqp.encode_modified(True, True)


class Plain(Story):
    """Pipelined sends, single and in batches; peek-lock, complete, sometimes abandon. A batch is there whole or not at all."""

    queue = "plain"

    def __init__(self, broker: CrashingBroker, dice: random.Random) -> None:
        super().__init__(broker, dice)
        self.batches: list[list[str]] = []

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume, self.consume]

    async def produce(self, client: AmqpClient) -> None:
        sender = await client.sender(self.queue)
        while await self.room():
            if not sender.link.attached:
                raise Gone("crashed")
            if self.dice.random() < 0.1:
                keys = [self.next_key() for _ in range(self.dice.randint(2, 8))]
                self.batches.append(keys)
            else:
                keys = [self.next_key()]
            for key in keys:
                self.checker.sending(key)
            payloads = [message(key, body_of(key)) for key in keys]
            self.follow_send(sender.send(payloads[0]) if len(keys) == 1 else sender.send_batch(payloads), keys)

    async def consume(self, client: AmqpClient) -> None:
        receiver = await client.receiver(self.queue, credit=40)
        while True:
            incoming = await receiver.get()
            key, number, _ = read(self.checker, incoming.payload)
            self.checker.delivered(key, number)
            if self.dice.random() < 0.05:
                receiver.settle(incoming, ABANDONED)
            else:
                self.settle(receiver, incoming, key)

    def check_batches(self) -> None:
        for keys in self.batches:
            seen = [self.checker.was_seen(key) for key in keys]
            if any(seen) and not all(seen):
                self.checker.wrong(f"half a batch: {[key for key, was in zip(keys, seen, strict=True) if not was]} are missing")


class Sessions(Story):
    """Some sessions, each in order, each with a state that says how far it got."""

    queue = "sessions"
    properties: ClassVar[dict[str, object]] = {"requires_session": True}

    def __init__(self, broker: CrashingBroker, dice: random.Random) -> None:
        super().__init__(broker, dice)
        self.sent: dict[str, list[str]] = {f"s{number}": [] for number in range(6)}
        self.places: dict[str, int] = {}
        self.states: dict[str, set[bytes | None]] = {name: {None} for name in self.sent}
        """What a session's state may be: what was confirmed last, and whatever was asked for since."""

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume, self.consume]

    async def produce(self, client: AmqpClient) -> None:
        sender = await client.sender(self.queue)
        while await self.room():
            if not sender.link.attached:
                raise Gone("crashed")
            session = self.dice.choice(list(self.sent))
            key = self.next_key()
            self.places[key] = len(self.sent[session])
            self.sent[session].append(key)
            self.checker.sending(key)
            self.follow_send(sender.send(message(key, body_of(key), session=session)), [key])

    async def consume(self, client: AmqpClient) -> None:
        for _ in range(200):  # the client begins an AMQP session for each, and a connection has 256
            if self.ended:
                return
            try:
                receiver = await client.receiver(self.queue, session=NEXT_SESSION)
            except PeerRefused as refused:
                if refused.condition != "com.microsoft:timeout":
                    raise
                continue
            await self._serve(client, receiver)
        raise Gone("enough for one connection")

    async def _serve(self, client: AmqpClient, receiver: AmqpReceiver) -> None:
        assert receiver.link.source is not None
        session = str(receiver.link.source.filter["com.microsoft:session-filter"])
        await self._check_state(client, session)
        receiver.grant(10)
        seen: list[str] = []
        last: asyncio.Future[None] | None = None
        for _ in range(10):
            try:
                incoming = await asyncio.wait_for(receiver.get(), 0.3)
            except TimeoutError:
                break
            key, number, found = read(self.checker, incoming.payload)
            self.checker.delivered(key, number)
            if found.properties.get("group-id") != session:
                self.checker.wrong(f"{key} of session {found.properties.get('group-id')} was delivered to session {session}")
            skipped = [one for one in self.sent[session][: self.places[key]] if one not in seen and self.checker.is_open(one)]
            if skipped:
                self.checker.wrong(f"session {session}: {key} came before {skipped[:3]}")
            seen.append(key)
            last = self.settle(receiver, incoming, key)
        if last is not None:
            await last
            await self._set_state(client, session, seen[-1].encode())
        await receiver.detach()

    async def _check_state(self, client: AmqpClient, session: str) -> None:
        _, body = await client.request(self.queue, "com.microsoft:get-session-state", {"session-id": session})
        state = body["session-state"]
        if state not in self.states[session]:
            self.checker.wrong(f"session {session}: its state is {state!r}, it can only be one of {self.states[session]}")
        self.states[session] = {state}

    async def _set_state(self, client: AmqpClient, session: str, state: bytes) -> None:
        self.states[session].add(state)
        await client.request(self.queue, "com.microsoft:set-session-state", {"session-id": session, "session-state": state})
        self.states[session] = {state}


class Scheduled(Story):
    """Scheduled for a moment later, some cancelled; none comes early, none that was cancelled comes at all."""

    queue = "scheduled"
    backlog_max = 100

    def __init__(self, broker: CrashingBroker, dice: random.Random) -> None:
        super().__init__(broker, dice)
        self.due: dict[str, int] = {}

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume]

    async def produce(self, client: AmqpClient) -> None:
        while await self.room():
            keys = [self.next_key() for _ in range(self.dice.randint(1, 4))]
            due = time.time_ns() // 1_000_000 + self.dice.randint(30, 900)
            annotations: dict[object, object] = {amqp.Symbol("x-opt-scheduled-enqueue-time"): amqp.Timestamp(due)}
            entries: list[dict[str, object]] = []
            for key in keys:
                self.checker.sending(key)
                self.due[key] = due
                entries.append({"message-id": key, "message": message(key, body_of(key), annotations=annotations)})
            _, body = await client.request(self.queue, "com.microsoft:schedule-message", {"messages": entries})
            for key in keys:
                self.checker.accepted(key)
            self.waiting += len(keys)
            if self.dice.random() < 0.25:
                await self._cancel(client, keys[0], body["sequence-numbers"].values[0])

    async def _cancel(self, client: AmqpClient, key: str, number: int) -> None:
        self.checker.settling(key)
        numbers = amqp.Array(0x81, [number])
        try:
            await client.request(self.queue, "com.microsoft:cancel-scheduled-message", {"sequence-numbers": numbers})
        except PeerRefused:
            return  # it was active already
        self.checker.settled(key)
        self.waiting -= 1

    async def consume(self, client: AmqpClient) -> None:
        receiver = await client.receiver(self.queue, credit=20)
        while True:
            incoming = await receiver.get()
            key, number, _ = read(self.checker, incoming.payload)
            self.checker.delivered(key, number)
            if time.time_ns() // 1_000_000 < self.due[key]:
                self.checker.wrong(f"{key} came early")
            self.settle(receiver, incoming, key)


class Deferred(Story):
    """Half of the messages are deferred, and received by their sequence numbers later; never otherwise."""

    queue = "deferred"

    def __init__(self, broker: CrashingBroker, dice: random.Random) -> None:
        super().__init__(broker, dice)
        self.aside: dict[str, int] = {}
        """Confirmed as deferred, and its sequence number."""

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume, self.fetch]

    async def consume(self, client: AmqpClient) -> None:
        receiver = await client.receiver(self.queue, credit=20)
        while True:
            incoming = await receiver.get()
            key, number, _ = read(self.checker, incoming.payload)
            self.checker.delivered(key, number)
            if key in self.aside:
                self.checker.wrong(f"{key} was deferred, and is delivered")
            if self.dice.random() < 0.5:
                receiver.settle(incoming, DEFERRED).add_done_callback(lambda answer, key=key, number=number: self._put(answer, key, number))
            else:
                self.settle(receiver, incoming, key)

    def _put(self, answer: asyncio.Future[None], key: str, number: int) -> None:
        if answer.exception() is None:
            self.aside[key] = number

    async def fetch(self, client: AmqpClient) -> None:
        while not self.ended:
            await asyncio.sleep(0.01)
            if self.draining:
                await self._look_around(client)
            taken = list(self.aside.items())[:5]
            if taken:
                await self._take(client, dict(taken))

    async def _look_around(self, client: AmqpClient) -> None:
        """At the end: deferred messages whose confirmation never came are found by looking."""
        for found in await peek(client, self.queue):
            if found.message_annotations.get(amqp.Symbol("x-opt-message-state")) == 1:
                number = found.message_annotations[amqp.Symbol("x-opt-sequence-number")]
                self.aside[str(found.properties["message-id"])] = int(number)  # type: ignore[call-overload]

    async def _take(self, client: AmqpClient, wanted: dict[str, int]) -> None:
        numbers = amqp.Array(0x81, list(wanted.values()))
        try:
            _, body = await client.request(
                self.queue,
                "com.microsoft:receive-by-sequence-number",
                {"sequence-numbers": numbers, "receiver-settle-mode": amqp.UInt(1)},
            )
        except PeerRefused as refused:
            self.checker.wrong(f"deferred messages {sorted(wanted)} cannot be received: {refused}")
            for key in wanted:
                del self.aside[key]
            return
        tokens: list[uuid.UUID] = []
        for entry in body["messages"]:
            key, number, _ = read(self.checker, entry["message"])
            self.checker.delivered(key, number)
            self.checker.settling(key)
            tokens.append(entry["lock-token"])
        for key in wanted:
            # Whatever becomes of the settlement: until a crash undoes it, nobody else sees them.
            del self.aside[key]
        await client.request(
            self.queue,
            "com.microsoft:update-disposition",
            {"disposition-status": "completed", "lock-tokens": amqp.Array(0x98, list[object](tokens))},
        )
        for key in wanted:
            self.checker.settled(key)
            self.waiting -= 1


class DeadLettered(Story):
    """Half of the messages are dead-lettered with their own name as the reason: each is in one place, never in two, never in none."""

    queue = "dead"

    def __init__(self, broker: CrashingBroker, dice: random.Random) -> None:
        super().__init__(broker, dice)
        self.dead: set[str] = set()
        """Confirmed, or seen there."""

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume, self.bury]

    async def consume(self, client: AmqpClient) -> None:
        receiver = await client.receiver(self.queue, credit=20)
        while True:
            incoming = await receiver.get()
            key, number, _ = read(self.checker, incoming.payload)
            self.checker.delivered(key, number)
            if key in self.dead:
                self.checker.wrong(f"{key} was dead-lettered, and is delivered")
            if self.dice.random() < 0.5:
                self.checker.moved(key)
                reason = amqp.AmqpError("com.microsoft:dead-letter", None, {amqp.Symbol("DeadLetterReason"): key})
                receiver.settle(incoming, amqp.encode_rejected(reason)).add_done_callback(lambda answer, key=key: self._buried(answer, key))
            else:
                self.settle(receiver, incoming, key)

    def _buried(self, answer: asyncio.Future[None], key: str) -> None:
        # The confirmation of a dead-lettering is the echo of the outcome itself: `rejected`, without an error.
        if answer.exception() is None:
            self.dead.add(key)

    async def bury(self, client: AmqpClient) -> None:
        receiver = await client.receiver(f"{self.queue}/$DeadLetterQueue", credit=20)
        while True:
            incoming = await receiver.get()
            key, number, found = read(self.checker, incoming.payload)
            self.checker.delivered(key, number)
            self.dead.add(key)
            if found.application_properties.get("DeadLetterReason") != key:
                self.checker.wrong(f"{key} was dead-lettered for {found.application_properties.get('DeadLetterReason')!r}")
            self.settle(receiver, incoming, key)

    async def is_empty(self, client: AmqpClient) -> bool:
        return not await peek(client, self.queue) and not await peek(client, f"{self.queue}/$DeadLetterQueue")


class Once(Story):
    """Duplicate detection: every message is sent until it is accepted, and some once more; each is there once."""

    queue = "once"
    properties: ClassVar[dict[str, object]] = {"requires_duplicate_detection": True}

    def __init__(self, broker: CrashingBroker, dice: random.Random) -> None:
        super().__init__(broker, dice)
        self.unsure: list[str] = []
        self.recent: list[str] = []

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume]

    async def produce(self, client: AmqpClient) -> None:
        sender = await client.sender(self.queue)
        while self.unsure or await self.room():
            if not sender.link.attached:
                raise Gone("crashed")
            if self.unsure:
                key = self.unsure.pop()
            elif self.recent and self.dice.random() < 0.1:
                key = self.recent.pop(self.dice.randrange(len(self.recent)))
            else:
                key = self.next_key()
                self.waiting += 1
            self.checker.sending(key)
            sender.send(message(key, body_of(key))).add_done_callback(lambda answer, key=key: self._answered(answer, key))
            if self.draining:
                await asyncio.sleep(0.005)

    def _answered(self, answer: asyncio.Future[None], key: str) -> None:
        error = answer.exception()
        if error is None:
            self.checker.accepted(key)
            self.recent.append(key)
            del self.recent[:-300]
        elif isinstance(error, PeerRefused):
            self.refused(f"{key} was refused", error)
        else:
            self.unsure.append(key)

    async def consume(self, client: AmqpClient) -> None:
        receiver = await client.receiver(self.queue, credit=20)
        while True:
            incoming = await receiver.get()
            key, number, _ = read(self.checker, incoming.payload)
            self.checker.delivered(key, number)
            self.settle(receiver, incoming, key)


class ReceiveAndDelete(Story):
    """At most once: never twice, and lost only what was on its way when the line broke."""

    queue = "at-most-once"
    credit = 5

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume]

    async def consume(self, client: AmqpClient) -> None:
        receiver = await client.receiver(self.queue, delete=True)
        while True:
            receiver.grant(self.credit)
            self.checker.lost_allowed += self.credit
            for _ in range(self.credit):
                incoming = await receiver.get()
                self.checker.lost_allowed -= 1
                key, number, _ = read(self.checker, incoming.payload)
                self.checker.delivered(key, number)
                self.checker.settling(key)
                self.checker.settled(key)
                self.waiting -= 1

    async def is_empty(self, client: AmqpClient) -> bool:
        if not await super().is_empty(client):
            return False
        self.waiting = 0
        return True


class FannedOut(Story):
    """A topic: every subscription gets everything, also when the broker dies between two of them."""

    queue = "topic"
    subscriptions = ("first", "second")

    def __init__(self, broker: CrashingBroker, dice: random.Random) -> None:
        super().__init__(broker, dice)
        self.views = {name: Checker(f"{self.queue}/{name}") for name in self.subscriptions}

    def config(self) -> str:
        lines = ["[[topic]]", f'name = "{self.queue}"']
        for name in self.subscriptions:
            lines += ["[[topic.subscription]]", f'name = "{name}"', 'lock_duration = "5m"', "max_delivery_count = 2000"]
        return "\n".join(lines) + "\n"

    def checkers(self) -> list[Checker]:
        return list(self.views.values())

    def actors(self) -> list[Actor]:
        return [self.produce, *(self._consumer(name) for name in self.subscriptions)]

    async def produce(self, client: AmqpClient) -> None:
        sender = await client.sender(self.queue)
        while await self.room():
            if not sender.link.attached:
                raise Gone("crashed")
            key = self.next_key()
            for view in self.views.values():
                view.sending(key)
            self.waiting += 1
            sender.send(message(key, body_of(key))).add_done_callback(lambda answer, key=key: self._answered(answer, key))

    def _answered(self, answer: asyncio.Future[None], key: str) -> None:
        if answer.exception() is None:
            for view in self.views.values():
                view.accepted(key)
        else:
            self.waiting -= 1

    def _consumer(self, name: str) -> Actor:
        view = self.views[name]

        async def consume(client: AmqpClient) -> None:
            receiver = await client.receiver(f"{self.queue}/Subscriptions/{name}", credit=20)
            while True:
                incoming = await receiver.get()
                key, number, _ = read(view, incoming.payload)
                view.delivered(key, number)
                view.settling(key)
                receiver.settle(incoming).add_done_callback(lambda answer, key=key: self._settled(answer, view, key))

        return consume

    def _settled(self, answer: asyncio.Future[None], view: Checker, key: str) -> None:
        if answer.exception() is None:
            view.settled(key)
            if view is self.views[self.subscriptions[0]]:
                self.waiting -= 1

    async def is_empty(self, client: AmqpClient) -> bool:
        for name in self.subscriptions:
            if await peek(client, f"{self.queue}/Subscriptions/{name}"):
                return False
        return True


ALL: tuple[type[Story], ...] = (Plain, Sessions, Scheduled, Deferred, DeadLettered, Once, ReceiveAndDelete, FannedOut)
