"""Two nodes in a thread of the test, each with half of the stores: every queue is partitioned over both, clients come to them in turn."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tandem.broker.entities.joined import fragment_of_key
from tandem.broker.entities.queue_entity import QueueEntity
from tandem.cluster.peers import ClusterNode
from tandem.model.clock import SystemClock
from tandem.server.server import Server
from tandem.stores.engines import MemoryEngines
from tests.cluster.carried import SECRET, settings_for
from tests.conformance.house import KINDS, JumpingClock, _Pool

T = TypeVar("T")
NODES = ("a", "b")


@dataclass
class Halves:
    """Even stores are the first node's, odd ones the second's."""

    node: str
    addresses: dict[str, str] = field(default_factory=dict)

    def owner(self, store: int) -> str | None:
        return NODES[store % 2]

    def here(self, store: int) -> bool:
        return self.owner(store) == self.node

    def address(self, node: str) -> str | None:
        return self.addresses.get(node)

    def subscribe(self, changed: Callable[[int], None]) -> None:
        """Nothing will change."""


class SpreadBroker:
    """Seen from outside it is one broker."""

    def __init__(
        self, directory: Path, wanted: Mapping[str, int], *, real_time: bool = False, turns: bool = True, front: str = "a"
    ) -> None:
        """`turns`: clients come to the nodes in turn; else all to `front`, which may be one that has no stores."""
        names = NODES if front in NODES else (*NODES, front)
        self.clock = SystemClock() if real_time else JumpingClock()
        self.notes: list[str] = []
        before = dict(KINDS)
        try:
            for kind in wanted:
                KINDS[kind] = {**KINDS[kind], "enable_partitioning": True}
            settings = settings_for(directory, wanted, "[stores]", "fragments = 4")
        finally:
            KINDS.update(before)
        addresses = {node: f"unix:{directory / node}.sock" for node in names}
        self.servers = [
            Server(
                settings if turns or node == front else replace(settings, listeners=()),
                MemoryEngines(),
                clock=self.clock,
                connection_clock=SystemClock(),
                log=self.notes.append,
                cluster=ClusterNode(
                    node=node, listen=addresses[node], secret=SECRET, ownership=lambda _, node=node: Halves(node, addresses)
                ),
            )
            for node in names
        ]
        self._ports = itertools.cycle(range(2) if turns else [names.index(front)])
        self._pool = _Pool(wanted)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> SpreadBroker:
        self._thread.start()
        for server in self.servers:
            self.run(server.start())
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for server in self.servers:
            self.run(server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def on_loop(self, look: Callable[[Server], T]) -> T:
        async def work() -> T:
            return look(self.servers[0])

        return self.run(work())

    @property
    def port(self) -> int:
        """Of the next node."""
        return self.servers[next(self._ports)].ports[0]

    def queue(self, kind: str) -> str:
        return self._pool.take(kind)

    def jump(self, seconds: float) -> None:
        """Now it is later, for both nodes: whatever is due by then has happened when this returns."""

        async def work() -> None:
            assert isinstance(self.clock, JumpingClock)
            self.clock.skipped_ms += int(seconds * 1000)
            for _ in range(20):
                for server in self.servers:
                    server.driver.run_housekeeping()
                    server.driver.run_turn()
                await asyncio.sleep(0)

        self.run(work())

    def unlike_replay(self) -> list[str]:
        """What live code made of the facts is looked at where one broker has all of them."""
        return []


FRAGMENTS = 4


def key_of(node: int, number: int = 0) -> str:
    """A key whose fragment this node has."""
    found = (key for n in range(1_000) if fragment_of_key(key := f"key-{n}", FRAGMENTS) % 2 == node)
    return [next(found) for _ in range(number + 1)][-1]


KEYED: list[dict[str, Any]] = [{"message_annotations": {"x-opt-partition-key": key_of(node)}} for node in (0, 1)]
"""For `feed` and `message`: where they go."""


def held(server: Server, queue: str) -> int:
    """Messages that this node has of it."""
    entity = server.contexts[0].namespace.find(queue)
    assert isinstance(entity, QueueEntity)
    return entity.main.counts().total
