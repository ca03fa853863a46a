"""The walk of one accepted send, from its bytes to the bytes that say so, and how long it may be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import walk_figures

ROOT = Path(__file__).resolve().parents[2]
FILES_MAX = 37
FUNCTIONS_MAX = 110
"""May only shrink."""


@pytest.fixture(scope="module")
def walk() -> walk_figures.Walk:
    return walk_figures.walk(ROOT, memory=False, partitioned=False)


@pytest.mark.slow
def test_it_leads_from_the_socket_to_the_disk_and_back(walk: walk_figures.Walk) -> None:
    assert walk.steps[0] == ("gateway/amqp/pump.py", "AmqpPump.data_received")
    assert walk.steps[-1] == ("gateway/amqp/pump.py", "TransportWriter.write")
    synced = walk.steps.index(("stores/disk.py", "LocalDisk.fdatasync"))
    told = walk.steps.index(("gateway/amqp/answers.py", "PendingDisposition.done"))
    assert synced < told, "the sender heard of it before the disk did"


def test_it_gets_no_longer(walk: walk_figures.Walk) -> None:
    counted = walk.figures
    assert counted["files"] <= FILES_MAX
    assert counted["functions"] <= FUNCTIONS_MAX


def test_what_is_counted() -> None:
    steps = (("a/x.py", "one"), ("b/y.py", "two"), ("b/y.py", "two"), ("a/x.py", "three"))
    assert walk_figures.Walk(steps).figures == {"files": 2, "functions": 3, "entries": 4, "crossings": 2}
