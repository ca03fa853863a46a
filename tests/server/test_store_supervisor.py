"""Stores that come back: when they are looked at again, and what is told meanwhile."""

from __future__ import annotations

import threading
import time

from tandem.broker.ports import StoreState
from tandem.testing import Bus


def state(bus: Bus) -> StoreState:
    return bus.inside(lambda server: server.supervisors[0].health()[0].state)


def settled(bus: Bus) -> StoreState:
    """Once nothing is being reopened; the bus's clock stands still meanwhile."""
    deadline = time.monotonic() + 20
    while (now := state(bus)) is StoreState.RECOVERING and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    return now


def test_a_store_is_looked_at_as_soon_as_its_fault_is_healed_however_long_it_was_down() -> None:
    with Bus() as bus:
        bus.create_queue("orders")
        number = bus.inject("store-down", store=0)
        for _ in range(8):  # each failed attempt makes the pause before the next one longer
            bus.advance(30)
            assert settled(bus) is StoreState.DOWN
        bus.heal(number)
        assert settled(bus) is StoreState.UP
