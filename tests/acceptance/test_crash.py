"""SIGKILL in a loop under load, with every kind of entity and operation at once: what was confirmed holds, whatever the instant.

`TANDEM_CRASH_KILLS=1000` and `TANDEM_POWER_CUTS=200` make an evening of it, `TANDEM_CRASH_BACKLOG=1000000` a full house."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from tandem import amqp
from tandem.simulator.amqp_client import AmqpClient
from tests.acceptance.crash_everything import SMALL_SEGMENTS, crash_again_and_again
from tests.acceptance.crashing import CrashingBroker, PowerCutBroker, peek

KILLS = int(os.environ.get("TANDEM_CRASH_KILLS", "50"))
POWER_CUTS = int(os.environ.get("TANDEM_POWER_CUTS", "10"))
BACKLOG = int(os.environ.get("TANDEM_CRASH_BACKLOG", "20000"))
"""Waiting messages of one queue; 1,000,000 on demand."""
SHARES = {"thread": 0.7, "process": 0.3}
"""How many of the kills go to stores within the broker, and to stores with processes of their own."""


@pytest.mark.slow
@pytest.mark.timeout(240 + 10 * KILLS)
@pytest.mark.parametrize("isolation", list(SHARES))
async def test_nothing_confirmed_is_lost_doubled_or_changed_however_often_the_broker_is_killed(tmp_path: Path, isolation: str) -> None:
    broker = CrashingBroker(tmp_path, f'{SMALL_SEGMENTS}isolation = "{isolation}"\n')
    await crash_again_and_again(broker, max(1, round(KILLS * SHARES[isolation])))


@pytest.mark.slow
@pytest.mark.timeout(240 + 15 * POWER_CUTS)
async def test_nothing_confirmed_is_lost_doubled_or_changed_however_often_the_power_fails(tmp_path: Path) -> None:
    """Only what was synced survives: bytes of files, and names of files and directories."""
    await crash_again_and_again(PowerCutBroker(tmp_path, SMALL_SEGMENTS), POWER_CUTS)


@pytest.mark.slow
@pytest.mark.timeout(120 + BACKLOG // 1000)
async def test_a_backlog_is_found_again_whole_and_in_order_after_a_kill(tmp_path: Path) -> None:
    """Killed while it grows and while its head is being received: what was accepted comes, in order; what was completed does not."""
    broker = CrashingBroker(tmp_path, '[[queue]]\nname = "backlog"\nmax_size_megabytes = 5120\nlock_duration = "5m"\n')
    await broker.start()
    try:
        filling = Backlog(broker.port)
        completed = await filling.fill_and_eat(BACKLOG)
        await broker.kill()
        await filling.over()
        began = time.monotonic()
        await broker.start()
        print(f"{filling.accepted} accepted, {completed} completed, ready again after {time.monotonic() - began:.2f} s")
        found = await Backlog(broker.port).drain()
    finally:
        await broker.stop()
    assert found == list(range(found[0], found[0] + len(found))), "in order, without gaps and repetitions"
    assert found[0] == completed, "what was completed and confirmed is gone, and nothing else"
    assert found[-1] + 1 >= filling.accepted, "what was accepted is there"


class Backlog:
    """One queue with numbered messages of 1 KB."""

    credit = 500
    window = 1000
    padding = b"." * 1000

    def __init__(self, port: int) -> None:
        self._port = port
        self.accepted = 0
        self._answers: list[asyncio.Future[None]] = []

    async def fill_and_eat(self, count: int) -> int:
        """Returns when `count` are accepted, with more on their way; the first of them are completed, and their number returned."""
        client = await AmqpClient.connect(self._port)
        sender = await client.sender("backlog")
        free = asyncio.Semaphore(self.window)
        eating = asyncio.create_task(self._eat(await AmqpClient.connect(self._port), count // 10))
        number = 0
        while self.accepted < count:
            await free.acquire()
            answer = sender.send(amqp.encode_message(properties={"message-id": amqp.ULong(number)}, body=[b"%d" % number + self.padding]))
            answer.add_done_callback(lambda answer: (free.release(), self._heard(answer)))
            number += 1
        return await eating

    def _heard(self, answer: asyncio.Future[None]) -> None:
        if answer.exception() is None:
            self.accepted += 1

    async def _eat(self, client: AmqpClient, count: int) -> int:
        receiver = await client.receiver("backlog", credit=self.credit)
        await asyncio.gather(*[receiver.settle(await receiver.get()) for _ in range(count)])
        return count

    async def over(self) -> None:
        """Let the news of the crash arrive."""
        for _ in range(3):
            await asyncio.sleep(0)

    async def drain(self) -> list[int]:
        client = await AmqpClient.connect(self._port)
        receiver = await client.receiver("backlog", credit=self.window)
        found: list[int] = []
        while True:
            try:
                incoming = await asyncio.wait_for(receiver.get(), 2)
            except TimeoutError:
                if not await peek(client, "backlog"):
                    return found
                continue
            message = amqp.decode_message(incoming.payload)
            number = int(message.properties["message-id"])  # type: ignore[call-overload]
            assert message.body == [b"%d" % number + self.padding]
            found.append(number)
            receiver.settle(incoming)
