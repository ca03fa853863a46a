"""Forwarding: what is sent to one entity arrives at another, once, with one store or several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem import amqp
from tandem.model.entity import RuleDescription, SqlFilter
from tandem.testing import Bus
from tests.conformance.raw import Raw, Refused

TDLQ = "$Transfer/$DeadLetterQueue"
DLQ = "$DeadLetterQueue"


@pytest.fixture(params=[1, 3], ids=["one-store", "three-stores"])
def bus(request: pytest.FixtureRequest) -> Iterator[Bus]:
    with Bus(store_count=request.param) as bus:
        yield bus


@pytest.fixture
def raw(bus: Bus) -> Iterator[Raw]:
    with Raw(bus.port) as raw:
        yield raw


def totals(bus: Bus, *names: str) -> list[int]:
    bus.advance(0)
    return [bus.counts(name).total for name in names]


def reason(arrival: Any) -> str:
    return str(arrival.message.application_properties["DeadLetterReason"])


def test_messages_arrive_where_the_queue_forwards_to_in_order(bus: Bus, raw: Raw) -> None:
    bus.create_queue("b")
    bus.create_queue("a", forward_to="b")
    raw.feed("a", *(f"m{n}" for n in range(600)))
    found = raw.receiver("b").receive(600)
    assert [one.text for one in found] == [f"m{n}" for n in range(600)]
    annotations = found[2].message.message_annotations
    assert (annotations["x-opt-enqueue-sequence-number"], annotations["x-opt-sequence-number"]) == (3, 3)
    assert "x-opt-deadletter-source" not in annotations
    assert totals(bus, "a", "b") == [0, 600]


def test_first_sequence_number_is_kept_over_several_hops(bus: Bus, raw: Raw) -> None:
    bus.create_queue("c")
    bus.create_queue("b", forward_to="c")
    bus.create_queue("a", forward_to="b")
    raw.feed("b", "direct")
    raw.feed("a", "one")
    raw.feed("a", "two")
    numbers = {one.text: one.message.message_annotations["x-opt-enqueue-sequence-number"] for one in raw.receiver("c").receive(3)}
    assert numbers == {"direct": 1, "one": 1, "two": 2}


def test_fifth_hop_goes_to_the_transfer_dead_letter_queue(bus: Bus, raw: Raw) -> None:
    bus.create_queue("q5")
    for n in range(4, -1, -1):
        bus.create_queue(f"q{n}", forward_to=f"q{n + 1}")
    raw.feed("q1", "four hops")
    raw.feed("q0", "five hops")
    assert raw.receiver("q5").receive()[0].text == "four hops"
    [stranded] = raw.receiver(f"q4/{TDLQ}").receive()
    assert (stranded.text, reason(stranded)) == ("five hops", "MaxTransferHopCountExceeded")
    assert totals(bus, "q0", "q1", "q2", "q3", "q4", "q5") == [0, 0, 0, 0, 0, 1]


def test_a_queue_that_forwards_to_itself_strands_its_messages(bus: Bus, raw: Raw) -> None:
    bus.create_queue("loop")
    administer(bus, "loop", forward_to="loop")
    raw.feed("loop", "round")
    [stranded] = raw.receiver(f"loop/{TDLQ}").receive()
    assert reason(stranded) == "MaxTransferHopCountExceeded"


def administer(bus: Bus, name: str, **changes: object) -> None:
    """Change a queue as the administration client would."""
    import dataclasses

    async def work() -> None:
        admin = bus._running().admins[0]
        description: Any = await admin.get_entity(name)
        await admin.update_queue(dataclasses.replace(description, **changes))

    bus._call(work())


def runtime(bus: Bus, name: str) -> Any:
    bus.advance(0)
    return bus._call(bus._running().admins[0].runtime.queue(name))


def test_topics_and_subscriptions_forward_too(bus: Bus, raw: Raw) -> None:
    bus.create_topic("out")
    bus.create_subscription("out", "eu", rules=[RuleDescription(name="eu", filter=SqlFilter(expression="region = 'eu'"))])
    bus.create_queue("sink")
    bus.create_topic("in")
    bus.create_subscription("in", "on", forward_to="out")
    bus.create_subscription("out", "all", forward_to="sink")
    raw.feed("in", "us", application_properties={"region": "us"})
    raw.feed("in", "eu", application_properties={"region": "eu"})
    assert [one.text for one in raw.receiver("out/Subscriptions/eu").receive()] == ["eu"]
    assert [one.text for one in raw.receiver("sink").receive(2)] == ["us", "eu"]
    assert totals(bus, "in/Subscriptions/on", "out/Subscriptions/all") == [0, 0]


def test_dead_letters_are_forwarded_with_their_source_and_without_their_time_to_live(bus: Bus, raw: Raw) -> None:
    bus.create_queue("morgue")
    bus.create_queue("work", forward_dead_lettered_messages_to="morgue", dead_lettering_on_message_expiration=True)
    raw.feed("work", "poison", "late", header={"ttl": 5_000})
    receiver = raw.receiver("work")
    [first] = receiver.receive()
    words = amqp.AmqpError("com.microsoft:dead-letter", None, {amqp.Symbol("DeadLetterReason"): "bad"})
    receiver.settle(first, amqp.encode_rejected(words))
    receiver.link.detach()
    bus.advance(6)
    found = {one.text: one for one in raw.receiver("morgue").receive(2)}
    assert {text: reason(one) for text, one in found.items()} == {"poison": "bad", "late": "TTLExpiredException"}
    for one in found.values():
        assert one.message.message_annotations["x-opt-deadletter-source"] == "work"
        assert "ttl" not in one.message.header
    assert totals(bus, "work", f"work/{DLQ}") == [0, 0]


def test_what_the_target_cannot_take_goes_to_the_transfer_dead_letter_queue(bus: Bus, raw: Raw) -> None:
    bus.create_queue("gone")
    bus.create_queue("disabled", status="SendDisabled")
    bus.create_queue("sessions", requires_session=True)
    bus.create_queue("tiny", max_message_bytes=1_048_576)
    bus.create_queue("big", forward_to="tiny", max_message_bytes=4_194_304)
    for target in ("gone", "disabled", "sessions"):
        bus.create_queue(f"to-{target}", forward_to=target)
    bus.delete("gone")
    for target, why in (("gone", "MessagingEntityNotFound"), ("disabled", "MessagingEntityDisabled"), ("sessions", "Session ID is null")):
        raw.feed(f"to-{target}", "x")
        [stranded] = raw.receiver(f"to-{target}/{TDLQ}").receive()
        assert (stranded.text, reason(stranded)) == ("x", why)
        counts = runtime(bus, f"to-{target}")
        assert (counts.active, counts.transfer, counts.transfer_dead_lettered, counts.total) == (0, 0, 1, 1)
    raw.feed("big", "y" * 2_000_000)
    assert reason(raw.receiver(f"big/{TDLQ}").receive()[0]) == "MessageSizeExceeded"


def test_a_full_target_strands_the_message(bus: Bus, raw: Raw) -> None:
    bus.create_queue("small", max_size_megabytes=1, max_message_bytes=1_048_576)
    bus.create_queue("a", forward_to="small", max_message_bytes=1_048_576)
    raw.feed("a", "x" * 600_000)
    raw.feed("a", "y" * 600_000)
    assert reason(raw.receiver(f"a/{TDLQ}").receive()[0]) == "QuotaExceeded"
    assert totals(bus, "small") == [1]


def test_duplicates_are_dropped_at_the_target(bus: Bus, raw: Raw) -> None:
    bus.create_queue("once", requires_duplicate_detection=True)
    bus.create_queue("a", forward_to="once")
    raw.feed("a", "one", message_id="same")
    raw.feed("a", "two", message_id="same")
    raw.feed("once", "three", message_id="same")
    assert totals(bus, "a", "once") == [0, 1]


def test_time_to_live_counts_from_the_first_acceptance(bus: Bus, raw: Raw) -> None:
    bus.create_queue("late")
    bus.create_queue("early", forward_to="late", status="ReceiveDisabled")
    raw.feed("early", "x", header={"ttl": 10_000})
    bus.advance(6)
    administer(bus, "early", status=_active())
    assert totals(bus, "early", "late") == [0, 1]
    bus.advance(5)
    assert totals(bus, "late") == [0]


def _active() -> Any:
    from tandem.model.entity import EntityStatus

    return EntityStatus.ACTIVE


def test_scheduled_messages_are_forwarded_when_their_time_has_come(bus: Bus, raw: Raw) -> None:
    bus.create_queue("b")
    bus.create_queue("a", forward_to="b")
    at = amqp.Timestamp(int(bus.now.timestamp() * 1000) + 60_000)
    raw.feed("a", "later", message_annotations={amqp.Symbol("x-opt-scheduled-enqueue-time"): at})
    assert totals(bus, "a", "b") == [1, 0]
    assert runtime(bus, "a").scheduled == 1
    bus.advance(61)
    assert totals(bus, "a", "b") == [0, 1]


def test_forwarding_that_is_switched_on_moves_what_is_there_and_sends_receivers_away(bus: Bus, raw: Raw) -> None:
    bus.create_queue("b")
    bus.create_queue("a")
    raw.feed("a", "one", "two", "three")
    receiver = raw.receiver("a")
    [held] = receiver.receive()
    administer(bus, "a", forward_to="b")
    raw.until(lambda: receiver.end.gone)
    assert receiver.end.error is not None and receiver.end.error.condition == "amqp:not-allowed"
    assert totals(bus, "a", "b") == [1, 2]
    with pytest.raises(Refused) as refused:
        raw.receiver("a")
    assert refused.value.condition == "amqp:not-allowed" and "auto-forwarding" in refused.value.description
    bus.advance(61)
    assert held.text == "one" and totals(bus, "a", "b") == [0, 3]
    administer(bus, "a", forward_to=None)
    raw.feed("a", "stays")
    assert totals(bus, "a", "b") == [1, 3]


def test_waiting_messages_count_as_transfer(bus: Bus, raw: Raw) -> None:
    bus.create_queue("b")
    bus.create_queue("a", forward_to="b", status="ReceiveDisabled")
    raw.feed("a", "one", "two")
    counts = runtime(bus, "a")
    assert (counts.active, counts.transfer, counts.total) == (0, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize("stores", [1, 3])
def test_a_backlog_is_forwarded_after_a_restart(tmp_path: Path, stores: int) -> None:
    with Bus(data_dir=tmp_path, store_count=stores) as bus:
        bus.create_queue("b")
        bus.create_queue("a", forward_to="b", status="ReceiveDisabled")
        with Raw(bus.port) as raw:
            raw.feed("a", *(f"m{n}" for n in range(1000)))
        bus.restart()
        assert totals(bus, "a", "b") == [1000, 0]
        administer(bus, "a", status=_active())
        bus.restart()
        assert totals(bus, "a", "b") == [0, 1000]
        bus.restart()
        assert totals(bus, "a", "b") == [0, 1000]
        with Raw(bus.port) as raw:
            assert [one.text for one in raw.receiver("b", delete=True).receive(1000)] == [f"m{n}" for n in range(1000)]
