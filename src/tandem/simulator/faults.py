"""What goes wrong in a simulation, and when: processes, power, disks and network, drawn from the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING

from tandem.simulator.stores import flip_a_bit

if TYPE_CHECKING:
    from tandem.simulator.world import SimBroker, World

Fault = Callable[["SimBroker"], Awaitable[None]]


class FaultSchedule:
    """One fault after the other on each broker, with calm between them. `clear` ends them all and mends what they left."""

    def __init__(self, world: World, calm_seconds: tuple[float, float]) -> None:
        self._world = world
        self._dice = world.dice
        self._clock_dice = Random(world.seed ^ 0xC10C)
        """Of their own, so that the other faults of a seed stay what they were."""
        self._calm_seconds = calm_seconds
        self.over = False
        self.counts: dict[str, int] = {}
        self._faults: list[tuple[str, int, Fault]] = [
            ("kill", 4, self._kill),
            ("power cut", 5, self._power_cut),
            ("power cut in a disk call", 6, self._power_cut_in_a_call),
            ("restart", 2, self._restart),
            ("sync errors", 4, self._sync_errors),
            ("full disk", 3, self._full_disk),
            ("short stall", 3, self._short_stall),
            ("long stall", 3, self._long_stall),
            ("slow disks", 2, self._slow_disks),
            ("connections lost", 5, self._connections_lost),
            ("half-open connections", 4, self._half_open),
            ("unreachable", 3, self._unreachable),
            ("slow network", 2, self._slow_network),
            ("rot", 3, self._rot),
            ("disk not mounted", 3, self._not_mounted),
            ("metadata lost", 2, self._metadata_lost),
        ]

    async def run(self, broker: SimBroker) -> None:
        names = [name for name, _, _ in self._faults]
        weights = [weight for _, weight, _ in self._faults]
        by_name = {name: fault for name, _, fault in self._faults}
        while True:
            await self._pause(*self._calm_seconds)
            if self.over:
                return
            name = self._dice.choices(names, weights)[0]
            self._world.trace.happened(f"{broker.host}: {name}")
            self.counts[name] = self.counts.get(name, 0) + 1
            broker.set_trouble(True)
            if not await self._clock_is_right(broker):
                return
            broker.disturb()
            await by_name[name](broker)
            broker.disturb()
            await self._bring_up(broker)
            broker.set_trouble(False)

    async def set_clocks(self, broker: SimBroker) -> None:
        """Somebody sets the clock of this machine, ahead or back, a little or by hours, and right again before another fault comes:
        a broker that ends while its clock is wrong cannot know what its successor's clock will be."""
        dice = self._clock_dice
        while True:
            await asyncio.sleep(dice.uniform(2.0, 40.0))
            if broker.in_trouble or not broker.ready or any(disk.faults.power_is_short for disk in broker.engines.disks):
                continue
            ahead_ms = dice.choice((-1, 1)) * dice.choice((700, 5_000, 90_000, 7_200_000, 86_400_000))
            self._world.trace.happened(f"{broker.host}: the clock is set to be off by {ahead_ms} ms")
            self.counts["clock set"] = self.counts.get("clock set", 0) + 1
            broker.set_clock(ahead_ms)
            await asyncio.sleep(dice.uniform(0.2, 20.0))
            broker.set_clock(0)

    async def _clock_is_right(self, broker: SimBroker) -> bool:
        """Once it is; False when faults have ended meanwhile, and the broker is to be left alone."""
        for _ in range(120):
            if broker.clock.is_right or not broker.ready:  # one that is down looks at the clock when it starts
                return not self.over
            await asyncio.sleep(0.5)
        self._world.broken(f"{broker.host} has not noticed for a minute that its clock was set right")
        return False

    async def clear(self, brokers: list[SimBroker]) -> None:
        """Everything works again; a broker that met damage is restarted after the repair."""
        self.over = True
        self._world.slow_disks(1.0)
        self._world.net.slow(False)
        self._world.net.dark.clear()
        for broker in brokers:
            broker.set_clock(0)
            for disk in broker.engines.disks:
                disk.faults.heal()
                disk.mount()
            if broker.rot:
                await self._repair(broker)
            await self._bring_up(broker)

    async def _bring_up(self, broker: SimBroker) -> None:
        """Restarted until it lives: it may lose power again while it starts."""
        while not broker.ready:
            broker.disturb()
            if not self.over and self._dice.random() < 0.2:
                disk = self._dice.choice(broker.engines.disks)
                disk.faults.cut_power_after(self._dice.randint(0, 60))
            await asyncio.sleep(0.05)
            await broker.start()

    async def _pause(self, least: float, most: float) -> None:
        """Part of a fault: cut short when faults end."""
        left = self._dice.uniform(least, most)
        while left > 0 and not self.over:
            step = min(left, 5.0)
            await asyncio.sleep(step)
            left -= step

    # -- processes and power -----------------------------------------------------------------

    async def _kill(self, broker: SimBroker) -> None:
        broker.die(told=True, power=False)
        await self._pause(0.05, 30.0)

    async def _power_cut(self, broker: SimBroker) -> None:
        broker.die(told=self._dice.random() < 0.3, power=True)
        await self._pause(0.5, 60.0)

    async def _power_cut_in_a_call(self, broker: SimBroker) -> None:
        disk = self._dice.choice(broker.engines.disks)
        disk.faults.cut_power_after(self._dice.randint(0, 40))
        for _ in range(60):
            if not broker.machine.alive or self.over:
                break
            await asyncio.sleep(1.0)
        disk.faults.cut_power_after(-1)
        if not broker.machine.alive:
            await self._pause(0.5, 30.0)

    async def _restart(self, broker: SimBroker) -> None:
        await broker.stop()
        await self._pause(0.05, 5.0)

    # -- disks ---------------------------------------------------------------------------------

    async def _sync_errors(self, broker: SimBroker) -> None:
        disk = self._dice.choice(broker.engines.disks)
        disk.faults.fail_syncs(True)
        await self._pause(0.1, 40.0)
        disk.faults.fail_syncs(False)

    async def _full_disk(self, broker: SimBroker) -> None:
        disk = self._dice.choice(broker.engines.disks)
        disk.faults.fill(self._dice.choice((0, 0, 5_000, 60_000)))
        await self._pause(5.0, 90.0)
        if self._dice.random() < 0.3:  # started again on the full disk, it is to be emptied as before
            broker.die(told=True, power=False)
            await asyncio.sleep(0.05)
            await broker.start()
            await self._pause(5.0, 30.0)
        disk.faults.fill(None)

    async def _short_stall(self, broker: SimBroker) -> None:
        disk = self._dice.choice(broker.engines.disks)
        disk.faults.stall(self._world.loop.time() + self._dice.uniform(0.5, 4.0))
        await self._pause(4.0, 5.0)

    async def _long_stall(self, broker: SimBroker) -> None:
        disk = self._dice.choice(broker.engines.disks)
        length = self._dice.uniform(6.0, 30.0)
        disk.faults.stall(self._world.loop.time() + length)
        await self._pause(length, length + 1.0)

    async def _slow_disks(self, broker: SimBroker) -> None:
        self._world.slow_disks(self._dice.uniform(5.0, 60.0))
        await self._pause(5.0, 30.0)
        self._world.slow_disks(1.0)

    async def _rot(self, broker: SimBroker) -> None:
        """A bit flips in a complete file. Found at once or not: it is put right before anything else happens to this broker."""
        rot = flip_a_bit(self._dice.choice(broker.engines.disks), self._dice)
        if rot is None:
            return
        self._world.trace.happened(f"{broker.host}: bit {rot.bit} of {rot.path} at {rot.offset} in {rot.disk.name}")
        broker.rot.append(rot)
        if self._dice.random() < 0.5:
            await self._pause(0.1, 20.0)
            broker.die(told=True, power=False)
            await asyncio.sleep(0.05)
            await broker.start()
        await self._pause(1.0, 60.0)
        await self._repair(broker)

    async def _repair(self, broker: SimBroker) -> None:
        """From the backup, with the broker down."""
        await broker.stop()
        await asyncio.sleep(0.05)
        for rot in broker.rot:
            rot.repair()
        broker.rot.clear()

    async def _not_mounted(self, broker: SimBroker) -> None:
        """The machine starts without one of its disks, which comes later."""
        broker.die(told=True, power=False)
        await asyncio.sleep(0.05)
        number = self._dice.randrange(len(broker.engines.disks))
        disk = broker.engines.disks[number]
        disk.unmount(f"store-{number}")
        await broker.start()
        await self._pause(1.0, 60.0)
        disk.mount()

    async def _metadata_lost(self, broker: SimBroker) -> None:
        """And rebuilt from the journals before the broker is started again."""
        broker.die(told=True, power=self._dice.random() < 0.5)
        await self._pause(0.5, 10.0)
        if not broker.engines.lose_metadata():
            self._world.trace.happened(f"{broker.host}: its journals cannot be read for that")

    # -- network ---------------------------------------------------------------------------------

    async def _connections_lost(self, broker: SimBroker) -> None:
        net = self._world.net
        for line in net.connections(broker.machine):
            if self._dice.random() < 0.5:
                net.reset(line)
        await self._pause(0.0, 2.0)

    async def _half_open(self, broker: SimBroker) -> None:
        net = self._world.net
        for line in net.connections(broker.machine):
            if self._dice.random() < 0.4:
                net.forget(line)
        await self._pause(1.0, 40.0)

    async def _unreachable(self, broker: SimBroker) -> None:
        net = self._world.net
        net.dark.add(broker.host)
        for line in net.connections(broker.machine):
            net.forget(line)
        await self._pause(1.0, 60.0)
        net.dark.discard(broker.host)

    async def _slow_network(self, broker: SimBroker) -> None:
        self._world.net.slow(True)
        await self._pause(5.0, 30.0)
        self._world.net.slow(False)
