"""Messages to columns and rows to messages."""

from __future__ import annotations

import uuid

import pytest

from tandem.amqp import DecodeError, Int, Timestamp, UInt, decode_message, encode_message, encode_value
from tandem.engine_client.message_encoding import encode_batch, encode_row
from tandem.engine_client.message_rows import MARK, MessageRows, mark_of, sequence_number_of, state_of


def one(payload: bytes, stamp: tuple[int, int, int, int] | None = None) -> dict[str, object]:
    rows = MessageRows()
    rows.add(payload, stamp)
    found = {name: column[0] for name in MessageRows.COLUMNS if (column := rows.column(name)) is not None}
    return {name: value for name, value in found.items() if value is not None}


def test_all_properties_of_a_delivered_message_have_their_column() -> None:
    payload = encode_message(
        header={"durable": True, "priority": 3, "ttl": UInt(5_000), "delivery-count": 2},
        message_annotations={
            "x-opt-sequence-number": 7,
            "x-opt-enqueued-time": Timestamp(1_000),
            "x-opt-partition-key": "p",
            "x-opt-locked-until": Timestamp(9),
            "x-opt-message-state": Int(1),
            "mine": "yes",
        },
        properties={
            "message-id": uuid.UUID(int=1),
            "user-id": b"me",
            "to": "t",
            "subject": "s",
            "reply-to": "r",
            "correlation-id": 12,
            "content-type": "text/plain",
            "creation-time": 500,
            "group-id": "session",
            "reply-to-group-id": "other",
        },
        application_properties={"a": 1, "b": "two", "DeadLetterReason": "bad", MARK: "hidden"},
        body=b"hello",
    )
    assert one(payload) == {
        "sequence_number": 7,
        "message_id": str(uuid.UUID(int=1)),
        "session_id": "session",
        "partition_key": "p",
        "correlation_id": "12",
        "subject": "s",
        "to": "t",
        "reply_to": "r",
        "reply_to_session_id": "other",
        "content_type": "text/plain",
        "user_id": b"me",
        "creation_time": 500,
        "enqueued_time": 1_000,
        "expires_time": 6_000,
        "time_to_live_ms": 5_000,
        "delivery_count": 2,
        "priority": 3,
        "durable": True,
        "state": "deferred",
        "dead_letter_reason": "bad",
        "application_properties": [("a", "1"), ("b", "two"), ("DeadLetterReason", "bad")],
        "application_property_types": [("a", "long"), ("b", "string"), ("DeadLetterReason", "string")],
        "annotations": [("mine", "yes")],
        "body_type": "data",
        "body": b"hello",
    }
    assert (sequence_number_of(payload), state_of(payload), mark_of(payload)) == (7, 1, "hidden")


def test_a_stamp_stands_in_for_what_a_delivery_would_say() -> None:
    found = one(encode_message(body=b"x"), (9, 100, 350, 4))
    assert (found["sequence_number"], found["enqueued_time"], found["expires_time"]) == (9, 100, 350)
    assert (found["time_to_live_ms"], found["delivery_count"]) == (250, 4)
    assert "expires_time" not in one(encode_message(body=b"x"), (9, 100, 0, 0))


@pytest.mark.parametrize(
    "section, shown",
    [
        (b"\x00\x53\x73" + encode_value([None] * 9 + [Timestamp(1 << 62)]), {}),
        (b"\x00\x53\x73" + encode_value([None] * 9 + ["yesterday", "session"]), {"session_id": "session"}),
        (b"\x00\x53\x73\xc0\x05\x01\xa1\x02\xff!", {"message_id": "\ufffd!"}),
        (b"\x00\x53\x70" + encode_value([True, "high"]), {"durable": True}),
        (b"\x00\x53\x70" + encode_value([True, UInt(1 << 31)]), {"durable": True}),
        (b"\x00\x53\x72\xc1\x08\x02\xa3\x01a\xa1\x02\xff!", {"annotations": [("a", "\ufffd!")]}),
        (b"\x00\x53\x74\xc1\x0b\x02\xa1\x01a\xb1\x00\x00\x00\x02\xff!", {"application_properties": [("a", "\ufffd!")]}),
        (b"\x00\x53\x74\xc1\x0b\x02\xa1\x01a\xc0\x05\x01\xa1\x02\xff!", {"application_properties": [("a", "wAUBoQL/IQ==")]}),
    ],
)
def test_a_value_that_no_column_takes_does_not_keep_its_message_from_being_a_row(section: bytes, shown: dict[str, object]) -> None:
    found = one(section + b"\x00\x53\x75\xa0\x01x")
    found.pop("application_property_types", None)
    assert found == shown | {"body": b"x", "body_type": "data"}


def test_columns_are_as_long_as_there_are_rows() -> None:
    rows = MessageRows()
    rows.add(encode_row(b"1", "a"), (1, 0, 0, 0))
    rows.add(encode_row(b"2", "b", subject="late"), (2, 0, 0, 0))
    rows.add(encode_row(b"3", "c"), (3, 0, 0, 0))
    assert rows.column("subject") == [None, "late", None]
    assert rows.column("reply_to") is None
    assert len(rows) == 3


@pytest.mark.parametrize("kind, body, said", [(0x77, {"a": 1}, "value"), (0x76, [[1], [2]], "sequence")])
def test_other_bodies_are_kept_encoded(kind: int, body: object, said: str) -> None:
    payload = encode_message(body=body, body_kind=kind)
    assert one(payload) == {"body": payload, "body_type": said}


def test_data_sections_are_joined() -> None:
    assert one(encode_message(body=[b"ab", b"c" * 300]))["body"] == b"ab" + b"c" * 300


def test_a_damaged_message_adds_to_no_column() -> None:
    whole = encode_row(b"x" * 400, "a", subject="s")
    properties_end = len(whole) - 408
    rows = MessageRows()
    for end in range(1, len(whole)):
        if end == properties_end:
            continue  # a message without a body is one, too
        with pytest.raises(DecodeError):
            rows.add(whole[:end], (1, 0, 0, 0))
    assert len(rows) == 0
    assert rows.column("subject") is None


def test_rows_become_messages_with_everything_they_say() -> None:
    payload = encode_row(
        b"body",
        "id",
        session_id="s",
        partition_key="s",
        correlation_id="c",
        subject="subject",
        to="to",
        reply_to="reply",
        reply_to_session_id="rs",
        content_type="text/plain",
        time_to_live_ms=90_000,
        scheduled_at_ms=1_800_000_000_000,
        application_properties={"n": 1, "t": "x"},
    )
    found = one(payload)
    assert found["scheduled_enqueue_time"] == 1_800_000_000_000
    assert found["time_to_live_ms"] == 90_000
    assert found["application_properties"] == [("n", "1"), ("t", "x")]
    for name in ("session_id", "partition_key", "correlation_id", "subject", "to", "reply_to", "content_type"):
        assert name in found
    assert decode_message(payload).properties["message-id"] == "id"


def test_a_value_without_a_form_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="time-to-live"):
        encode_row(b"", "id", time_to_live_ms=0)
    with pytest.raises(ValueError, match="no AMQP form"):
        encode_row(b"", "id", application_properties={"o": object()})
    with pytest.raises(ValueError, match="ASCII"):
        encode_row(b"", "id", content_type="ü")


def test_a_batch_holds_messages_of_any_size_whole() -> None:
    payloads = [encode_row(b"x" * size, "id") for size in (0, 200, 255, 256, 70_000)]
    joined = encode_batch(payloads)
    found = []
    at = 0
    while at < len(joined):
        wide = joined[at + 3] == 0xB0
        size = int.from_bytes(joined[at + 4 : at + 8], "big") if wide else joined[at + 4]
        start = at + (8 if wide else 5)
        found.append(joined[start : start + size])
        at = start + size
    assert found == payloads
