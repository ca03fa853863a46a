"""Receiving and settling with the official SDK: locks, counts, the way back and the way out."""

from __future__ import annotations

import signal
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageLockLostError, MessageNotFoundError

from tandem import amqp
from tests.cli.broker_process import BrokerProcess
from tests.conformance.house import ClockedBroker, ProcessBroker, write_config
from tests.conformance.raw import MODIFIED, REJECTED, Raw, Receiver, message
from tests.conformance.sdk import Bus, bodies
from tests.waiting import wait_until


def everything(receiver: Any) -> list[Any]:
    """Peek from the start: left to itself the SDK goes on after what it has seen."""
    found: list[Any] = receiver.peek_messages(100, sequence_number=1)
    return found


QUEUES = {"plain": 56, "sessions": 1, "short": 8, "twice": 2}
DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE


@pytest.mark.compiled_too
def test_receive_and_delete_removes_on_delivery(bus: Bus) -> None:
    queue = bus.queue()
    bus.feed(queue, "a", "b", "c")
    receiver = bus.receiver(queue, receive_mode=DELETE)
    assert bodies(receiver.receive_messages(2, max_wait_time=10)) == ["a", "b"]
    assert bus.left(queue) == ["c"]


@pytest.mark.compiled_too
def test_a_completed_message_never_comes_again(bus: Bus) -> None:
    queue = bus.queue()
    bus.feed(queue, "a", "b")
    receiver = bus.receiver(queue)
    first, second = receiver.receive_messages(2, max_wait_time=10)
    receiver.complete_message(second)
    receiver.complete_message(first)
    assert bus.left(queue) == []
    assert receiver.receive_messages(1, max_wait_time=0.3) == []
    first._settled = False  # the SDK's own guard; the broker must not need it
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(first)


def test_iterating_yields_messages_in_order_until_none_come(bus: Bus) -> None:
    queue = bus.queue()
    bus.feed(queue, *(str(n) for n in range(25)))
    receiver = bus.receiver(queue, max_wait_time=1, prefetch_count=10)
    seen = []
    for received in receiver:
        seen.append(str(received))
        receiver.complete_message(received)
    assert seen == [str(n) for n in range(25)]
    assert bus.left(queue) == []


@pytest.mark.compiled_too
def test_abandon_brings_a_message_back_in_front_with_its_count_raised(bus: Bus) -> None:
    queue = bus.queue()
    bus.feed(queue, "a", "b", "c")
    receiver = bus.receiver(queue)
    first = receiver.receive_messages(1, max_wait_time=10)[0]
    receiver.abandon_message(first)
    again = receiver.receive_messages(3, max_wait_time=10)
    assert [(str(m), m.delivery_count) for m in again] == [("a", 1), ("b", 0), ("c", 0)]
    assert again[0].sequence_number == first.sequence_number == 1
    assert again[0].lock_token != first.lock_token


@pytest.mark.compiled_too
def test_deferred_messages_come_only_when_asked_for_by_number(bus: Bus) -> None:
    queue = bus.queue()
    bus.feed(queue, "a", "b", "c", "d")
    receiver = bus.receiver(queue)
    received = receiver.receive_messages(4, max_wait_time=10)
    for m in received[:3]:
        receiver.defer_message(m)
    receiver.complete_message(received[3])
    assert receiver.receive_messages(1, max_wait_time=0.3) == []
    assert [m.state.name for m in everything(receiver)] == ["DEFERRED"] * 3
    deferred = receiver.receive_deferred_messages([3, 1, 2])
    assert bodies(deferred) == ["c", "a", "b"]
    assert [m.state.name for m in deferred] == ["DEFERRED"] * 3
    assert all(m.lock_token and m.locked_until_utc for m in deferred)
    receiver.complete_message(deferred[0])
    receiver.abandon_message(deferred[1])
    receiver.dead_letter_message(deferred[2], reason="enough")
    with pytest.raises(MessageNotFoundError, match="TrackingId:"):
        receiver.receive_deferred_messages([3])
    assert bodies(receiver.receive_deferred_messages(1)) == ["a"]
    with pytest.raises(MessageNotFoundError):
        receiver.receive_deferred_messages(1)


def test_deferred_messages_can_be_received_and_deleted(bus: Bus, raw: Raw) -> None:
    queue = bus.queue()
    bus.feed(queue, "a", "b")
    held = raw.receiver(queue)
    for arrival in held.receive(2):
        held.settle(arrival, amqp.encode_modified(True, True))
    receiver = bus.receiver(queue, receive_mode=DELETE)
    with pytest.raises(MessageNotFoundError):
        receiver.receive_deferred_messages([1, 99])
    assert bodies(receiver.receive_deferred_messages([1, 2])) == ["a", "b"]
    assert bus.left(queue) == []


@pytest.mark.compiled_too
def test_dead_lettering_keeps_the_message_and_says_why(bus: Bus) -> None:
    queue = bus.queue()
    bus.feed(queue, "a", "b", application_properties={"own": "kept"}, message_annotations={"note": 1})
    receiver = bus.receiver(queue)
    first, second = receiver.receive_messages(2, max_wait_time=10)
    receiver.dead_letter_message(first, reason="because", error_description="of this")
    receiver.dead_letter_message(second)
    assert bus.left(queue) == []
    dead = bus.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    one, two = dead.receive_messages(2, max_wait_time=10)
    assert (one.dead_letter_reason, one.dead_letter_error_description, str(one)) == ("because", "of this", "a")
    assert one.application_properties == {
        b"own": b"kept",
        b"DeadLetterReason": b"because",
        b"DeadLetterErrorDescription": b"of this",
    }
    assert set(one.raw_amqp_message.annotations) == {b"note", b"x-opt-enqueued-time", b"x-opt-sequence-number", b"x-opt-locked-until"}
    assert (one.message_id, one.enqueued_time_utc) == (first.message_id, first.enqueued_time_utc)
    assert two.application_properties == {b"own": b"kept"}
    dead.complete_message(one)
    dead.abandon_message(two)
    assert bodies(dead.receive_messages(1, max_wait_time=10)) == ["b"]


def test_what_is_released_comes_back_uncounted(bus: Bus, raw: Raw) -> None:
    queue = bus.queue()
    bus.feed(queue, "a", "b")
    held = raw.receiver(queue)
    first, second = held.receive(2)
    assert held.settle(first, amqp.RELEASED).code == 0x26  # type: ignore[union-attr]
    held.settle(second, amqp.RELEASED, settled=True)
    again = bus.receiver(queue).receive_messages(2, max_wait_time=10)
    assert [(str(m), m.delivery_count) for m in again] == [("a", 0), ("b", 0)]


def test_prefetched_messages_return_uncounted_when_the_receiver_closes(bus: Bus) -> None:
    queue = bus.queue()
    bus.feed(queue, *"abcdef")
    greedy = bus.receiver(queue, prefetch_count=10)
    assert bodies(greedy.receive_messages(1, max_wait_time=10)) == ["a"]
    greedy.close()
    again = bus.receiver(queue).receive_messages(5, max_wait_time=10)
    assert [(str(m), m.delivery_count) for m in again] == [(one, 0) for one in "bcdef"]


def test_a_lock_outlives_its_link_and_can_be_settled_from_another_connection(bus: Bus) -> None:
    queue = bus.queue()
    bus.feed(queue, "a", "b", "c", "d")
    receiver = bus.receiver(queue)
    received = receiver.receive_messages(4, max_wait_time=10)
    receiver.close()
    other = bus.receiver(queue)
    assert len(everything(other)) == 4
    assert other.receive_messages(1, max_wait_time=0.3) == []
    other.complete_message(received[0])
    other.abandon_message(received[1])
    other.defer_message(received[2])
    other.dead_letter_message(received[3], reason="elsewhere")
    assert [(str(m), m.state.name) for m in everything(other)] == [("b", "ACTIVE"), ("c", "DEFERRED")]


def test_a_lock_is_renewed_and_then_outlives_its_first_end(timed: Bus, clocked: ClockedBroker) -> None:
    """Of a minute: the SDK gives up by its own clock a lock whose time it thinks is over."""
    queue = timed.queue("plain")
    timed.feed(queue, "a")
    receiver = timed.receiver(queue)
    held = receiver.receive_messages(1, max_wait_time=10)[0]
    before = held.locked_until_utc
    clocked.jump(50)
    after = receiver.renew_message_lock(held)
    assert after == held.locked_until_utc
    assert 49.9 <= (after - before).total_seconds() <= 50.9
    clocked.jump(50)
    receiver.complete_message(held)
    assert timed.left(queue) == []


@pytest.mark.compiled_too
def test_an_expired_lock_returns_the_message_in_front_and_can_do_nothing_more(timed: Bus, clocked: ClockedBroker) -> None:
    queue = timed.queue("plain")
    timed.feed(queue, "a", "b")
    receiver = timed.receiver(queue)
    lost = receiver.receive_messages(1, max_wait_time=10)[0]
    clocked.jump(60.1)
    again = receiver.receive_messages(2, max_wait_time=10)
    assert [(str(m), m.delivery_count) for m in again] == [("a", 1), ("b", 0)]
    assert again[0].lock_token != lost.lock_token
    with pytest.raises(MessageLockLostError, match=r"Reference:.*TrackingId:.*SystemTracker:.*Timestamp:"):
        receiver.complete_message(lost)
    with pytest.raises(MessageLockLostError):
        receiver.renew_message_lock(lost)
    for outcome in (receiver.abandon_message, receiver.defer_message, receiver.dead_letter_message):
        with pytest.raises(MessageLockLostError):
            outcome(lost)
    receiver.complete_message(again[0])
    assert timed.left(queue) == ["b"]


def test_a_message_that_is_never_settled_exhausts_to_the_dead_letter_queue(timed: Bus, clocked: ClockedBroker) -> None:
    queue = timed.queue("twice")
    timed.feed(queue, "by expiry", "by abandon")
    receiver = timed.receiver(queue)
    for count in (0, 1):
        held = receiver.receive_messages(2, max_wait_time=10)
        assert [m.delivery_count for m in held] == [count, count]
        receiver.abandon_message(held[1])
        clocked.jump(5.1)
    assert receiver.receive_messages(1, max_wait_time=0.3) == []
    dead = timed.receiver(queue, sub_queue="deadletter").receive_messages(2, max_wait_time=10)
    assert sorted(bodies(dead)) == ["by abandon", "by expiry"]
    assert {m.dead_letter_reason for m in dead} == {"MaxDeliveryCountExceeded"}
    assert {m.delivery_count for m in dead} == {2}
    assert all("2 delivery attempts" in m.dead_letter_error_description for m in dead)


def test_the_auto_lock_renewer_keeps_messages_locked(bus: Bus) -> None:
    queue = bus.queue("short")
    bus.feed(queue, "a")
    receiver = bus.receiver(queue)
    held = receiver.receive_messages(1, max_wait_time=10)[0]
    before = held.locked_until_utc
    renewer = bus.flavour.renewer()
    renewer.register(receiver, held, max_lock_renewal_duration=60)
    wait_until(lambda: held.locked_until_utc != before, "the lock is renewed by the SDK", 20)
    assert held.locked_until_utc > before
    renewer.close()
    receiver.complete_message(held)


def test_ten_threads_can_peek_through_one_receiver(broker: ProcessBroker, raw: Raw) -> None:
    from azure.servicebus import ServiceBusClient

    from tests.conformance.house import connection_string

    queue = broker.queue("plain")
    raw.feed(queue, *(str(n) for n in range(10)))
    seen: list[list[str]] = []
    with ServiceBusClient.from_connection_string(connection_string(broker.port)).get_queue_receiver(queue) as receiver:
        look = lambda: seen.append(bodies(everything(receiver)))  # noqa: E731
        threads = [threading.Thread(target=look) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert seen == [[str(n) for n in range(10)]] * 10


# -- what the Python SDK cannot say, other clients can ------------------------------------------------------------------


def peeked(raw: Raw, queue: str, **more: object) -> list[amqp.DecodedMessage]:
    body = {"from-sequence-number": 0, "message-count": amqp.Int(50), **more}
    status, reply = raw.request(queue, "com.microsoft:peek-message", body)
    if status == 204:
        return []
    answer: Any = reply.body
    return [amqp.decode_message(entry["message"]) for entry in answer["messages"]]


@pytest.mark.parametrize("undeliverable", [False, True], ids=["abandon", "defer"])
def test_abandon_and_defer_can_modify_properties(raw: Raw, broker: ProcessBroker, undeliverable: bool) -> None:
    queue = broker.queue("plain")
    raw.feed(queue, "a", message_id="kept", application_properties={"old": 1, "same": "s"})
    receiver = raw.receiver(queue)
    held = receiver.receive()[0]
    changes: dict[object, object] = {amqp.Symbol("old"): amqp.Int(2), amqp.Symbol("new"): "here"}
    answer = receiver.settle(held, amqp.encode_modified(True, undeliverable, changes))
    assert answer is not None
    assert answer.code == MODIFIED
    [changed] = peeked(raw, queue)
    assert changed.application_properties == {"old": 2, "same": "s", "new": "here"}
    assert changed.properties["message-id"] == "kept"
    assert changed.body == [b"a"]
    assert changed.header["delivery-count"] == 1
    if not undeliverable:
        assert receiver.receive()[0].message.application_properties == changed.application_properties


def test_dead_lettering_can_modify_properties(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    raw.feed(queue, "a", application_properties={"old": 1})
    receiver = raw.receiver(queue)
    info: dict[object, object] = {
        amqp.Symbol("DeadLetterReason"): "why",
        amqp.Symbol("DeadLetterErrorDescription"): "words",
        amqp.Symbol("old"): amqp.Int(3),
    }
    answer = receiver.settle(receiver.receive()[0], amqp.encode_rejected(amqp.AmqpError("com.microsoft:dead-letter", None, info)))
    assert answer is not None
    assert (answer.code, answer.error) == (REJECTED, None)
    [dead] = peeked(raw, f"{queue}/$DeadLetterQueue")
    assert dead.application_properties == {"old": 3, "DeadLetterReason": "why", "DeadLetterErrorDescription": "words"}


def test_a_plain_rejection_dead_letters_with_its_error_as_the_reason(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    raw.feed(queue, "a")
    receiver = raw.receiver(queue)
    receiver.settle(receiver.receive()[0], amqp.encode_rejected(amqp.AmqpError("app:bad", "cannot read it")))
    [dead] = peeked(raw, f"{queue}/$deadletterqueue")
    assert dead.application_properties == {"DeadLetterReason": "app:bad", "DeadLetterErrorDescription": "cannot read it"}


def test_abandon_with_a_delivery_time_keeps_the_message_away_until_then(raw_timed: Raw, clocked: ClockedBroker) -> None:
    raw = raw_timed
    queue = clocked.queue("plain")
    raw.feed(queue, "later", "now")
    receiver = raw.receiver(queue)
    held = receiver.receive()[0]
    until = amqp.Timestamp(clocked.clock.now_ms() + 60_000)
    receiver.settle(held, amqp.encode_modified(True, False, {amqp.Symbol("x-opt-delivery-time"): until}))
    assert [a.text for a in receiver.drain(5)] == ["now"]
    assert [m.body for m in peeked(raw, queue)] == [[b"later"], [b"now"]]
    clocked.jump(59)
    assert receiver.drain(5) == []
    clocked.jump(1.1)
    [back] = receiver.receive()
    assert (back.text, back.message.header["delivery-count"]) == ("later", 1)
    assert back.message.application_properties == {}


def test_a_delivery_time_and_properties_can_come_together(raw_timed: Raw, clocked: ClockedBroker) -> None:
    raw = raw_timed
    queue = clocked.queue("plain")
    raw.feed(queue, "later")
    receiver = raw.receiver(queue)
    until = amqp.Timestamp(clocked.clock.now_ms() + 60_000)
    wish: dict[object, object] = {amqp.Symbol("x-opt-delivery-time"): until, amqp.Symbol("try"): amqp.Int(2)}
    receiver.settle(receiver.receive()[0], amqp.encode_modified(True, False, wish))
    assert receiver.drain(5) == []
    clocked.jump(60.1)
    [back] = receiver.receive()
    assert back.message.application_properties == {"try": 2}


@pytest.mark.parametrize("delete", [False, True], ids=["peek-lock", "receive-and-delete"])
def test_drain_gives_what_there_is_and_then_says_so(raw: Raw, broker: ProcessBroker, delete: bool) -> None:
    queue = broker.queue("plain")
    receiver = raw.receiver(queue, delete=delete)
    assert receiver.drain(10) == []
    raw.feed(queue, "a", "b", "c")
    assert [a.text for a in receiver.drain(10)] == ["a", "b", "c"]
    raw.feed(queue, "d")
    raw.quiet()
    assert receiver.end.deliveries == []
    assert [a.text for a in receiver.receive()] == ["d"]


@pytest.mark.parametrize("delete", [False, True], ids=["peek-lock", "receive-and-delete"])
def test_drain_waits_for_bodies_that_must_be_read_from_the_store(raw_timed: Raw, clocked: ClockedBroker, delete: bool) -> None:
    queue = clocked.queue("plain")
    budget = clocked.on_loop(lambda server: server.contexts[0].namespace.find(queue).main.rows.backing)
    usual, budget.per_queue_bytes_max = budget.per_queue_bytes_max, 0
    try:
        raw_timed.feed(queue, *"abcd")
        receiver = raw_timed.receiver(queue, delete=delete)
        assert [a.text for a in receiver.drain(10)] == list("abcd")
    finally:
        budget.per_queue_bytes_max = usual


def test_credit_is_served_first_come_first_served(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    first, second, third = (raw.receiver(queue) for _ in range(3))
    for receiver in (first, second, third):
        receiver.link.grant(2)
        raw.flush()
    sender = raw.sender(queue)
    for number in range(6):
        sender.send(message(str(number)))
    got: list[Receiver] = [first, second, third]
    raw.until(lambda: sum(len(r.end.deliveries) for r in got) == 6)
    assert [[a.text for a in r.end.deliveries] for r in got] == [["0", "1"], ["2", "3"], ["4", "5"]]


def test_many_frames_make_one_message_for_a_client_with_small_frames(broker: ProcessBroker, raw: Raw) -> None:
    queue = broker.queue("plain")
    body = "".join(chr(97 + i % 26) for i in range(20_000))
    raw.feed(queue, body, body[::-1])
    with Raw(broker.port, max_frame_size=512) as small:
        receiver = small.receiver(queue)
        arrivals = receiver.receive(2)
        assert [a.text for a in arrivals] == [body, body[::-1]]
        assert all(isinstance(a.token, uuid.UUID) and a.token == a.message.delivery_annotations["x-opt-lock-token"] for a in arrivals)
        small.feed(queue, body)


@pytest.mark.parametrize(("window", "frame_bytes"), [(1, 65536), (3, 65536), (4, 512)])
def test_the_answer_to_a_drain_comes_after_deliveries_that_wait_for_the_window(
    broker: ProcessBroker, raw: Raw, window: int, frame_bytes: int
) -> None:
    queue = broker.queue("plain")
    raw.feed(queue, *[str(number) * 2000 for number in range(6)])
    with Raw(broker.port, incoming_window=window, max_frame_size=frame_bytes) as narrow:
        receiver = narrow.receiver(queue)
        assert [one.text[0] for one in receiver.drain(20)] == list("012345")
        assert receiver.link.credit == 0
        narrow.feed(queue, "more")
        assert receiver.receive()[0].text == "more"


def test_the_answer_to_an_echo_counts_no_delivery_that_waits_for_the_window(broker: ProcessBroker, raw: Raw) -> None:
    queue = broker.queue("plain")
    raw.feed(queue, *"abcdef")
    with Raw(broker.port, incoming_window=1) as narrow:
        receiver = narrow.receiver(queue)
        narrow.session.keep_window_shut()
        receiver.link.grant(10)
        narrow.until(lambda: len(receiver.end.deliveries) == 1)
        narrow.session.send_link_flow(receiver.link, False, True)
        narrow.session.let_window_open()
        narrow.until(lambda: len(receiver.end.deliveries) == 6 and receiver.end.flows > 0)
        assert (receiver.link.credit, receiver.link.delivery_count) == (4, 6)


def test_one_disposition_settles_a_range(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    raw.feed(queue, *"abcdefgh")
    receiver = raw.receiver(queue)
    held = receiver.receive(8)
    receiver.link.session.send_disposition(True, held[0].delivery_id, held[5].delivery_id, False, amqp.ACCEPTED)
    raw.until(lambda: len(receiver.end.outcomes) == 6)
    assert {outcome.code for outcome in receiver.end.outcomes.values()} == {0x24}
    assert [m.body for m in peeked(raw, queue)] == [[b"g"], [b"h"]]


def test_settlements_sent_pre_settled_by_older_clients_hold(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    raw.feed(queue, "complete", "abandon", "defer", "dead")
    receiver = raw.receiver(queue)
    held = receiver.receive(4)
    states = (amqp.ACCEPTED, amqp.encode_modified(True, False), amqp.encode_modified(True, True), amqp.encode_rejected(None))
    for arrival, state in zip(held, states, strict=True):
        receiver.settle(arrival, state, settled=True)
    [abandoned, deferred] = peeked(raw, queue)
    assert (abandoned.body, deferred.body) == ([b"abandon"], [b"defer"])
    assert deferred.message_annotations["x-opt-message-state"] == 1
    assert [a.text for a in raw.receiver(f"{queue}/$DeadLetterQueue").receive()] == ["dead"]


def test_credit_beyond_what_is_there_stays_for_later(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    receiver = raw.receiver(queue)
    receiver.link.grant(5)
    raw.quiet(0.1)
    raw.feed(queue, "a", "b")
    raw.until(lambda: len(receiver.end.deliveries) == 2)
    raw.feed(queue, "c", "d", "e", "f")
    raw.until(lambda: len(receiver.end.deliveries) == 5)
    raw.quiet(0.2)
    assert [a.text for a in receiver.end.deliveries] == list("abcde")


def test_entity_paths_do_not_know_case_and_may_be_uris(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    raw.feed(queue.upper(), "a")
    raw.feed(f"amqps://somewhere:5671/{queue}", "b")
    receiver = raw.receiver(f"sb://localhost:{broker.port}/{queue.title()}")
    assert [a.text for a in receiver.receive(2)] == ["a", "b"]


def test_a_drain_is_answered_when_the_last_credit_went_to_a_message_that_is_gone(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    raw.feed(queue, "one", "two", "three")
    receiver = raw.receiver(queue, delete=True)
    assert [a.text for a in receiver.drain(2)] == ["one", "two"]
    assert [a.text for a in receiver.drain(2)] == ["three"]


def test_dead_lettering_is_no_failed_delivery(bus: Bus) -> None:
    queue = bus.queue()
    bus.feed(queue, "at once", "second time")
    receiver = bus.receiver(queue)
    at_once, later = receiver.receive_messages(2, max_wait_time=10)
    receiver.dead_letter_message(at_once, reason="r")
    receiver.abandon_message(later)
    receiver.dead_letter_message(receiver.receive_messages(1, max_wait_time=10)[0])
    letters = bus.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    found = letters.receive_messages(2, max_wait_time=10)
    assert [(str(m), m.delivery_count) for m in found] == [("at once", 0), ("second time", 1)]
    letters.dead_letter_message(found[0])  # it is there already
    letters.abandon_message(found[1])  # among dead letters no delivery is counted
    again = letters.receive_messages(2, max_wait_time=10)
    assert [(str(m), m.delivery_count) for m in again] == [("at once", 0), ("second time", 1)]


@pytest.mark.parametrize(("how", "counted"), [(signal.SIGTERM, {1}), (signal.SIGKILL, {0, 1})], ids=["stopped", "killed"])
def test_a_delivery_that_the_end_of_the_broker_interrupts_counts(tmp_path: Path, how: signal.Signals, counted: set[int]) -> None:
    """A broker that is killed may have kept it to itself: nobody waits for the disk to know of a delivery."""
    arguments = ("--port", "0", "--data", "data", "--dev", "--config", str(write_config(tmp_path, {"plain": 1})))
    with BrokerProcess(tmp_path, *arguments) as process, Raw(process.port) as raw:
        raw.feed("plain-0", "x")
        assert raw.receiver("plain-0").receive()[0].message.header["delivery-count"] == 0
        process.stop(how)
    with BrokerProcess(tmp_path, *arguments) as process, Raw(process.port) as raw:
        assert raw.receiver("plain-0").receive()[0].message.header["delivery-count"] in counted


# -- one name, one link ------------------------------------------------------------------------------------------------


def test_a_second_attach_with_a_name_in_use_steals_the_link_and_the_connection_lives(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    first = raw.receiver(queue, name="mine")
    first.link.grant(5)
    second = raw.receiver(queue, name="mine")
    raw.until(lambda: first.end.gone)
    assert first.end.error is not None and first.end.error.condition == "amqp:link:stolen"
    raw.feed(queue, "one")
    assert [a.text for a in second.receive()] == ["one"]
    assert first.end.deliveries == [] and not raw.hung_up


def test_a_stolen_link_gives_its_session_to_the_thief(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("sessions")
    raw.feed(queue, "one", session_id="s")
    raw.receiver(queue, session="s", name="mine").receive()
    assert [a.text for a in raw.receiver(queue, session="s", name="mine").receive()] == ["one"]
