"""Taken off as bytes or decoded: the same message."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.amqp import Symbol, Timestamp, UInt, decode_message, encode_message
from tandem.client import envelope
from tandem.client.envelope import EnvelopeError, unwrap_decoded, unwrap_payload, wrap_payload
from tandem.client.raw_envelope import take_off

values = st.one_of(st.text(max_size=300), st.integers(-(2**63), 2**63 - 1), st.booleans(), st.binary(max_size=20), st.none(), st.uuids())
names = st.text(min_size=1, max_size=20).filter(lambda name: name not in envelope.ALIASES)
optional_text = st.one_of(st.none(), st.text(max_size=40))


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    properties: dict[str, object] = {"message-id": draw(st.text(min_size=1, max_size=300))}
    for name in ("to", "subject", "reply-to", "group-id", "reply-to-group-id"):
        text = draw(optional_text)
        if text is not None:
            properties[name] = text
    if draw(st.booleans()):
        properties["creation-time"] = 1_700_000_000_000
    header: dict[str, object] = {}
    if draw(st.booleans()):
        header["priority"] = 5
    if draw(st.booleans()):
        header["ttl"] = UInt(draw(st.integers(1, 2**31)))
    annotations: dict[object, object] = {
        Symbol(key): value for key, value in draw(st.dictionaries(st.sampled_from(["a", "b"]), values)).items()
    }
    if draw(st.booleans()):
        annotations[Symbol("x-opt-scheduled-enqueue-time")] = Timestamp(1_800_000_000_000)
    return encode_message(
        header=header or None,
        message_annotations=annotations or None,
        properties=properties,
        application_properties=dict(draw(st.dictionaries(names, values, max_size=6))) or None,
        body=draw(st.binary(max_size=600)),
    )


@given(messages(), st.text(min_size=1, max_size=260))
def test_both_ways_give_the_same_message(message: bytes, path: str) -> None:
    wrapped = wrap_payload(message, path, 1_700_000_000_123)
    found = unwrap_payload(wrapped)
    destination, parts = unwrap_decoded(decode_message(wrapped))
    assert found.destination == destination
    assert decode_message(found.payload) == parts


def test_the_common_case_is_taken_off_as_bytes() -> None:
    plain = encode_message(properties={"message-id": "m", "group-id": "s"}, application_properties={"n": 1}, body=b"x" * 1_000)
    raw = take_off(wrap_payload(plain, "orders", 5), envelope._NAMES)
    assert raw is not None
    assert (raw.path, raw.session_id, raw.diverted_ms) == ("orders", "s", 5)
    assert raw.payload == plain


@pytest.mark.parametrize(
    "payload",
    [
        encode_message(application_properties={envelope.PATH: 5}, body=b""),
        encode_message(application_properties={"other": "x"}, body=b""),
        encode_message(application_properties={envelope.PATH: ""}, body=b""),
        encode_message(body=b""),
        b"\x00\x53\x74\xc1\x50",
        b"",
        b"nonsense",
    ],
)
def test_what_is_wrong_is_left_to_be_explained(payload: bytes) -> None:
    assert take_off(payload, envelope._NAMES) is None
    with pytest.raises(EnvelopeError):
        unwrap_payload(payload)


def test_a_time_to_live_is_understood_not_copied() -> None:
    message = encode_message(header={"ttl": UInt(60_000)}, properties={"message-id": "m"}, body=b"")
    wrapped = wrap_payload(message, "orders", 5)
    assert take_off(wrapped, envelope._NAMES) is None
    assert unwrap_payload(wrapped).destination.ttl_ms == datetime.timedelta(minutes=1) // datetime.timedelta(milliseconds=1)
