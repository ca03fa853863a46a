"""Many completions in one disposition: taken in one go, and each answered as if it had come alone."""

from __future__ import annotations

from typing import Any

import pytest

from tandem import amqp
from tandem.broker.ports import Journal
from tandem.model.entity import QueueDescription
from tandem.model.errors import StoreUnavailable
from tandem.testing import Bus
from tests.broker.desk import Desk
from tests.conformance.raw import Arrival, Raw, Receiver

ACCEPTED, REJECTED = 0x24, 0x25


def complete(raw: Raw, receiver: Receiver, held: list[Arrival]) -> list[int]:
    """One disposition over all; the codes of the answers."""
    receiver.link.session.send_disposition(True, held[0].delivery_id, held[-1].delivery_id, False, amqp.ACCEPTED)
    raw.until(lambda: len(receiver.end.outcomes) == len(held))
    return [receiver.end.outcomes[one.delivery_id].code for one in held]


def test_a_lost_lock_in_between_is_refused_alone() -> None:
    with Bus() as bus, Raw(bus.port) as raw:
        bus.create_queue("q", lock_duration=30)
        raw.feed("q", *"abcde")
        receiver = raw.receiver("q")
        held = receiver.receive(5)
        bus.advance(20)
        kept = amqp.Array(0x98, [held[at].token for at in (0, 2, 3)])
        assert raw.request("q", "com.microsoft:renew-lock", {"lock-tokens": kept})[0] == 200
        bus.advance(20)
        assert complete(raw, receiver, held) == [ACCEPTED, REJECTED, ACCEPTED, ACCEPTED, REJECTED]
        error = receiver.end.outcomes[held[1].delivery_id].error
        assert error is not None and error.condition == "com.microsoft:message-lock-lost"
        assert [one.text for one in raw.receiver("q").receive(2)] == ["b", "e"]


def test_a_range_over_all_fragments_of_a_partitioned_queue() -> None:
    with Bus(store_count=3) as bus, Raw(bus.port) as raw:
        bus.create_queue("q", enable_partitioning=True)
        for number in range(30):
            raw.feed("q", str(number), message_annotations={"x-opt-partition-key": f"k{number}"})
        receiver = raw.receiver("q")
        held = receiver.receive(30)
        assert len({one.message.message_annotations["x-opt-sequence-number"] >> 48 for one in held}) > 1
        assert complete(raw, receiver, held) == [ACCEPTED] * 30
        assert bus.counts("q").total == 0


def test_a_range_of_a_session_and_of_a_subscription() -> None:
    with Bus() as bus, Raw(bus.port) as raw:
        bus.create_queue("q", requires_session=True)
        raw.feed("q", *"abc", session_id="s")
        receiver = raw.receiver("q", session="s")
        assert complete(raw, receiver, receiver.receive(3)) == [ACCEPTED] * 3
        bus.create_topic("t")
        bus.create_subscription("t", "one")
        bus.create_subscription("t", "two")
        raw.feed("t", *"abc")
        receiver = raw.receiver("t/Subscriptions/one")
        assert complete(raw, receiver, receiver.receive(3)) == [ACCEPTED] * 3
        assert bus.counts("q").total == 0
        assert [bus.counts(f"t/Subscriptions/{name}").active for name in ("one", "two")] == [0, 3]
        assert [one.text for one in raw.receiver("t/Subscriptions/two").receive(3)] == ["a", "b", "c"]


class FailsAfter:
    """A journal that takes so many facts and no more."""

    def __init__(self, journal: Any, left: int) -> None:
        self._journal = journal
        self._left = left

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def append_run(self, *run: Any) -> int:
        return Journal.append_run(self, *run)  # type: ignore[arg-type]

    def append(self, *fact: Any) -> int:
        if self._left == 0:
            raise StoreUnavailable("the disk is gone")
        self._left -= 1
        at: int = self._journal.append(*fact)
        return at


def test_a_store_that_fails_midway_leaves_the_rest_as_it_was() -> None:
    desk = Desk(QueueDescription(name="q"))
    desk.send(*"abcde")
    hand = desk.receive(5)
    queue: Any = desk.queue()
    queue.rows.backing.journal = FailsAfter(queue.rows.backing.journal, 3)
    assert queue.complete_run(hand.locks, 0, desk.now) == 3
    assert [lock.held for lock in hand.locks] == [False] * 3 + [True] * 2
    assert queue.counts().locked == 2
    assert queue.meter.completes == 3
    with pytest.raises(StoreUnavailable, match="the disk is gone"):
        queue.settlement.complete(hand.locks[3], desk.now)
