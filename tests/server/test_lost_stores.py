"""A store that went to another node: what is still in memory here is handed out by nobody, not even until somebody looks at it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.broker.ports import Journal
from tandem.server.server import Server
from tandem.simulator.engine import SimEngine, SimLedger
from tandem.stores.engines import MemoryEngines
from tandem.stores.ledger_store import LedgerStore
from tandem.stores.settings import LogSettings
from tandem.stores.worker import InlineWorker
from tests.cluster.carried import settings_for
from tests.conformance.house import JumpingClock


class SharedEngines(MemoryEngines):
    """Stores that others may take over."""

    def __init__(self) -> None:
        super().__init__()
        self.stores: list[LedgerStore] = []

    def open_journal(self, namespace: str, index: int, loop_call: Callable[[Callable[[], None]], None]) -> Journal:
        ledger = SimLedger(SimEngine(number=index), "a")
        self.stores.append(LedgerStore(ledger, f"store-{index}", loop_call, LogSettings(), JumpingClock(), InlineWorker, lambda _: None))
        return self.stores[-1]


@pytest.mark.parametrize("held", ["", "its node could not reach the engine"], ids=["served", "held"])
def test_a_store_that_was_taken_over_hands_out_nothing_from_the_moment_its_node_knows(tmp_path: Path, held: str) -> None:
    engines = SharedEngines()

    async def story() -> None:
        server = Server(settings_for(tmp_path, {"plain": 1}), engines, clock=JumpingClock())
        await server.start()
        backing = server.contexts[0].namespace.stores[0].backing
        store = engines.stores[0]
        store.hold(held)
        assert backing.suspended == bool(held)
        store.hand_back("node b has taken the store over")
        store.hold("")  # the engine has answered: that was how the node heard of it
        assert backing.suspended
        await server.stop()

    asyncio.run(story())


def test_a_store_that_moves_hands_out_nothing_once_it_is_released(tmp_path: Path) -> None:
    engines = SharedEngines()

    async def story() -> None:
        server = Server(settings_for(tmp_path, {"plain": 1}), engines, clock=JumpingClock())
        await server.start()
        engines.stores[0].move_away("moving to node b")
        assert server.contexts[0].namespace.stores[0].backing.suspended
        await server.stop()

    asyncio.run(story())


def test_a_store_that_is_opened_while_its_node_is_held_hands_out_nothing_either(tmp_path: Path) -> None:
    engines = SharedEngines()

    async def story() -> None:
        server = Server(settings_for(tmp_path, {"plain": 1}), engines, clock=JumpingClock())
        await server.start()
        namespace, supervisor = server.contexts[0].namespace, server.supervisors[0]
        before = namespace.stores[0]
        engines.stores[0].fail("the engine was away")
        engines.stores[0].hold("its node could not reach the engine")
        await supervisor.open_ours()
        assert namespace.stores[0] is not before
        assert namespace.stores[0].backing.suspended
        await server.stop()

    asyncio.run(story())
