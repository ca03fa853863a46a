"""Many large messages that are due at one instant are read and written again a few at a time."""

from __future__ import annotations

import pytest

from tandem.broker.entities.queue_entity import QueueEntity
from tandem.broker.ports import FetchEffect
from tandem.model.address import SubQueue
from tandem.model.entity import QueueDescription
from tests.broker.desk import Desk, message

COUNT = 100
SIZE = 200_000
BYTES_MAX = 4_194_304 + SIZE + 1_000
TEXTS = [f"{number:03}".ljust(SIZE, ".") for number in range(COUNT)]


def read_at_once(desk: Desk) -> int:
    """Lets everything happen that is due; returns the most bytes that were asked for before any of them were on disk again."""
    asked: list[int] = []
    fetch = desk.store.fetch

    def watched(locations: list[int], effect: FetchEffect) -> None:
        asked.extend(len(desk.shelf.bodies[location]) for location in locations)
        fetch(locations, effect)

    desk.store.fetch = watched  # type: ignore[method-assign]
    most = 0
    for _ in range(200):
        desk.clock.now += 20
        desk.turn.run()
        desk.loop.run_ready()
        most = max(most, sum(asked))
        asked.clear()
    desk.store.fetch = fetch  # type: ignore[method-assign]
    assert most, "nothing was due"
    return most


def test_scheduled_messages() -> None:
    desk = Desk(QueueDescription(name="q"))
    desk.send(*TEXTS, scheduled_at=desk.now + 5_000)
    desk.clock.now += 5_000
    assert read_at_once(desk) <= BYTES_MAX
    assert desk.texts() == TEXTS


@pytest.mark.parametrize("restarted", [False, True])
def test_expired_messages_that_are_dead_lettered(restarted: bool) -> None:
    desk = Desk(QueueDescription(name="q", dead_lettering_on_message_expiration=True), hot_bytes=1)
    desk.send(*TEXTS, ttl_ms=5_000)
    if restarted:
        desk.clock.now += 4_000
        desk.restart()
    desk.clock.now += 5_000
    assert read_at_once(desk) <= BYTES_MAX
    assert desk.texts(sub_queue=SubQueue.DEAD_LETTER) == TEXTS


def test_forwarded_messages() -> None:
    desk = Desk(QueueDescription(name="home"), QueueDescription(name="q"), hot_bytes=1)
    for text in TEXTS:
        desk.queue().enqueue(message(text), desk.now)
    desk.run()
    entity = desk.namespace.find("q")
    assert isinstance(entity, QueueEntity)
    entity.configure(QueueDescription(name="q", forward_to="home"))
    assert read_at_once(desk) <= BYTES_MAX
    assert desk.texts("home") == TEXTS
