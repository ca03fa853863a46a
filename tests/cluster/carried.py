"""Two nodes of a cluster in a thread of the test: one takes the clients and owns nothing, the other has every store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tandem.cli.configuration import keyring
from tandem.cli.configuration.settings import Flags, load
from tandem.cluster.peers import ClusterNode
from tandem.model.clock import SystemClock
from tandem.server.server import Server
from tandem.server.settings import ServerSettings
from tandem.stores.engines import MemoryEngines
from tests.conformance.house import JumpingClock, _Pool, write_config

SECRET = b"what all nodes know, and nobody else"

T = TypeVar("T")


@dataclass
class Owners:
    """An ownership that the test moves: all stores have one owner."""

    node: str
    owned_by: str | None
    addresses: dict[str, str] = field(default_factory=dict)
    told: list[Callable[[int], None]] = field(default_factory=list)

    def owner(self, store: int) -> str | None:
        return self.owned_by

    def here(self, store: int) -> bool:
        return self.owned_by == self.node

    def address(self, node: str) -> str | None:
        return self.addresses.get(node)

    def subscribe(self, changed: Callable[[int], None]) -> None:
        self.told.append(changed)

    def move(self, node: str | None, stores: int = 4) -> None:
        self.owned_by = node
        for store in range(stores):
            for tell in self.told:
                tell(store)


def settings_for(directory: Path, wanted: Mapping[str, int], *more: str) -> ServerSettings:
    flags = Flags(config=write_config(directory, wanted, *more), memory=True, dev=True, port=(0,))
    settings = load(flags, {}, directory).server
    ring = keyring.KeyRing(directory / keyring.FILE_NAME)
    return replace(settings, namespaces=keyring.fill(settings.namespaces, ring, None, True))


class CarriedBroker:
    """Seen from outside it is one broker: every link is carried."""

    def __init__(
        self,
        directory: Path,
        wanted: Mapping[str, int],
        *,
        real_time: bool = False,
        connections_too: bool = False,
        secret: bytes = SECRET,
        tcp_port: int = 0,
        more: tuple[str, ...] = (),
    ) -> None:
        """`connections_too`: tokens of the clients age with the clock as well; then silence is forgiven, or every jump would hang up.
        `tcp_port`: the nodes speak over TCP."""
        if connections_too:
            more = ("[limits]", "idle_timeout_ms = 1_000_000_000", "drop_silent_peer_after_ms = 2_000_000_000", *more)
        self.clock = SystemClock() if real_time else JumpingClock()
        settings = settings_for(directory, wanted, *more)
        self.notes: list[str] = []
        self._listen = f"127.0.0.1:{tcp_port}" if tcp_port else f"unix:{directory / 'b.sock'}"
        self.owners = Owners("a", "b", {"b": self._listen})
        self._settings = settings
        self._directory = directory
        self._owner_engines = MemoryEngines()
        self.owner = self.make_owner()
        near = ClusterNode(node="a", listen=f"unix:{directory / 'a.sock'}", secret=secret, ownership=lambda namespace: self.owners)
        aging = self.clock if connections_too else SystemClock()
        self.server = Server(settings, MemoryEngines(), clock=self.clock, connection_clock=aging, log=self.notes.append, cluster=near)
        self._pool = _Pool(wanted)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def make_owner(self) -> Server:
        """The other node, as it is, or as it is started again: what it had is there."""
        node = ClusterNode(node="b", listen=self._listen, secret=SECRET, ownership=lambda namespace: Owners("b", "b"))
        settings = replace(self._settings, listeners=())
        log = self.notes.append
        return Server(settings, self._owner_engines, clock=self.clock, connection_clock=SystemClock(), log=log, cluster=node)

    def __enter__(self) -> CarriedBroker:
        self._thread.start()
        self.run(self.owner.start())
        self.run(self.server.start())
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.run(self.server.stop())
        self.run(self.owner.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def on_loop(self, look: Callable[[Server], T]) -> T:
        """Look at the node that has the entities from inside, between two turns."""

        async def work() -> T:
            return look(self.owner)

        return self.run(work())

    @property
    def port(self) -> int:
        return self.server.ports[0]

    def queue(self, kind: str) -> str:
        return self._pool.take(kind)

    def jump(self, seconds: float) -> None:
        """Now it is later, for both nodes: whatever is due by then has happened when this returns."""

        async def work() -> None:
            assert isinstance(self.clock, JumpingClock)
            self.clock.skipped_ms += int(seconds * 1000)
            for _ in range(20):
                for server in (self.owner, self.server):
                    server.driver.run_housekeeping()
                    server.driver.run_turn()
                await asyncio.sleep(0)

        self.run(work())

    def unlike_replay(self) -> list[str]:
        """What live code made of the facts is looked at where nothing is carried."""
        return []
