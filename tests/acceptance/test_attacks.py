"""An innocent client of the official SDK beside every attack: it gets no error, and hardly waits.

`TANDEM_ATTACK_SECONDS=60` lets each attack go on for a minute and holds the innocent's p99 to 250 ms; the short form only looks for errors.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from tests.acceptance.attacks import ATTACKS, QUEUE, VICTIM
from tests.acceptance.brokers import Broker
from tests.acceptance.conftest import create_queue

SECONDS = float(os.environ.get("TANDEM_ATTACK_SECONDS", "2"))
LONG = "TANDEM_ATTACK_SECONDS" in os.environ
P99_SECONDS_MAX = 0.25
ROOT = Path(__file__).resolve().parent.parent.parent
GROWTH_BYTES_MAX = 256 << 20


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    broker = Broker(tmp_path_factory.mktemp("besieged"), "besieged").start()
    asyncio.run(create_queue(broker, VICTIM))
    asyncio.run(create_queue(broker, QUEUE))
    yield broker
    broker.stop()


def resident_bytes(process_id: int) -> int:
    return int(Path(f"/proc/{process_id}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Innocent:
    """Sends, receives and completes one message after the other, on links that it opened before the attack."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.seconds: list[float] = []

    async def live_through(self, over: asyncio.Event) -> None:
        async with (
            ServiceBusClient.from_connection_string(self._broker.connection_string, retry_total=0) as client,
            client.get_queue_sender(VICTIM) as sender,
            client.get_queue_receiver(VICTIM) as receiver,
        ):
            while not over.is_set() or len(self.seconds) < 20:
                began = time.monotonic()
                key = f"{began}"
                await sender.send_messages(ServiceBusMessage(key))
                (message,) = await receiver.receive_messages(max_message_count=1, max_wait_time=30)
                assert str(message) == key
                await receiver.complete_message(message)
                self.seconds.append(time.monotonic() - began)
                await asyncio.sleep(0.02)

    def quantile(self, share: float) -> float:
        return sorted(self.seconds)[min(len(self.seconds) - 1, int(len(self.seconds) * share))]


@pytest.mark.compiled_too
@pytest.mark.timeout(90 + 3 * SECONDS)
@pytest.mark.parametrize("attack", list(ATTACKS))
async def test_an_innocent_client_beside_an_attack_is_served_without_an_error(besieged: Broker, attack: str) -> None:
    assert besieged.process is not None
    before = resident_bytes(besieged.process.pid)
    innocent = Innocent(besieged)
    over = asyncio.Event()
    living = asyncio.ensure_future(innocent.live_through(over))
    words = ["-m", "tests.acceptance.attacks", attack, str(besieged.port), str(SECONDS)]
    attacker = await asyncio.create_subprocess_exec(sys.executable, *words, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    said, _ = await attacker.communicate()
    over.set()
    await living
    grown = resident_bytes(besieged.process.pid) - before
    shown = ", ".join(f"{name} {innocent.quantile(share) * 1000:.0f} ms" for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)))
    print(f"{attack}: {int(said)} rounds; innocent {len(innocent.seconds)} trips, {shown}; broker grew {grown / 1e6:.0f} MB")
    assert attacker.returncode == 0 and int(said) > 0
    assert besieged.running
    assert grown < GROWTH_BYTES_MAX
    if LONG:
        assert innocent.quantile(0.99) < P99_SECONDS_MAX
