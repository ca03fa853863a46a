"""Receivers of a partitioned queue whose fragments two nodes have: who gets how much credit, and what one node's end takes along."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem import amqp
from tandem.stores.memory import MemoryStore
from tests.cluster.spread import KEYED, SpreadBroker
from tests.conformance.raw import Raw, Refused, message


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[SpreadBroker]:
    with SpreadBroker(module_path / "spread", {"plain": 12, "sessions": 4}, real_time=True, turns=False) as broker:
        yield broker


@pytest.mark.parametrize("delete", [False, True], ids=["peek-lock", "receive-and-delete"])
def test_never_more_is_delivered_than_the_client_gave_credit_for(broker: SpreadBroker, delete: bool) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw, Raw(broker.port) as other:
        for node in (0, 1):
            raw.feed(queue, *(f"{node}-{number}" for number in range(40)), **KEYED[node])
        receivers = [raw.receiver(queue, delete), other.receiver(queue, delete)]
        seen: list[str] = []
        for credit in (1, 1, 1, 2, 3, 5, 8):
            for receiver in receivers:
                receiver.link.grant(credit)
                receiver.raw.until(lambda receiver=receiver, credit=credit: len(receiver.end.deliveries) >= credit)  # type: ignore[misc]
            for receiver in receivers:
                receiver.raw.quiet(0.05)
                assert len(receiver.end.deliveries) == credit
                seen += [arrival.text for arrival in receiver.end.deliveries]
                receiver.end.deliveries = []
        assert len(seen) == len(set(seen)) == 42
        assert {text[0] for text in seen} == {"0", "1"}, "neither node was left out"


def test_credit_that_lies_idle_with_one_node_comes_back_for_what_another_has(broker: SpreadBroker) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw, Raw(broker.port) as feeder:
        receiver = raw.receiver(queue)
        for number, node in enumerate((1, 0, 1, 1, 0, 0, 1, 0)):  # one credit at a time, wherever it went last
            receiver.link.grant(1)
            feeder.feed(queue, str(number), **KEYED[node])
            raw.until(lambda: bool(receiver.end.deliveries))
            assert [arrival.text for arrival in receiver.end.deliveries] == [str(number)]
            receiver.end.deliveries = []


def test_a_drain_asks_everybody_and_is_answered_once_all_have(broker: SpreadBroker) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        raw.feed(queue, "a", **KEYED[0])
        raw.feed(queue, "b", "c", **KEYED[1])
        receiver = raw.receiver(queue)
        assert len(receiver.drain(1)) == 1
        assert len(receiver.drain(10)) == 2
        assert receiver.drain(10) == []


def test_a_node_that_goes_takes_its_fragments_along_and_no_others(module_path: Path) -> None:
    with SpreadBroker(module_path / "one-goes", {"plain": 1, "sessions": 1}, real_time=True, turns=False) as broker:
        queue = broker.queue("plain")
        with Raw(broker.port) as raw:
            for node in (0, 1):
                raw.feed(queue, *(f"{node}-{number}" for number in range(3)), **KEYED[node])
            receiver = raw.receiver(queue)
            sender = raw.sender(queue)
            arrivals = {arrival.text: arrival for arrival in receiver.receive(4)}
            broker.run(broker.servers[1].stop())
            for text, arrival in arrivals.items():
                outcome = receiver.settle(arrival, amqp.ACCEPTED)
                assert outcome is not None
                assert (outcome.error is None) is (text[0] == "0"), "the other's locks went with it"
            rest = 3 - sum(text[0] == "0" for text in arrivals)
            assert all(arrival.text[0] == "0" for arrival in receiver.drain(10)) and rest >= 0
            sender.send(message("still", **KEYED[0]))
            sender.send(message("anywhere"))
            with pytest.raises(Refused, match="is away"):
                sender.send(message("gone", **KEYED[1]))
            assert sorted(arrival.text for arrival in receiver.receive(2)) == ["anywhere", "still"]


def test_credit_does_not_stay_with_a_node_that_has_delivered_and_has_no_fragments_any_more(module_path: Path) -> None:
    with SpreadBroker(module_path / "all-move", {"plain": 1, "sessions": 1}, real_time=True, turns=False) as broker:
        queue = broker.queue("plain")

        async def lose_all() -> None:
            server = broker.servers[1]
            for tenant in server.contexts[0].namespace.stores:
                if isinstance(tenant.journal, MemoryStore):  # the others are the first node's
                    tenant.journal.hold_down(True)
            server.driver.run_housekeeping()

        with Raw(broker.port) as raw, Raw(broker.port) as feeder:
            feeder.feed(queue, "first", "second", **KEYED[1])
            receiver = raw.receiver(queue)
            assert [arrival.text for arrival in receiver.receive(1)] == ["first"]
            broker.run(lose_all())
            receiver.link.grant(1)  # it said that it has more, so it is lent this
            raw.quiet(0.1)
            feeder.feed(queue, "here", **KEYED[0])
            raw.until(lambda: bool(receiver.end.deliveries), 5)
            assert [arrival.text for arrival in receiver.end.deliveries] == ["here"]


def test_what_is_there_comes_as_far_as_the_credit_goes_whoever_has_it_and_said_so_first(broker: SpreadBroker) -> None:
    """Received and deleted: an owner says that it has more before what it was lent credit for has left."""
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        raw.feed(queue, "here", **KEYED[0])
        raw.feed(queue, *map(str, range(5)), **KEYED[1])
        assert len(raw.receiver(queue, delete=True).receive(6)) == 6


def test_credit_that_was_kept_here_for_what_somebody_else_took_goes_to_the_node_that_has_something(broker: SpreadBroker) -> None:
    """Of credit that does not suffice for all each node has its turn: whose turn it is, dice decide by taking one from anywhere."""
    dice = random.Random(7)
    queue = broker.queue("plain")
    with Raw(broker.port) as raw, Raw(broker.port) as other:
        receivers = [raw.receiver(queue, delete=True), other.receiver(queue, delete=True)]
        for _ in range(40):
            if dice.random() < 0.5:
                raw.feed(queue, "one more", **KEYED[dice.randrange(2)])
                dice.choice(receivers).receive(1)
            for node in (0, 1):
                raw.feed(queue, str(node), **KEYED[node])
            for receiver in receivers:
                receiver.link.grant(1)
                receiver.raw.flush()
            for receiver in receivers:
                receiver.raw.until(lambda receiver=receiver: bool(receiver.end.deliveries), 5)  # type: ignore[misc]
            assert sorted(receiver.end.deliveries.pop().text for receiver in receivers) == ["0", "1"]
