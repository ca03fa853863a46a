"""A broker process that is killed and started again on the same port and data, and clients that come back to it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar

from tandem import amqp
from tandem.simulator.amqp_client import AmqpClient, AmqpReceiver, Gone, Incoming, PeerRefused
from tandem.simulator.checker import Checker
from tandem.testing.ports import free_port
from tests.acceptance import power_cut_broker
from tests.waiting import until

READY_SECONDS_MAX = 60.0
SEQUENCE_NUMBER = amqp.Symbol("x-opt-sequence-number")


class CrashingBroker:
    """`tandem serve` as its users run it. Its standard error is kept in `directory/stderr.txt`."""

    def __init__(self, directory: Path, config: str) -> None:
        self._directory = directory
        (directory / "tandem.toml").write_text(config)
        self._process: asyncio.subprocess.Process | None = None
        self.port = free_port()
        self.kills = 0

    def configure(self, more: str) -> None:
        """Add to its configuration, before it starts."""
        with (self._directory / "tandem.toml").open("a") as file:
            file.write(more)

    async def start(self) -> None:
        """Returns when it is ready."""
        await self.spawn()
        process = self._process
        assert process is not None and process.stdout is not None
        async with asyncio.timeout(READY_SECONDS_MAX):
            async for line in process.stdout:
                if line.startswith(b"ready"):
                    return
        raise AssertionError(f"the broker ended before it was ready: {self.last_words()}")

    async def spawn(self) -> None:
        arguments = ["serve", "--dev", "--config", "tandem.toml", "--data", "data", "--port", str(self.port), *self._more_arguments()]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TANDEM_")}
        with (self._directory / "stderr.txt").open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, *self._program(), *arguments, cwd=self._directory, env=kept, stdout=asyncio.subprocess.PIPE, stderr=errors
            )

    def _program(self) -> list[str]:
        return ["-m", "tandem"]

    def _more_arguments(self) -> list[str]:
        return []

    def asks_to_try_again(self, refused: PeerRefused) -> bool:
        """Whether a client has to expect such an answer here. Who is ready serves everything."""
        return False

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def kill(self) -> None:
        process = self._process
        assert process is not None
        assert process.returncode is None, f"the broker ended by itself with {process.returncode}: {self.last_words()}"
        process.send_signal(signal.SIGKILL)
        await process.wait()
        self.kills += 1

    async def end(self) -> None:
        """The last kill: how clients learn that it is over, wherever they are."""
        await self.kill()

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def last_words(self) -> str:
        return (self._directory / "stderr.txt").read_text()[-2000:]


class PowerCutBroker(CrashingBroker):
    """When it is killed its machine loses power: what was not synced is gone, names of files and directories included."""

    def _program(self) -> list[str]:
        return [power_cut_broker.__file__, "data", "synced"]

    async def kill(self) -> None:
        await super().kill()
        await asyncio.to_thread(power_cut_broker.cut_power, self._directory / "data", self._directory / "synced")


class Story:
    """One entity, the clients that use it, and the checker that is told of everything. Subclasses say what happens."""

    queue = ""
    properties: ClassVar[dict[str, object]] = {}
    backlog_max = 200
    """Producers wait while this many of their messages are in the broker."""

    def __init__(self, broker: CrashingBroker, dice: random.Random) -> None:
        self.broker = broker
        self.dice = dice
        self.checker = Checker(self.queue)
        self.draining = False
        """No more sends; the rest is received."""
        self.ended = False
        self.waiting = 0
        """Sent and not settled, roughly: only to hold producers back."""
        self._number = 0

    def config(self) -> str:
        lines = ["[[queue]]", f'name = "{self.queue}"', 'lock_duration = "5m"', "max_delivery_count = 2000"]
        lines += [f"{key} = {str(value).lower() if isinstance(value, bool) else value}" for key, value in self.properties.items()]
        return "\n".join(lines) + "\n"

    def actors(self) -> list[Callable[[AmqpClient], Awaitable[None]]]:
        """Each gets a connection of its own, again and again; it returns when there is nothing left to do."""
        raise AssertionError("say who acts")

    def checkers(self) -> list[Checker]:
        return [self.checker]

    def crashed(self) -> None:
        for checker in self.checkers():
            checker.crashed()
        # whatever was removed without a word is not waited for: else producers would have less room after each crash, and none at last
        self.waiting = min(self.waiting, max(checker.open_count for checker in self.checkers()))

    async def is_empty(self, client: AmqpClient) -> bool:
        return not await peek(client, self.queue)

    # -- what subclasses use -----------------------------------------------------------------

    def next_key(self) -> str:
        self._number += 1
        return f"{self.queue}-{self._number}"

    async def room(self) -> bool:
        """Wait until a producer may go on; False when it should not any more."""
        while not self.draining:
            if self.waiting < self.backlog_max:
                await asyncio.sleep(self.dice.choice((0, 0, 0, 0.001, 0.003)))
                return not self.draining
            await asyncio.sleep(0.005)
        return False

    def follow_send(self, answer: asyncio.Future[None], keys: list[str]) -> None:
        """The answer goes to the checker when it comes; no answer leaves everything open."""
        self.waiting += len(keys)

        def heard(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is None:
                for key in keys:
                    self.checker.accepted(key)
            else:
                self.waiting -= len(keys)
                if isinstance(error, PeerRefused):
                    self.refused(f"{keys[0]} was refused", error)

        answer.add_done_callback(heard)

    async def produce(self, client: AmqpClient) -> None:
        """One message after the other; stories that send otherwise have their own."""
        sender = await client.sender(self.queue)
        while await self.room():
            if not sender.link.attached:
                raise Gone("crashed")
            key = self.next_key()
            self.checker.sending(key)
            self.follow_send(sender.send(message(key, body_of(key))), [key])

    def settle(self, receiver: AmqpReceiver, incoming: Incoming, key: str, state: bytes = amqp.ACCEPTED) -> asyncio.Future[None]:
        """Ask for removal and tell the checker before and after."""
        self.checker.settling(key)
        answer = receiver.settle(incoming, state)

        def heard(future: asyncio.Future[None]) -> None:
            error = future.exception()
            if error is None:
                self.waiting -= 1
                self.checker.settled(key)
            elif isinstance(error, PeerRefused):
                self.refused(f"settling {key} was refused", error)

        answer.add_done_callback(heard)
        return answer

    def refused(self, what: str, error: PeerRefused) -> None:
        """Wrong, unless that is an answer that has to be expected here."""
        if not self.broker.asks_to_try_again(error):
            self.checker.wrong(f"{what}: {error}")

    # -- the life of an actor ----------------------------------------------------------------

    async def play(self, actor: Callable[[AmqpClient], Awaitable[None]]) -> None:
        """Come back after every crash until the story ends."""
        while not self.ended:
            client: AmqpClient | None = None
            try:
                client = await AmqpClient.connect(self.broker.port)
                await actor(client)
                await client.close()
                return
            except Gone:
                await asyncio.sleep(0.02)
            except PeerRefused as refused:
                if not self.broker.asks_to_try_again(refused):
                    raise
                await asyncio.sleep(0.05)
            finally:
                if client is not None:
                    client.abort()


def message(key: str, body: bytes, *, session: str | None = None, annotations: dict[object, object] | None = None) -> bytes:
    properties: dict[str, object] = {"message-id": key}
    if session is not None:
        properties["group-id"] = session
    return amqp.encode_message(properties=properties, message_annotations=annotations, application_properties={"key": key}, body=[body])


def body_of(key: str) -> bytes:
    """Some hundred bytes that can only belong to this message."""
    return (key.encode() + b"|") * (1 + (hash_of(key) % 60))


def hash_of(key: str) -> int:
    return sum(ord(char) * (place + 1) for place, char in enumerate(key))


def read(checker: Checker, payload: bytes) -> tuple[str, int, amqp.DecodedMessage]:
    """(key, sequence number, message) of a delivery; a body that is not the one sent is reported."""
    found = amqp.decode_message(payload)
    key = str(found.properties.get("message-id"))
    if found.body != [body_of(key)] or found.application_properties.get("key") != key:
        checker.wrong(f"{key} came back changed")
    number = found.message_annotations.get(SEQUENCE_NUMBER)
    assert isinstance(number, int)
    return key, int(number), found


async def peek(client: AmqpClient, address: str, start: int = 1, count: int = 200) -> list[amqp.DecodedMessage]:
    status, body = await client.request(
        address, "com.microsoft:peek-message", {"from-sequence-number": start, "message-count": amqp.Int(count)}
    )
    return [] if status == 204 else [amqp.decode_message(entry["message"]) for entry in body["messages"]]


class Kills:
    """The storm: lets the broker live for a moment, kills it, starts it again; now and then it dies while it starts."""

    patience_seconds = 20.0
    more_kills_max = 5

    def __init__(
        self, broker: CrashingBroker, stories: list[Story], dice: random.Random, life_seconds: tuple[float, float], mercy: float = 0.3
    ) -> None:
        """`mercy`: how often everybody comes to something before the next kill."""
        self._broker = broker
        self._mercy = mercy
        self._stories = stories
        self._dice = dice
        self._life_seconds = life_seconds

    async def rage(self, kills: int) -> None:
        """At least so many; a few more, with mercy, while there are some whom no kill met."""
        while self._broker.kills < kills:
            await asyncio.sleep(self._dice.uniform(*self._life_seconds))
            if self._dice.random() < self._mercy:
                await self._everybody_gets_something()
            await self._kill()
            while self._dice.random() < 0.15 and self._broker.kills < kills:
                await self._broker.spawn()
                await asyncio.sleep(self._dice.uniform(0.1, 0.7))
                await self._kill()
            await self._broker.start()
        for _ in range(self.more_kills_max):
            if await self._everybody_was_met(kills):
                return
            await self._everybody_gets_something()
            await self._kill()
            await self._broker.start()

    async def _everybody_was_met(self, kills: int) -> bool:
        """Each did something, and got something back that was in the broker when it died."""
        checkers = [checker for story in self._stories for checker in story.checkers()]
        with contextlib.suppress(TimeoutError):
            await until(lambda: all(checker.seen > kills and checker.recovered > 0 for checker in checkers), self.patience_seconds / 4)
            return True
        return False

    async def _everybody_gets_something(self) -> None:
        """On a slow machine some would never come to anything between two kills."""
        checkers = [checker for story in self._stories for checker in story.checkers()]
        wanted = [checker.seen + 3 for checker in checkers]
        with contextlib.suppress(TimeoutError):
            pairs = list(zip(checkers, wanted, strict=True))
            await until(lambda: all(checker.seen >= least for checker, least in pairs), self.patience_seconds)

    async def _kill(self) -> None:
        await self._broker.kill()
        for story in self._stories:
            story.crashed()


async def run_stories(stories: list[Story], broker: CrashingBroker, kills: Kills, count: int, drain_seconds_max: float) -> None:
    """Start everybody, let the storm rage, then drain: returns when every entity is empty."""
    await broker.start()
    async with asyncio.TaskGroup() as group:
        for story in stories:
            for actor in story.actors():
                group.create_task(story.play(actor))
        await kills.rage(count)
        for story in stories:
            story.draining = True
        await _drained(stories, broker, time.monotonic() + drain_seconds_max)
        for story in stories:
            story.ended = True
        await broker.end()


async def _drained(stories: list[Story], broker: CrashingBroker, deadline: float) -> None:
    for story in stories:
        while time.monotonic() < deadline and not await _is_drained(story, broker, deadline):
            await asyncio.sleep(0.05)
    if time.monotonic() >= deadline:
        print("not drained in time; everybody waits:", *(_waits(task) for task in asyncio.all_tasks()), sep="\n")


async def _is_drained(story: Story, broker: CrashingBroker, deadline: float) -> bool:
    """Stores may still move after the last kill: whoever is told to try again does."""
    client: AmqpClient | None = None
    try:
        client = await AmqpClient.connect(broker.port)
        while not await asyncio.wait_for(story.is_empty(client), 30):
            if time.monotonic() >= deadline:
                return False
            await asyncio.sleep(0.05)
        await client.close()
    except Gone:
        return False
    except PeerRefused as refused:
        if not broker.asks_to_try_again(refused):
            raise
        return False
    finally:
        if client is not None:
            client.abort()
    return True


def _waits(task: asyncio.Task[Any]) -> str:
    """Where it is: file and line of each function that is on the way to what it waits for."""
    places: list[str] = []
    coroutine: Any = task.get_coro()
    while coroutine is not None and getattr(coroutine, "cr_frame", None) is not None:
        places.append(f"{coroutine.cr_code.co_qualname}:{coroutine.cr_frame.f_lineno}")
        coroutine = coroutine.cr_await
    return " > ".join(places)
