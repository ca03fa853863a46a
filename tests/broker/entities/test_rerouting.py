"""What a failed fragment may or may not have kept is taken by another one, once."""

from __future__ import annotations

import pytest

from tandem.model.errors import StoreUnavailable
from tests.broker.desk import Done, message
from tests.broker.recovery.test_stores_that_fall import House


def test_a_rerouted_message_leaves_the_store_it_came_from_but_not_the_next_owner_of_its_number() -> None:
    house = House()
    front = house.spread()
    part = front.fragments.queues[1]
    kept = part.enqueue(message("kept by the failed store"), house.now).seq
    rows = [(part.entity_id, kept, house.now), (part.entity_id, kept + 1, house.now)]
    house.run()
    house.fall(1)
    part_used, placed, left = front.rerouting.reroute([message("kept by the failed store"), message("not kept")], list(rows), house.now)
    done = Done()
    part_used.when_durable(done)
    house.run()
    assert done.errors == [None]
    assert left == rows
    assert {row[0] for row in placed} == {front.fragments.queues[0].entity_id}
    house.clock.now += 500
    house.rise(1)
    number = front.fragments.queues[1].enqueue(message("a later one"), house.now).seq
    house.run()
    assert number == kept + 1
    front.rerouting.arrived(left)
    house.run()
    hand = house.receive(front, 10)
    assert sorted(text for text, _ in hand.got) == ["a later one", "kept by the failed store", "not kept"]


def test_a_message_with_a_key_is_not_taken_elsewhere() -> None:
    house = House()
    front = house.spread()
    house.fall(1)
    with pytest.raises(StoreUnavailable, match="was to keep this message"):
        front.rerouting.reroute([message("free"), message("tied", session="s")], [], house.now)
    assert front.counts().total == 0


def test_a_fragment_whose_store_has_failed_too_is_passed_over() -> None:
    house = House()
    front = house.spread()
    house.fall(1)
    house.fall(0, watched=False)
    with pytest.raises(StoreUnavailable, match="All stores"):
        front.rerouting.reroute([message("x")], [], house.now)
