"""Transactions on the wire: all of one happens, or nothing, with entities in one store or in several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem import amqp
from tandem.amqp.outcomes import ACCEPTED, ACCEPTED_CODE, MODIFIED_CODE, REJECTED_CODE
from tandem.model.limits import Limits
from tandem.testing import Bus
from tests.conformance.raw import End, Raw, Receiver, Refused, message, token_for
from tests.gateway.amqp.coordinator import Coordinator, is_settled, send_in, settle_in

LIMITS = Limits(transactions_open_max=3, transaction_operations_max=5, transaction_bytes_max=60_000)


@pytest.fixture(params=[1, 3], ids=["one-store", "three-stores"])
def bus(request: pytest.FixtureRequest) -> Iterator[Bus]:
    with Bus(store_count=request.param, limits=LIMITS) as bus:
        for name in ("a", "b", "c"):
            bus.create_queue(name)
        yield bus


@pytest.fixture
def raw(bus: Bus) -> Iterator[Raw]:
    with Raw(bus.port) as raw:
        yield raw


def totals(bus: Bus, *names: str) -> list[int]:
    bus.advance(0)
    return [bus.counts(name).total for name in names]


def rests(bus: Bus) -> None:
    """Nothing of any transaction is left over in any store."""

    async def look() -> list[object]:
        stores = bus._running().contexts[0].namespace.stores
        return [(dict(one.prepared), dict(one.committed)) for one in stores if one.prepared or one.committed]

    bus.advance(0)
    assert bus._call(look()) == []


def test_sends_in_a_transaction_arrive_together_when_it_is_discharged(bus: Bus, raw: Raw) -> None:
    coordinator = Coordinator(raw)
    transaction = coordinator.declare()
    for name in ("a", "b", "c"):
        send_in(raw.sender(name), transaction, message(f"to {name}"))
    assert totals(bus, "a", "b", "c") == [0, 0, 0]
    coordinator.discharge(transaction)
    assert [raw.receiver(name).receive()[0].text for name in ("a", "b", "c")] == ["to a", "to b", "to c"]
    rests(bus)


def test_a_failed_discharge_does_nothing(bus: Bus, raw: Raw) -> None:
    raw.feed("a", "one")
    coordinator = Coordinator(raw)
    transaction = coordinator.declare()
    receiver = raw.receiver("a")
    [one] = receiver.receive()
    settle_in(receiver, transaction, one)
    send_in(raw.sender("b"), transaction, message("x"))
    coordinator.discharge(transaction, fail=True)
    assert totals(bus, "a", "b") == [1, 0]
    bus.advance(61)
    assert receiver.receive()[0].message.header["delivery-count"] == 1
    with pytest.raises(Refused) as refused:
        coordinator.discharge(transaction)
    assert refused.value.condition == "amqp:transaction:unknown-id"


def test_what_was_settled_in_a_transaction_that_is_rolled_back_can_be_settled_again_by_the_same_link(bus: Bus, raw: Raw) -> None:
    """As .NET's TransactionScope expects: the delivery is not settled before the transaction happens."""
    raw.feed("a", "one", "two", "three")
    coordinator = Coordinator(raw)
    receiver = raw.receiver("a")
    one, two, three = arrivals = receiver.receive(3)
    for outcome in (ACCEPTED, amqp.encode_modified(True, True), amqp.encode_rejected(None)):
        transaction = coordinator.declare()
        for arrival in arrivals:
            settle_in(receiver, transaction, arrival, outcome)
        coordinator.discharge(transaction, fail=True)
        assert not receiver.end.settled
    answer = receiver.settle(one, ACCEPTED)
    assert answer is not None and answer.code == ACCEPTED_CODE and receiver.end.settled == {one.delivery_id}
    transaction = coordinator.declare()
    settle_in(receiver, transaction, two)
    coordinator.discharge(transaction)
    is_settled(receiver, two, ACCEPTED_CODE)
    assert receiver.end.settled == {one.delivery_id, two.delivery_id}
    assert bus.counts("a").locked == bus.counts("a").total == 1
    raw.close()  # what a transaction did not settle goes with its connection, as everything
    with Raw(bus.port) as other:
        assert other.receiver("a").receive()[0].text == three.text


def test_receivers_hear_what_became_of_each_message_when_the_transaction_is_committed(bus: Bus, raw: Raw) -> None:
    raw.feed("a", "complete", "defer", "dead", "change")
    coordinator = Coordinator(raw)
    receiver = raw.receiver("a")
    complete, defer, dead, change = arrivals = receiver.receive(4)
    transaction = coordinator.declare()
    settle_in(receiver, transaction, complete)
    settle_in(receiver, transaction, defer, amqp.encode_modified(True, True))
    settle_in(receiver, transaction, dead, amqp.encode_rejected(None))
    settle_in(receiver, transaction, change, amqp.encode_modified(True, False, {amqp.Symbol("seen"): 5}))
    assert not receiver.end.settled
    coordinator.discharge(transaction)
    for arrival, code in zip(arrivals, (ACCEPTED_CODE, MODIFIED_CODE, REJECTED_CODE, MODIFIED_CODE), strict=True):
        is_settled(receiver, arrival, code)


def test_receive_process_send_is_one(bus: Bus, raw: Raw) -> None:
    raw.feed("a", "order")
    coordinator = Coordinator(raw)
    receiver = raw.receiver("a")
    [order] = receiver.receive()
    transaction = coordinator.declare()
    settle_in(receiver, transaction, order)
    send_in(raw.sender("b"), transaction, message("invoice"))
    send_in(raw.sender("c"), transaction, message("parcel"))
    assert totals(bus, "a", "b", "c") == [1, 0, 0]
    coordinator.discharge(transaction)
    assert totals(bus, "a", "b", "c") == [0, 1, 1]
    rests(bus)


def test_every_outcome_can_be_part_of_a_transaction(bus: Bus, raw: Raw) -> None:
    raw.feed("a", "complete", "abandon", "defer", "dead", "change")
    coordinator = Coordinator(raw)
    receiver = raw.receiver("a")
    complete, abandon, defer, dead, change = receiver.receive(5)
    transaction = coordinator.declare()
    settle_in(receiver, transaction, complete)
    settle_in(receiver, transaction, abandon, amqp.encode_modified(True, False))
    settle_in(receiver, transaction, defer, amqp.encode_modified(True, True))
    words = amqp.AmqpError("com.microsoft:dead-letter", None, {amqp.Symbol("DeadLetterReason"): "bad"})
    settle_in(receiver, transaction, dead, amqp.encode_rejected(words))
    settle_in(receiver, transaction, change, amqp.encode_modified(True, False, {amqp.Symbol("seen"): 5}))
    assert bus.counts("a").locked == 5
    coordinator.discharge(transaction)
    counts = bus.counts("a")
    assert (counts.active, counts.deferred, counts.dead_lettered, counts.total) == (2, 1, 1, 3)
    again = {one.text: one.message for one in receiver.receive(2)}
    assert set(again) == {"abandon", "change"}
    assert again["abandon"].header["delivery-count"] == 1
    assert again["change"].application_properties["seen"] == 5
    [letter] = raw.receiver("a/$DeadLetterQueue").receive()
    assert letter.message.application_properties["DeadLetterReason"] == "bad"
    rests(bus)


def test_batches_and_topics_take_part(bus: Bus, raw: Raw) -> None:
    bus.create_topic("t")
    bus.create_subscription("t", "s")
    coordinator = Coordinator(raw)
    transaction = coordinator.declare()
    batch = amqp.encode_message(body=[message("one"), message("two")])
    send_in(raw.sender("t"), transaction, batch, message_format=0x80013700)
    send_in(raw.sender("a"), transaction, message("plain"))
    assert totals(bus, "t/Subscriptions/s", "a") == [0, 0]
    coordinator.discharge(transaction)
    assert [one.text for one in raw.receiver("t/Subscriptions/s").receive(2)] == ["one", "two"]
    assert totals(bus, "a") == [1]


@pytest.mark.parametrize("size", [1, 15_000], ids=["operations", "bytes"])
def test_of_a_batch_that_does_not_fit_nothing_is_in_the_transaction(bus: Bus, raw: Raw, size: int) -> None:
    coordinator, sender = Coordinator(raw), raw.sender("a")
    transaction = coordinator.declare()
    send_in(sender, transaction, message("one"))
    batch = amqp.encode_message(body=[message("x" * size) for _ in range(5 if size == 1 else 4)])
    with pytest.raises(Refused, match="A transaction may hold"):
        send_in(sender, transaction, batch, message_format=0x80013700)
    coordinator.discharge(transaction)
    assert [one.text for one in raw.receiver("a", delete=True).receive(1)] == ["one"]
    assert totals(bus, "a") == [0]


def test_scheduled_and_duplicate_messages_behave_as_outside(bus: Bus, raw: Raw) -> None:
    bus.create_queue("once", requires_duplicate_detection=True)
    coordinator = Coordinator(raw)
    transaction = coordinator.declare()
    at = amqp.Timestamp(int(bus.now.timestamp() * 1000) + 60_000)
    annotations = {amqp.Symbol("x-opt-scheduled-enqueue-time"): at}
    send_in(raw.sender("a"), transaction, message("later", message_annotations=annotations))
    once = raw.sender("once")
    send_in(once, transaction, message("one", message_id="same"))
    send_in(once, transaction, message("two", message_id="same"))
    coordinator.discharge(transaction)
    bus.advance(0)
    assert (bus.counts("a").scheduled, bus.counts("once").total) == (1, 1)
    bus.advance(61)
    assert raw.receiver("a").receive()[0].text == "later"


def test_send_via_puts_the_message_where_the_property_says(bus: Bus, raw: Raw) -> None:
    raw.feed("a", "order")
    coordinator = Coordinator(raw)
    receiver = raw.receiver("a")
    [order] = receiver.receive()
    via = raw.sender("a", properties={amqp.Symbol("com.microsoft:transfer-destination-address"): "b"})
    transaction = coordinator.declare()
    settle_in(receiver, transaction, order)
    send_in(via, transaction, message("invoice"))
    coordinator.discharge(transaction)
    assert totals(bus, "a", "b") == [0, 1]
    via.send(message("outside of a transaction"))
    assert totals(bus, "a", "b") == [0, 2]
    for wrong, condition in (("nowhere", "amqp:not-found"), (5, "amqp:invalid-field")):
        with pytest.raises(Refused) as refused:
            raw.sender("a", properties={amqp.Symbol("com.microsoft:transfer-destination-address"): wrong})
        assert refused.value.condition == condition


def test_a_lost_lock_rolls_everything_back(bus: Bus, raw: Raw) -> None:
    raw.feed("a", "one")
    coordinator = Coordinator(raw)
    receiver = raw.receiver("a")
    [one] = receiver.receive()
    transaction = coordinator.declare()
    settle_in(receiver, transaction, one)
    send_in(raw.sender("b"), transaction, message("x"))
    bus.advance(61)
    with pytest.raises(Refused) as refused:
        coordinator.discharge(transaction)
    assert refused.value.condition == "amqp:transaction:rollback" and "lock" in refused.value.description
    assert totals(bus, "a", "b") == [1, 0]


def test_settling_twice_in_one_transaction_or_elsewhere_meanwhile_rolls_back(bus: Bus, raw: Raw) -> None:
    raw.feed("a", "one", "two")
    coordinator = Coordinator(raw)
    receiver = raw.receiver("a")
    first, second = receiver.receive(2)
    transaction = coordinator.declare()
    settle_in(receiver, transaction, first)
    send_in(raw.sender("b"), transaction, message("x"))
    body = {"disposition-status": "completed", "lock-tokens": amqp.Array(0x98, [first.token])}
    assert raw.request("a", "com.microsoft:update-disposition", body)[0] == 200
    with pytest.raises(Refused):
        coordinator.discharge(transaction)
    assert totals(bus, "a", "b") == [1, 0]
    assert second.text == "two"


def test_refused_work_is_said_and_not_part_of_it(bus: Bus, raw: Raw) -> None:
    bus.create_queue("sessions", requires_session=True)
    coordinator = Coordinator(raw)
    transaction = coordinator.declare()
    with pytest.raises(Refused) as refused:
        send_in(raw.sender("sessions"), transaction, message("x"))
    assert refused.value.condition == "amqp:not-allowed"
    send_in(raw.sender("a"), transaction, message("y"))
    coordinator.discharge(transaction)
    assert totals(bus, "sessions", "a") == [0, 1]
    transaction = coordinator.declare()
    send_in(raw.sender("sessions"), transaction, message("x"), settled=True)
    send_in(raw.sender("a"), transaction, message("y"))
    with pytest.raises(Refused) as refused:
        coordinator.discharge(transaction)
    assert refused.value.condition == "amqp:transaction:rollback"
    assert totals(bus, "sessions", "a") == [0, 1]


def test_transactions_end_with_their_coordinator_and_their_connection(bus: Bus, raw: Raw) -> None:
    coordinator = Coordinator(raw)
    transaction = coordinator.declare()
    sender = raw.sender("a")
    send_in(sender, transaction, message("x"))
    coordinator.link.detach()
    raw.until(lambda: coordinator.end.gone)
    with pytest.raises(Refused) as refused:
        send_in(sender, transaction, message("y"))
    assert refused.value.condition == "amqp:transaction:unknown-id"
    with Raw(bus.port) as other:
        elsewhere = Coordinator(other)
        send_in(other.sender("b"), elsewhere.declare(), message("z"))
    assert totals(bus, "a", "b") == [0, 0]


def test_a_transaction_that_takes_too_long_is_rolled_back(bus: Bus, raw: Raw) -> None:
    coordinator = Coordinator(raw)
    transaction = coordinator.declare()
    send_in(raw.sender("a"), transaction, message("x"))
    bus.advance(121)
    with pytest.raises(Refused) as refused:
        coordinator.discharge(transaction)
    assert refused.value.condition == "amqp:transaction:timeout"
    assert totals(bus, "a") == [0]


def test_open_transactions_their_operations_and_bytes_are_bounded(bus: Bus, raw: Raw) -> None:
    coordinator = Coordinator(raw)
    open_ones = [coordinator.declare() for _ in range(3)]
    with pytest.raises(Refused) as refused:
        coordinator.declare()
    assert refused.value.condition == "amqp:resource-limit-exceeded"
    sender = raw.sender("a")
    for _ in range(5):
        send_in(sender, open_ones[0], message("x"))
    with pytest.raises(Refused) as refused:
        send_in(sender, open_ones[0], message("x"))
    assert refused.value.condition == "amqp:resource-limit-exceeded" and "5 operations" in refused.value.description
    send_in(sender, open_ones[1], message("x" * 40_000))
    with pytest.raises(Refused) as refused:
        send_in(sender, open_ones[1], message("x" * 40_000))
    assert refused.value.condition == "amqp:resource-limit-exceeded" and "60000 bytes" in refused.value.description
    coordinator.discharge(open_ones[0])
    assert totals(bus, "a") == [5]
    coordinator.declare()


@pytest.mark.parametrize(
    ("body", "condition"),
    [
        ("declare", "amqp:decode-error"),
        (amqp.Described(amqp.ULong(0x99), []), "amqp:not-implemented"),
        (amqp.Described(amqp.ULong(0x32), []), "amqp:decode-error"),
        (amqp.Described(amqp.ULong(0x32), ["text", False]), "amqp:decode-error"),
        (amqp.Described(amqp.ULong(0x32), [b"nobody", False]), "amqp:transaction:unknown-id"),
    ],
)
def test_nonsense_to_the_coordinator_is_refused_and_the_link_lives_on(raw: Raw, body: object, condition: str) -> None:
    coordinator = Coordinator(raw)
    with pytest.raises(Refused) as refused:
        coordinator.request(body)
    assert refused.value.condition == condition
    coordinator.discharge(coordinator.declare())


def test_a_transaction_may_be_the_first_thing_on_a_connection_and_rights_are_checked_on_what_is_done_inside(bus: Bus) -> None:
    with Raw(bus.port, user="", password="") as raw:
        for _ in range(3):
            raw.engine.begin()  # as the Java SDK does: one for tokens, one for transactions, one for the entity
        coordinator = Coordinator(raw)
        transaction = coordinator.declare()
        with pytest.raises(Refused) as refused:
            raw.sender("a")
        assert refused.value.condition == "amqp:unauthorized-access"
        assert raw.put_token("a", token_for(bus.port, "a"))[0] == 202
        send_in(raw.sender("a"), transaction, message("inside"))
        coordinator.discharge(transaction)
    assert totals(bus, "a") == [1]


@pytest.mark.parametrize("stores", [1, 3])
def test_what_was_discharged_is_there_after_a_restart(tmp_path: Path, stores: int) -> None:
    with Bus(data_dir=tmp_path, store_count=stores) as bus:
        for name in ("a", "b", "c"):
            bus.create_queue(name)
        with Raw(bus.port) as raw:
            raw.feed("a", "in")
            coordinator = Coordinator(raw)
            receiver = raw.receiver("a")
            [one] = receiver.receive()
            transaction = coordinator.declare()
            settle_in(receiver, transaction, one)
            send_in(raw.sender("b"), transaction, message("out"))
            send_in(raw.sender("c"), transaction, message("out"))
            coordinator.discharge(transaction)
            open_one = coordinator.declare()
            send_in(raw.sender("b"), open_one, message("never"))
        bus.restart()
        assert totals(bus, "a", "b", "c") == [0, 1, 1]
        rests(bus)


def jms_receiver(raw: Raw, queue: str, default_outcome: object) -> Receiver:
    """Attached as JMS clients do: first-settling, with a default outcome."""
    end = End()
    source = amqp.Terminus(queue, default_outcome=default_outcome)
    link = raw.session.attach_receiver(f"jms-{queue}", source, amqp.Terminus("here"), end, snd_settle_mode=0, rcv_settle_mode=0)
    raw.until(lambda: end.attached)
    return Receiver(raw, link, end)


FAILED = amqp.Described(amqp.ULong(0x27), [True, False])


@pytest.mark.parametrize(("default_outcome", "count"), [(FAILED, 1), (amqp.Described(amqp.ULong(0x26), []), 0), (None, 0)])
def test_what_was_settled_for_good_in_a_transaction_is_available_again_as_soon_as_that_is_rolled_back(
    raw: Raw, default_outcome: object, count: int
) -> None:
    raw.feed("a", "one", "two")
    receiver = jms_receiver(raw, "a", default_outcome)
    coordinator = Coordinator(raw)
    for _ in range(2):
        transaction = coordinator.declare()
        arrivals = receiver.receive(2)
        for arrival in arrivals:
            receiver.settle(arrival, amqp.encode_transactional(transaction, ACCEPTED), settled=True)
        coordinator.discharge(transaction, fail=True)
    assert [(one.text, one.message.header.get("delivery-count", 0)) for one in receiver.receive(2)] == [
        ("one", 2 * count),
        ("two", 2 * count),
    ]


def test_what_was_settled_for_good_is_available_again_when_the_transaction_fails_or_never_was(bus: Bus, raw: Raw) -> None:
    raw.feed("a", "one")
    receiver = jms_receiver(raw, "a", FAILED)
    coordinator = Coordinator(raw)

    def settled_in(transaction: bytes) -> None:
        [arrival] = receiver.receive()
        receiver.settle(arrival, amqp.encode_transactional(transaction, ACCEPTED), settled=True)

    settled_in(b"never declared")
    full = coordinator.declare()
    settled_in(full)
    for _ in range(5):
        send_in(raw.sender("b"), full, message("x" * 20_000), settled=True)  # more than a transaction may hold: it is doomed
    with pytest.raises(Refused) as refused:
        coordinator.discharge(full)
    assert refused.value.condition == "amqp:transaction:rollback"
    settled_in(coordinator.declare())
    coordinator.link.detach()
    raw.until(lambda: coordinator.end.gone)
    [arrival] = receiver.receive()
    assert arrival.message.header["delivery-count"] == 3
