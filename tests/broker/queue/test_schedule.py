"""What is due and cannot be read at that moment, as while the engine of a cluster is away, is tried for again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tandem.broker.ports import FetchEffect
from tandem.model.address import SubQueue
from tandem.model.entity import QueueDescription
from tandem.model.errors import EngineAway
from tests.broker.desk import Desk


@contextmanager
def unreadable(desk: Desk) -> Iterator[list[int]]:
    """Nothing can be read back; yields what was asked for."""
    asked: list[int] = []
    fetch = desk.store.fetch

    def refused(locations: list[int], effect: FetchEffect) -> None:
        asked.extend(locations)
        desk.loop.call(lambda: effect.fetched([], EngineAway("the engine is away")))

    desk.store.fetch = refused  # type: ignore[method-assign]
    yield asked
    desk.store.fetch = fetch  # type: ignore[method-assign]


def test_a_scheduled_message_that_could_not_be_read_when_it_was_due_comes_a_second_later() -> None:
    desk = Desk(QueueDescription(name="q"), hot_bytes=1)
    desk.send("a", "b", scheduled_at=desk.now + 5_000)
    with unreadable(desk) as asked:
        desk.wait(5_000)
        desk.wait(10_000)
    assert 2 < len(asked) <= 24, "about once a second, and not in circles"
    assert desk.texts() == []
    desk.wait(1_000)
    assert sorted(desk.texts()) == ["a", "b"]
    assert desk.queue().rows.scheduled == []


def test_an_expired_message_that_could_not_be_read_is_dead_lettered_a_second_later() -> None:
    desk = Desk(QueueDescription(name="q", dead_lettering_on_message_expiration=True), hot_bytes=1)
    desk.send("a", ttl_ms=5_000)
    desk.restart()
    with unreadable(desk) as asked:
        desk.wait(6_000)
    assert asked
    assert desk.texts(sub_queue=SubQueue.DEAD_LETTER) == []
    desk.wait(1_000)
    assert desk.texts(sub_queue=SubQueue.DEAD_LETTER) == ["a"]
