"""Runs the broker's real code through a seed's worth of crashes, faults and traffic, and says whether every promise held."""

from __future__ import annotations

import asyncio
import gc
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from tandem.simulator.amqp_client import Gone, PeerRefused
from tandem.simulator.checker import CheckResult
from tandem.simulator.cluster_engine import NAMESPACE
from tandem.simulator.cluster_faults import ClusterFaults
from tandem.simulator.cluster_nodes import ClusterWorld
from tandem.simulator.cluster_stories import ComeAndGo, ComeAndGoInFragments
from tandem.simulator.engine_brokers import EngineFaults, EngineStores
from tandem.simulator.faults import FaultSchedule
from tandem.simulator.feature_stories import ALL
from tandem.simulator.issuer_stories import Issued, SimIssuer
from tandem.simulator.loop import SimLoop
from tandem.simulator.ordered_stories import InOrder
from tandem.simulator.paired_stories import Backlog, Paired
from tandem.simulator.story import Story
from tandem.simulator.world import Entities, PromiseBroken, SimBroker, World

BACKLOGS_ON = "secondary"
STORY_SECONDS = 900.0
DRAIN_SECONDS_MAX = 1_800.0
_CHECK_SECONDS = 10.0
_EVENTS_MAX = 16_000
"""Between two checks; a busy story has a thousand, three syphons that give back what has to wait have ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOutcome:
    """What became of one seed."""

    seed: int
    broken: str
    """Empty: everything held."""
    digest: str
    """Of every byte on the network and every event: the same for the same seed."""
    simulated_seconds: float
    cpu_seconds: float
    events: int
    verdict: CheckResult
    faults: dict[str, int]
    last_events: tuple[str, ...]
    diverted: int = 0
    checks: int = 0
    """How often everything inside a broker had to add up."""
    replays_compared: int = 0
    """How often the rows of a store were those of a replay of its journal."""

    @property
    def speed(self) -> float:
        """Times real time."""
        return self.simulated_seconds / max(self.cpu_seconds, 1e-9)

    def __str__(self) -> str:
        state = "BROKEN " + self.broken if self.broken else "held"
        return (
            f"seed {self.seed}: {state}; {self.verdict.seen} deliveries, {sum(self.faults.values())} faults, {self.diverted} diverted, "
            f"{self.simulated_seconds:.0f} s simulated in {self.cpu_seconds:.2f} s ({self.speed:.0f}x), trace {self.digest}"
        )


def merged(parts: list[Entities]) -> Entities:
    return Entities(
        queues=tuple(queue for part in parts for queue in part.queues),
        topics=tuple(topic for part in parts for topic in part.topics),
        subscriptions=tuple(one for part in parts for one in part.subscriptions),
    )


class Simulation:
    """One seed."""

    fault_schedule: ClassVar[type[FaultSchedule]] = FaultSchedule
    new_world: ClassVar[type[World]] = World

    def __init__(self, seed: int, *, story_seconds: float = STORY_SECONDS, verbose: bool = False) -> None:
        self.seed = seed
        self._story_seconds = story_seconds
        dice = Random(seed * 7919 + 1)
        self.loop = SimLoop()  # type: ignore[abstract]  # it has what asyncio really asks for
        self.world = self.new_world(self.loop, seed)
        if verbose:
            self.world.trace.listener = print
        self.stories = self._choose(dice)
        self._add_brokers(dice)
        self.faults = self.fault_schedule(self.world, dice.choice(((5.0, 60.0), (20.0, 200.0), (0.5, 20.0))))

    def _add_brokers(self, dice: Random) -> None:
        self.world.add_brokers(
            {host: merged([story.entities() for story in self.stories if story.host == host]) for host in ("primary", "secondary")}
        )

    def _choose(self, dice: Random) -> list[Story]:
        paired = Paired(self.world, "primary", Random(dice.random()))
        chosen = dice.sample(ALL, dice.randint(4, 7))
        stories: list[Story] = [paired, Backlog(self.world, "secondary", Random(0), paired)]
        stories.append(InOrder(self.world, "primary", Random(dice.random())))
        return stories + [kind(self.world, dice.choice(("primary", "primary", "secondary")), Random(dice.random())) for kind in chosen]

    def run(self) -> SeedOutcome:
        began = time.process_time()
        broken = ""
        try:
            self.loop.run(self._tell())
        except PromiseBroken as error:
            broken = str(error)
        except Exception as error:  # noqa: BLE001 - a story that cannot be told to its end is a finding too
            broken = f"{error!r} " + " < ".join(
                f"{frame.name}:{frame.lineno}" for frame in reversed(traceback.extract_tb(error.__traceback__)[-4:])
            )
        verdict = CheckResult.total(checker.verdict() for story in self.stories for checker in story.checkers())
        if not broken and not verdict.holds:
            broken = str(verdict)
        trace = self.world.trace
        return SeedOutcome(
            seed=self.seed,
            broken=broken,
            digest=trace.digest(),
            simulated_seconds=self.loop.time(),
            cpu_seconds=time.process_time() - began,
            events=self.loop.agenda.event_count,
            verdict=verdict,
            faults=self.faults.counts,
            last_events=tuple(trace.last),
            diverted=sum(story.diverted for story in self.stories if isinstance(story, Paired)),
            checks=sum(broker.checks for broker in self.world.brokers.values()),
            replays_compared=sum(broker.replays_compared for broker in self.world.brokers.values()),
        )

    async def _tell(self) -> None:
        world = self.world
        brokers = list(world.brokers.values())
        world.on_death.append(self._crashed)
        world.on_damage.append(self._damaged)
        await world.open()
        watch = asyncio.ensure_future(self._watch(brokers))
        for story in self.stories:
            story.start()
        faults = [asyncio.ensure_future(self.faults.run(broker)) for broker in brokers]
        # Not where the backlogs are: which of two backlog queues has a session's earlier message is told by the time it was enqueued there.
        clocks = [asyncio.ensure_future(self.faults.set_clocks(broker)) for broker in brokers if broker.host != BACKLOGS_ON]
        await asyncio.sleep(self._story_seconds)
        world.trace.happened("no more faults")
        self.faults.over = True
        for clock in clocks:
            clock.cancel()
        for broker in brokers:
            broker.set_clock(0)
        await asyncio.gather(*faults)
        await self.faults.clear(brokers)
        for story in self.stories:
            story.draining = True
        await self._drain()
        for story in self.stories:
            story.ended = True
        watch.cancel()
        self._look_for_mishaps()
        for broker in brokers:
            for wrong in broker.engines.unlike_metadata():
                world.broken(f"{broker.host}: {wrong}")

    def _damaged(self, key: str) -> None:
        for story in self.stories:
            for checker in story.checkers():
                checker.damaged(key)

    def _crashed(self, host: str) -> None:
        for story in self.stories:
            if story.host == self.world.namespace_of(host):
                for checker in story.checkers():
                    checker.crashed()

    async def _watch(self, brokers: list[SimBroker]) -> None:
        before = 0
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            count = self.loop.agenda.event_count
            if count - before > _EVENTS_MAX:
                self.world.broken(f"{count - before} events within {_CHECK_SECONDS:.0f} seconds: somebody runs in circles")
            before = count
            for broker in brokers:
                broker.check("between two turns")
            self._look_for_mishaps()

    def _look_for_mishaps(self) -> None:
        for mishap in self.loop.agenda.mishaps:
            frames = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(traceback.extract_tb(mishap.__traceback__)[-5:]))
            self.world.broken(f"an exception escaped: {mishap!r} {frames}")

    async def _drain(self) -> None:
        """Until every entity is empty, twice in a row: a syphon may hold what is in neither place."""
        deadline = self.loop.time() + DRAIN_SECONDS_MAX
        waiting = list(self.stories)
        while waiting:
            await asyncio.sleep(10.0)
            # A fragment in a store that is down cannot be looked at, and whoever looks sees only the others.
            whole = self.world.whole
            waiting = [story for story in self.stories if not (whole and await self._is_empty(story))]
            if self.loop.time() > deadline:
                self.world.broken(f"not empty {DRAIN_SECONDS_MAX:.0f} s after the last fault: {[f'{s.host}/{s.queue}' for s in waiting]}")
                return
        for story in self.stories:
            if not await self._is_empty(story):
                await self._drain()
                return

    async def _is_empty(self, story: Story) -> bool:
        try:
            client = await story.connect()
            try:
                return await story.is_empty(client)
            finally:
                client.abort()
        except (Gone, TimeoutError, PeerRefused) as error:
            self.world.trace.happened(f"looking at {story.host}/{story.queue}: {error}")
            return False


class IssuerOutages(Simulation):
    """Another story: an issuer of tokens that comes and goes. Tokens follow the clock, so it is told where nobody sets it."""

    def _choose(self, dice: Random) -> list[Story]:
        issuer = SimIssuer(self.world, Random(dice.random()))
        self.world.issuer = issuer
        self.issued = Issued(self.world, BACKLOGS_ON, Random(dice.random()), issuer)
        return [self.issued]


class EngineOutages(Simulation):
    """The brokers' stores are in engines that fail over, and others take them from them."""

    fault_schedule = EngineFaults

    def _choose(self, dice: Random) -> list[Story]:
        self.world.new_engines = EngineStores
        return super()._choose(dice)

    def taken_over(self) -> int:
        """How often a store was taken from its broker."""
        return sum(engine.taken for stores in self._stores() for engine in stores.engines)

    def doubts(self) -> Counter[str]:
        """What became of blocks of which nobody knew whether they had landed."""
        return sum((Counter(told) for stores in self._stores() for told in stores.doubts), Counter())

    def _stores(self) -> list[EngineStores]:
        return [broker.engines for broker in self.world.brokers.values() if isinstance(broker.engines, EngineStores)]


class ClusterOutages(Simulation):
    """Nodes of one cluster that take over from each other by their beats, and carry the links of clients that came to another."""

    fault_schedule = ClusterFaults
    new_world = ClusterWorld
    world: ClusterWorld

    def _add_brokers(self, dice: Random) -> None:
        self.world.add_nodes(dice.choice((2, 3, 3)), merged([story.entities() for story in self.stories]))

    def _choose(self, dice: Random) -> list[Story]:
        chosen: list[type[Story]] = [dice.choice((ComeAndGo, ComeAndGoInFragments)), *dice.sample(ALL, dice.randint(3, 5))]
        return [kind(self.world, NAMESPACE, Random(dice.random())) for kind in chosen]

    async def _tell(self) -> None:
        await super()._tell()
        for wrong in self.world.engine.broken_orders():
            self.world.broken(wrong)


STORIES: dict[str, type[Simulation]] = {"outage": Simulation, "issuer": IssuerOutages, "engine": EngineOutages, "cluster": ClusterOutages}


def simulate(seed: int, *, story_seconds: float = STORY_SECONDS, verbose: bool = False, story: str = "outage") -> SeedOutcome:
    """Garbage is collected between stories: within one, the order of things may not depend on it."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return STORIES[story](seed, story_seconds=story_seconds, verbose=verbose).run()
    finally:
        if collecting:
            gc.enable()
