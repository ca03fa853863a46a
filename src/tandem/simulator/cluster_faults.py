"""What goes wrong in a simulated cluster: with its nodes, with the lines between them and to the engine, and with the engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tandem.simulator.cluster_nodes import ClusterWorld, SimNode
from tandem.simulator.faults import FaultSchedule

if TYPE_CHECKING:
    from tandem.simulator.world import SimBroker, World


class ClusterFaults(FaultSchedule):
    """One after the other on each node, so that several are in trouble at the same time."""

    def __init__(self, world: World, calm_seconds: tuple[float, float]) -> None:
        super().__init__(world, calm_seconds)
        kept = ("kill", "restart", "connections lost", "half-open connections", "unreachable", "slow network")
        # Whoever stands still may carry what was locked long ago, and nobody can say so whose clock is wrong.
        asleep = 0 if self._cluster().clocks_are_set else 1
        self._faults = [
            *(fault for fault in self._faults if fault[0] in kept),
            ("node is stopped and goes on", 6 * asleep, self._asleep),
            ("node is cut off from the engine", 5, self._cut_off),
            ("beats do not come through", 5, self._beats_lost),
            ("engine hangs for one node", 4, self._hangs),
            ("nodes are cut off from each other", 5, self._apart),
            ("engine fails over", 3, self._fail_over),
            ("engine is away", 2, self._away),
            ("node stays with the old primary", 3, self._old_primary),
            ("another process under its name", 3 * asleep, self._doubled),
            ("node is drained", 2, self._drained),
            ("store is wanted elsewhere", 4, self._wanted),
        ]

    def _cluster(self) -> ClusterWorld:
        assert isinstance(self._world, ClusterWorld)
        return self._world

    def _node(self, broker: SimBroker) -> SimNode:
        assert isinstance(broker, SimNode)
        return broker

    async def clear(self, brokers: list[SimBroker]) -> None:
        cluster = self._cluster()
        cluster.engine.calm_down()
        cluster.net.cuts.clear()
        for broker in brokers:
            cluster.drain(broker.host, False)
        for broker in brokers:
            self._node(broker).engines.line.heal()
            cluster.loop.agenda.wake(broker.machine)
        await super().clear(brokers)
        while not all(broker.ready for broker in brokers):
            for broker in brokers:
                await self._bring_up(broker)
        cluster.on_stopped = self._start_again

    def _start_again(self, node: SimNode) -> None:
        """As `Restart=always` does for a process that stops by itself."""
        self._world.loop.create_task(self._bring_up(node), context=self._world.outside.copy())

    async def set_clocks(self, broker: SimBroker) -> None:
        """In every second story, and never further off than nodes may be: whoever takes over goes on from the last instant written."""
        if not self._cluster().clocks_are_set:
            return
        dice = self._clock_dice
        while True:
            await asyncio.sleep(dice.uniform(5.0, 60.0))
            ahead_ms = dice.choice((-1, 1)) * dice.choice((300, 2_000, 20_000))
            self._world.trace.happened(f"{broker.host}: the clock is set to be off by {ahead_ms} ms")
            self.counts["clock set"] = self.counts.get("clock set", 0) + 1
            broker.set_clock(ahead_ms)
            await asyncio.sleep(dice.uniform(0.2, 20.0))
            broker.set_clock(0)

    async def _clock_is_right(self, broker: SimBroker) -> bool:
        """Or not: a node may die with a clock that is wrong."""
        return not self.over

    async def _bring_up(self, broker: SimBroker) -> None:
        while not broker.ready:
            broker.disturb()
            await asyncio.sleep(0.2)
            await broker.start()

    async def _asleep(self, broker: SimBroker) -> None:
        """Everything on the machine stands still, and goes on as if nothing had been."""
        length = self._dice.choice((0.5, 4.0, 12.0, 30.0)) * self._dice.uniform(0.5, 1.5)
        self._world.loop.agenda.put_to_sleep(broker.machine, length)
        await self._pause(length, length + 1.0)

    async def _cut_off(self, broker: SimBroker) -> None:
        line = self._node(broker).engines.line
        line.set_cut(True)
        await self._pause(0.2, 30.0)
        line.set_cut(False)

    async def _beats_lost(self, broker: SimBroker) -> None:
        """Others believe that it is dead, and what it writes still comes through: only the fence is left."""
        line = self._node(broker).engines.line
        line.set_beats_cut(True)
        await self._pause(2.0, 30.0)
        line.set_beats_cut(False)

    async def _hangs(self, broker: SimBroker) -> None:
        """Whatever it has said arrives when that is over."""
        length = self._dice.uniform(0.5, 20.0)
        self._node(broker).engines.line.faults.stall(self._world.loop.time() + length)
        await self._pause(length, length + 1.0)

    async def _apart(self, broker: SimBroker) -> None:
        other = self._dice.choice([host for host in self._cluster().nodes if host != broker.host])
        self._world.net.cut(broker.host, other)
        await self._pause(0.5, 40.0)
        self._world.net.mend(broker.host, other)

    async def _fail_over(self, broker: SimBroker) -> None:
        self._cluster().engine.fail_over()
        await self._pause(0.0, 2.0)

    async def _away(self, broker: SimBroker) -> None:
        self._cluster().engine.reach(False)
        await self._pause(0.2, 25.0)
        self._cluster().engine.reach(True)

    async def _old_primary(self, broker: SimBroker) -> None:
        line = self._node(broker).engines.line
        line.lead_back(True)
        self._cluster().engine.fail_over()
        await self._pause(0.2, 15.0)
        line.lead_back(False)

    async def _doubled(self, broker: SimBroker) -> None:
        """It stands still, another process is started in its place, and it goes on."""
        length = self._dice.uniform(6.0, 40.0)
        self._world.loop.agenda.put_to_sleep(broker.machine, length)
        await self._pause(0.5, 10.0)
        self._node(broker).leave_behind()

    async def _drained(self, broker: SimBroker) -> None:
        cluster = self._cluster()
        cluster.drain(broker.host, True)
        await self._pause(5.0, 30.0)
        cluster.drain(broker.host, False)

    async def _wanted(self, broker: SimBroker) -> None:
        engine = self._cluster().engine
        with engine.in_peace():
            store = self._dice.choice(engine.stores)
            if store.reachable:
                store.want(self._dice.choice((broker.host, "")))
        await self._pause(0.0, 5.0)
