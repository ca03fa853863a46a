"""Payloads to messages and messages to deliveries: what the broker decides by, what travels untouched, what it adds."""

from __future__ import annotations

import contextlib
import uuid
from typing import Any

import pytest

from tandem.amqp.encoder import encode_value
from tandem.amqp.message import DATA, decode_message, encode_message
from tandem.amqp.types import Symbol, Timestamp, UByte, UInt, ULong
from tandem.gateway.translate import Translator, refusal, token_to_uuid
from tandem.model.errors import ArgumentRefused, BusError, DecodeFailed, InvalidField, MessageSizeExceeded, NotAllowed, QuotaExceeded
from tandem.model.message import NO_TTL, Message

NEW_ID = uuid.UUID(int=7)
TOKEN = bytes(range(16))
NOW = 1_700_000_000_000


@pytest.fixture
def translator() -> Translator:
    return Translator(lambda: NEW_ID, 4_096, lambda: NOW)


def payload(**sections: Any) -> bytes:
    return encode_message(**{"properties": {"message-id": "m"}, "body": [b"body"], "body_kind": DATA} | sections)


def annotations(said: dict[object, object]) -> bytes:
    """A section as it is, whatever its keys are."""
    return b"\x00\x53\x72" + encode_value(said)


def delivered(translator: Translator, message: Message, **changes: Any) -> Any:
    stamps = {"seq": 5, "enqueued_at": NOW, "count": 0, "expires_at": 0, "token": TOKEN, "locked_until": NOW + 9} | changes
    return decode_message(translator.delivery(message, **stamps))


def test_what_decides_is_read_and_the_rest_stays_as_it_came(translator: Translator) -> None:
    properties = {"message-id": "m", "group-id": "s", "subject": "label"}
    sent = payload(header={"ttl": UInt(1_000)}, properties=properties, application_properties={"own": 1})
    message = translator.message(sent)
    assert (message.session_id, message.ttl_ms, message.scheduled_at, message.is_ping) == ("s", 1_000, 0, False)
    assert sent.endswith(message.bare)
    read = decode_message(message.bare)
    assert (read.properties["subject"], read.application_properties, read.body) == ("label", {"own": 1}, [b"body"])


def test_a_message_without_an_id_gets_one_and_keeps_its_other_properties(translator: Translator) -> None:
    message = translator.message(payload(properties={"subject": "label"}))
    read = decode_message(message.bare)
    assert (read.properties["message-id"], read.properties["subject"]) == (str(NEW_ID), "label")
    assert translator.message(payload(properties={})).message_id == message.message_id


@pytest.mark.parametrize("form", ["same", b"same"])
def test_an_id_is_the_same_as_text_and_as_binary(translator: Translator, form: str | bytes) -> None:
    assert (
        translator.message(payload(properties={"message-id": form})).message_id
        == translator.message(payload(properties={"message-id": "same"})).message_id
    )


@pytest.mark.parametrize(
    ("annotations", "scheduled_at"),
    [
        ({Symbol("x-opt-scheduled-enqueue-time"): Timestamp(NOW + 5)}, NOW + 5),
        ({Symbol("x-opt-delivery-time"): Timestamp(NOW + 6)}, NOW + 6),
        ({Symbol("x-opt-delivery-delay"): 7}, NOW + 7),
        ({Symbol("own"): "kept"}, 0),
    ],
)
def test_a_time_to_come_is_read_in_the_words_of_every_client(
    translator: Translator, annotations: dict[object, object], scheduled_at: int
) -> None:
    assert translator.message(payload(message_annotations=annotations)).scheduled_at == scheduled_at


def test_annotations_that_are_the_brokers_own_are_not_believed(translator: Translator) -> None:
    forged = {Symbol("x-opt-sequence-number"): 99, Symbol("x-opt-locked-until"): Timestamp(1), Symbol("own"): "kept"}
    message = translator.message(payload(message_annotations=forged, delivery_annotations={Symbol("x-opt-lock-token"): NEW_ID}))
    read = delivered(translator, message)
    assert read.message_annotations[Symbol("own")] == "kept"
    assert read.message_annotations[Symbol("x-opt-sequence-number")] == 5
    assert read.delivery_annotations == {Symbol("x-opt-lock-token"): uuid.UUID(bytes=token_to_uuid(TOKEN))}


def test_annotations_under_strings_are_those_under_symbols(translator: Translator) -> None:
    """uamqp sends a received message again with its annotations under strings, which the specification does not have."""
    again = {"x-opt-sequence-number": 99, "x-opt-enqueued-time": Timestamp(1), "x-opt-partition-key": "p", "own": "kept", ULong(7): "too"}
    token = b"\x00\x53\x71" + encode_value({"x-opt-lock-token": NEW_ID})
    message = translator.message(token + annotations(again) + payload())
    assert message.partition_key == "p"
    read = delivered(translator, message)
    kept = {name: value for name, value in read.message_annotations.items() if name in again}
    assert kept == {
        "x-opt-sequence-number": 5,
        "x-opt-enqueued-time": kept["x-opt-enqueued-time"],
        "x-opt-partition-key": "p",
        "own": "kept",
        7: "too",
    }
    assert kept["x-opt-enqueued-time"] != 1
    assert all(isinstance(name, Symbol | ULong) for name in read.message_annotations)
    assert read.delivery_annotations == {Symbol("x-opt-lock-token"): uuid.UUID(bytes=token_to_uuid(TOKEN))}


@pytest.mark.parametrize("first", [False, True])
def test_a_footer_under_strings_has_symbols(translator: Translator, first: bool) -> None:
    """Java's client writes footers so; a receiver of the same client was terminated for good by such a message."""
    footer = b"\x00\x53\x78" + encode_value({"f" * 300: 1, "short": "kept", ULong(7): "too"})
    read = delivered(translator, translator.message(footer + payload() if first else payload() + footer))
    assert read.footer == {"f" * 300: 1, "short": "kept", 7: "too"}
    assert all(isinstance(name, Symbol | ULong) for name in read.footer)


def test_a_footer_under_symbols_stays_as_it_was_encoded(translator: Translator) -> None:
    footer = b"\x00\x53\x78\xd1" + b"\x00\x00\x00\x0b\x00\x00\x00\x02" + b"\xb3\x00\x00\x00\x01f\x41"
    assert translator.message(payload() + footer).bare.endswith(footer)


@pytest.mark.parametrize("value", [b"\xc1\x05\x06\xa3\x01f\x41", b"\xc1\x01\x04", b"\xc1\x02\x02\xa3", b"\xc1\x04\x01\xa3\x01f"])
def test_a_footer_that_has_not_what_it_counts_is_refused_or_kept_and_never_an_error_of_ours(translator: Translator, value: bytes) -> None:
    with contextlib.suppress(DecodeFailed):
        translator.message(payload() + b"\x00\x53\x78" + value)


def test_a_footer_whose_key_can_be_no_symbol_is_refused(translator: Translator) -> None:
    with pytest.raises(DecodeFailed, match=r"footer: the key .* is no symbol"):
        translator.message(payload() + b"\x00\x53\x78" + encode_value({"fu\u00df": 1}))


@pytest.mark.parametrize("width", [1, 4])
def test_a_symbol_in_its_wide_form_is_the_same_symbol(translator: Translator, width: int) -> None:
    def key(name: bytes) -> bytes:
        return bytes((0xA3 if width == 1 else 0xB3,)) + len(name).to_bytes(width, "big") + name

    elements = key(b"x-opt-sequence-number") + b"\x55\x63" + key(b"own") + b"\xa1\x04kept"
    section = b"\x00\x53\x72\xc1" + bytes((len(elements) + 1, 4)) + elements
    read = delivered(translator, translator.message(section + payload()))
    assert read.message_annotations[Symbol("own")] == "kept"
    assert [value for name, value in read.message_annotations.items() if name == "x-opt-sequence-number"] == [5]


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"\x00", DecodeFailed),
        (annotations({"\u00e4": 1}) + payload(), DecodeFailed),
        (annotations({1.5: 1}) + payload(), DecodeFailed),
        (b"\x00\x53\x75\xa0\x09abc", DecodeFailed),
        (payload(properties={"message-id": "x" * 129}), ArgumentRefused),
        (payload(properties={"message-id": "m", "group-id": "s" * 129}), ArgumentRefused),
        (payload(properties={"message-id": "m", "group-id": "s"}, message_annotations={Symbol("x-opt-partition-key"): "p"}), NotAllowed),
        (payload(message_annotations={Symbol("x-opt-scheduled-enqueue-time"): "soon"}), InvalidField),
        (payload(application_properties={"large": "x" * 5_000}), MessageSizeExceeded),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(translator: Translator, sent: bytes, error: type[BusError]) -> None:
    with pytest.raises(error):
        translator.message(sent)


def test_a_ping_is_known_by_its_content_type_in_any_case(translator: Translator) -> None:
    kind = Symbol("application/vnd.MS-servicebus-ping")
    assert translator.message(payload(properties={"message-id": "m", "content-type": kind})).is_ping
    assert not translator.message(payload(properties={"message-id": "m", "content-type": Symbol("application/json")})).is_ping


def test_a_delivery_says_number_instants_lock_and_how_often_it_failed(translator: Translator) -> None:
    message = translator.message(payload(header={"durable": True, "priority": UByte(3)}))
    read = delivered(translator, message, count=2, expires_at=NOW + 60_000)
    assert (read.header["durable"], read.header["priority"], read.header["ttl"], read.header["delivery-count"]) == (True, 3, 60_000, 2)
    assert read.message_annotations == {
        Symbol("x-opt-enqueued-time"): Timestamp(NOW),
        Symbol("x-opt-sequence-number"): 5,
        Symbol("x-opt-locked-until"): Timestamp(NOW + 9),
    }
    assert read.body == [b"body"]


@pytest.mark.parametrize("annotations", [{}, {Symbol("own"): "x" * 300}])
@pytest.mark.parametrize(("state", "shown"), [(0, None), (1, 1), (2, 2)])
def test_a_message_that_is_only_shown_has_no_lock_and_says_its_state(
    translator: Translator, annotations: dict[object, object], state: int, shown: int | None
) -> None:
    message = translator.message(payload(message_annotations=annotations))
    read = delivered(translator, message, token=None, locked_until=0, state=state)
    assert read.delivery_annotations == {}
    assert Symbol("x-opt-locked-until") not in read.message_annotations
    assert read.message_annotations.get(Symbol("x-opt-message-state")) == shown
    assert all(read.message_annotations[name] == value for name, value in annotations.items())


def test_undressed_is_what_the_sender_sent(translator: Translator) -> None:
    annotations = {Symbol("own"): "kept"}
    sent = payload(header={"durable": True, "priority": UByte(3)}, message_annotations=annotations, delivery_annotations=annotations)
    again = decode_message(translator.undressed(translator.message(sent)))
    assert (again.message_annotations, again.delivery_annotations, again.body) == (annotations, annotations, [b"body"])
    plain = translator.message(payload())
    assert plain.ttl_ms == NO_TTL and translator.undressed(plain) is plain.bare


def test_changed_properties_replace_and_add_and_touch_nothing_else(translator: Translator) -> None:
    message = translator.message(payload(application_properties={"a": 1, "b": 2}))
    read = decode_message(translator.with_properties(message, {"b": 3, "c": 4}).bare)
    assert read.application_properties == {"a": 1, "b": 3, "c": 4}
    assert (read.properties["message-id"], read.body) == ("m", [b"body"])
    added = decode_message(translator.with_properties(translator.message(payload()), {"c": 4}).bare)
    assert (added.application_properties, added.body) == ({"c": 4}, [b"body"])


def test_what_stands_for_a_damaged_message_can_be_read_by_every_client(translator: Translator) -> None:
    message = translator.message(payload(properties={"message-id": "m", "group-id": "s"}))
    read = decode_message(translator.damaged(message).bare)
    assert (read.properties["message-id"], read.properties["group-id"], read.body) == ("m", "s", [b""])


def test_a_lock_token_is_its_own_inverse_in_the_byte_order_of_dot_net() -> None:
    assert uuid.UUID(bytes=token_to_uuid(TOKEN)) == uuid.UUID(bytes_le=TOKEN)
    assert token_to_uuid(token_to_uuid(TOKEN)) == TOKEN


def test_whatever_went_wrong_can_be_told_to_a_client() -> None:
    known = QuotaExceeded("full")
    assert refusal(known) is known
    assert "boom" in refusal(ZeroDivisionError("boom")).description
