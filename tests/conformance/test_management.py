"""The management node spoken to directly: every operation, its edges, and what it says to nonsense."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from tandem import amqp
from tests.conformance.house import ClockedBroker, ProcessBroker
from tests.conformance.raw import Raw, Refused, message

QUEUES = {"plain": 32, "sessions": 16, "dedup": 2}
LONG, UUID = 0x81, 0x98


def ask(raw: Raw, queue: str, operation: str, body: object) -> tuple[int, Any, Any]:
    """Status, application properties and body of the answer."""
    status, reply = raw.request(queue, f"com.microsoft:{operation}", body)
    return status, reply.application_properties, reply.body


def peek(raw: Raw, queue: str, start: int = 0, most: int = 100, **more: object) -> list[amqp.DecodedMessage]:
    status, _, body = ask(raw, queue, "peek-message", {"from-sequence-number": start, "message-count": amqp.Int(most), **more})
    return [amqp.decode_message(entry["message"]) for entry in body["messages"]] if status == 200 else []


def texts(messages: list[amqp.DecodedMessage]) -> list[str]:
    bodies: list[Any] = [m.body for m in messages]
    return [b"".join(body).decode() for body in bodies]


# -- peek --------------------------------------------------------------------------------------------------------------


@pytest.mark.compiled_too
def test_peek_shows_every_state_in_order_and_takes_nothing(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    raw.feed(queue, "locked", "deferred", "taken")
    later = amqp.Timestamp(int(time.time() * 1000) + 3_600_000)
    raw.feed(queue, "scheduled", message_annotations={"x-opt-scheduled-enqueue-time": later})
    raw.feed(queue, "active")
    receiver = raw.receiver(queue)
    _, deferred, taken = receiver.receive(3)
    receiver.settle(deferred, amqp.encode_modified(True, True))
    receiver.settle(taken, amqp.ACCEPTED)
    seen = peek(raw, queue)
    assert texts(seen) == ["locked", "deferred", "scheduled", "active"]
    assert [m.message_annotations["x-opt-sequence-number"] for m in seen] == [1, 2, 4, 5]
    assert [m.message_annotations.get("x-opt-message-state") for m in seen] == [None, 1, 2, None]
    assert all("x-opt-locked-until" not in m.message_annotations for m in seen)
    assert all(m.delivery_annotations == {} for m in seen)
    assert texts(peek(raw, queue)) == texts(seen)


def test_peek_starts_where_it_is_told_and_gives_no_more_than_asked_for(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    assert ask(raw, queue, "peek-message", {"from-sequence-number": 0, "message-count": amqp.Int(1)})[0] == 204
    raw.feed(queue, *(str(n) for n in range(1, 301)))
    assert texts(peek(raw, queue, 5, 3)) == ["5", "6", "7"]
    assert texts(peek(raw, queue, 299, 50)) == ["299", "300"]
    assert peek(raw, queue, 301) == []
    assert peek(raw, queue, 2**62) == []
    assert texts(peek(raw, queue, -5, 1)) == ["1"]
    assert len(peek(raw, queue, 0, 2**31 - 1)) == 256
    assert peek(raw, queue, 0, 0) == []


def test_peek_of_large_messages_comes_in_answers_of_bearable_size(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    raw.feed(queue, *[letter * 100_000 for letter in "abcdef"])
    seen: list[str] = []
    while got := texts(peek(raw, queue, len(seen) + 1)):
        assert len(got) <= 3
        seen += got
    assert [body[0] for body in seen] == list("abcdef")


def test_peek_of_a_session_shows_only_that_session(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("sessions")
    for session in ("a", "b", "a", ""):
        raw.feed(queue, f"of {session}", session_id=session)
    assert texts(peek(raw, queue, **{"session-id": "a"})) == ["of a", "of a"]
    assert texts(peek(raw, queue, **{"session-id": ""})) == ["of "]
    assert peek(raw, queue, **{"session-id": "nobody"}) == []
    assert len(peek(raw, queue)) == 4


# -- locks -------------------------------------------------------------------------------------------------------------


def test_locks_are_renewed_all_or_none(raw_timed: Raw, clocked: ClockedBroker) -> None:
    queue = clocked.queue("plain")
    raw_timed.feed(queue, "a", "b")
    receiver = raw_timed.receiver(queue)
    first, second = receiver.receive(2)
    clocked.jump(30)
    status, properties, _ = ask(raw_timed, queue, "renew-lock", {"lock-tokens": amqp.Array(UUID, [first.token, uuid.uuid4()])})
    assert (status, properties["errorCondition"]) == (410, "com.microsoft:message-lock-lost")
    status, _, body = ask(raw_timed, queue, "renew-lock", {"lock-tokens": amqp.Array(UUID, [second.token])})
    assert status == 200
    assert [type(t) for t in body["expirations"].values] == [amqp.Timestamp]
    clocked.jump(31)
    refused = receiver.settle(first, amqp.ACCEPTED)
    assert refused is not None
    assert refused.error is not None
    assert refused.error.condition == "com.microsoft:message-lock-lost"
    assert receiver.settle(second, amqp.ACCEPTED).code == 0x24  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("status", "left"),
    [("completed", []), ("abandoned", ["a", "b"]), ("defered", ["a", "b"]), ("suspended", [])],
)
def test_several_messages_are_settled_in_one_request(raw: Raw, broker: ProcessBroker, status: str, left: list[str]) -> None:
    queue = broker.queue("plain")
    raw.feed(queue, "a", "b", application_properties={"old": 1})
    tokens = [arrival.token for arrival in raw.receiver(queue).receive(2)]
    wish = {
        "disposition-status": status,
        "lock-tokens": amqp.Array(UUID, [*tokens, tokens[0]]),
        "deadletter-reason": "why",
        "deadletter-description": "",
        "properties-to-modify": {"new": "here"},
    }
    assert ask(raw, queue, "update-disposition", wish)[0] == 200
    again, properties, _ = ask(raw, queue, "update-disposition", wish)
    assert (again, properties["errorCondition"]) == (410, "com.microsoft:message-lock-lost")
    seen = peek(raw, queue)
    assert texts(seen) == left
    if status != "completed":
        where = seen or peek(raw, f"{queue}/$DeadLetterQueue")
        changed = {"old": 1, "new": "here"} | ({"DeadLetterReason": "why"} if status == "suspended" else {})
        assert [m.application_properties for m in where] == [changed, changed]


def test_a_strangers_token_settles_nothing(raw: Raw, broker: ProcessBroker) -> None:
    queue, other = broker.queue("plain"), broker.queue("plain")
    raw.feed(queue, "mine")
    raw.feed(other, "theirs")
    mine = raw.receiver(queue).receive()[0]
    raw.receiver(other).receive()
    for token in (mine.token, uuid.uuid4(), uuid.UUID(int=0)):
        status, properties, _ = ask(
            raw, other, "update-disposition", {"disposition-status": "completed", "lock-tokens": amqp.Array(UUID, [token])}
        )
        assert (status, properties["errorCondition"]) == (410, "com.microsoft:message-lock-lost")
        assert "Reference:" in str(properties["statusDescription"])
        assert properties["com.microsoft:tracking-id"] in str(properties["statusDescription"])
    assert (texts(peek(raw, queue)), texts(peek(raw, other))) == (["mine"], ["theirs"])


# -- batch delete ------------------------------------------------------------------------------------------------------


@pytest.mark.compiled_too
def test_batch_delete_removes_what_is_old_and_free(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    raw.feed(queue, "locked", "a", "b", "c")
    raw.receiver(queue).receive()
    time.sleep(0.005)
    now = amqp.Timestamp(int(time.time() * 1000))
    time.sleep(0.005)
    raw.feed(queue, "younger")
    status, _, body = ask(raw, queue, "batch-delete-messages", {"message-count": amqp.Int(2), "enqueued-time-utc": now})
    assert (status, body["message-count"]) == (200, 2)
    assert texts(peek(raw, queue)) == ["locked", "c", "younger"]
    status, _, body = ask(raw, queue, "batch-delete-messages", {"message-count": amqp.Int(4000), "enqueued-time-utc": now})
    assert (status, body["message-count"]) == (200, 1)
    assert texts(peek(raw, queue)) == ["locked", "younger"]
    status, _, body = ask(raw, queue, "batch-delete-messages", {"message-count": amqp.Int(9), "enqueued-time-utc": now})
    assert (status, body["message-count"]) == (204, 0)
    for count in (0, -1, 4001):
        status, properties, _ = ask(raw, queue, "batch-delete-messages", {"message-count": amqp.Int(count), "enqueued-time-utc": now})
        assert (status, properties["errorCondition"]) == (400, "com.microsoft:argument-error")


def test_batch_delete_keeps_to_the_session_it_is_given(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("sessions")
    for session in ("a", "b", "a"):
        raw.feed(queue, session, session_id=session)
    wish = {"message-count": amqp.Int(9), "enqueued-time-utc": amqp.Timestamp(int(time.time() * 1000) + 1000), "session-id": "a"}
    assert ask(raw, queue, "batch-delete-messages", wish)[2] == {"message-count": 2}
    assert texts(peek(raw, queue)) == ["b"]
    assert ask(raw, queue, "batch-delete-messages", wish)[0] == 204
    assert [a.text for a in raw.receiver(queue, session=None).receive()] == ["b"]


# -- scheduling --------------------------------------------------------------------------------------------------------


def test_a_schedule_request_is_taken_whole_or_not_at_all(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("sessions")
    later = amqp.Timestamp(int(time.time() * 1000) + 3_600_000)
    fine = message("fine", session_id="s", message_annotations={"x-opt-scheduled-enqueue-time": later})
    bad = message("no session", message_annotations={"x-opt-scheduled-enqueue-time": later})
    wish = {"messages": [{"message-id": "1", "message": fine}, {"message-id": "2", "message": bad}]}
    status, properties, _ = ask(raw, queue, "schedule-message", wish)
    assert (status, properties["errorCondition"]) == (400, "amqp:not-allowed")
    assert peek(raw, queue) == []
    status, _, body = ask(raw, queue, "schedule-message", {"messages": [{"message-id": "1", "message": fine}]})
    assert (status, body["sequence-numbers"].values) == (200, [1])


def test_nothing_is_scheduled_in_a_sub_queue(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    entry = {"message-id": "m", "message": message("x", "m")}
    status, reply = raw.request(f"{queue}/$DeadLetterQueue", "com.microsoft:schedule-message", {"messages": [entry]})
    assert (status, reply.application_properties["errorCondition"]) == (400, "amqp:not-allowed")
    assert raw.peek(queue) == []


def test_scheduling_more_than_fits_schedules_nothing(raw_timed: Raw, clocked: ClockedBroker) -> None:
    queue = clocked.queue("plain")
    clocked.on_loop(lambda server: setattr(server.contexts[0].namespace.find(queue).main.terms, "quota_bytes", 1_048_576))
    later = amqp.Timestamp(int(time.time() * 1000) + 3_600_000)
    large = message("x" * 250_000, message_annotations={"x-opt-scheduled-enqueue-time": later})
    six = {"messages": [{"message-id": str(n), "message": large} for n in range(6)]}
    status, properties, _ = ask(raw_timed, queue, "schedule-message", six)
    assert (status, properties["errorCondition"]) == (403, "amqp:resource-limit-exceeded")
    assert peek(raw_timed, queue) == []
    four = {"messages": six["messages"][:4]}
    assert ask(raw_timed, queue, "schedule-message", four)[0] == 200


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("identity", ["text", uuid.uuid4(), amqp.ULong(7), b"bytes"], ids=lambda v: type(v).__name__)
def test_the_correlation_id_has_the_type_of_the_message_id(raw: Raw, broker: ProcessBroker, identity: object) -> None:
    queue = broker.queue("plain")
    payload = amqp.encode_message(
        properties={"message-id": identity, "reply-to": "anything"},
        application_properties={"operation": "com.microsoft:peek-message"},
        body={"from-sequence-number": 0, "message-count": amqp.Int(1)},
        body_kind=0x77,
    )
    reply = raw.exchange(f"{queue}/$management", payload)
    assert reply.properties["correlation-id"] == identity
    assert type(reply.properties["correlation-id"]) is type(identity)
    assert type(reply.application_properties["statusCode"]) is amqp.Int


def test_answers_go_on_when_the_clients_credit_is_used_up(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    wish = {"from-sequence-number": 0, "message-count": amqp.Int(1)}
    ask(raw, queue, "peek-message", wish)
    _, receiver = raw._management[f"{queue}/$management"]
    receiver.link.grant(0)
    for _ in range(5):
        assert ask(raw, queue, "peek-message", wish)[0] == 204


def test_each_connection_gets_its_own_answers(raw: Raw, broker: ProcessBroker) -> None:
    queue, other = broker.queue("plain"), broker.queue("plain")
    raw.feed(queue, "x")
    with Raw(broker.port) as second:
        for _ in range(3):
            assert texts(peek(raw, queue)) == ["x"]
            assert texts(peek(second, queue)) == ["x"]
            assert peek(second, other) == []


# -- nonsense ----------------------------------------------------------------------------------------------------------

OPERATIONS: dict[str, dict[str, object]] = {
    "peek-message": {"from-sequence-number": 0, "message-count": amqp.Int(1)},
    "renew-lock": {"lock-tokens": amqp.Array(UUID, [uuid.uuid4()])},
    "receive-by-sequence-number": {"sequence-numbers": amqp.Array(LONG, [1]), "receiver-settle-mode": amqp.UInt(1)},
    "update-disposition": {"disposition-status": "completed", "lock-tokens": amqp.Array(UUID, [uuid.uuid4()])},
    "schedule-message": {"messages": [{"message-id": "m", "message": b"\x00"}]},
    "cancel-scheduled-message": {"sequence-numbers": amqp.Array(LONG, [1])},
    "renew-session-lock": {"session-id": "s"},
    "set-session-state": {"session-id": "s", "session-state": b""},
    "get-session-state": {"session-id": "s"},
    "get-message-sessions": {"last-updated-time": amqp.Timestamp(0), "skip": amqp.Int(0), "top": amqp.Int(1)},
    "batch-delete-messages": {"message-count": amqp.Int(1), "enqueued-time-utc": amqp.Timestamp(0)},
}
NONSENSE: list[object] = [
    None,
    True,
    "text",
    b"bytes",
    -1,
    2**63 - 1,
    amqp.Int(-1),
    1.5,
    uuid.UUID(int=0),
    [],
    {},
    [None],
    amqp.Array(LONG, []),
]


@pytest.mark.parametrize("operation", list(OPERATIONS))
def test_every_field_of_every_operation_may_hold_nonsense(raw: Raw, broker: ProcessBroker, operation: str) -> None:
    """Each request is answered, with a status a client knows; the broker and this connection go on."""
    queue = broker.queue("sessions")
    raw.feed(queue, "kept", session_id="kept")
    for field in OPERATIONS[operation]:
        for value in (*NONSENSE, ...):
            body = {key: given for key, given in OPERATIONS[operation].items() if key != field}
            if value is not ...:
                body[field] = value
            status, properties, _ = ask(raw, queue, operation, body)
            assert status in (200, 204, 400, 404, 410, 413), (field, value)
            if status >= 400:
                assert "TrackingId:" in str(properties["statusDescription"]), (field, value)
                assert properties["errorCondition"], (field, value)
    if operation != "batch-delete-messages":
        assert texts(peek(raw, queue)) == ["kept"]


@pytest.mark.parametrize("operation", ["cancel-scheduled-message", "receive-by-sequence-number"])
def test_true_is_no_sequence_number(raw: Raw, broker: ProcessBroker, operation: str) -> None:
    body = {"sequence-numbers": [True], "receiver-settle-mode": amqp.UInt(1)}
    status, properties, _ = ask(raw, broker.queue("plain"), operation, body)
    assert (status, properties["errorCondition"]) == (400, "com.microsoft:argument-error")


@pytest.mark.parametrize("body", [None, "text", 5, [1], b"x"], ids=lambda v: type(v).__name__)
def test_a_request_without_a_map_is_refused(raw: Raw, broker: ProcessBroker, body: object) -> None:
    status, properties, _ = ask(raw, broker.queue("plain"), "peek-message", body)
    assert (status, properties["errorCondition"]) == (400, "com.microsoft:argument-error")


def test_an_unknown_operation_is_not_implemented(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    for operation in ("dance", "x" * 50_000):
        status, properties, _ = ask(raw, queue, operation, {})
        assert (status, properties["errorCondition"]) == (501, "amqp:not-implemented")
        assert len(str(properties["statusDescription"])) < 1_400


def test_a_request_that_cannot_be_read_is_rejected_and_the_next_one_answered(raw: Raw, broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    assert peek(raw, queue) == []
    sender, _ = raw._management[f"{queue}/$management"]
    for payload in (b"\x00\x53\x77\xa1\x05ab", b"garbage", b"\x00\x53\x74\xc1\x03\x01\xa1\x00"):
        with pytest.raises(Refused) as refusal:
            sender.send(payload)
        assert refusal.value.condition == "amqp:decode-error"
    assert peek(raw, queue) == []
