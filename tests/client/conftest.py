"""Two scripted namespaces and a wall clock the test moves."""

from __future__ import annotations

import pytest

from tandem.client.pairing import PairedNamespaces
from tests.client.scripted import ScriptedAdministration, ScriptedNamespace


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
