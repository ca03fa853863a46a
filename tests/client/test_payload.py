from __future__ import annotations

import pytest

from tandem.amqp import DecodeError, Symbol, Timestamp, UInt
from tandem.client.payload import Parts, join, split


def test_parts_come_back_as_they_were():
    parts = Parts(
        header={"ttl": UInt(5), "durable": True},
        delivery_annotations={Symbol("x-opt-d"): 1},
        annotations={Symbol("x-opt-a"): "v"},
        properties={"message_id": "m", "content_type": Symbol("text/plain"), "creation_time": Timestamp(7)},
        application_properties={"a": 1, "b": None},
        body=b"\x00\x53\x75\xa0\x01x\x00\x53\x75\xa0\x01y",
        footer=b"\x00\x53\x78\xc1\x01\x00",
    )
    assert split(join(parts)) == parts


def test_empty_parts_leave_no_section():
    assert join(Parts(body=b"\x00\x53\x77\x40")) == b"\x00\x53\x77\x40"
    assert join(Parts(header={"ttl": None}, properties={})) == b""


def test_plain_values_get_the_wire_type_of_their_field():
    parts = split(join(Parts(header={"ttl": 5}, properties={"content_type": "x", "absolute_expiry_time": 9})))
    assert type(parts.header["ttl"]) is UInt
    assert type(parts.properties["content_type"]) is Symbol and type(parts.properties["absolute_expiry_time"]) is Timestamp


@pytest.mark.parametrize(
    "payload",
    [b"x", b"\x00\x53\x99\x40", b"\x00\x53\x74\xa1\x01x", b"\x00\x53\x73\xc1\x01\x00", b"\x00\x53\x75\xa0\x05x"],
    ids=["no descriptor", "unknown section", "properties not a map", "fields not a list", "cut short"],
)
def test_what_is_no_message_is_a_decode_error(payload: bytes):
    with pytest.raises(DecodeError):
        split(payload)
