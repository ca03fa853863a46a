"""Two scripted namespaces and a wall clock the test moves; loops do not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tandem.client.pairing import PairedNamespaces
from tests.client.scripted import ScriptedAdministration, ScriptedNamespace
from tests.virtual_time import VirtualTimeLoop

IN_REAL_TIME = ("test_sdk.py", "test_sync.py", "test_tokens.py")
"""They talk to somebody outside of the loop: a broker, or a thread that has a loop of its own."""


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.path.name in IN_REAL_TIME:
        return {"real time": asyncio.new_event_loop}
    return {"virtual time": VirtualTimeLoop}


class Clock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def primary(clock: Clock) -> ScriptedNamespace:
    return ScriptedNamespace("contoso.example:5671", clock)


@pytest.fixture
def secondary(clock: Clock) -> ScriptedNamespace:
    return ScriptedNamespace("backup.example:5671", clock, strict=True)


@pytest.fixture
async def make_pair(primary: ScriptedNamespace, secondary: ScriptedNamespace, clock: Clock):
    pairs: list[PairedNamespaces] = []

    async def make(**options) -> PairedNamespaces:
        options.setdefault("backlog_queue_count", 3)
        options.setdefault("failover_interval", 0)
        options.setdefault("ping_primary_interval", 1800)
        options.setdefault("secondary_administration", ScriptedAdministration(secondary))
        options.setdefault("choose", lambda n: 0)
        pair = PairedNamespaces(primary, secondary, now_ms=clock, **options)
        pairs.append(pair)
        await pair.pair()
        return pair

    yield make
    for pair in pairs:
        await pair.close()
