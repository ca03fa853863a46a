"""Auto-delete-on-idle: what nobody uses goes, what somebody uses stays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem import amqp
from tandem.testing import Bus
from tests.conformance.raw import Raw

MINUTES = 60


@pytest.fixture
def bus() -> Iterator[Bus]:
    with Bus() as bus:
        yield bus


def pass_time(bus: Bus, seconds: float) -> set[str]:
    """The broker looks after its entities at the end of this time; returns the paths that are left."""
    bus.advance(seconds)

    async def work() -> set[str]:
        server = bus._running()
        server.driver.run_housekeeping()
        context = server.contexts[0]
        await asyncio.gather(*context._tasks)
        left: set[str] = set()
        for entity in context.namespace.entities.values():
            left.add(entity.description.name)
            for subscription in getattr(entity, "subscriptions", {}).values():
                left.add(f"{subscription.description.topic}/{subscription.description.name}")
        return left

    return bus._call(work())


def test_idle_entities_are_deleted_and_others_are_not(bus: Bus) -> None:
    bus.create_queue("mortal", auto_delete_on_idle=5 * MINUTES)
    bus.create_queue("patient", auto_delete_on_idle=20 * MINUTES)
    bus.create_queue("immortal")
    bus.create_topic("t")
    bus.create_subscription("t", "mortal", auto_delete_on_idle=5 * MINUTES)
    bus.create_subscription("t", "stays")
    assert pass_time(bus, 4 * MINUTES) == {"mortal", "patient", "immortal", "t", "t/mortal", "t/stays"}
    assert pass_time(bus, 2 * MINUTES) == {"patient", "immortal", "t", "t/stays"}
    assert pass_time(bus, 30 * MINUTES) == {"immortal", "t", "t/stays"}
    assert any("AutoDeleteOnIdle" in note and "'mortal'" in note for note in bus.notes)


def test_sending_receiving_and_waiting_messages_keep_an_entity(bus: Bus) -> None:
    for name in ("sent", "received", "scheduled", "peeked", "unused"):
        bus.create_queue(name, auto_delete_on_idle=5 * MINUTES)
    with Raw(bus.port) as raw:
        at = amqp.Timestamp(int(bus.now.timestamp() * 1000) + 40 * MINUTES * 1000)
        raw.feed("scheduled", "later", message_annotations={amqp.Symbol("x-opt-scheduled-enqueue-time"): at})
        receiver = raw.receiver("received")
        bus.advance(4 * MINUTES)
        raw.feed("sent", "x")
        raw.request("peeked", "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": amqp.Int(1)})
        assert pass_time(bus, 2 * MINUTES) == {"sent", "received", "scheduled", "peeked"}
        assert pass_time(bus, 4 * MINUTES) == {"received", "scheduled"}
        receiver.link.detach()
        raw.until(lambda: receiver.end.gone)
    assert pass_time(bus, 6 * MINUTES) == {"scheduled"}


def test_a_message_that_waits_for_its_time_keeps_a_partitioned_queue_too(bus: Bus) -> None:
    for name in ("scheduled", "unused"):
        bus.create_queue(name, enable_partitioning=True, auto_delete_on_idle=5 * MINUTES)
    with Raw(bus.port) as raw:
        at = amqp.Timestamp(int(bus.now.timestamp() * 1000) + 40 * MINUTES * 1000)
        raw.feed("scheduled", "later", message_annotations={amqp.Symbol("x-opt-scheduled-enqueue-time"): at})
    assert pass_time(bus, 10 * MINUTES) == {"scheduled"}


def test_use_of_a_subscription_keeps_its_topic(bus: Bus) -> None:
    bus.create_topic("t", auto_delete_on_idle=5 * MINUTES)
    bus.create_subscription("t", "s")
    with Raw(bus.port) as raw:
        receiver = raw.receiver("t/Subscriptions/s")
        assert pass_time(bus, 10 * MINUTES) == {"t", "t/s"}
        receiver.link.detach()
        raw.until(lambda: receiver.end.gone)
    assert pass_time(bus, 10 * MINUTES) == set()


def test_idleness_counts_from_the_restart(tmp_path: Path) -> None:
    with Bus(data_dir=tmp_path) as bus:
        bus.create_queue("mortal", auto_delete_on_idle=5 * MINUTES)
        bus.advance(4 * MINUTES)
        bus.restart()
        assert pass_time(bus, 2 * MINUTES) == {"mortal"}
        assert pass_time(bus, 4 * MINUTES) == set()
        bus.restart()
        assert pass_time(bus, 0) == set()
