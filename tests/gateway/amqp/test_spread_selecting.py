"""Receivers with a selector, and browsers, of a partitioned queue whose fragments two nodes have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem import amqp
from tests.cluster.spread import KEYED, SpreadBroker, held
from tests.conformance.raw import Raw, Receiver, Refused
from tests.gateway.amqp.test_selectors import ABANDONED, CODE, NAME, attach, select, texts

pytestmark = pytest.mark.compiled_too


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[SpreadBroker]:
    with SpreadBroker(module_path / "spread", {"plain": 16, "sessions": 2}, real_time=True, turns=False) as broker:
        yield broker


def feed(raw: Raw, queue: str, node: int, **colors: str) -> None:
    for name, color in colors.items():
        raw.feed(queue, name, application_properties={"color": color}, **KEYED[node])


def both(raw: Raw, queue: str) -> None:
    """A red one and others with each node."""
    feed(raw, queue, 0, a="blue", b="red", c="green")
    feed(raw, queue, 1, d="blue", e="red", f="green")


def taken(receiver: Receiver) -> list[str]:
    found, receiver.end.deliveries = receiver.end.deliveries, []
    return sorted(texts(found))


@pytest.mark.parametrize("delete", [False, True], ids=["peek-lock", "receive-and-delete"])
def test_a_selective_receiver_gets_what_matches_from_every_node_and_leaves_the_rest(broker: SpreadBroker, delete: bool) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        both(raw, queue)
        red = select(raw, "color = 'red'", queue, delete=delete)
        assert sorted(texts(red.drain(10))) == ["b", "e"]
        assert red.drain(10) == []
        red.link.grant(10)
        feed(raw, queue, 1, g="blue", h="red")
        feed(raw, queue, 0, i="blue", j="red")
        raw.until(lambda: len(red.end.deliveries) == 2)
        assert taken(red) == ["h", "j"]
        assert sorted(texts(raw.receiver(queue, delete=True).drain(20))) == ["a", "c", "d", "f", "g", "i"]


def test_one_credit_finds_what_matches_whichever_node_has_it_among_what_does_not(broker: SpreadBroker) -> None:
    """The other node, and this one, always have something: only looking says that it is nothing for this receiver."""
    queue = broker.queue("plain")
    with Raw(broker.port) as raw, Raw(broker.port) as feeder:
        for node in (0, 1):
            feed(feeder, queue, node, before="blue")
        red = select(raw, "color = 'red'", queue)
        for number, node in enumerate((1, 0, 1, 1, 0, 0, 1, 0)):
            red.link.grant(1)
            raw.flush()
            for other in (0, 1):
                feed(feeder, queue, other, other="blue")
            feed(feeder, queue, node, **{f"red-{number}": "red"})
            raw.until(lambda: bool(red.end.deliveries))
            assert taken(red) == [f"red-{number}"]
            assert red.link.credit == 0
            for other in (0, 1):
                feed(feeder, queue, other, after="blue")


def test_never_more_is_delivered_than_a_selective_receiver_gave_credit_for(broker: SpreadBroker) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        for node in (0, 1):
            for number in range(20):
                feed(raw, queue, node, **{f"{node}-{number}": "red", f"{node}-{number}-not": "blue"})
        red = select(raw, "color = 'red'", queue)
        seen: list[str] = []
        for credit in (1, 1, 2, 3, 5, 8):
            red.link.grant(credit)
            raw.until(lambda credit=credit: len(red.end.deliveries) >= credit)  # type: ignore[misc]
            raw.quiet(0.05)
            assert len(red.end.deliveries) == credit
            seen += taken(red)
        assert len(seen) == len(set(seen)) == 20 and not any("not" in text for text in seen)
        assert {text[0] for text in seen} == {"0", "1"}, "neither node was left out"


def test_what_comes_back_behind_a_search_at_another_node_is_looked_at_again(broker: SpreadBroker) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        both(raw, queue)
        everybody = raw.receiver(queue)
        arrivals = everybody.receive(6)
        red = select(raw, "color = 'red'", queue)
        assert red.drain(10) == []
        red.link.grant(1)
        for arrival in arrivals:
            if arrival.text in "de":
                everybody.settle(arrival, ABANDONED)
        raw.until(lambda: bool(red.end.deliveries))
        (arrival,) = red.end.deliveries
        assert arrival.text == "e"
        red.settle(arrival, amqp.ACCEPTED)
        assert texts(everybody.receive()) == ["d"]


def test_a_browser_sees_what_every_node_has_in_the_order_of_each_and_takes_nothing(broker: SpreadBroker) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        both(raw, queue)
        for credits in ([100], [2, 2, 2, 2], [1] * 7):
            browser = attach(raw, queue, {}, mode="copy")
            seen = [arrival for credit in credits for arrival in browser.drain(credit)]
            assert all(arrival.settled for arrival in seen)
            assert [text for text in texts(seen) if text in "abc"] == ["a", "b", "c"]
            assert [text for text in texts(seen) if text in "def"] == ["d", "e", "f"]
            assert len(seen) == 6
        red = attach(raw, queue, {NAME: amqp.Described(CODE, "color = 'red'")}, mode="copy")
        assert sorted(texts(red.drain(10))) == ["b", "e"]
        assert sum(held(server, queue) for server in broker.servers) == 6
        assert sorted(texts(raw.receiver(queue).receive(6))) == list("abcdef")


def test_a_browser_that_stays_sees_what_comes_anywhere(broker: SpreadBroker) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        browser = attach(raw, queue, {}, mode="copy")
        for number, node in enumerate((0, 1, 1, 0, 1)):
            browser.link.grant(1)
            raw.feed(queue, str(number), **KEYED[node])
            raw.until(lambda: bool(browser.end.deliveries))
            assert taken(browser) == [str(number)]


def test_long_backlogs_are_searched_to_their_end_wherever_they_are(broker: SpreadBroker) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        for node in (0, 1):
            raw.feed(queue, *["x" * 10] * 700, **KEYED[node])
            feed(raw, queue, node, last="red")
        red = select(raw, "color = 'red'", queue)
        assert texts(red.drain(5)) == ["last"] * 2
        assert len(attach(raw, queue, {}, mode="copy").drain(2_000)) == 1_400, "all but what the other one holds"


def test_every_message_goes_to_one_of_several_receivers_that_select_or_do_not(broker: SpreadBroker) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        receivers = [select(raw, "n < 150", queue), select(raw, "n >= 100", queue), raw.receiver(queue)]
        for receiver in receivers:
            receiver.link.grant(1_000)
        for n in range(200):
            raw.feed(queue, str(n), application_properties={"n": n}, **KEYED[n % 2])
        raw.until(lambda: sum(len(receiver.end.deliveries) for receiver in receivers) >= 200)
        raw.quiet(0.1)
        assert sorted(int(text) for receiver in receivers for text in texts(receiver.end.deliveries)) == list(range(200))


@pytest.mark.parametrize("session", ["s", None])
def test_selectors_are_for_receivers_without_a_session_whichever_node_would_have_it(broker: SpreadBroker, session: str | None) -> None:
    with Raw(broker.port) as raw, pytest.raises(Refused) as refused:
        filters = {amqp.Symbol("com.microsoft:session-filter"): session, NAME: amqp.Described(CODE, "a = 1")}
        attach(raw, broker.queue("sessions"), filters)
    assert refused.value.condition == "amqp:not-implemented"
