"""Receivers with a JMS selector, and receivers that only look, in raw AMQP."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tandem import amqp
from tandem.gateway.amqp.selectors import JmsSelector
from tandem.model.limits import Limits
from tandem.testing import Bus
from tests.conformance.raw import Arrival, End, Raw, Receiver, Refused

pytestmark = pytest.mark.compiled_too

CODE = amqp.ULong(0x0000_468C_0000_0004)
NAME = amqp.Symbol("apache.org:selector-filter:string")
ABANDONED = amqp.encode_modified(True, False)


@pytest.fixture
def bus() -> Iterator[Bus]:
    with Bus(limits=Limits(hot_bytes_max=20_000)) as bus:
        bus.create_queue("q")
        bus.create_queue("parts", enable_partitioning=True)
        bus.create_queue("sessions", requires_session=True)
        yield bus


@pytest.fixture
def raw(bus: Bus) -> Iterator[Raw]:
    with Raw(bus.port) as raw:
        yield raw


def attach(raw: Raw, queue: str, filters: dict[object, object], delete: bool = False, mode: str | None = None) -> Receiver:
    end = End()
    source = amqp.Terminus(queue, filter=filters, distribution_mode=mode)
    link = raw.session.attach_receiver(
        f"receiver-{uuid.uuid4()}",
        source,
        amqp.Terminus("here"),
        end,
        snd_settle_mode=1 if delete else 0,
        rcv_settle_mode=0 if delete else 1,
    )
    raw.until(lambda: end.attached or end.gone)
    if not end.attached:
        raise Refused(end.error)
    return Receiver(raw, link, end)


def select(raw: Raw, text: str, queue: str = "q", **options: Any) -> Receiver:
    return attach(raw, queue, {amqp.Symbol("jms-selector"): amqp.Described(CODE, text)}, **options)


def feed(raw: Raw, queue: str = "q", **colors: str) -> None:
    for name, color in colors.items():
        raw.feed(queue, name, application_properties={"color": color})


def texts(arrivals: list[Arrival]) -> list[str]:
    return [arrival.text for arrival in arrivals]


@pytest.mark.parametrize("queue", ["q", "parts"])
@pytest.mark.parametrize("delete", [False, True])
def test_a_selective_receiver_gets_what_matches_and_leaves_the_rest_to_others(bus: Bus, raw: Raw, queue: str, delete: bool) -> None:
    feed(raw, queue, a="red", b="blue", c="red", d="green")
    red = select(raw, "color = 'red'", queue, delete=delete)
    assert sorted(texts(red.drain(10))) == ["a", "c"]
    red.link.grant(10)
    feed(raw, queue, e="blue", f="red")
    raw.until(lambda: bool(red.end.deliveries))
    assert texts(red.end.deliveries) == ["f"]
    assert sorted(texts(raw.receiver(queue, delete=True).drain(10))) == ["b", "d", "e"]


@pytest.mark.parametrize("form", [amqp.Described(CODE, "color = 'red'"), amqp.Described(NAME, "color = 'red'"), "color = 'red'"])
def test_a_filter_in_force_is_in_the_answer_and_one_that_is_not_known_is_not(raw: Raw, form: object) -> None:
    feed(raw, a="blue", b="red")
    receiver = attach(raw, "q", {NAME: form, amqp.Symbol("no-local"): amqp.Described(amqp.ULong(0x0000_468C_0000_0003), [])})
    assert receiver.link.source is not None
    assert list(receiver.link.source.filter) == [NAME]
    assert texts(receiver.receive()) == ["b"]


@pytest.mark.parametrize(
    "wrong", ["color =", "color BETWEEN 1", "color LIKE 5", "a.b = 1", "(" * 100 + "a" + ")" * 100, "a = " + "1" * 2_000, 7]
)
def test_a_selector_that_is_none_is_refused_with_the_place(raw: Raw, wrong: object) -> None:
    with pytest.raises(Refused) as refused:
        attach(raw, "q", {NAME: amqp.Described(CODE, wrong)})
    assert refused.value.condition == "amqp:invalid-field"
    assert "string" in refused.value.description if wrong == 7 else "line 1, column" in refused.value.description
    raw.feed("q", "the session lives on")


GUID = uuid.UUID("11111111-2222-3333-4444-555555555555")


@pytest.mark.parametrize(
    ("selector", "sections"),
    [
        ("JMSMessageID = 'ID:x'", {"properties": {"message-id": "ID:x"}}),
        ("JMSMessageID = 'ID:AMQP_NO_PREFIX:x'", {"properties": {"message-id": "x"}}),
        (f"JMSMessageID = 'ID:AMQP_UUID:{GUID}'", {"properties": {"message-id": GUID}}),
        ("JMSCorrelationID = 'order-7'", {"properties": {"correlation-id": "order-7"}}),
        ("JMSCorrelationID = 'ID:AMQP_ULONG:7'", {"properties": {"correlation-id": amqp.ULong(7)}}),
        ("JMSCorrelationID = 'ID:AMQP_BINARY:00FF'", {"properties": {"correlation-id": b"\x00\xff"}}),
        ("JMSPriority > 7", {"header": {"priority": amqp.UByte(8)}}),
        ("JMSPriority = 4 AND wanted", {"application_properties": {"wanted": True}}),
        ("JMSDeliveryMode = 'PERSISTENT'", {"header": {"durable": True}}),
        ("JMSTimestamp BETWEEN 1000 AND 2000", {"properties": {"creation-time": amqp.Timestamp(1500)}}),
        ("JMSType LIKE 'or%'", {"properties": {"subject": "order"}}),
        ("JMSXGroupID = 'g' AND JMSXGroupSeq = 3", {"properties": {"group-id": "g", "group-sequence": amqp.UInt(3)}}),
        ("JMSXUserID = 'me'", {"properties": {"user-id": b"me"}}),
        ("JMSReplyTo = 'replies' AND JMSXDeliveryCount = 1 AND NOT JMSRedelivered", {"properties": {"reply-to": "replies"}}),
        ("amount * 2 - 1 >= 9 AND rate BETWEEN 0.5 AND 1", {"application_properties": {"amount": 5, "rate": 0.75}}),
        ("a IN ('x', 'y') AND b NOT IN ('x') AND c IS NULL AND d IS NOT NULL", {"application_properties": {"a": "y", "b": "z", "d": 1}}),
        ("name LIKE '10!%%' ESCAPE '!'", {"application_properties": {"name": "10% off"}}),
        ("(missing > 1 OR flag) AND _x = 1 AND $y = 2L", {"application_properties": {"flag": True, "_x": 1, "$y": 2}}),
    ],
)
def test_selectors_see_messages_as_jms_shows_them(raw: Raw, selector: str, sections: dict[str, Any]) -> None:
    raw.feed("q", "other")
    raw.feed("q", "wanted", **sections)
    assert texts(select(raw, selector).drain(10)) == ["wanted"]


@pytest.mark.parametrize(
    "selector", ["Color = 'red'", "color > 3", "color / 0 = 1", "color + 1 = 2", "NOT (size = 1)", "size BETWEEN 1 AND 2"]
)
def test_what_is_missing_of_another_type_or_not_computable_does_not_match(raw: Raw, selector: str) -> None:
    feed(raw, a="red")
    assert select(raw, selector).drain(10) == []


def test_what_comes_back_behind_a_search_is_looked_at_again(bus: Bus, raw: Raw) -> None:
    feed(raw, a="red", b="blue", c="red")
    everybody = raw.receiver("q")
    a, b, c = everybody.receive(3)
    red = select(raw, "color = 'red'")
    assert red.drain(10) == []
    red.link.grant(10)
    for arrival in (c, b, a):
        everybody.settle(arrival, ABANDONED)
    raw.until(lambda: len(red.end.deliveries) == 2)
    assert sorted(texts(red.end.deliveries)) == ["a", "c"]
    assert texts(everybody.receive()) == ["b"]


def test_nothing_is_delivered_twice_among_selective_and_other_receivers(bus: Bus, raw: Raw) -> None:
    receivers = [select(raw, "n < 150"), select(raw, "n >= 100"), raw.receiver("q")]
    for receiver in receivers:
        receiver.link.grant(1_000)
    for n in range(200):
        raw.feed("q", str(n), application_properties={"n": n})
    raw.until(lambda: sum(len(receiver.end.deliveries) for receiver in receivers) >= 200)
    raw.quiet(0.1)
    got = [int(text) for receiver in receivers for text in texts(receiver.end.deliveries)]
    assert sorted(got) == list(range(200))
    assert all(int(text) < 150 for text in texts(receivers[0].end.deliveries))


def test_a_search_looks_at_each_message_once_however_often_it_is_asked(bus: Bus, raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most of this backlog is on the store, not in memory."""
    looks = 0
    matches = JmsSelector.matches

    def counted(self: JmsSelector, message: Any, count: int) -> bool:
        nonlocal looks
        looks += 1
        return matches(self, message, count)

    monkeypatch.setattr(JmsSelector, "matches", counted)
    for n in range(1_500):
        raw.feed("q", "x" * 50, application_properties={"n": n})
    last = select(raw, "n >= 1498")
    assert len(last.drain(1)) == 1
    assert len(last.drain(1)) == 1
    for _ in range(20):
        assert last.drain(1) == []
    raw.feed("q", "new", application_properties={"n": 2_000})
    assert texts(last.receive()) == ["new"]
    assert looks <= 1_501


def test_a_browser_sees_everything_and_takes_nothing(bus: Bus, raw: Raw) -> None:
    feed(raw, a="red", b="blue", c="red")
    browser = attach(raw, "q", {}, mode="copy")
    assert texts(browser.drain(2)) == ["a", "b"]
    assert texts(browser.drain(2)) == ["c"]
    assert all(arrival.settled for arrival in attach(raw, "q", {}, mode="copy", delete=True).drain(1))
    red = attach(raw, "q", {NAME: amqp.Described(CODE, "color = 'red'")}, mode="copy")
    assert texts(red.drain(10)) == ["a", "c"]
    assert bus.counts("q").active == 3 and bus.counts("q").locked == 0
    assert texts(raw.receiver("q").receive(3)) == ["a", "b", "c"]


def test_selectors_are_for_receivers_without_a_session(raw: Raw) -> None:
    with pytest.raises(Refused) as refused:
        attach(raw, "sessions", {amqp.Symbol("com.microsoft:session-filter"): "s", NAME: amqp.Described(CODE, "a = 1")})
    assert refused.value.condition == "amqp:not-implemented"
