"""Brokers whose stores are ledgers over an engine that lies: it fails over, hangs, goes away, and others take their stores from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Final

from tandem.broker.ports import Journal, Tenant
from tandem.broker.recovery.tenant import StoreTenant
from tandem.model.clock import Clock
from tandem.model.errors import EngineAway, StoreUnavailable
from tandem.simulator.agenda import Agenda, SimWorker
from tandem.simulator.engine import EngineFate, SimEngine, SimLedger
from tandem.simulator.faults import FaultSchedule
from tandem.simulator.replayed import compare
from tandem.simulator.stores import DiskFaults, SimEngines
from tandem.stores.blocks import seed_of
from tandem.stores.ledger_entries import LedgerRecovery
from tandem.stores.ledger_store import LedgerStore
from tandem.stores.settings import LogSettings

if TYPE_CHECKING:
    from tandem.simulator.world import SimBroker, World

_TROUBLED: Final = 0.04
"""The part of all writes that have another fate than they should."""
_FATES: Final = (EngineFate.BROKEN, EngineFate.UNTOLD, EngineFate.LOCAL, EngineFate.LATE)


class StoreEngine(SimEngine):
    """The engine of one store, with what happens to it between and during the calls of its owner."""

    def __init__(self, number: int, dice: Random) -> None:
        super().__init__(self._draw, self._before_a_call, number)
        self._dice = dice
        self._busy = False
        self.taken = 0
        """How often somebody else has taken the store."""
        self.faults = DiskFaults()
        """Of which it only knows stalls: calls that take long."""

    def latency(self) -> float:
        return self._dice.uniform(0.000_5, 0.006)

    def _draw(self) -> EngineFate:
        if self._busy or self._dice.random() >= _TROUBLED:
            return EngineFate.DONE
        return self._dice.choice(_FATES)

    def _before_a_call(self) -> None:
        """Between two statements of the owner: late ones of its own arrive, a standby is promoted, somebody takes the store over."""
        if self._busy:
            return
        chance = self._dice.random()
        if chance < 0.01:
            self.run_late()
        elif chance < 0.015:
            self.fail_over()
        elif chance < 0.018:
            self.take_over()

    def take_over(self) -> None:
        """Another node has it for a moment, and gives it back: whoever had it may write nothing any more."""
        thief = SimLedger(self, "thief")
        try:
            with self.in_peace():
                thief.acquire()
                thief.release()
        except StoreUnavailable:
            return  # it does not answer
        self.taken += 1

    @contextmanager
    def in_peace(self) -> Iterator[None]:
        """Nothing happens between these calls, and they have the fate they should."""
        self._busy, before = True, self._busy
        try:
            yield
        finally:
            self._busy = before

    def calm_down(self) -> None:
        """For good."""
        self._busy = True
        self.reach(True)
        self.faults.heal()
        self.run_late()

    def wait(self, seconds: float) -> None:
        """In a call that is made again: no time passes within one, so whoever is away is given up."""
        if not self.reachable:
            raise EngineAway("the engine does not answer")


class EngineStores(SimEngines):
    """What one simulated broker remembers with, in engines that outlive it: one for each store."""

    def __init__(self, agenda: Agenda, host: str, stores: int, settings: LogSettings, clock: Clock, dice: Random) -> None:
        super().__init__(agenda, host, 0, settings, clock, dice)
        self.engines = [StoreEngine(number, dice) for number in range(stores)]
        self.doubts: list[dict[str, int]] = []
        self._host = host
        self._lives = 0

    def open_journal(self, namespace: str, index: int, loop_call: Callable[[Callable[[], None]], None]) -> Journal:
        engine = self.engines[index]
        self._lives += 1
        ledger = SimLedger(engine, f"{self._host}#{self._lives}")
        store = LedgerStore(
            ledger,
            f"store-{index}",
            loop_call,
            self._settings,
            self._clock,
            lambda name: SimWorker(self._agenda, engine),
            engine.wait,
        )
        self.doubts.append(store.doubts)
        return store

    def unlike_replay(self, index: int, tenant: StoreTenant, now: int) -> Iterator[str]:
        engine = self.engines[index]
        if not engine.reachable:
            return iter(())

        def replay(told: Tenant) -> None:
            with engine.in_peace():
                LedgerRecovery(SimLedger(engine, "reader"), engine.row, seed_of(engine.row.journal), told, {}).run()

        return compare(tenant, replay, now)

    def unlike_metadata(self) -> list[str]:
        """The catalog is in the engine, and nowhere else."""
        return []


class EngineFaults(FaultSchedule):
    """Of processes and lines, and of engines instead of disks."""

    def __init__(self, world: World, calm_seconds: tuple[float, float]) -> None:
        super().__init__(world, calm_seconds)
        kept = ("kill", "restart", "connections lost", "half-open connections", "unreachable", "slow network")
        self._faults = [
            *(fault for fault in self._faults if fault[0] in kept),
            ("engine fails over", 5, self._fail_over),
            ("engine is away", 5, self._away),
            ("engine hangs", 4, self._hangs),
            ("store taken over", 6, self._taken_over),
        ]

    def _engines(self, broker: SimBroker) -> list[StoreEngine]:
        assert isinstance(broker.engines, EngineStores)
        return broker.engines.engines

    async def clear(self, brokers: list[SimBroker]) -> None:
        for broker in brokers:
            for engine in self._engines(broker):
                engine.calm_down()
        await super().clear(brokers)

    async def _bring_up(self, broker: SimBroker) -> None:
        while not broker.ready:
            broker.disturb()
            await asyncio.sleep(0.05)
            await broker.start()

    async def _fail_over(self, broker: SimBroker) -> None:
        for engine in self._engines(broker):
            if self._dice.random() < 0.5:
                engine.fail_over()
        await self._pause(0.0, 2.0)

    async def _away(self, broker: SimBroker) -> None:
        engine = self._dice.choice(self._engines(broker))
        engine.reach(False)
        await self._pause(0.2, 30.0)
        engine.reach(True)

    async def _hangs(self, broker: SimBroker) -> None:
        engine = self._dice.choice(self._engines(broker))
        length = self._dice.uniform(0.5, 20.0)
        engine.faults.stall(self._world.loop.time() + length)
        await self._pause(length, length + 1.0)

    async def _taken_over(self, broker: SimBroker) -> None:
        self._dice.choice(self._engines(broker)).take_over()
        await self._pause(0.0, 2.0)
