"""Stories of one queue: plain and partitioned, sessions, scheduled, deferred."""

from __future__ import annotations

import asyncio
import uuid
from functools import partial
from random import Random
from typing import Any, ClassVar

from tandem import amqp
from tandem.model.entity import QueueDescription
from tandem.simulator.amqp_client import NEXT_SESSION, AmqpClient, Gone, PeerRefused
from tandem.simulator.loop import until
from tandem.simulator.story import DEFERRED, PATIENCE, Actor, Story, message
from tandem.simulator.world import Entities, World

MANY = 1_000_000


class QueueStory(Story):
    """A queue of its own."""

    def entities(self) -> Entities:
        wanted: dict[str, Any] = {"lock_duration_ms": self.lock_ms, "max_delivery_count": MANY, **self.properties}
        return Entities(queues=(QueueDescription(name=self.queue, **wanted),))


class Plain(QueueStory):
    """Single messages and batches; complete, abandon, or sit on them until the lock ends."""

    queue = "plain"

    def __init__(self, world: World, host: str, dice: Random) -> None:
        super().__init__(world, host, dice)
        self.batches: list[list[str]] = []

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume, self.consume]

    async def produce(self, client: AmqpClient) -> None:
        sender = await self.sender(client)
        while await self.pace():
            if not sender.link.attached:
                raise Gone("the link is gone")
            keys = [self.next_key() for _ in range(self.dice.randint(2, 6) if self.dice.random() < 0.15 else 1)]
            for key in keys:
                self.checker.sending(key)
            payloads = [self.make(key) for key in keys]
            if len(keys) > 1:
                self.batches.append(keys)
            self.follow(sender.send(payloads[0]) if len(keys) == 1 else sender.send_batch(payloads), keys)

    def make(self, key: str) -> bytes:
        return message(key)

    async def consume(self, client: AmqpClient, **options: Any) -> None:
        receiver = await self.receiver(client, self.queue, credit=8, **options)
        while True:
            incoming, key, found = await self.get(receiver)
            self.check_selected(key, found, options)
            luck = self.dice.random()
            if luck < 0.08:
                self.give_back(receiver, incoming, key)
            elif luck > 0.97 and not self.draining:
                await asyncio.sleep(self.dice.uniform(1.0, 2 * self.lock_ms / 1000))
                self.settle(receiver, incoming, key)
            else:
                self.settle(receiver, incoming, key)

    def check_selected(self, key: str, found: amqp.DecodedMessage, options: dict[str, Any]) -> None:
        """Is it what this receiver asked for?"""


class Partitioned(Plain):
    """The same over fragments in all stores."""

    queue = "fragments"
    properties: ClassVar[dict[str, Any]] = {"enable_partitioning": True}


class Selected(Plain):
    """Two receivers that want one side each, and one that takes what comes."""

    queue = "selected"

    def actors(self) -> list[Actor]:
        selectors = [f"side = '{side}' AND JMSPriority = 4" for side in ("left", "right")]
        return [self.produce, self.consume, *(partial(self.consume, selector=selector) for selector in selectors)]

    def make(self, key: str) -> bytes:
        return message(key, properties={"side": "left" if int(key.rpartition("-")[2]) % 2 else "right"})

    def check_selected(self, key: str, found: amqp.DecodedMessage, options: dict[str, Any]) -> None:
        side = str(found.application_properties["side"])
        if options and f"'{side}'" not in options["selector"]:
            self.wrong(f"{key} of the {side} came to a receiver with the selector {options['selector']}")


class SelectedInFragments(Selected):
    """The same over fragments in all stores."""

    queue = "selected-fragments"
    properties: ClassVar[dict[str, Any]] = {"enable_partitioning": True}


class Sessions(QueueStory):
    """A few sessions, each in order, each with a state that says how far it got."""

    queue = "sessions"
    properties: ClassVar[dict[str, Any]] = {"requires_session": True}

    def __init__(self, world: World, host: str, dice: Random) -> None:
        super().__init__(world, host, dice)
        self.sent: dict[str, list[str]] = {f"s{number}": [] for number in range(5)}
        self.places: dict[str, int] = {}
        self.states: dict[str, set[bytes | None]] = {name: {None} for name in self.sent}
        """What a session's state may be: what was confirmed last, and whatever was asked for since."""

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume, self.consume]

    async def produce(self, client: AmqpClient) -> None:
        def make(key: str) -> bytes:
            session = self.dice.choice(list(self.sent))
            self.places[key] = len(self.sent[session])
            self.sent[session].append(key)
            return message(key, session=session)

        await self.send_steadily(client, make)

    async def consume(self, client: AmqpClient) -> None:
        while not self.ended:
            try:
                receiver = await self.receiver(client, self.queue, session=NEXT_SESSION)
            except PeerRefused as refused:
                if refused.condition != "com.microsoft:timeout":
                    raise
                continue
            await self._serve(client, receiver)

    async def _serve(self, client: AmqpClient, receiver: Any) -> None:
        session = str(receiver.link.source.filter["com.microsoft:session-filter"])
        await self._check_state(client, session)
        receiver.grant(6)
        seen: list[str] = []
        last: asyncio.Future[None] | None = None
        for _ in range(6):
            try:
                incoming, key, found = await until(self.get(receiver), 4.0)
            except TimeoutError:
                break
            if found.properties.get("group-id") != session:
                self.wrong(f"{key} of session {found.properties.get('group-id')} was delivered to session {session}")
            skipped = [one for one in self.sent[session][: self.places[key]] if one not in seen and self.checker.is_open(one)]
            if skipped:
                self.wrong(f"session {session}: {key} came before {skipped[:3]}")
            seen.append(key)
            last = self.settle(receiver, incoming, key)
        if last is not None:
            await until(last, PATIENCE)
            await self._set_state(client, session, seen[-1].encode())
        await until(receiver.detach(), PATIENCE)

    async def _check_state(self, client: AmqpClient, session: str) -> None:
        _, body = await self.ask(client, self.queue, "com.microsoft:get-session-state", {"session-id": session})
        state = body["session-state"]
        if state not in self.states[session]:
            self.wrong(f"session {session}: its state is {state!r}, it can only be one of {self.states[session]}")
        self.states[session].add(state)

    async def _set_state(self, client: AmqpClient, session: str, state: bytes) -> None:
        self.states[session].add(state)
        await self.ask(client, self.queue, "com.microsoft:set-session-state", {"session-id": session, "session-state": state})
        self.states[session] = {state}


class PartitionedSessions(Sessions):
    queue = "session-fragments"
    properties: ClassVar[dict[str, Any]] = {"requires_session": True, "enable_partitioning": True}


class Scheduled(QueueStory):
    """Scheduled for later, some cancelled; none comes early, none that was cancelled comes at all."""

    queue = "scheduled"

    def __init__(self, world: World, host: str, dice: Random) -> None:
        super().__init__(world, host, dice)
        self.due: dict[str, int] = {}

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume]

    async def produce(self, client: AmqpClient) -> None:
        while await self.pace():
            keys = [self.next_key() for _ in range(self.dice.randint(1, 3))]
            due = self.world.clock.now_ms() + self.dice.randint(50, 40_000)
            annotations: dict[object, object] = {amqp.Symbol("x-opt-scheduled-enqueue-time"): amqp.Timestamp(due)}
            entries: list[dict[str, object]] = []
            for key in keys:
                self.checker.sending(key)
                self.due[key] = due
                entries.append({"message-id": key, "message": message(key, annotations=annotations)})
            _, body = await self.ask(client, self.queue, "com.microsoft:schedule-message", {"messages": entries})
            for key in keys:
                self.checker.accepted(key)
            if self.dice.random() < 0.25:
                await self._cancel(client, keys[0], body["sequence-numbers"].values[0])

    async def _cancel(self, client: AmqpClient, key: str, number: int) -> None:
        self.checker.settling(key)
        numbers = amqp.Array(0x81, [number])
        try:
            await self.ask(client, self.queue, "com.microsoft:cancel-scheduled-message", {"sequence-numbers": numbers})
        except PeerRefused:
            return  # it was active already
        self.checker.settled(key)

    async def consume(self, client: AmqpClient) -> None:
        receiver = await self.receiver(client, self.queue, credit=10)
        while True:
            incoming, key, _ = await self.get(receiver)
            if self.world.clock.now_ms() + self.world.home(self.host).clock_ahead_ms_max < self.due[key]:
                self.wrong(f"{key} came early")
            self.settle(receiver, incoming, key)


class Deferred(QueueStory):
    """Half of the messages are deferred, and received by their sequence numbers later; never otherwise."""

    queue = "deferred"

    def __init__(self, world: World, host: str, dice: Random) -> None:
        super().__init__(world, host, dice)
        self.aside: dict[str, int] = {}

    def actors(self) -> list[Actor]:
        return [self.produce, self.consume, self.fetch]

    async def produce(self, client: AmqpClient) -> None:
        await self.send_steadily(client, message)

    async def consume(self, client: AmqpClient) -> None:
        receiver = await self.receiver(client, self.queue, credit=10)
        while True:
            incoming, key, found = await self.get(receiver)
            if key in self.aside:
                self.wrong(f"{key} was deferred, and is delivered")
            if self.dice.random() < 0.5:
                self.released(key)
                number = int(found.message_annotations["x-opt-sequence-number"])  # type: ignore[call-overload]
                receiver.settle(incoming, DEFERRED).add_done_callback(partial(self._put, key, number))
            else:
                self.settle(receiver, incoming, key)

    def _put(self, key: str, number: int, answer: asyncio.Future[None]) -> None:
        if answer.exception() is None:
            self.aside[key] = number

    async def fetch(self, client: AmqpClient) -> None:
        while not self.ended:
            await asyncio.sleep(self.dice.uniform(2.0, 8.0))
            if self.draining:
                await self._look_around(client)
            taken = dict(list(self.aside.items())[:4])
            if taken:
                await self._take(client, taken)

    async def _look_around(self, client: AmqpClient) -> None:
        """At the end: deferred messages whose confirmation never came are found by looking."""
        for found in await self.peek(client, self.queue):
            if found.message_annotations.get(amqp.Symbol("x-opt-message-state")) == 1:
                number = found.message_annotations[amqp.Symbol("x-opt-sequence-number")]
                self.aside[str(found.properties["message-id"])] = int(number)  # type: ignore[call-overload]

    async def _take(self, client: AmqpClient, wanted: dict[str, int]) -> None:
        numbers = amqp.Array(0x81, list(wanted.values()))
        request = {"sequence-numbers": numbers, "receiver-settle-mode": amqp.UInt(1)}
        try:
            _, body = await self.ask(client, self.queue, "com.microsoft:receive-by-sequence-number", request)
        except PeerRefused as refused:
            if refused.condition != "com.microsoft:message-not-found":
                raise
            for key in wanted:  # one of them is in somebody's hands, or settled without our hearing of it: ask for each alone
                if len(wanted) > 1:
                    await self._take(client, {key: wanted[key]})
                elif not self.checker.is_open(key):
                    self.aside.pop(key, None)
            return
        tokens: list[uuid.UUID] = []
        for entry in body["messages"]:
            key, _ = self.took(entry["message"], client=client)
            self.checker.settling(key)
            self.released(key)
            tokens.append(entry["lock-token"])
        settling = {"disposition-status": "completed", "lock-tokens": amqp.Array(0x98, list[object](tokens))}
        await self.ask(client, self.queue, "com.microsoft:update-disposition", settling)
        for key in wanted:
            self.checker.settled(key)
            self.aside.pop(key, None)
