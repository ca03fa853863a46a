"""A partitioned queue over two workers and queues of both that forward to it, one worker killed under load: nothing is lost or doubled.

`TANDEM_WORKER_KILLS=50` makes an evening of it."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
from pathlib import Path

import pytest

from tandem.simulator.amqp_client import AmqpClient, Gone, PeerRefused
from tandem.simulator.checker import Checker
from tests.acceptance.crashing import body_of, message, peek, read
from tests.cli.broker_process import BrokerProcess
from tests.cluster.movers import Movers
from tests.waiting import until

KILLS = int(os.environ.get("TANDEM_WORKER_KILLS", "2"))
QUEUE = "spread"
KEYS = [f"key-{number}" for number in range(12)]
WAYS = (QUEUE, QUEUE, "onward-0", "onward-1")
"""Where messages are sent: to it, or to what forwards to it."""
CONFIG = f'[[queue]]\nname = "{QUEUE}"\nenable_partitioning = true\nmax_delivery_count = 2000\n' + "".join(
    f'[[queue]]\nname = "onward-{number}"\nforward_to = "{QUEUE}"\n' for number in range(2)
)


class Load:
    """Clients that come back whenever they are thrown out."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.checker = Checker(QUEUE)
        self.dice = random.Random(seed)
        self.sending = True
        self.ended = False
        self.refused = 0
        self._numbers = itertools.count()
        self._in_flight: set[asyncio.Future[None]] = set()

    async def play(self, acts: str) -> None:
        while not self.ended:
            client: AmqpClient | None = None
            try:
                client = await AmqpClient.connect(self.port)
                await (self._produce(client) if acts == "produce" else self._consume(client))
                return
            except (Gone, PeerRefused, ConnectionError):
                await asyncio.sleep(0.05)
            finally:
                if client is not None:
                    client.abort()

    async def _produce(self, client: AmqpClient) -> None:
        senders = [await client.sender(way) for way in WAYS]
        while self.sending:
            sender = self.dice.choice(senders)
            if not sender.link.attached:
                raise Gone("thrown out")
            key = f"{next(self._numbers)}"
            self.checker.sending(key)
            annotations: dict[object, object] = {"x-opt-partition-key": self.dice.choice(KEYS)} if self.dice.random() < 0.7 else {}
            answer = sender.send(message(key, body_of(key), annotations=annotations))
            answer.add_done_callback(lambda answer, key=key: self._heard(answer, key))  # type: ignore[misc]
            self._in_flight.add(answer)
            if len(self._in_flight) > 50:
                await asyncio.wait(self._in_flight, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(self.dice.choice((0, 0, 0.001)))

    def _heard(self, answer: asyncio.Future[None], key: str) -> None:
        self._in_flight.discard(answer)
        error = answer.exception()
        if error is None:
            self.checker.accepted(key)
        elif isinstance(error, PeerRefused):
            self.refused += 1  # it may or may not have been kept

    async def _consume(self, client: AmqpClient) -> None:
        receiver = await client.receiver(QUEUE, credit=40)
        while not self.ended:
            incoming = await receiver.get()
            key, number, _ = read(self.checker, incoming.payload)
            self.checker.delivered(key, number)
            self.checker.settling(key)
            answer = receiver.settle(incoming)
            answer.add_done_callback(lambda answer, key=key: None if answer.exception() else self.checker.settled(key))  # type: ignore[misc]


def _is_back(log: Path, times: int) -> bool:
    return log.read_text().count("is back") >= times


@pytest.mark.slow
@pytest.mark.timeout(180 + 20 * KILLS)
async def test_what_a_killed_worker_had_is_there_again_and_the_others_go_on_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(CONFIG)
    log = tmp_path / "log"
    seed = random.SystemRandom().randrange(1 << 32)
    with BrokerProcess(tmp_path, "--port", "0", "--data", "data", "--dev", "--workers", "2", log=log) as broker:
        load = Load(broker.port, seed)
        async with asyncio.TaskGroup() as group:
            for acts in ("produce", "produce", "consume", "consume"):
                group.create_task(load.play(acts))
            for kill in range(KILLS):
                seen = load.checker.seen
                await until(lambda seen=seen: load.checker.seen > seen + 300, 60, "messages")  # type: ignore[misc]
                load.checker.crashed()
                os.kill(load.dice.choice(_workers(broker)), signal.SIGKILL)
                await until(lambda kill=kill: _is_back(log, kill + 1), 60, "the worker")  # type: ignore[misc]
            load.sending = False
            await _drained(load)
            load.ended = True
            broker.stop()
    verdict = load.checker.verdict()
    print(f"seed {seed}: {verdict}, {load.refused} refused")
    assert verdict.holds, f"seed {seed}: {verdict}"
    assert verdict.seen > 300 * KILLS
    assert verdict.recovered > 0, "the kills met nothing"


@pytest.mark.slow
@pytest.mark.timeout(240 + 20 * KILLS)
async def test_transactions_over_several_workers_are_whole_or_absent_whichever_is_killed(tmp_path: Path) -> None:
    queues = ["a", "b", "c", "d", "wide"]
    plain = "".join(f'[[queue]]\nname = "{name}"\nmax_delivery_count = 2000\n' for name in queues)
    (tmp_path / "tandem.toml").write_text(plain + "enable_partitioning = true\n")
    log = tmp_path / "log"
    seed = random.SystemRandom().randrange(1 << 32)
    dice = random.Random(seed)
    with BrokerProcess(tmp_path, "--port", "0", "--data", "data", "--dev", "--workers", "3", log=log) as broker:
        movers = Movers(lambda: [broker.port], queues, 60, seed)
        movers.start()
        for kill in range(KILLS * 2):
            moved = movers.moved
            await until(lambda moved=moved: movers.moved > moved + 30, 60, "transactions")  # type: ignore[misc]
            os.kill(dice.choice(_workers(broker)), signal.SIGKILL)
            await until(lambda kill=kill: _is_back(log, kill + 1), 60, "the worker")  # type: ignore[misc]
        found = await asyncio.to_thread(movers.end)
        print(f"seed {seed}: {movers.moved} moved, {movers.batches} in batches, {movers.broken} broken")
        assert found == movers.sent, f"seed {seed}: each once"
        assert movers.broken > 0, "the kills met nothing"


def _workers(broker: BrokerProcess) -> list[int]:
    """The processes whose parent it is."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split() if entry.name.isdigit() else []
        except OSError:
            continue  # it ended meanwhile
        if fields and int(fields[1]) == broker.process.pid and fields[0] != "Z":
            found.append(int(entry.name))
    return found


async def _drained(load: Load) -> None:
    """What was settled without an answer may have come again: until nothing is left."""
    async with asyncio.timeout(90):
        while True:
            try:
                client = await AmqpClient.connect(load.port)
                left = await peek(client, QUEUE)
                client.abort()
                if not left and not load.checker.open_count:
                    return
            except (Gone, PeerRefused, ConnectionError):
                pass
            await asyncio.sleep(0.1)
