"""`tandem demo --cluster`: three nodes on a PostgreSQL with a synchronous standby; a node is killed, then the primary."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from azure.servicebus.aio import ServiceBusClient

from tandem.demo.cluster_verdict import LEASE_SECONDS, ClusterVerdict
from tandem.demo.cluster_view import ClusterView
from tandem.demo.front_door import FrontDoor
from tandem.demo.processes import QUEUES, BrokerProcess, Traffic, connection_string
from tandem.testing.ports import free_port
from tandem.testing.postgres import PostgresEngine

NODES: Final = ("a", "b", "c")
_SENDERS_PER_QUEUE: Final = 3
_TICK_SECONDS: Final = 0.1
_AGAIN_SECONDS_MAX: Final = 120.0
_PATIENCE_SECONDS: Final = 60.0
_CONFIGURATION: Final = """
[cluster]
engine = "{engine}"
secret_file = "{secret}"
node = "{node}"
listen = "127.0.0.1:{peers}"
lease = "{lease}s"
stall_deadline = "60s"
"""
_QUEUE: Final = """
[[queue]]
name = "{name}"
requires_duplicate_detection = true
lock_duration = "10s"
"""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    rate: float
    calm: float
    """Seconds of peace before, between and after the two deaths."""


class NodeProcess(BrokerProcess):
    """One node, on ports of its own."""

    def __init__(self, home: Path, name: str, engine: str, secret: Path) -> None:
        self._engine, self._secret = engine, secret
        super().__init__(home, name, QUEUES)

    def _configuration(self, queues: tuple[str, ...]) -> str:
        values = {"engine": self._engine, "secret": self._secret, "node": self.name, "peers": free_port(), "lease": LEASE_SECONDS}
        return _CONFIGURATION.format(**values) + "".join(_QUEUE.format(name=queue) for queue in queues)


class ClusterTraffic(Traffic):
    """A few senders for each queue, each with a client of its own, as processes of an application have."""

    async def _send(self, queue: str) -> None:
        waiting: asyncio.Queue[str | None] = asyncio.Queue()
        senders = [asyncio.ensure_future(self._send_from(queue, waiting)) for _ in range(_SENDERS_PER_QUEUE)]
        async for message_id in self._due(queue):
            waiting.put_nowait(message_id)
        for _ in senders:
            waiting.put_nowait(None)
        await asyncio.gather(*senders)

    async def _send_from(self, queue: str, waiting: asyncio.Queue[str | None]) -> None:
        options: dict[str, Any] = {"retry_total": 10, "retry_backoff_factor": 0.2, "retry_backoff_max": 1}
        client = ServiceBusClient.from_connection_string(self._connection_string, **options)
        async with client, client.get_queue_sender(queue) as sender:
            while (message_id := await waiting.get()) is not None:
                await self._send_one(sender, queue, message_id)


@dataclass(slots=True)
class Standing:
    """Who serves how many stores, as the engine says; nobody while it does not answer."""

    serves: dict[str, int] = field(default_factory=dict)
    stores: int = 0
    first_queue: str = ""
    """Who serves the first queue."""
    engine_answers: bool = False
    longest_pause: float = 0.0
    """Of any queue, between two answers to sends, since it was last set to 0: the other queues may be with nodes that live."""
    sent_by: dict[str, int] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set with every look."""

    def answer(self, owners: list[str], first_queue: str, engine_answers: bool) -> None:
        """What the engine said, if it did."""
        self.serves, self.stores = dict(Counter(owner for owner in owners if owner)), len(owners)
        self.first_queue, self.engine_answers = first_queue, engine_answers

    def complete_without(self, node: str) -> bool:
        """Every store is served, and none by this node."""
        return 0 < self.stores == sum(self.serves.values()) and node not in self.serves

    def note(self, sent_by: dict[str, int]) -> None:
        now = time.monotonic()
        for queue, sent in sent_by.items():
            self.longest_pause = max(self.longest_pause, now - self.since.setdefault(queue, now))
            if sent != self.sent_by.get(queue):
                self.sent_by[queue], self.since[queue] = sent, now
        self.looked.set()

    def begin(self) -> None:
        self.longest_pause, self.since = 0.0, dict.fromkeys(QUEUES, time.monotonic())

    async def until(self, enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(_AGAIN_SECONDS_MAX):
            while not enough():
                self.looked.clear()
                await self.looked.wait()


def cluster_demo(plan: ClusterPlan, view: ClusterView, keep: Path | None) -> ClusterVerdict:
    """The whole story; nothing of it runs any more when this returns."""
    logging.getLogger("azure").setLevel(logging.CRITICAL)  # that connections break is the story
    with tempfile.TemporaryDirectory(prefix="tandem-demo-") as temporary:
        directory = (keep or Path(temporary)).resolve()
        directory.mkdir(parents=True, exist_ok=True)
        engine = PostgresEngine(Path(temporary) / "engine", standbys=1)
        try:
            with view:
                return asyncio.run(_play(plan, directory, engine, view))
        finally:
            engine.stop()


async def _play(plan: ClusterPlan, directory: Path, engine: PostgresEngine, view: ClusterView) -> ClusterVerdict:
    view.phase("PostgreSQL starts: a primary, and a standby that has every commit before it is answered")
    await asyncio.to_thread(engine.start)
    secret = directory / "cluster.key"
    await asyncio.to_thread(_tandem, "cluster", "init", "--engine", engine.dsn(), "--secret-file", str(secret))
    nodes = {name: NodeProcess(directory, name, engine.dsn(), secret) for name in NODES}
    view.places(list(nodes.values()), engine)
    standing = Standing()
    try:
        view.phase(f"{len(NODES)} nodes start")
        await asyncio.gather(*(node.start() for node in nodes.values()))
        async with FrontDoor(lambda: [node.port for node in nodes.values() if node.up]) as door:
            traffic = ClusterTraffic(connection_string(door.port), plan.rate, directory)
            async with _watching(view, traffic, engine, standing):
                return await _deaths(plan, engine, nodes, traffic, standing, view)
    finally:
        await asyncio.gather(*(node.stop() for node in nodes.values()))


async def _deaths(
    plan: ClusterPlan, engine: PostgresEngine, nodes: dict[str, NodeProcess], traffic: Traffic, standing: Standing, view: ClusterView
) -> ClusterVerdict:
    traffic.start()
    await standing.until(lambda: standing.complete_without("") and len(traffic.tally.sent_by) == len(QUEUES))
    view.phase(f"peace: {plan.rate:g} messages a second; every node takes every client, and carries to those that serve")
    await asyncio.sleep(plan.calm)

    await standing.until(lambda: bool(standing.first_queue))
    killed = standing.first_queue
    standing.begin()
    nodes[killed].kill()
    view.phase(f"SIGKILL: node {killed}, which served {standing.serves[killed]} of {standing.stores} stores, '{QUEUES[0]}' in one, is gone")
    await standing.until(lambda: standing.complete_without(killed))
    await _answered(traffic, standing)
    without_node = standing.longest_pause
    view.phase(f"others have taken over; node {killed} starts again")
    await nodes[killed].start()
    await asyncio.sleep(plan.calm)

    standing.begin()
    served = dict(standing.serves)
    view.phase("SIGKILL: PostgreSQL's primary is gone, its disk deleted. The standby is promoted, and a new standby is made of it")
    await asyncio.to_thread(engine.fail_over_strictly, "standby2")
    view.places(list(nodes.values()), engine)
    await _answered(traffic, standing)
    without_engine = standing.longest_pause
    await standing.until(lambda: standing.complete_without(""))
    view.phase(f"the promoted standby answers; {'no store has moved' if standing.serves == served else 'stores have moved'}")
    await asyncio.sleep(plan.calm)

    await traffic.stop_sending()
    view.phase("everything is sent; the receivers take what is left")
    await traffic.finish(_PATIENCE_SECONDS)
    return ClusterVerdict(
        sent=traffic.tally.sent,
        delivered=traffic.tally.sent - traffic.outstanding,
        lost=traffic.outstanding,
        duplicated=traffic.duplicated,
        failed=traffic.tally.failed,
        seconds_without_node=without_node,
        seconds_without_engine=without_engine,
        killed=killed,
    )


async def _answered(traffic: Traffic, standing: Standing) -> None:
    """Until sends to every queue are answered again: more than those that were under way."""
    sent_by = traffic.tally.sent_by
    enough = {queue: sent_by[queue] + 2 * _SENDERS_PER_QUEUE for queue in QUEUES}
    await standing.until(lambda: all(sent_by[queue] > enough[queue] for queue in QUEUES))


@contextlib.asynccontextmanager
async def _watching(view: ClusterView, traffic: Traffic, engine: PostgresEngine, standing: Standing) -> AsyncIterator[None]:
    """The engine is asked who serves, the view is told how things stand."""

    async def ask() -> None:
        while True:
            standing.answer(*await asyncio.to_thread(_serves, engine))
            await asyncio.sleep(5 * _TICK_SECONDS)

    async def tell() -> None:
        while True:
            standing.note(traffic.tally.sent_by)
            view.standing(traffic.tally, standing.serves, standing.engine_answers)
            await asyncio.sleep(_TICK_SECONDS)

    tasks = [asyncio.ensure_future(ask()), asyncio.ensure_future(tell())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _serves(engine: PostgresEngine) -> tuple[list[str], str, bool]:
    """Who has each store, who the first queue's, and whether the engine answers at all."""
    import psycopg

    try:
        with psycopg.connect(engine.primary.dsn(), connect_timeout=2, autocommit=True) as connection:
            owners = dict(connection.execute("SELECT number, owner FROM tandem.store").fetchall())
            [store] = connection.execute("SELECT store FROM tandem.entity WHERE path = %s AND NOT gone", QUEUES[:1]).fetchone() or [-1]
    except psycopg.Error:
        return [], "", False
    return list(owners.values()), owners.get(store, ""), True


def _tandem(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "tandem", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"tandem {' '.join(arguments[:2])}: {done.stderr.strip()}")


def show_json(verdict: ClusterVerdict) -> None:
    print(json.dumps(verdict.as_dict()))
