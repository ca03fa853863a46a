"""The simulated world: two brokers, their disks and their network in one process, in virtual time, from one seed."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from tandem.broker.entities.namespace import Namespace
from tandem.model.entity import AuthorizationRule, QueueDescription, Right, SubscriptionDescription, TopicDescription
from tandem.model.errors import BusError
from tandem.model.limits import Limits
from tandem.server.server import Server
from tandem.server.settings import Listener, NamespaceSettings, ServerSettings, StoresSettings
from tandem.simulator.agenda import MACHINE, Machine, SimClock
from tandem.simulator.invariants import check_namespace
from tandem.simulator.loop import SimLoop
from tandem.simulator.network import SimNet, Trace
from tandem.simulator.replayed import can_be_compared
from tandem.simulator.stores import Rot, SimEngines
from tandem.stores.settings import LogSettings
from tandem.tokens.trust import TrustedIssuer

EPOCH_MS = 1_750_000_000_000
PORT = 5672
KEY_NAME = "RootManageSharedAccessKey"
KEY = "c2ltdWxhdGlvbg=="
STORES = 4
_LOST_BODY = re.compile(r"the body of message \d+ \(id (\S+)\) of entity")
LOCKS_OUTLIVE_ON = ("secondary", "tandem")
"""Namespaces whose locks outlive connections; others drop those of a connection that breaks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entities:
    """What a namespace has in it."""

    queues: tuple[QueueDescription, ...] = ()
    topics: tuple[TopicDescription, ...] = ()
    subscriptions: tuple[SubscriptionDescription, ...] = ()


class Home(Protocol):
    """What clients must know of whoever serves their entities, to judge what they are told."""

    epoch: int
    """Grows whenever locks are lost rightly."""
    epoch_since_ms: int
    """By the true time."""
    clock: SimClock
    clock_ahead_ms_max: int

    def is_lost(self, until_ms: int, lock_ms: int) -> bool:
        """A lock of that length was lost before what was locked arrived."""
        ...


class SimulatedIssuer(Protocol):
    """What a broker needs of an issuer."""

    trust: TrustedIssuer

    async def fetch_keys(self, trust: TrustedIssuer) -> bytes: ...


class SimBroker:
    """One broker on one machine: `tandem serve` without a process. It may die at any instant and be started again."""

    def __init__(self, world: World, host: str, entities: Entities) -> None:
        self.world = world
        self.host = host
        self.entities = entities
        self.machine = Machine(host)
        self.machine.alive = False
        self.server: Server | None = None
        self.ready = False
        self.lives = 0
        """How often it was started."""
        self.epoch = 0
        """Grows whenever locks are lost rightly: it died, or one of its stores did."""
        self.epoch_since_ms = 0
        """By the true time."""
        self.disturbed_at = 0.0
        """When a fault last had to do with it."""
        self.rot: list[Rot] = []
        self.checks = 0
        """How often everything inside it had to add up."""
        self.replays_compared = 0
        """How often its rows were compared with those of a replay."""
        settings = LogSettings(segment_bytes=24_576, index_spill_bytes=8_192, lazy_ms_max=200, free_bytes_min=1_000_000, check_ms=5_000)
        self.clock = SimClock(world.loop.agenda, EPOCH_MS)
        """Its machine's; a fault sets it."""
        self.clock_ahead_ms_max = 0
        """The most it ever was ahead of the true time."""
        self.in_trouble = False
        """A fault of the schedule is at work."""
        self.engines = self._new_engines(settings)
        for disk in self.engines.disks:
            disk.live_in(world.disk_latency, self._power_failed)

    def _new_engines(self, settings: LogSettings) -> SimEngines:
        world = self.world
        return world.new_engines(world.loop.agenda, self.host, STORES, settings, self.clock, world.dice)

    def _new_server(self) -> Server:
        """For the life that begins."""
        return Server(self._settings(), self.engines, clock=self.clock, log=self._note, entropy=self.world.entropy)

    def _could_not_start(self, error: BaseException) -> bool:
        """Whether it may be tried again."""
        return False

    def _settings(self) -> ServerSettings:
        rights = frozenset(Right)
        root = AuthorizationRule(key_name=KEY_NAME, rights=rights, primary_key=KEY, secondary_key=KEY)
        namespace = NamespaceSettings(
            name=self.world.namespace_of(self.host),
            queues=self.entities.queues,
            topics=self.entities.topics,
            subscriptions=self.entities.subscriptions,
            authorization_rules=(root,),
            locks_outlive_connections=self.world.namespace_of(self.host) in LOCKS_OUTLIVE_ON,
        )
        return ServerSettings(
            listeners=(Listener(host=self.host, port=PORT),),
            namespaces=(namespace,),
            limits=Limits(hot_bytes_max=65_536, idle_timeout_ms=60_000, drop_silent_peer_after_ms=120_000),
            housekeeping_ms=500,
            trusted_issuers=(self.world.issuer.trust,) if self.world.issuer is not None else (),
            stores=StoresSettings(count=STORES, fragments=6, stall_deadline_ms=5_000),
        )

    def is_lost(self, until_ms: int, lock_ms: int) -> bool:
        """Nothing is on its way for that long."""
        return False

    def set_clock(self, ahead_ms: int) -> None:
        self.clock.ahead_ms = ahead_ms
        self.clock_ahead_ms_max = max(self.clock_ahead_ms_max, ahead_ms)

    async def start(self) -> None:
        """Returns when it serves, or when it died on the way."""
        world = self.world
        self.lives += 1
        machine = self.machine = Machine(f"{self.host}#{self.lives}")
        for disk in self.engines.disks:
            disk.before = None
        self.set_clock(0)  # a machine that starts asks others for the time
        self.clock.jumped()
        context = contextvars.copy_context()
        context.run(MACHINE.set, machine)
        try:
            server = context.run(self._new_server)
        except BusError as error:
            world.trace.happened(f"{self.host} could not be started: {error}")
            self.die(told=True, power=False)
            return
        if world.issuer is not None:
            server.fetch_keys = world.issuer.fetch_keys
        task = world.loop.create_task(server.start(), context=context)
        done, _ = await asyncio.wait((task,), timeout=600.0) if machine.alive else (set(), None)
        if not machine.alive:
            world.loop.keep((server, task))
            return
        if not done:
            world.broken(f"{self.host} was not ready after 600 seconds")
            return
        failed = task.exception()
        if failed is not None and self._could_not_start(failed):
            world.trace.happened(f"{self.host} could not be started: {failed}")
            world.loop.keep((server, task))
            self.die(told=True, power=False)
            return
        task.result()
        self.server = server
        self.ready = True
        world.trace.happened(f"{self.host} is ready, life {self.lives}")
        self.check("after its start")

    def _note(self, text: str) -> None:
        self.world.trace.happened(f"{self.host}: {text}")
        if " is down" in text or " is corrupt" in text:
            self._lose_locks()
        for key in _LOST_BODY.findall(text):
            for listener in self.world.on_damage:
                listener(key)
        if " is down" in text and os.strerror(errno.ENOSPC) in text:
            self.world.broken(f"{self.host}: a full disk degrades a store, it does not take it down: {text}")

    def _lose_locks(self) -> None:
        self.epoch += 1
        self.epoch_since_ms = self.world.clock.now_ms()

    def disturb(self) -> None:
        """A fault has to do with it now."""
        self.disturbed_at = self.world.loop.time()

    def set_trouble(self, in_trouble: bool) -> None:
        self.in_trouble = in_trouble

    def _power_failed(self) -> None:
        """A disk call found no power: everything on this machine stops between two instructions."""
        self.world.trace.happened(f"{self.host} loses power in a disk call")
        self.die(told=self.world.dice.random() < 0.5, power=True)

    def die(self, *, told: bool, power: bool) -> None:
        """A process killed leaves its writes to the system; a machine without power leaves what was synced, and pieces."""
        world = self.world
        if not self.machine.alive:
            return
        self.disturbed_at = world.loop.time()
        self.machine.alive = False
        self._lose_locks()
        self.ready = False
        if self.server is not None:
            world.loop.keep(self.server)
            self.server = None
        world.net.machine_died(self.machine, told)
        for disk in self.engines.disks:
            disk.dead = True
            disk.faults.cut_power_after(-1)
        world.loop.call_soon(self._restart_disks, power, context=world.outside.copy())
        world.died(self)

    def _restart_disks(self, power: bool) -> None:
        for disk in self.engines.disks:
            disk.restart(self.world.dice if power else None)

    async def stop(self) -> None:
        """As an operator does it: everything accepted is on disk first."""
        server = self.server
        if server is None:
            return
        self.ready = False
        self.disturbed_at = self.world.loop.time()
        context = contextvars.copy_context()
        context.run(MACHINE.set, self.machine)
        machine = self.machine
        task = self.world.loop.create_task(server.stop(), context=context)
        await asyncio.wait((task,), timeout=300.0)
        if machine.alive:
            if not task.done():
                self.world.broken(f"{self.host} could not be stopped within 300 seconds")
            else:
                task.result()
            self.die(told=True, power=False)

    @property
    def whole(self) -> bool:
        """It runs, with all its stores."""
        server = self.server
        return server is not None and all(store.available for context in server.contexts for store in context.namespace.stores)

    def check(self, when: str) -> None:
        if self.server is not None and self.machine.alive:
            self.checks += 1
            for context in self.server.contexts:
                for fault in check_namespace(context.namespace):
                    self.world.broken(f"{self.host} {when}: {fault}")
                if not self.rot:
                    self._compare_with_replay(context.namespace, when)

    def _compare_with_replay(self, namespace: Namespace, when: str) -> None:
        """Whatever has no facts under way must be what a restart would make of its journal."""
        for number, tenant in enumerate(namespace.stores):
            if can_be_compared(tenant):
                self.replays_compared += 1
                for difference in self.engines.unlike_replay(number, tenant, namespace.turn.now):
                    self.world.broken(f"{self.host} {when}: store-{number} would be another after a restart: {difference}")


class World:
    """Everything that one seed decides."""

    def __init__(self, loop: SimLoop, seed: int) -> None:
        self.loop = loop
        self.seed = seed
        self.dice = Random(seed)
        self.outside = contextvars.copy_context()
        self.trace = Trace(loop.agenda)
        self.net = loop.net = SimNet(loop.agenda, Random(seed ^ 0x5EED), self.trace.bytes_arrived)
        self.clock = SimClock(loop.agenda, EPOCH_MS)
        """The true time."""
        self.slow = 1.0
        self.on_death: list[Callable[[str], None]] = []
        self.on_damage: list[Callable[[str], None]] = []
        """Told the id of each message whose body is said to be lost."""
        self.brokers: dict[str, SimBroker] = {}
        self.issuer: SimulatedIssuer | None = None
        self.new_engines: type[SimEngines] = SimEngines
        """What brokers remember with."""
        loop.executor_delay = lambda: self.dice.uniform(0.000_1, 0.003)

    def add_brokers(self, entities: dict[str, Entities]) -> None:
        """One broker per host, with these entities in its namespace."""
        self.brokers = {host: SimBroker(self, host, wanted) for host, wanted in entities.items()}

    def entropy(self, count: int) -> bytes:
        return self.dice.randbytes(count)

    def slow_disks(self, factor: float) -> None:
        self.slow = factor

    def disk_latency(self) -> float:
        return (0.000_2 + (0.004 - 0.000_2) * self.dice.random()) * self.slow

    def broken(self, what: str) -> None:
        """A promise does not hold: the run ends here."""
        self.trace.happened(f"BROKEN {what}")
        if self.loop.agenda.failed is None:
            self.loop.agenda.failed = PromiseBroken(what)

    def namespace_of(self, host: str) -> str:
        """What the broker there serves: one of its own."""
        return host

    def home(self, host: str) -> Home:
        """Where the entities of a story are."""
        return self.brokers[host]

    def host_for(self, host: str, dice: Random) -> str:
        """Where a client of that namespace connects to."""
        return host

    @property
    def whole(self) -> bool:
        """Everything is served."""
        return all(broker.whole for broker in self.brokers.values())

    def died(self, broker: SimBroker) -> None:
        for listener in self.on_death:
            listener(broker.host)

    async def open(self) -> None:
        for broker in self.brokers.values():
            await broker.start()


class PromiseBroken(AssertionError):
    """What was found, in one line."""
