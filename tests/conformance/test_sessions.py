"""Message sessions with the official SDK: one holder ever, in order, with a state that outlives the holder."""

from __future__ import annotations

import datetime
import threading
import time
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceiveMode
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from tandem import amqp
from tests.conformance.house import ClockedBroker, ProcessBroker
from tests.conformance.raw import Raw, Refused
from tests.conformance.sdk import Bus, bodies, text

QUEUES = {"plain": 2, "sessions": 50, "short-sessions": 20}
DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE
ALL_SESSIONS = amqp.Timestamp(253_402_300_800_000)
SESSION_DESCRIPTOR = amqp.ULong(0x000000137000000C)


def everything(receiver: Any) -> list[Any]:
    found: list[Any] = receiver.peek_messages(100, sequence_number=1)
    return found


def listed(raw: Raw, queue: str, after: amqp.Timestamp = ALL_SESSIONS, skip: int = 0, top: int = 100) -> list[str]:
    body = {"last-updated-time": after, "skip": amqp.Int(skip), "top": amqp.Int(top)}
    status, reply = raw.request(queue, "com.microsoft:get-message-sessions", body)
    answer: Any = reply.body
    return list(answer["sessions-ids"].values) if status == 200 else []


@pytest.mark.compiled_too
def test_a_session_is_accepted_by_id_and_read_in_order(bus: Bus) -> None:
    queue = bus.queue("sessions")
    sender = bus.sender(queue)
    sender.send_messages([text(f"{session}{n}", session_id=session) for n in range(3) for session in ("a", "b", "")])
    receiver = bus.receiver(queue, session_id="b")
    assert receiver.session.session_id == "b"
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=50)
    assert soon < receiver.session.locked_until_utc < soon + datetime.timedelta(seconds=15)
    received = receiver.receive_messages(3, max_wait_time=10)
    assert bodies(received) == ["b0", "b1", "b2"]
    assert {m.session_id for m in received} == {"b"}
    receiver.abandon_message(received[1])
    receiver.complete_message(received[0])
    again = receiver.receive_messages(1, max_wait_time=10)
    assert [(str(m), m.delivery_count) for m in again] == [("b1", 1)]
    assert bodies(everything(receiver)) == ["b1", "b2"]
    nameless = bus.receiver(queue, session_id="")
    assert bodies(nameless.receive_messages(3, max_wait_time=10)) == ["0", "1", "2"]


@pytest.mark.compiled_too
def test_a_held_session_cannot_be_taken_and_is_free_the_moment_its_holder_closes(bus: Bus) -> None:
    queue = bus.queue("sessions")
    bus.feed(queue, "one", "two", session_id="s")
    holder = bus.receiver(queue, session_id="s")
    assert bodies(holder.receive_messages(1, max_wait_time=10)) == ["one"]
    with pytest.raises(SessionCannotBeLockedError, match="TrackingId:"):
        bus.receiver(queue, session_id="s")
    holder.close()
    after = bus.receiver(queue, session_id="s")
    assert [(str(m), m.delivery_count) for m in after.receive_messages(2, max_wait_time=10)] == [("one", 0), ("two", 0)]


def test_the_next_available_session_is_one_with_messages_that_nobody_holds(bus: Bus) -> None:
    queue = bus.queue("sessions")
    bus.feed(queue, "first", session_id="a")
    bus.feed(queue, "second", session_id="b")
    one = bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5)
    two = bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=5)
    assert [one.session.session_id, two.session.session_id] == ["a", "b"]
    assert bodies(two.receive_messages(1, max_wait_time=5)) == ["second"]
    started = time.monotonic()
    with pytest.raises(OperationTimeoutError):
        bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1)
    assert time.monotonic() - started > 0.9


def test_who_waits_for_a_session_gets_the_first_one_that_comes(bus: Bus) -> None:
    queue = bus.queue("sessions")
    found: list[str] = []

    def wait() -> None:
        receiver = bus.receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=20)
        found.append(receiver.session.session_id)
        found.extend(bodies(receiver.receive_messages(1, max_wait_time=10)))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(1)  # the SDK has no event for "the attach is waiting"
    assert found == []
    bus.feed(queue, "at last", session_id="late")
    waiting.join(20)
    assert found == ["late", "at last"]


def test_an_empty_session_may_be_held_before_its_first_message(bus: Bus) -> None:
    queue = bus.queue("sessions")
    receiver = bus.receiver(queue, session_id="new", receive_mode=DELETE)
    bus.feed(queue, "other", session_id="other")
    bus.feed(queue, "mine", session_id="new")
    received = receiver.receive_messages(1, max_wait_time=10)
    assert bodies(received) == ["mine"]
    assert set(received[0].raw_amqp_message.annotations) == {b"x-opt-enqueued-time", b"x-opt-sequence-number"}


@pytest.mark.compiled_too
def test_session_state_is_kept_across_holders_until_it_is_cleared(bus: Bus, raw: Raw) -> None:
    queue = bus.queue("sessions")
    receiver = bus.receiver(queue, session_id="s")
    assert receiver.session.get_state() is None
    receiver.session.set_state(b"\x00progress")
    assert receiver.session.get_state() == b"\x00progress"
    receiver.close()
    assert listed(raw, queue) == ["s"]
    again = bus.receiver(queue, session_id="s")
    assert again.session.get_state() == b"\x00progress"
    again.session.set_state("text")
    assert again.session.get_state() == b"text"
    again.session.set_state(None)
    assert again.session.get_state() is None
    assert listed(raw, queue) == []


def test_the_session_lock_is_renewed(timed: Bus, clocked: ClockedBroker) -> None:
    queue = timed.queue("short-sessions")
    timed.feed(queue, "one", "two", session_id="s")
    receiver = timed.receiver(queue, session_id="s")
    held = receiver.receive_messages(1, max_wait_time=10)[0]
    before = receiver.session.locked_until_utc
    clocked.jump(4)
    after = receiver.session.renew_lock()
    assert after == receiver.session.locked_until_utc
    assert 3.9 <= (after - before).total_seconds() <= 5
    clocked.jump(4)
    receiver.complete_message(held)
    assert bodies(receiver.receive_messages(1, max_wait_time=10)) == ["two"]


@pytest.mark.compiled_too
def test_a_lost_session_frees_its_messages_counted_and_its_old_holder_can_do_nothing_more(timed: Bus, clocked: ClockedBroker) -> None:
    queue = timed.queue("short-sessions")
    timed.feed(queue, "one", "two", session_id="s")
    receiver = timed.receiver(queue, session_id="s")
    held = receiver.receive_messages(1, max_wait_time=10)[0]
    clocked.jump(5.1)
    with pytest.raises(SessionLockLostError, match="TrackingId:"):
        receiver.complete_message(held)
    with pytest.raises(SessionLockLostError):
        receiver.session.renew_lock()
    taker = timed.receiver(queue, session_id="s")
    assert [(str(m), m.delivery_count) for m in taker.receive_messages(2, max_wait_time=10)] == [("one", 1), ("two", 0)]


def test_the_state_of_a_lost_session_is_out_of_reach(timed: Bus, clocked: ClockedBroker) -> None:
    queue = timed.queue("short-sessions")
    receiver = timed.receiver(queue, session_id="s")
    receiver.session.set_state(b"mine")
    clocked.jump(5.1)
    for attempt in (receiver.session.get_state, receiver.session.renew_lock, lambda: receiver.session.set_state(b"x")):
        with pytest.raises(SessionLockLostError):
            attempt()
    taker = timed.receiver(queue, session_id="s")
    assert taker.session.get_state() == b"mine"


def test_a_drained_session_is_not_torn_down_at_the_instant_its_lock_ends(raw_timed: Raw, clocked: ClockedBroker) -> None:
    queue = clocked.queue("short-sessions")
    raw_timed.feed(queue, "one", session_id="s")
    receiver = raw_timed.receiver(queue, delete=True, session="s")
    assert [a.text for a in receiver.receive()] == ["one"]
    receiver.link.grant(5)
    raw_timed.flush()
    clocked.jump(6)
    raw_timed.quiet(0.2)
    assert not receiver.end.gone
    raw_timed.feed(queue, "two", session_id="s")
    raw_timed.until(lambda: receiver.end.gone)
    assert receiver.end.error is not None
    assert receiver.end.error.condition == "com.microsoft:session-lock-lost"
    assert receiver.end.deliveries == []
    assert [a.text for a in raw_timed.receiver(queue, delete=True, session=None).receive()] == ["two"]


def test_an_ended_lock_gives_way_to_the_next_taker(raw_timed: Raw, clocked: ClockedBroker) -> None:
    queue = clocked.queue("short-sessions")
    old = raw_timed.receiver(queue, session="s")
    clocked.jump(6)
    raw_timed.receiver(queue, session="s")
    raw_timed.until(lambda: old.end.gone)
    assert old.end.error is not None
    assert old.end.error.condition == "com.microsoft:session-lock-lost"


def test_messages_of_one_session_never_reach_two_holders(broker: ProcessBroker) -> None:
    """Twenty sessions, four receivers that take and leave sessions as fast as they can: order and single possession hold."""
    queue = broker.queue("sessions")
    sessions, each = 20, 15
    seen: dict[str, list[int]] = {f"s{n}": [] for n in range(sessions)}
    holders: set[str] = set()
    trouble: list[str] = []
    guard = threading.Lock()
    with Raw(broker.port) as feeder:
        for number in range(each):
            for session in seen:
                feeder.feed(queue, str(number), session_id=session)

    def work() -> None:
        with Raw(broker.port) as raw:
            while True:
                try:
                    receiver = raw.receiver(queue, session=None, properties={"com.microsoft:timeout": amqp.UInt(500)})
                except Refused:
                    return
                source: Any = receiver.link.source
                session = str(source.filter["com.microsoft:session-filter"])
                with guard:
                    if session in holders:
                        trouble.append(f"{session} has two holders")
                    holders.add(session)
                for arrival in receiver.drain(4):
                    seen[session].append(int(arrival.text))
                    receiver.settle(arrival, amqp.ACCEPTED)
                with guard:
                    holders.discard(session)
                receiver.link.detach()
                raw.until(lambda receiver=receiver: receiver.end.gone)  # type: ignore[misc]

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert trouble == []
    assert seen == {session: list(range(each)) for session in seen}


# -- whose session it is -----------------------------------------------------------------------------------------------


SESSION_REQUESTS: dict[str, dict[str, object]] = {
    "com.microsoft:renew-session-lock": {},
    "com.microsoft:set-session-state": {"session-state": b"overwritten"},
    "com.microsoft:get-session-state": {},
    "com.microsoft:receive-by-sequence-number": {"sequence-numbers": amqp.Array(0x81, [1]), "receiver-settle-mode": amqp.UInt(1)},
}


def condition(answer: tuple[int, amqp.DecodedMessage]) -> tuple[int, object]:
    status, reply = answer
    return status, reply.application_properties.get("errorCondition")


@pytest.mark.compiled_too
def test_a_worker_that_lost_its_session_neither_renews_the_new_holders_lock_nor_touches_its_state(
    timed: Bus, clocked: ClockedBroker
) -> None:
    queue = timed.queue("short-sessions")
    timed.feed(queue, "one", session_id="s")
    lost = timed.receiver(queue, session_id="s")
    clocked.jump(5.1)
    holder = timed.receiver(queue, session_id="s")
    holder.session.set_state(b"the new holder's")
    clocked.jump(3)
    for attempt in (lost.session.renew_lock, lost.session.get_state, lambda: lost.session.set_state(b"overwritten")):
        with pytest.raises(SessionLockLostError):
            attempt()
    assert holder.session.get_state() == b"the new holder's"
    clocked.jump(2.1)
    with pytest.raises(SessionLockLostError):
        holder.session.get_state()


@pytest.mark.parametrize("operation", SESSION_REQUESTS, ids=lambda name: name.partition(":")[2])
def test_the_session_of_a_request_is_that_of_the_link_it_names(raw_timed: Raw, clocked: ClockedBroker, operation: str) -> None:
    """Both workers on one connection, as the SDKs of Java, Go and JavaScript have them."""
    queue = clocked.queue("short-sessions")
    raw_timed.feed(queue, "deferred", session_id="s")
    first = raw_timed.receiver(queue, session="s")
    first.settle(first.receive()[0], amqp.encode_modified(True, True))
    body = SESSION_REQUESTS[operation] | {"session-id": "s"}
    clocked.jump(5.1)
    second = raw_timed.receiver(queue, session="s")
    named = {"associated-link-name": first.link.name}
    assert condition(raw_timed.request(queue, operation, body, **named)) == (410, "com.microsoft:session-lock-lost")
    assert condition(raw_timed.request(queue, operation, SESSION_REQUESTS[operation], **named))[0] == 410
    unknown = {"associated-link-name": "nobody"}
    assert condition(raw_timed.request(queue, operation, body, **unknown)) == (410, "com.microsoft:session-lock-lost")
    with Raw(clocked.port) as stranger:
        assert condition(stranger.request(queue, operation, body)) == (410, "com.microsoft:session-lock-lost")
    assert condition(raw_timed.request(queue, operation, body, **{"associated-link-name": second.link.name})) == (200, None)


@pytest.mark.parametrize("operation", SESSION_REQUESTS, ids=lambda name: name.partition(":")[2])
def test_a_request_names_its_session_by_its_link_alone_or_by_its_id_alone(raw: Raw, broker: ProcessBroker, operation: str) -> None:
    queue = broker.queue("sessions")
    raw.feed(queue, "one", "two", session_id="s")
    receiver = raw.receiver(queue, session="s")
    for arrival in receiver.receive(2):
        receiver.settle(arrival, amqp.encode_modified(True, True))
    by_link = raw.request(queue, operation, SESSION_REQUESTS[operation], **{"associated-link-name": receiver.link.name})
    assert condition(by_link) == (200, None)
    body = SESSION_REQUESTS[operation] | {"session-id": "s"}
    if "sequence-numbers" in body:
        body["sequence-numbers"] = amqp.Array(0x81, [2])
    assert condition(raw.request(queue, operation, body)) == (200, None)


def test_a_peek_through_a_sessions_link_shows_that_session(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("sessions")
    raw.feed(queue, "mine", session_id="s")
    raw.feed(queue, "other", session_id="t")
    receiver = raw.receiver(queue, session="s")
    wish = {"from-sequence-number": 0, "message-count": amqp.Int(10)}
    _, reply = raw.request(queue, "com.microsoft:peek-message", wish, **{"associated-link-name": receiver.link.name})
    answer: Any = reply.body
    assert [amqp.decode_message(entry["message"]).body for entry in answer["messages"]] == [[b"mine"]]
    assert condition(raw.request(queue, "com.microsoft:peek-message", wish, **{"associated-link-name": "nobody"}))[0] == 410
    assert [entry.body for entry in raw.peek(queue)] == [[b"mine"], [b"other"]]


def test_an_empty_session_state_clears_it(bus: Bus) -> None:
    receiver = bus.receiver(bus.queue("sessions"), session_id="s")
    receiver.session.set_state(b"something")
    receiver.session.set_state(b"")
    assert receiver.session.get_state() is None


# -- deferred, dead-lettered, listed -----------------------------------------------------------------------------------


def test_deferred_messages_of_a_session_need_its_holder(bus: Bus, raw: Raw) -> None:
    queue = bus.queue("sessions")
    bus.feed(queue, "one", "two", session_id="s")
    bus.feed(queue, "other", session_id="t")
    receiver = bus.receiver(queue, session_id="s")
    for m in receiver.receive_messages(2, max_wait_time=10):
        receiver.defer_message(m)
    assert [(str(m), m.state.name) for m in everything(receiver)] == [("one", "DEFERRED"), ("two", "DEFERRED")]
    wish = {"sequence-numbers": amqp.Array(0x81, [1]), "receiver-settle-mode": amqp.UInt(1)}
    status, reply = raw.request(queue, "com.microsoft:receive-by-sequence-number", wish)
    assert (status, reply.application_properties["errorCondition"]) == (400, "amqp:not-allowed")
    deferred = receiver.receive_deferred_messages([2, 1])
    assert bodies(deferred) == ["two", "one"]
    for m in deferred:
        receiver.complete_message(m)
    assert everything(receiver) == []


def test_dead_letters_of_a_session_queue_are_read_without_a_session(bus: Bus) -> None:
    queue = bus.queue("sessions")
    bus.feed(queue, "bad", session_id="s")
    receiver = bus.receiver(queue, session_id="s")
    receiver.dead_letter_message(receiver.receive_messages(1, max_wait_time=10)[0], reason="bad")
    dead = bus.receiver(queue, sub_queue="deadletter").receive_messages(1, max_wait_time=10)[0]
    assert (str(dead), dead.session_id, dead.dead_letter_reason) == ("bad", "s", "bad")


def test_sessions_are_listed_in_pages_with_messages_or_state(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("sessions")
    assert listed(raw, queue) == []
    for number in range(7):
        raw.feed(queue, "m", session_id=f"s{number}")
    assert listed(raw, queue) == [f"s{n}" for n in range(7)]
    assert listed(raw, queue, skip=2, top=3) == ["s2", "s3", "s4"]
    assert listed(raw, queue, skip=7) == []
    since = amqp.Timestamp(int(time.time() * 1000) - 60_000)
    assert listed(raw, queue, after=since) == []
    raw.receiver(queue, session="s5")
    raw.request(queue, "com.microsoft:set-session-state", {"session-id": "s5", "session-state": b"x"})
    assert listed(raw, queue, after=since) == ["s5"]
    assert listed(raw, queue, after=amqp.Timestamp(int(time.time() * 1000) + 60_000)) == []


def test_the_sdk_lists_sessions(bus: Bus) -> None:
    queue = bus.queue("sessions")
    for number in range(120):
        bus.feed(queue, "m", session_id=f"{number:03}")
    assert sorted(bus.list_sessions(queue)) == [f"{n:03}" for n in range(120)]


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_session_receivers_and_session_queues_belong_together(bus: Bus) -> None:
    with pytest.raises(
        ServiceBusError,
        match=r"^It is not possible for an entity that requires sessions to create a non-sessionful message receiver\. TrackingId:",
    ):
        bus.receiver(bus.queue("sessions"))
    with pytest.raises(ServiceBusError, match=r"does not require sessions.*TrackingId:"):
        bus.receiver(bus.queue(), session_id="s")


def test_a_message_without_a_session_is_refused_by_a_session_queue(bus: Bus) -> None:
    sender = bus.sender(bus.queue("sessions"))
    with pytest.raises(ServiceBusError, match=r"SessionId was not set.*TrackingId:"):
        sender.send_messages(text("homeless"))
    with pytest.raises(ServiceBusError, match="SessionId was not set"):
        sender.send_messages([text("fine", session_id="s"), text("homeless")])


@pytest.mark.parametrize("session", [5, b"bytes", True, ["s"]], ids=lambda v: type(v).__name__)
def test_a_session_filter_of_another_type_is_refused(raw: Raw, broker: ProcessBroker, session: object) -> None:
    with pytest.raises(Refused) as refusal:
        raw.receiver(broker.queue("sessions"), session=session)
    assert refusal.value.condition == "amqp:invalid-field"
    assert "com.microsoft:session-filter" in refusal.value.description


def test_the_attach_of_a_session_is_answered_byte_for_byte(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("sessions")
    address = f"amqps://localhost:{broker.port}/{queue}"
    receiver = raw.receiver(address, session="s")
    source: Any = receiver.link.source
    assert source.address == address
    assert source.filter == {"com.microsoft:session-filter": "s"}
    ticks: Any = receiver.link.properties["com.microsoft:locked-until-utc"]
    until = (ticks - 621_355_968_000_000_000) / 10_000_000
    assert 50 < until - time.time() < 65


@pytest.mark.parametrize("descriptor", [SESSION_DESCRIPTOR, amqp.Symbol("com.microsoft:session-filter")], ids=["code", "name"])
def test_a_described_session_filter_is_answered_described(raw: Raw, broker: ProcessBroker, descriptor: object) -> None:
    queue = broker.queue("sessions")
    raw.feed(queue, "one", session_id="s")
    for wanted in ("s", None):
        receiver = raw.receiver(queue, session=amqp.Described(descriptor, wanted))
        source: Any = receiver.link.source
        answer = source.filter["com.microsoft:session-filter"]
        assert isinstance(answer, amqp.Described)
        assert (answer.descriptor, answer.value) == (descriptor, "s")
        assert [a.text for a in receiver.receive()] == ["one"]
        receiver.link.detach()
        raw.until(lambda receiver=receiver: receiver.end.gone)  # type: ignore[misc]


@pytest.mark.parametrize(
    "session", [amqp.Described(amqp.ULong(0x13), "s"), amqp.Described(SESSION_DESCRIPTOR, 5)], ids=["descriptor", "type"]
)
def test_a_described_session_filter_of_another_kind_is_refused(raw: Raw, broker: ProcessBroker, session: object) -> None:
    with pytest.raises(Refused) as refusal:
        raw.receiver(broker.queue("sessions"), session=session)
    assert refusal.value.condition == "amqp:invalid-field"


def test_a_waiting_attach_that_is_given_up_takes_no_session(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("sessions")
    waiting = raw.receiver(queue, session=None, wait=False)
    raw.quiet(0.1)
    waiting.link.detach()
    raw.until(lambda: waiting.end.gone)
    with Raw(broker.port) as leaving:
        leaving.receiver(queue, session=None, wait=False)
        leaving.quiet(0.1)
    raw.feed(queue, "kept", session_id="s")
    assert [a.text for a in raw.receiver(queue, session=None).receive()] == ["kept"]
