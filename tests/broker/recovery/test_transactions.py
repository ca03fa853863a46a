"""Every order of commits, a crash between any two: a transaction over several stores is whole, a forwarded message is in one place."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.broker.ports import Consumer, Effect
from tandem.broker.queue.locks import Lock
from tandem.broker.recovery import transactions
from tandem.broker.recovery.steps import COMPLETE, DEAD_LETTER, DEFER, Sent, Settled, Step
from tandem.model.entity import QueueDescription
from tandem.model.message import Message
from tests.broker.stepped import House, every_failure, every_story, plain

STORES = 3
QUEUES = [(n + 1, n, QueueDescription(name=name)) for n, name in enumerate(("a", "b", "c"))]


class Taker(Consumer):
    def __init__(self) -> None:
        super().__init__(True)
        self.wanted = 100
        self.locks: list[Lock] = []

    def room(self) -> int:
        return self.wanted

    def deliver(self, message: Message, seq: int, enqueued_at: int, count: int, expires_at: int, lock: Lock | None) -> None:
        assert lock is not None
        self.locks.append(lock)


class Told(Effect):
    def __init__(self) -> None:
        self.answers: list[BaseException | None] = []

    def done(self, error: BaseException | None) -> None:
        self.answers.append(error)


def queue(house: House, name: str) -> Any:
    found = house.namespace.forward_target(name)
    assert found is not None
    return found


def begun(how: int, sends_first: bool = False) -> tuple[House, Told]:
    """One message in `a`, locked; a transaction settles it and sends to `b` and `c`; nothing of it is on any disk.

    The store named first decides."""
    house = House([[] for _ in range(STORES)], QUEUES)
    queue(house, "a").enqueue(plain("order"), house.turn.now)
    house.settle()
    taker = Taker()
    queue(house, "a").consumer_ready(taker)
    house.turn.run()
    [lock] = taker.locks
    changed = plain("order") if how == DEAD_LETTER else None
    steps: list[Step] = [
        Settled(queue(house, "a"), lock, how, changed),
        Sent(queue(house, "b"), plain("invoice")),
        Sent(queue(house, "c"), plain("parcel")),
    ]
    if sends_first:
        steps = [*steps[1:], steps[0]]
    told = Told()
    transactions.commit(house.namespace, bytes(range(16)), steps, told)
    return house, told


def left_over(house: House) -> list[object]:
    return [one for one in house.namespace.stores if one.prepared or one.committed]


def test_a_transaction_over_three_stores_is_whole_wherever_the_crash_comes() -> None:
    outcomes: set[tuple[int, int, int]] = set()
    confirmed: list[Told] = []

    def begin() -> House:
        house, told = begun(COMPLETE)
        confirmed.append(told)
        return house

    def check(survivor: House) -> None:
        outcome = (survivor.count("a"), survivor.count("b"), survivor.count("c"))
        assert outcome in {(1, 0, 0), (0, 1, 1)}
        if confirmed[-1].answers == [None]:
            assert outcome == (0, 1, 1), "confirmed and lost"
        outcomes.add(outcome)
        assert left_over(survivor) == []
        again = survivor.crash()
        again.settle()
        assert (again.count("a"), again.count("b"), again.count("c")) == outcome

    assert every_story(begin, check, STORES, 8) >= 15
    assert len(outcomes) == 2, "crashes before and after the decision were both seen"


def test_without_a_crash_it_is_done_once_and_forgotten() -> None:
    house, told = begun(COMPLETE)
    house.settle()
    assert told.answers == [None]
    assert (house.count("a"), house.count("b"), house.count("c")) == (0, 1, 1)
    assert left_over(house) == []


def test_deferring_and_dead_lettering_are_whole_too() -> None:
    def check_deferred(survivor: House) -> None:
        counts = queue(survivor, "a").counts()
        assert (counts.deferred, survivor.count("b")) in {(0, 0), (1, 1)} and counts.total == 1

    def check_dead(survivor: House) -> None:
        dead = queue(survivor, "a").moves.dead_letters.rows.index.total
        assert (survivor.count("a"), dead, survivor.count("b")) in {(1, 0, 0), (0, 1, 1)}

    assert every_story(lambda: begun(DEFER)[0], check_deferred, STORES, 8) >= 15
    assert every_story(lambda: begun(DEAD_LETTER)[0], check_dead, STORES, 8) >= 15


def test_a_message_in_a_share_is_delivered_again_only_if_the_share_was_dropped() -> None:
    for decided in (False, True):
        house, _ = begun(COMPLETE, sends_first=True)
        house.step(0)
        house.step(2)
        if decided:
            house.step(1)
        survivor = house.crash()
        taker = Taker()
        queue(survivor, "a").consumer_ready(taker)
        survivor.turn.run()
        survivor.settle()
        assert len(taker.locks) == (0 if decided else 1)


def test_forwarded_between_stores_a_message_is_in_one_place_wherever_the_crash_comes() -> None:
    queues = [(1, 0, QueueDescription(name="end")), (2, 1, QueueDescription(name="start", forward_to="end"))]
    accepted: list[Told] = []

    def begin() -> House:
        house = House([[], []], queues)
        told = Told()
        accepted.append(told)
        for text in ("one", "two"):
            queue(house, "start").enqueue(plain(text), house.turn.now)
        queue(house, "start").when_durable(told)
        return house

    def check(survivor: House) -> None:
        expected = 2 if accepted[-1].answers else 0
        assert (survivor.count("start"), survivor.count("end")) in {(0, expected), (0, 2)}
        assert not any(one.transfers for one in survivor.namespace.stores)

    assert every_story(begin, check, 2, 8) >= 4


@pytest.mark.slow
def test_a_transaction_is_whole_when_any_store_stops_and_comes_back() -> None:
    outcomes: set[tuple[int, int, int]] = set()

    def check(house: House) -> None:
        outcome = (house.count("a"), house.count("b"), house.count("c"))
        assert outcome in {(1, 0, 0), (0, 1, 1)}
        assert left_over(house) == []
        outcomes.add(outcome)

    for sends_first in (False, True):
        assert every_failure(lambda: begun(COMPLETE, sends_first)[0], check, STORES, 6) >= 60  # noqa: B023
    assert len(outcomes) == 2


def test_a_forwarded_message_is_in_one_place_when_a_store_stops_and_comes_back() -> None:
    queues = [(1, 0, QueueDescription(name="end")), (2, 1, QueueDescription(name="start", forward_to="end"))]

    def begin() -> House:
        house = House([[], []], queues)
        queue(house, "start").enqueue(plain("one"), house.turn.now)
        queue(house, "start").when_durable(Told())
        house.step(1)
        return house

    def check(house: House) -> None:
        assert house.count("start") + house.count("end") == 1
        assert house.namespace.in_doubt == []

    assert every_failure(begin, check, 2, 6) >= 12
