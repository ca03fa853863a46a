"""Order within sessions through outages of the primary: several sender processes, restarts of senders and syphons, real brokers."""

from __future__ import annotations

import asyncio
import collections
import itertools
import os
import sys
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

from tests.acceptance import steps
from tests.acceptance.brokers import Broker
from tests.acceptance.conftest import create_queue, drain
from tests.acceptance.test_paired import body, healed
from tests.conftest import ROOT
from tests.waiting import until

DETECTING = {"requires_duplicate_detection": True, "duplicate_detection_history_time_window": "PT1H"}
OUTAGES = int(os.environ.get("TANDEM_ORDER_OUTAGES", "4"))
"""Of the primary; 30 make about four minutes."""


async def test_a_session_comes_home_before_it_goes_on_at_the_primary(make_pair, west: Broker, east: Broker):
    await create_queue(west, "orders", **DETECTING)
    pair = await make_pair(enable_syphon=True, keep_session_order=True, backlog_queue_count=3)
    sender = pair.get_queue_sender("orders")
    bodies: list[str] = []

    async def send(count: int) -> None:
        for _ in range(count):
            await sender.send_messages(ServiceBusMessage(str(len(bodies)), session_id="s"))
            bodies.append(str(len(bodies)))

    await send(3)
    west.kill()
    await send(200)
    await asyncio.to_thread(west.start)
    await healed(pair, "orders")
    await send(50)
    await until(lambda: not pair.order.held_count("orders"), 30)
    await send(10)
    assert [body(m) for m in await drain(west, "orders")] == bodies


class Senders:
    """Processes that send to sessions of their own; one of them is killed in each outage and begins again."""

    def __init__(self, west: Broker, east: Broker, folder: Path) -> None:
        self._arguments = (west.connection_string, east.connection_string, east.ca)
        self._folder = folder
        self._processes: dict[int, asyncio.subprocess.Process] = {}

    def log(self, number: int) -> Path:
        return self._folder / f"sender-{number}.log"

    async def start(self, number: int) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.acceptance.steps", *self._arguments, str(number), str(self.log(number)),
            stdin=asyncio.subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        self._processes[number] = process

    async def kill(self, number: int) -> None:
        self._processes[number].kill()
        await self._processes[number].wait()

    async def finish(self) -> None:
        for process in self._processes.values():
            process.stdin.close()
        for process in self._processes.values():
            assert await asyncio.wait_for(process.wait(), 330) == 0


@pytest.mark.slow
@pytest.mark.timeout(600 + 75 * OUTAGES)
async def test_every_session_stays_in_order_through_outages_and_restarts_of_senders_and_syphons(
    make_pair, west: Broker, east: Broker, tmp_path: Path
):
    await create_queue(west, "orders", **DETECTING)
    await make_pair(enable_syphon=True, backlog_queue_count=3)
    senders = Senders(west, east, tmp_path)
    for number in range(steps.PROCESSES):
        await senders.start(number)
    await _all_have_sent(senders, collections.Counter())
    for outage in range(OUTAGES):
        west.kill()
        before = _accepted(senders)
        await _all_have_sent(senders, before, more=10)
        if outage % 3 == 1:
            await senders.kill(outage % steps.PROCESSES)
        await asyncio.to_thread(west.start)
        if outage % 3 == 1:
            await senders.start(outage % steps.PROCESSES)
        await _all_have_sent(senders, _accepted(senders), more=10)
    await senders.finish()
    arrived: dict[str, list[int]] = collections.defaultdict(list)
    ids: collections.Counter[str] = collections.Counter()
    for message in await drain(west, "orders"):
        ids[message.message_id] += 1
        arrived[message.session_id].append(int(message.message_id.rpartition("-")[2]))
    sent = {message_id for number in range(steps.PROCESSES) for message_id in senders.log(number).read_text().split()}
    assert sent <= set(ids), "lost"
    assert max(ids.values()) == 1, "doubled"
    confirmed = {session: [n for n in numbers if f"{session}-{n}" in sent] for session, numbers in arrived.items()}
    out_of_order = sum(later < earlier for numbers in confirmed.values() for earlier, later in itertools.pairwise(numbers))
    assert out_of_order == 0, f"{out_of_order} of {len(sent)}"
    assert len(sent) > 20 * OUTAGES


def _accepted(senders: Senders) -> collections.Counter[int]:
    logs = {number: senders.log(number) for number in range(steps.PROCESSES)}
    return collections.Counter({number: len(log.read_text().split()) if log.exists() else 0 for number, log in logs.items()})


async def _all_have_sent(senders: Senders, before: collections.Counter[int], more: int = 1) -> None:
    await until(lambda: all(count >= before[number] + more for number, count in _accepted(senders).items()), 90)
