"""Every kind of outage under steady traffic of a paired application: nothing lost, doubled, changed, left behind or dead-lettered.

`TANDEM_OUTAGE_MATRIX=200` makes two hundred outages; each kind comes equally often, or only those that `TANDEM_OUTAGE_KINDS` names,
separated by commas. Prints the time to the first diverted send per kind.
"""

from __future__ import annotations

import asyncio
import collections
import os
import random
import time
from collections.abc import AsyncIterator

import pytest
from azure.servicebus import ServiceBusMessage

from tandem.aio import PairedNamespaces, PathState
from tests.acceptance.brokers import Broker
from tests.acceptance.conftest import administration, drain
from tests.acceptance.outage_kinds import OUTAGES, QUEUE, Outage, World
from tests.acceptance.proxy import SlowNetwork

KINDS = [outage for outage in OUTAGES if outage.name in os.environ.get("TANDEM_OUTAGE_KINDS", outage.name).split(",")]
COUNT = int(os.environ.get("TANDEM_OUTAGE_MATRIX", str(len(KINDS))))
LONG = "TANDEM_OUTAGE_MATRIX" in os.environ
SEED = int(os.environ.get("TANDEM_OUTAGE_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
FAILOVER_SECONDS = 1.0
FIRST_DIVERTED_SECONDS_MAX = FAILOVER_SECONDS + 5
SESSIONS = 4


class Application:
    """Each session's sends go one after the other; one that fails is sent again under its own id until it is accepted."""

    def __init__(self, pair: PairedNamespaces) -> None:
        self._pair = pair
        self.accepted: dict[str, list[str]] = {f"s{number}": [] for number in range(SESSIONS)}
        self.failures: collections.Counter[str] = collections.Counter()
        self.over = False

    async def run(self) -> None:
        await asyncio.gather(*(self._send(session) for session in self.accepted))

    async def _send(self, session: str) -> None:
        async with self._pair.get_queue_sender(QUEUE) as sender:
            while not self.over:
                message_id = f"{session}-{len(self.accepted[session])}"
                try:
                    await sender.send_messages(_message(session, message_id), timeout=15)
                except Exception as error:
                    self.failures[type(error).__name__] += 1
                    await asyncio.sleep(0.1)
                    continue
                self.accepted[session].append(message_id)
                await asyncio.sleep(0.02)

    def count(self) -> int:
        return sum(map(len, self.accepted.values()))


def _message(session: str, message_id: str) -> ServiceBusMessage:
    return ServiceBusMessage(
        f"body of {message_id}", message_id=message_id, session_id=session, subject="matrix", application_properties={"id": message_id}
    )


@pytest.fixture
async def world(west: Broker, east: Broker) -> AsyncIterator[World]:
    async with SlowNetwork(west.port, 0.0) as line:
        world = World(west, east, line)
        await world.create()
        yield world


async def until(true, what: str, seconds: float = 60) -> float:
    """How long it took."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, f"{what} after {seconds} s: not yet"
        await asyncio.sleep(0.01)
    return time.monotonic() - began


async def suffer(outage: Outage, world: World, pair: PairedNamespaces, application: Application) -> float | None:
    """One outage from its beginning until sends go to the primary again; the time to the first diverted send."""
    diverted = pair.counters.diverted
    await outage.begin(world)
    first = None
    if outage.diverts:
        first = await until(lambda: pair.counters.diverted > diverted, f"{outage.name}: a diverted send")
    await asyncio.sleep(1)
    await outage.end(world)
    await until(lambda: pair.state(QUEUE).state is PathState.HEALTHY, f"{outage.name}: healed", 120)
    # Sessions with messages in the backlog go behind them until these are home.
    primary = pair.counters.sent_primary
    await until(lambda: pair.counters.sent_primary >= primary + 2 * SESSIONS, f"{outage.name}: sends go to the primary", 120)
    return first


@pytest.mark.slow
@pytest.mark.timeout(300 + 60 * COUNT)
async def test_no_kind_of_outage_loses_doubles_changes_or_leaves_behind_a_message(world: World) -> None:
    dice = random.Random(SEED)
    kinds = [KINDS[number % len(KINDS)] for number in range(COUNT)]
    dice.shuffle(kinds)
    firsts: dict[str, list[float]] = collections.defaultdict(list)
    async with PairedNamespaces(
        world.primary, world.east.connection_string, primary_namespace="contoso", backlog_queue_count=3, failover_interval=FAILOVER_SECONDS,
        ping_primary_interval=1, operation_timeout=15, enable_syphon=True, keep_session_order=True,
        sdk_options={"connection_verify": world.east.ca},
    ) as pair:  # fmt: skip
        application = Application(pair)
        running = asyncio.ensure_future(application.run())
        await until(lambda: application.count() > 20, "traffic")
        for outage in kinds:
            first = await suffer(outage, world, pair, application)
            if first is not None:
                firsts[outage.name].append(first)
        application.over = True
        await running
        async with asyncio.timeout(120):
            while any(measure.depth for measure in await pair.syphon.measure()):
                await asyncio.sleep(0.1)
        assert pair.counters.diverted > 0
        print(f"seed {SEED}: {COUNT} outages, {application.count()} accepted, {pair.counters.diverted} diverted; {application.failures}")
    for name, seconds in firsts.items():
        print(f"{name}: first diverted send after {sorted(seconds)[len(seconds) // 2]:.2f} s (p50), {max(seconds):.2f} s (max)")
    await check(world, application)
    if LONG:
        assert all(seconds < FIRST_DIVERTED_SECONDS_MAX for found in firsts.values() for seconds in found), firsts


async def check(world: World, application: Application) -> None:
    home = await drain(world.west, QUEUE)
    counts = collections.Counter(message.message_id for message in home)
    accepted = {message_id for ids in application.accepted.values() for message_id in ids}
    assert accepted - set(counts) == set(), "lost"
    assert [message_id for message_id, count in counts.items() if count > 1] == [], "doubled"
    # The last send of a session may have failed and be there all the same.
    assert len(set(counts) - accepted) <= SESSIONS, "unexpected"
    changed = [
        m.message_id for m in home if str(m) != f"body of {m.message_id}" or m.application_properties != {b"id": m.message_id.encode()}
    ]
    assert changed == [], "changed"
    for session, ids in application.accepted.items():
        arrived = [m.message_id for m in home if m.session_id == session and m.message_id in accepted]
        assert arrived == ids, f"session {session}: out of order"
    for broker in (world.west, world.east):
        async with administration(broker) as client:
            dead = {q.name: q.dead_letter_message_count async for q in client.list_queues_runtime_properties()}
        assert not any(dead.values()), f"dead-lettered: {dead}"
