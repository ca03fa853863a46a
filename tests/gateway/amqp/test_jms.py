"""What JMS clients say, in raw AMQP: delays, and wishes that are refused in words that help."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tandem import amqp
from tandem.testing import Bus
from tests.conformance.raw import End, Raw, Refused, message

MINUTE_MS = 60_000


@pytest.fixture
def bus() -> Iterator[Bus]:
    with Bus() as bus:
        bus.create_queue("q")
        bus.create_topic("events")
        bus.create_subscription("events", "eu")
        yield bus


@pytest.fixture
def raw(bus: Bus) -> Iterator[Raw]:
    with Raw(bus.port) as raw:
        yield raw


@pytest.mark.parametrize("target", ["q", "events"])
@pytest.mark.parametrize("name", ["x-opt-delivery-time", "x-opt-delivery-delay"])
def test_a_message_with_a_delay_or_a_delivery_time_comes_when_that_is_over(bus: Bus, raw: Raw, name: str, target: str) -> None:
    now_ms = int(bus.now.timestamp() * 1000)
    when: object = MINUTE_MS if name == "x-opt-delivery-delay" else amqp.Timestamp(now_ms + MINUTE_MS)
    raw.feed(target, "later", message_annotations={amqp.Symbol(name): when})
    raw.feed(target, "now")
    receiver = raw.receiver("q" if target == "q" else "events/Subscriptions/eu", delete=True)
    assert [one.text for one in receiver.drain(10)] == ["now"]
    bus.advance(61)
    [later] = receiver.receive()
    assert later.text == "later" and later.message.message_annotations[amqp.Symbol(name)] == when


def test_a_delay_that_is_no_number_is_refused(raw: Raw) -> None:
    with pytest.raises(Refused) as refused:
        raw.sender("q").send(message("x", message_annotations={amqp.Symbol("x-opt-delivery-delay"): "soon"}))
    assert refused.value.condition == "amqp:invalid-field" and "milliseconds" in refused.value.description


def attach(raw: Raw, source: amqp.Terminus | None, target: amqp.Terminus | None) -> None:
    end = End()
    if target is None:
        raw.session.attach_receiver("wish", source, amqp.Terminus("here"), end)
    else:
        raw.session.attach_sender("wish", amqp.Terminus("here"), target, end)
    raw.until(lambda: end.attached or end.gone)
    if end.gone or not end.attached:
        raise Refused(end.error)


@pytest.mark.parametrize(
    ("source", "target", "condition"),
    [
        (amqp.Terminus(dynamic=True), None, "amqp:not-implemented"),
        (None, amqp.Terminus(dynamic=True, capabilities=["temporary-queue"]), "amqp:not-implemented"),
        (amqp.Terminus("events", durable=2), None, "amqp:not-found"),
        (amqp.Terminus("events", capabilities=["topic"]), None, "amqp:not-implemented"),
        (amqp.Terminus("events", capabilities=["topic", "shared", "global"]), None, "amqp:not-found"),
    ],
)
def test_nodes_and_subscriptions_are_not_made_by_attaching(
    raw: Raw, source: amqp.Terminus | None, target: amqp.Terminus | None, condition: str
) -> None:
    with pytest.raises(Refused) as refused:
        attach(raw, source, target)
    assert refused.value.condition == condition
    assert "Create" in refused.value.description
    raw.feed("q", "the session lives on")


def test_a_durable_source_that_names_a_queue_or_a_subscription_is_served(raw: Raw) -> None:
    raw.feed("events", "told", "again")
    attach(raw, amqp.Terminus("events/Subscriptions/eu", durable=2, capabilities=["topic"]), None)
