from __future__ import annotations

import itertools
import uuid

import pytest

from tandem import amqp
from tandem.amqp.message import DATA, NO_BODY, SEQUENCE, VALUE, data_of

HEADER = b"\x00\x53\x70" + amqp.encode_value([True, amqp.UByte(4), amqp.UInt(60000)])
DELIVERY = b"\x00\x53\x71" + amqp.encode_value({amqp.Symbol("d"): 1})
ANNOTATIONS = b"\x00\x53\x72" + amqp.encode_value({amqp.Symbol("m"): 2})
PROPERTIES = b"\x00\x53\x73" + amqp.encode_value(["id-1", None, "to"])
APPLICATION = b"\x00\x53\x74" + amqp.encode_value({"a": "b"})
BODY = b"\x00\x53\x75" + amqp.encode_value(b"data")
FOOTER = b"\x00\x53\x78" + amqp.encode_value({amqp.Symbol("f"): 3})
ALL = [HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION, BODY, FOOTER]


def test_scan_finds_every_section_and_its_value() -> None:
    payload = b"".join(ALL)
    s = amqp.scan(payload)
    assert payload[s.header_at : s.header_end] == HEADER
    assert payload[s.da_at : s.da_end] == DELIVERY
    assert payload[s.ma_at : s.ma_end] == ANNOTATIONS
    assert payload[s.properties_at : s.properties_end] == PROPERTIES
    assert payload[s.app_properties_at : s.app_properties_end] == APPLICATION
    assert payload[s.body_at : s.body_end] == BODY
    assert payload[s.footer_at : s.footer_end] == FOOTER
    assert amqp.decode_value(payload, s.ma_value) == ({"m": 2}, s.ma_end)
    assert (s.body_kind, s.body_count) == (DATA, 1)
    assert s.bare(payload) == PROPERTIES + APPLICATION + BODY + FOOTER


def test_sections_are_found_in_any_order() -> None:
    for order in itertools.permutations([HEADER, DELIVERY, PROPERTIES, BODY, FOOTER]):
        payload = b"".join(order)
        s = amqp.scan(payload)
        assert payload[s.header_at : s.header_end] == HEADER
        assert payload[s.da_at : s.da_end] == DELIVERY
        assert s.bare(payload) == PROPERTIES + BODY + FOOTER


def test_delivery_annotations_behind_the_body_leave_the_bare_message_in_one_piece() -> None:
    payload = HEADER + PROPERTIES + BODY + DELIVERY
    s = amqp.scan(payload)
    assert s.bare(payload) == PROPERTIES + BODY
    assert payload[s.da_at : s.da_end] == DELIVERY


def test_missing_sections_are_minus_one() -> None:
    s = amqp.scan(b"")
    assert (s.header_at, s.da_at, s.ma_at, s.properties_at, s.app_properties_at, s.body_at, s.footer_at) == (-1,) * 7
    assert s.body_kind == NO_BODY
    assert s.bare(b"") == b""


def test_two_scans_do_not_share_what_they_found() -> None:
    first = amqp.scan(b"".join(ALL))
    second = amqp.scan(BODY)
    assert first.header_at == 0
    assert second.header_at == -1


def test_several_data_or_sequence_sections_are_one_body() -> None:
    payload = HEADER + BODY + BODY + BODY + FOOTER
    s = amqp.scan(payload)
    assert s.body_count == 3
    assert payload[s.body_at : s.body_end] == BODY * 3
    sequences = b"\x00\x53\x76" + amqp.encode_value([1]) + b"\x00\x53\x76\x45"
    assert amqp.scan(sequences).body_count == 2
    assert amqp.decode_message(sequences).body == [[1], []]


def test_descriptors_in_their_long_and_symbolic_forms_are_understood() -> None:
    long = b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75" + BODY[3:]
    symbolic = b"\x00\xa3\x10amqp:data:binary" + BODY[3:]
    for payload in (long, symbolic, HEADER + long + symbolic):
        s = amqp.scan(payload)
        assert s.body_kind == DATA
        body = amqp.decode_message(payload).body
        assert isinstance(body, list) and set(body) == {b"data"}


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (HEADER + HEADER, "two header"),
        (DELIVERY + DELIVERY, "two delivery-annotations"),
        (ANNOTATIONS + ANNOTATIONS, "two message-annotations"),
        (PROPERTIES + PROPERTIES, "two properties"),
        (APPLICATION + APPLICATION, "two application-properties"),
        (FOOTER + FOOTER, "two footer"),
        (BODY + b"\x00\x53\x77\x40", "data and amqp-value"),
        (b"\x00\x53\x77\x40\x00\x53\x77\x40", "amqp-value"),
        (BODY + FOOTER + BODY, "interrupted"),
        (b"\x00\x53\x75\xa1\x01a", "data: expected binary, found string"),
        (b"\x00\x53\x73\xc1\x01\x00", "properties: expected list, found map"),
        (b"\x00\x53\x72\x45", "message-annotations: expected map, found list"),
        (b"\x00\x53\x70\x40", "header: expected list, found null"),
        (b"\x00\x53\x79\x45", "0x79"),
        (b"\x00\x53\x24\x45", "0x24"),
        (b"hello", "expected a described value"),
        (b"\x00", "cut short"),
        (b"\x00\x53\x75", "cut short"),
        (b"\x00\x53\x75\xa0", "cut short"),
        (b"\x00\x53\x75\xb0\x00\x00", "cut short"),
        (b"\x00\x53\x75\xa0\x05abcd", "runs to"),
        (b"\x00\x53\x75\xb0\xff\xff\xff\xffabcd", "runs to"),
        (b"\x00\x53\x77\x3f", "0x3f"),
    ],
)
def test_broken_messages_say_what_is_wrong(payload: bytes, says: str) -> None:
    with pytest.raises(amqp.DecodeError, match=says):
        amqp.scan(payload)


def test_every_cut_of_a_message_is_refused_or_ends_between_sections() -> None:
    payload = b"".join(ALL)
    boundaries = set(itertools.accumulate(len(part) for part in ALL)) | {0}
    for n in range(len(payload)):
        if n in boundaries:
            amqp.scan(payload[:n])
        else:
            with pytest.raises(amqp.DecodeError):
                amqp.scan(payload[:n])


def test_a_whole_message_survives_decoding_and_encoding() -> None:
    message_id = uuid.UUID(int=7)
    payload = amqp.encode_message(
        header={"durable": True, "priority": 4, "ttl": 60000, "first-acquirer": False, "delivery-count": 0},
        delivery_annotations={"x-opt-lock-token": message_id},
        message_annotations={"x-opt-sequence-number": 7, amqp.Symbol("t"): amqp.Timestamp(5)},
        properties={
            "message-id": message_id,
            "user-id": b"me",
            "content-type": "text/plain",
            "absolute-expiry-time": 99,
            "group-id": "",
            "group-sequence": 3,
        },
        application_properties={"n": None, "d": amqp.Decimal128(b"\x01" * 16)},
        body=[b"one", b"two"],
        footer={"f": 1},
    )
    m = amqp.decode_message(payload)
    assert m.header == {"durable": True, "priority": 4, "ttl": 60000, "first-acquirer": False, "delivery-count": 0}
    assert type(m.header["priority"]) is amqp.UByte
    assert type(m.header["delivery-count"]) is amqp.UInt
    assert m.delivery_annotations == {"x-opt-lock-token": message_id}
    assert type(next(iter(m.delivery_annotations))) is amqp.Symbol
    assert m.properties["message-id"] == message_id
    assert type(m.properties["content-type"]) is amqp.Symbol
    assert type(m.properties["absolute-expiry-time"]) is amqp.Timestamp
    assert m.properties["group-id"] == ""
    assert "to" not in m.properties
    assert m.application_properties == {"n": None, "d": b"\x01" * 16}
    assert m.body == [b"one", b"two"]
    assert m.footer == {"f": 1}
    again = amqp.encode_message(
        m.header, m.delivery_annotations, m.message_annotations, m.properties, m.application_properties, m.body, m.body_kind, m.footer
    )
    assert again == payload


@pytest.mark.parametrize("value", [None, "text", 5, amqp.UInt(5), [1, "a"], {"k": b"v"}, amqp.Described(amqp.ULong(0x31), [])])
def test_value_bodies_keep_their_value(value: object) -> None:
    m = amqp.decode_message(amqp.encode_message(body=value, body_kind=VALUE))
    assert m.body_kind == VALUE
    assert m.body == value


def test_a_message_may_be_nothing_at_all() -> None:
    assert amqp.encode_message(body_kind=NO_BODY) == b""
    assert amqp.decode_message(b"").body is None


def test_one_data_section_may_be_given_as_bytes() -> None:
    assert amqp.encode_message(body=b"data") == BODY


def test_a_transaction_request_is_readable() -> None:
    declare = amqp.decode_message(b"\x00\x53\x77\x00\x53\x31\x45").body
    assert declare == amqp.Described(amqp.ULong(0x31), [])
    discharge = amqp.decode_message(b"\x00\x53\x77\x00\x53\x32" + amqp.encode_value([b"tx", True])).body
    assert discharge == amqp.Described(amqp.ULong(0x32), [b"tx", True])


def test_broken_parts_name_their_section() -> None:
    with pytest.raises(amqp.DecodeError, match="application-properties: map with an odd number"):
        amqp.decode_message(b"\x00\x53\x74\xc1\x02\x01\x40")
    with pytest.raises(amqp.DecodeError, match=r"properties\.message-id"):
        amqp.decode_message(b"\x00\x53\x73\xc0\x02\x01\xff")


def test_unknown_fields_and_kinds_are_refused_when_encoding() -> None:
    with pytest.raises(amqp.EncodeError, match="no such field: colour"):
        amqp.encode_message(properties={"colour": 1})
    with pytest.raises(amqp.EncodeError, match="0x99"):
        amqp.encode_message(body=b"", body_kind=0x99)
    with pytest.raises(amqp.EncodeError, match="data body"):
        amqp.encode_message(body=5)
    with pytest.raises(amqp.EncodeError):
        amqp.encode_message(body=5, body_kind=SEQUENCE)


def test_a_decoded_message_is_put_together_again_byte_for_byte_in_body_and_footer() -> None:
    message = amqp.DecodedMessage(
        header={"ttl": amqp.UInt(5), "durable": True},
        delivery_annotations={amqp.Symbol("x-opt-d"): 1},
        message_annotations={amqp.Symbol("x-opt-a"): "v"},
        properties={"message-id": "m", "content-type": amqp.Symbol("text/plain"), "creation-time": amqp.Timestamp(7)},
        application_properties={"a": 1, "b": None},
        body_sections=b"\x00\x53\x75\xa0\x01x\x00\x53\x75\xb0\x00\x00\x00\x01y",
        footer_section=b"\x00\x53\x78\xd1\x00\x00\x00\x04\x00\x00\x00\x00",
    )
    again = amqp.decode_message(message.encode())
    assert again == message
    assert (again.body, again.body_kind, again.footer) == ([b"x", b"y"], DATA, {})


def test_empty_parts_leave_no_section() -> None:
    assert amqp.DecodedMessage(body_sections=b"\x00\x53\x77\x40").encode() == b"\x00\x53\x77\x40"
    assert amqp.DecodedMessage(header={"ttl": None}, properties={}).encode() == b""


def test_plain_values_get_the_wire_type_of_their_field() -> None:
    encoded = amqp.DecodedMessage(header={"ttl": 5}, properties={"content-type": "x", "absolute-expiry-time": 9}).encode()
    found = amqp.decode_message(encoded)
    assert type(found.header["ttl"]) is amqp.UInt
    assert type(found.properties["content-type"]) is amqp.Symbol
    assert type(found.properties["absolute-expiry-time"]) is amqp.Timestamp


def test_data_sections_are_handed_out_one_by_one_and_other_bodies_have_none() -> None:
    batch = amqp.encode_message(properties={"message-id": "first"}, body=[b"a", b"b" * 300, b""])
    assert data_of(batch, amqp.scan(batch)) == [b"a", b"b" * 300, b""]
    value = amqp.encode_message(body="text", body_kind=VALUE)
    assert data_of(value, amqp.scan(value)) == []
