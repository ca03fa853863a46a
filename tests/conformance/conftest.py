"""Fixtures: brokers per module, and the two flavours of the official SDK around them."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.house import ClockedBroker, ProcessBroker
from tests.conformance.raw import Raw
from tests.conformance.sdk import AsyncFlavour, Bus, Flavour


@pytest.fixture(scope="session")
def flavours() -> Iterator[dict[str, Flavour]]:
    flavours = {"sync": Flavour(), "async": AsyncFlavour()}
    yield flavours
    for flavour in flavours.values():
        flavour.finish()


@pytest.fixture(params=["sync", "async"])
def flavour(request: pytest.FixtureRequest, flavours: dict[str, Flavour]) -> Flavour:
    """Every story is told twice."""
    return flavours[request.param]


@pytest.fixture
def either(request: pytest.FixtureRequest, flavours: dict[str, Flavour]) -> Flavour:
    """Told once, half of the stories by each: for refusals, which both flavours read with the same code."""
    return flavours["async" if zlib.crc32(request.node.name.encode()) % 2 else "sync"]


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, module_path: Path) -> Iterator[ProcessBroker]:
    """A broker process, fresh for every module, with the queues the module asks for in QUEUES."""
    with ProcessBroker(module_path / "broker", request.module.QUEUES) as broker:
        yield broker


@pytest.fixture(scope="module")
def clocked(request: pytest.FixtureRequest, module_path: Path) -> Iterator[ClockedBroker]:
    """A broker in this process whose clock can jump."""
    with ClockedBroker(module_path / "clocked", request.module.QUEUES) as broker:
        yield broker


@contextmanager
def _seen_through(flavour: Flavour, broker: Any) -> Iterator[Bus]:
    with Raw(broker.port) as feeder:
        bus = Bus(flavour, broker, feeder)
        yield bus
        bus.close()


@pytest.fixture
def bus(flavour: Flavour, broker: ProcessBroker) -> Iterator[Bus]:
    """The broker process seen through one flavour of the SDK."""
    with _seen_through(flavour, broker) as bus:
        yield bus


@pytest.fixture
def timed(flavour: Flavour, clocked: ClockedBroker) -> Iterator[Bus]:
    """The broker with the jumping clock seen through one flavour of the SDK."""
    with _seen_through(flavour, clocked) as bus:
        yield bus
    assert clocked.unlike_replay() == [], "what live code made of the facts is not what a restart makes of them"


@pytest.fixture
def raw(broker: ProcessBroker) -> Iterator[Raw]:
    with Raw(broker.port) as raw:
        yield raw


@pytest.fixture
def raw_timed(clocked: ClockedBroker) -> Iterator[Raw]:
    with Raw(clocked.port) as raw:
        yield raw
    assert clocked.unlike_replay() == [], "what live code made of the facts is not what a restart makes of them"


@pytest.fixture
def fresh_id() -> str:
    return str(uuid.uuid4())
