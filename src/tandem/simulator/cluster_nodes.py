"""Whole nodes of one cluster in a simulation: each beats, takes over, carries links and reaches the engine by a line of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from tandem.broker.ports import Journal, Tenant
from tandem.broker.recovery.tenant import StoreTenant
from tandem.cluster.beats import BeatingNode
from tandem.cluster.node import Node
from tandem.cluster.owners_clock import OwnersClock
from tandem.cluster.peers import ClusterNode
from tandem.model.clock import Clock
from tandem.model.errors import BusError, EngineAway
from tandem.model.store_row import StoreRow
from tandem.server.server import Server
from tandem.server.settings import ServerSettings
from tandem.simulator.agenda import Agenda, Machine, SimClock, SimWorker
from tandem.simulator.cluster_engine import NAMESPACE, ClusterEngine, EngineLine, NodeLedger, ReachedStore, SimCatalog, SimNodes
from tandem.simulator.engine import SimLedger
from tandem.simulator.loop import SimLoop
from tandem.simulator.replayed import compare
from tandem.simulator.stores import SimEngines
from tandem.simulator.world import STORES, Entities, Home, SimBroker, World
from tandem.stores.blocks import seed_of
from tandem.stores.ledger_entries import LedgerRecovery
from tandem.stores.ledger_store import LedgerStore
from tandem.stores.settings import LogSettings

if TYPE_CHECKING:
    from tandem.stores.metadata import Metadata

LEASE_MS: Final = 5_000
_NEVER: Final = 1 << 60
_PEER_PORT: Final = 5_673
_SECRET: Final = b"what all nodes know, and nobody else"


class SimBeats:
    """A node's beats in virtual time: each takes its way to the engine and back, and one that hangs is given up after a lease."""

    def __init__(self, agenda: Agenda, line: EngineLine, node: BeatingNode) -> None:
        self._agenda = agenda
        self._line = line
        self._node = node
        self._over = False

    def start(self) -> None:
        self._begin()

    def stop(self) -> None:
        self._over = True

    def _begin(self) -> None:
        if not self._over:
            self._agenda.call_later(self._line.latency(), self._ask, self._node.boot_ms())

    def _ask(self, begun: int) -> None:
        node, line = self._node, self._line
        if self._over:
            return
        if line.hangs and node.boot_ms() - begun < LEASE_MS:
            self._agenda.call_later(min(line.faults.stalled_until - self._agenda.time(), LEASE_MS / 1000) + 0.001, self._ask, begun)
            return
        try:
            told = node.ask(begun)
        except EngineAway as error:
            told = partial(node.is_away, error.description)
        self._agenda.call_later(line.latency(), self._heard, begun, told)

    def _heard(self, begun: int, told: Callable[[], None]) -> None:
        if self._over:
            return
        self._node.tell(told)
        if not self._node.is_deposed():
            self._agenda.call_later(max(0, begun + self._node.interval_ms - self._node.boot_ms()) / 1000, self._begin)


class NodeEngines(SimEngines):
    """What one node remembers with: all of it is in the engine."""

    def __init__(self, world: ClusterWorld, host: str, settings: LogSettings, clock: Clock) -> None:
        super().__init__(world.loop.agenda, host, 0, settings, clock, world.dice)
        self._world = world
        self._host = host
        self.line = EngineLine(world.loop.agenda, world.dice)
        self.may_take: Callable[[StoreRow], bool] = lambda row: False
        self.process = ""

    def live(self, process: str, clock: Clock, may_take: Callable[[StoreRow], bool]) -> None:
        """From now on it is this process that opens them."""
        self.process, self._clock, self.may_take = process, clock, may_take

    def open_catalog(self, namespace: str, store_count: int) -> Metadata:
        return SimCatalog(self._world.engine, self.line)  # type: ignore[return-value]  # it is a catalog too

    def open_journal(self, namespace: str, index: int, loop_call: Callable[[Callable[[], None]], None]) -> Journal:
        world = self._world
        store = ReachedStore(world.engine.stores[index], self.line)
        ledger = NodeLedger(world.engine, store, self._host, self.process, self.may_take, world)
        name = f"store-{index}"
        return LedgerStore(ledger, name, loop_call, self._settings, self._clock, lambda _: SimWorker(self._agenda, store), store.wait)

    def unlike_replay(self, index: int, tenant: StoreTenant, now: int) -> Iterator[str]:
        """Of a store that is still ours: whoever was deposed and does not know it yet has what it had."""
        cluster = self._world.engine
        engine = cluster.stores[index]
        if not engine.reachable or getattr(tenant.journal, "epoch", 0) != engine.row.epoch:
            return iter(())

        def replay(told: Tenant) -> None:
            with cluster.in_peace():
                LedgerRecovery(SimLedger(engine, "reader"), engine.row, seed_of(engine.row.journal), told, {}).run()

        return compare(tenant, replay, now)

    def unlike_metadata(self) -> list[str]:
        """The catalog is in the engine, and nowhere else."""
        return []


class SimNode(SimBroker):
    """One node on one machine: `tandem serve --cluster` without a process."""

    world: ClusterWorld
    engines: NodeEngines

    def _new_engines(self, settings: LogSettings) -> NodeEngines:
        return NodeEngines(self.world, self.host, settings, self.clock)

    def _new_server(self) -> Server:
        """As its composition root makes one."""
        world, line = self.world, self.engines.line
        clock = OwnersClock(self.clock)
        nodes = SimNodes(world.engine, line, world.clock.now_ms)
        address = f"{self.host}:{_PEER_PORT}"
        agenda = world.loop.agenda
        node = Node(
            self.host,
            nodes.join(self.host, address),
            nodes,
            clock,
            LEASE_MS,
            self._note,
            lambda: agenda.now_ms,
            stall_ms=15_000,
            new_beats=partial(SimBeats, agenda, line),
            must_stop=partial(self._must_stop, self.machine),
        )
        node.first_look()
        self.engines.live(self.machine.name, clock, node.may_take)
        peers = ClusterNode(node=self.host, listen=address, secret=_SECRET, ownership=node.ownership)
        return Server(self._settings(), self.engines, clock=clock, log=self._note, entropy=world.entropy, node=node, cluster=peers)

    def _settings(self) -> ServerSettings:
        settings = super()._settings()
        return replace(settings, stores=replace(settings.stores, stall_deadline_ms=15_000))

    def _could_not_start(self, error: BaseException) -> bool:
        return isinstance(error, BusError)

    def set_clock(self, ahead_ms: int) -> None:
        super().set_clock(ahead_ms)
        self.world.clock_was_set(ahead_ms)

    def _must_stop(self, machine: Machine, why: str) -> None:
        self.world.trace.happened(f"{machine.name}: {why}")
        if machine is self.machine:
            self.die(told=True, power=False)
            self.world.on_stopped(self)
        else:
            machine.die()
            self.world.net.machine_died(machine, True)

    def leave_behind(self) -> None:
        """The process that stands still is not looked after any more; somebody starts another one in its place."""
        if self.server is None:
            return
        self.disturb()
        self._lose_locks()
        self.ready = False
        self.world.loop.keep(self.server)
        self.server = None
        self.world.net.stop_listening(self.machine)
        self.world.died(self)

    def _lose_locks(self) -> None:
        super()._lose_locks()
        self.world.lose_locks()

    def serves(self, store: int) -> bool:
        """Whether it has this store, under the epoch that the engine has given last."""
        if self.server is None:
            return False
        tenant = self.server.contexts[0].namespace.stores[store]
        return tenant.available and getattr(tenant.journal, "epoch", 0) == self.world.engine.stores[store].row.epoch


class ClusterHome:
    """All nodes, as clients know them."""

    def __init__(self, clock: SimClock) -> None:
        self.epoch = 0
        self.epoch_since_ms = 0
        self.clock = clock
        self.clock_ahead_ms_max = 0

    def lose_locks(self, now_ms: int) -> None:
        self.epoch += 1
        self.epoch_since_ms = max(self.epoch_since_ms, now_ms)

    def is_lost(self, until_ms: int, lock_ms: int) -> bool:
        """It was carried by a node that stood still, or its store has gone to another one since."""
        return self.epoch_since_ms != _NEVER and (until_ms <= self.clock.now_ms() or until_ms - lock_ms < self.epoch_since_ms)

    def clock_was_set(self, ahead_ms: int) -> None:
        """From now on nobody can say by the clock of a client until when a lock is held."""
        if ahead_ms:
            self.clock_ahead_ms_max = max(self.clock_ahead_ms_max, ahead_ms)
            self.epoch_since_ms = _NEVER


class ClusterWorld(World):
    """Nodes of one namespace over one engine; clients come to any of them."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        super().__init__(loop, seed)
        self._home = ClusterHome(self.clock)
        self.engine = ClusterEngine(STORES, self.dice, self.dice.choice((0.0, 0.02, 0.05)))
        self.clocks_are_set = self.dice.random() < 0.5
        self.nodes: dict[str, SimNode] = {}
        self.on_stopped: Callable[[SimNode], None] = lambda node: None
        """A process has ended by itself; told once nobody else looks after them."""

    def add_nodes(self, count: int, entities: Entities) -> None:
        self.nodes = {host: SimNode(self, host, entities) for host in [f"n{number}" for number in range(1, count + 1)]}
        self.brokers.update(self.nodes)

    def namespace_of(self, host: str) -> str:
        return NAMESPACE

    def home(self, host: str) -> Home:
        return self._home

    def host_for(self, host: str, dice: Random) -> str:
        return dice.choice(list(self.nodes))

    def drain(self, host: str, draining: bool) -> None:
        with self.engine.in_peace():
            if self.engine.registry.reachable:
                SimNodes(self.engine, self.nodes[host].engines.line, self.clock.now_ms).drain(host, draining)

    def clock_was_set(self, ahead_ms: int) -> None:
        self._home.clock_was_set(ahead_ms)

    def lose_locks(self) -> None:
        self._home.lose_locks(self.clock.now_ms())

    def acquired(self, row: StoreRow) -> None:
        """What was locked under an earlier epoch is not any more."""
        self.trace.happened(f"store-{row.number} is {row.owner}'s, epoch {row.epoch}")
        self.lose_locks()

    def carried(self) -> int:
        """Connections that nodes made to each other: for their clients, and to ask."""
        return sum(count for (one, _), count in self.net.made.items() if one in self.nodes)

    @property
    def whole(self) -> bool:
        """Every store is served by whoever has its newest epoch."""
        return all(any(node.serves(store) for node in self.nodes.values()) for store in range(STORES))
