"""Fixtures of carried links: the stories of `tests/conformance`, told through a node that owns nothing."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.cluster import peers
from tests.cluster.carried import CarriedBroker
from tests.conformance.conftest import _seen_through, either, flavours
from tests.conformance.raw import Raw
from tests.conformance.sdk import Bus, Flavour

__all__ = ["either", "flavours"]


@pytest.fixture(params=["sync", "async"] if os.environ.get("TANDEM_TEST_CARRIED") == "all" else [""])
def flavour(request: pytest.FixtureRequest, flavours: dict[str, Flavour]) -> Flavour:
    """Each story is told once, half of them by each flavour; all by both when all are wanted."""
    told_by = "async" if zlib.crc32(request.node.name.encode()) % 2 else "sync"
    return flavours[request.param or told_by]


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest, module_path: Path) -> Iterator[CarriedBroker]:
    with CarriedBroker(module_path / "carried", request.module.QUEUES, real_time=True) as broker:
        yield broker


@pytest.fixture(scope="module")
def clocked(request: pytest.FixtureRequest, module_path: Path) -> Iterator[CarriedBroker]:
    with CarriedBroker(module_path / "clocked", request.module.QUEUES) as broker:
        yield broker


@pytest.fixture(scope="module")
def aging(module_path: Path) -> Iterator[CarriedBroker]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(peers, "_IDLE_MS", 2_000_000_000)  # the nodes are not silent for as long as the clients' tokens age
        with CarriedBroker(module_path / "aging", {"plain": 16}, connections_too=True) as broker:
            yield broker


@pytest.fixture
def bus(flavour: Flavour, broker: Any) -> Iterator[Bus]:
    with _seen_through(flavour, broker) as bus:
        yield bus


@pytest.fixture
def timed(flavour: Flavour, clocked: Any) -> Iterator[Bus]:
    with _seen_through(flavour, clocked) as bus:
        yield bus


@pytest.fixture
def raw(broker: Any) -> Iterator[Raw]:
    with Raw(broker.port) as raw:
        yield raw


@pytest.fixture
def raw_timed(clocked: Any) -> Iterator[Raw]:
    with Raw(clocked.port) as raw:
        yield raw
