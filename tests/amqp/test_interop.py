"""Our codec and engine against another: pyamqp inside the official SDK."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from azure.servicebus._pyamqp import _decode as sdk_decode
from azure.servicebus._pyamqp import _encode as sdk_encode
from azure.servicebus._pyamqp import outcomes as sdk_outcomes
from azure.servicebus._pyamqp import performatives as sdk
from azure.servicebus._pyamqp.endpoints import Source, Target
from azure.servicebus._pyamqp.message import Header, Message, Properties
from azure.servicebus._pyamqp.types import TYPE, VALUE, AMQPTypes
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem import amqp
from tandem.amqp import frames
from tandem.amqp.fields import Fields, read_descriptor
from tandem.amqp.outcomes import ACCEPTED, encode_rejected
from tandem.amqp.performatives import ABSENT, Attach, Begin, Disposition, Open, Transfer
from tests.amqp.peers import Pair
from tests.amqp.values import SYMBOLS, TEXT, integers, same

UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

# (value of ours, type name of the SDK, what the SDK decodes it to)
SDK_TYPES: list[tuple[type, str, st.SearchStrategy[object]]] = [
    (bool, AMQPTypes.boolean, st.booleans()),
    (amqp.UByte, AMQPTypes.ubyte, integers(amqp.UByte, 0, 255)),
    (amqp.UShort, AMQPTypes.ushort, integers(amqp.UShort, 0, 65535)),
    (amqp.UInt, AMQPTypes.uint, integers(amqp.UInt, 0, 2**32 - 1) | integers(amqp.UInt, 0, 300)),
    (amqp.ULong, AMQPTypes.ulong, integers(amqp.ULong, 0, 2**64 - 1) | integers(amqp.ULong, 0, 300)),
    (amqp.Byte, AMQPTypes.byte, integers(amqp.Byte, -128, 127)),
    (amqp.Short, AMQPTypes.short, integers(amqp.Short, -32768, 32767)),
    (amqp.Int, AMQPTypes.int, integers(amqp.Int, -(2**31), 2**31 - 1) | integers(amqp.Int, -128, 127)),
    (int, AMQPTypes.long, st.integers(-(2**63), 2**63 - 1) | st.integers(-130, 130)),
    (amqp.Float, AMQPTypes.float, st.floats(width=32, allow_nan=False).map(amqp.Float)),
    (float, AMQPTypes.double, st.floats(allow_nan=False)),
    (amqp.Timestamp, AMQPTypes.timestamp, integers(amqp.Timestamp, 0, 2**48)),
    (uuid.UUID, AMQPTypes.uuid, st.uuids()),
    (bytes, AMQPTypes.binary, st.binary(max_size=300)),
    (str, AMQPTypes.string, TEXT),
    (amqp.Symbol, AMQPTypes.symbol, SYMBOLS),
]


def by_sdk(value: object, kind: str) -> bytes:
    output = bytearray()
    sdk_encode.encode_value(output, {TYPE: kind, VALUE: value})
    return bytes(output)


def read_by_sdk(data: bytes) -> object:
    view = memoryview(data)
    rest, value = sdk_decode._DECODE_BY_CONSTRUCTOR[view[0]](view[1:])
    assert len(rest) == 0
    return value


def as_sdk_sees(value: object) -> object:
    """The SDK decodes every text to bytes."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return [as_sdk_sees(v) for v in value]
    if isinstance(value, dict):
        return {as_sdk_sees(k): as_sdk_sees(v) for k, v in value.items()}
    return value


@pytest.mark.parametrize(("kind", "name", "values"), SDK_TYPES, ids=[t[1] for t in SDK_TYPES])
def test_primitives_travel_between_us_and_the_sdk(kind: type, name: str, values: st.SearchStrategy[object]) -> None:
    @settings(max_examples=40, deadline=None)
    @given(values)
    def check(value: object) -> None:
        theirs = by_sdk(value, name)
        decoded, end = amqp.decode_value(theirs, 0)
        assert end == len(theirs)
        assert same(decoded, value)
        assert read_by_sdk(amqp.encode_value(value)) == as_sdk_sees(value)

    check()


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{"lock-token": UUID, "message": b"x" * 500}]},
        {"expirations": amqp.Array(0x83, [amqp.Timestamp(1), amqp.Timestamp(2**40)])},
        {"sequence-numbers": amqp.Array(0x81, [1, 2**40])},
        {"sessions-ids": amqp.Array(0xA1, ["a", "b" * 300])},
        [1, None, True, [2], {}],
        {amqp.Symbol(f"k{i}"): i for i in range(300)},
    ],
)
def test_management_bodies_are_readable_by_the_sdk(value: object) -> None:
    found = read_by_sdk(amqp.encode_value(value))

    def plain(v: object) -> object:
        if isinstance(v, amqp.Array):
            return [plain(x) for x in v.values]
        if isinstance(v, list):
            return [plain(x) for x in v]
        if isinstance(v, dict):
            return {as_sdk_sees(k): plain(x) for k, x in v.items()}
        return as_sdk_sees(v)

    assert found == plain(value)


def test_a_message_of_the_sdk_is_readable_with_its_annotations_behind_the_body() -> None:
    message = Message(
        header=Header(durable=True, priority=3, ttl=5000, delivery_count=2),
        properties=Properties(message_id=UUID, subject="s", content_type="text/plain", group_id="g"),
        application_properties={"a": 1, "b": True, "c": "d"},
        delivery_annotations={b"da": 1},
        message_annotations={b"x-opt-partition-key": "p"},
        footer={b"f": 1},
        data=[b"one", b"two"],
    )
    output = bytearray()
    sdk_encode.encode_payload(output, message)
    payload = bytes(output)
    s = amqp.scan(payload)
    assert s.da_at > s.body_at
    m = amqp.decode_message(payload)
    assert m.header == {"durable": True, "priority": 3, "ttl": 5000, "delivery-count": 2}
    assert (m.properties["message-id"], m.properties["subject"], m.properties["group-id"]) == (UUID, "s", "g")
    assert m.application_properties["b"] is True
    assert m.message_annotations == {"x-opt-partition-key": "p"}
    assert m.delivery_annotations == {"da": 1}
    assert m.body == [b"one", b"two"]


def test_our_messages_are_readable_by_the_sdk() -> None:
    payload = amqp.encode_message(
        header={"ttl": 5000, "delivery-count": 0},
        delivery_annotations={"x-opt-lock-token": UUID},
        message_annotations={"x-opt-sequence-number": 7, "x-opt-enqueued-time": amqp.Timestamp(1700000000000)},
        properties={"message-id": "id", "correlation-id": UUID, "group-id": "g", "content-type": "c"},
        application_properties={"statusCode": amqp.Int(200), "s": "t"},
        body={"k": [1]},
        body_kind=0x77,
    )
    m = sdk_decode.decode_payload(memoryview(payload))
    assert (m.header.ttl, m.header.delivery_count) == (5000, 0)
    assert m.delivery_annotations == {b"x-opt-lock-token": UUID}
    assert m.message_annotations[b"x-opt-sequence-number"] == 7
    assert (m.properties.message_id, m.properties.correlation_id, m.properties.group_id) == (b"id", UUID, b"g")
    assert m.application_properties == {b"statusCode": 200, b"s": b"t"}
    assert m.value == {b"k": [1]}


def fields_of(kind: Any, **values: object) -> Fields:
    """A frame of the SDK with these fields and no others."""
    _, body = sdk_encode.encode_frame(kind(**(dict.fromkeys(kind._fields) | values)))
    assert body is not None
    data = bytes(body)
    _, at = read_descriptor(data, 0, len(data))
    return Fields("theirs", data, at, len(data))


def test_performatives_of_the_sdk_are_readable() -> None:
    opened = Open(fields_of(sdk.OpenFrame, container_id="c", hostname="h", max_frame_size=1048576, channel_max=65535))
    assert (opened.container_id, opened.hostname, opened.max_frame_size, opened.channel_max) == ("c", "h", 1048576, 65535)
    windows = {"incoming_window": 65536, "outgoing_window": 65536}
    begun = Begin(fields_of(sdk.BeginFrame, next_outgoing_id=0, handle_max=4294967295, **windows))
    assert (begun.remote_channel, begun.incoming_window, begun.handle_max) == (-1, 65536, 4294967295)
    source = Source(address="amqps://h/q", filters={b"com.microsoft:session-filter": "s"})
    ends = {"source": source, "target": Target(address="t")}
    attached = Attach(fields_of(sdk.AttachFrame, name="n", handle=3, role=True, rcv_settle_mode=1, max_message_size=1048576, **ends))
    assert (attached.name, attached.handle, attached.receiver_role) == ("n", 3, True)
    assert (attached.rcv_settle_mode, attached.max_message_size) == (1, 1048576)
    assert attached.source is not None and attached.source.address == "amqps://h/q"
    assert list(attached.source.filter) == ["com.microsoft:session-filter"]
    tag = b"\x00\x00\x00\x01"
    sent = Transfer(fields_of(sdk.TransferFrame, handle=3, delivery_id=300, delivery_tag=tag, settled=False, payload=b""))
    assert (sent.handle, sent.delivery_id, sent.tag, sent.settled) == (3, 300, tag, False)
    deferred = sdk_outcomes.Modified(delivery_failed=True, undeliverable_here=True)
    settled = Disposition(fields_of(sdk.DispositionFrame, role=True, first=5, last=6, settled=False, state=deferred))
    outcome = amqp.decode_outcome(settled.state)
    assert (settled.first, settled.last, outcome.code, outcome.delivery_failed, outcome.undeliverable_here) == (5, 6, 0x27, True, True)


def read_frame_by_sdk(performative: bytes) -> tuple[int, list[object]]:
    code, fields = sdk_decode.decode_frame(memoryview(performative))
    return code, fields


def counts(data: bytes) -> list[tuple[int, int]]:
    """(descriptor, fields) of each frame: how many are written, not how many there might be."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(data):
        assert data[at + 8 : at + 10] == b"\x00\x53" and data[at + 11] in (0xC0, 0xD0), "a list that is not empty"
        found.append((data[at + 10], data[at + 13] if data[at + 11] == 0xC0 else int.from_bytes(data[at + 16 : at + 20], "big")))
        at += int.from_bytes(data[at : at + 4], "big")
    return found


def test_every_performative_has_all_its_fields() -> None:
    """azure-servicebus before 7.15 reads them by their place, and fails where the last ones were left out."""
    error = amqp.AmqpError("amqp:internal-error", "d" * 300)
    some = [
        frames.encode_open("c", None, 65536, 4999, 0, None),
        frames.encode_begin(1, 1, 5000, 65536, 255),
        frames.encode_attach("n", 3, True, 0, 1, None, None, ABSENT, 0, [], [], None),
        *(frames.encode_detach(3, True, one) for one in (None, error)),
        *(frames.encode_end(one) for one in (None, error)),
        *(frames.encode_close(one) for one in (None, error)),
    ]
    expected = [(0x10, 10), (0x11, 8), (0x12, 14), (0x16, 3), (0x16, 3), (0x17, 1), (0x17, 1), (0x18, 1), (0x18, 1)]
    assert counts(b"".join(frames.frame(0, one) for one in some)) == expected
    states = (b"", ACCEPTED, encode_rejected(error))
    assert counts(b"".join(frames.disposition_frame(0, True, 1, 2, True, state) for state in states)) == [(0x15, 6)] * 3
    flows = frames.session_flow_frame(1, 2, 3, 4, 5) + frames.link_flow_frame(1, 2, 3, 4, 5, 6, 7, 8, True, False)
    assert counts(flows) == [(0x13, 11)] * 2
    pair = Pair(client_config=amqp.ConnectionConfig(max_frame_size=512))
    _, sender = pair.receiver()
    for payload in (b"x", b"y" * 2_000):
        sender.send(payload, b"t", False, None)
    sent = counts(pair.server.bytes_to_send())
    assert len(sent) > 4 and set(sent) == {(0x14, 11)}


def test_our_performatives_are_readable_by_the_sdk() -> None:
    assert read_frame_by_sdk(frames.encode_open("c", None, 65536, 4999, 120000, None))[1][:5] == [b"c", None, 65536, 4999, 120000]
    assert read_frame_by_sdk(frames.encode_begin(1, 0x40000000, 5000, 65536, 255))[1][:5] == [1, 0x40000000, 5000, 65536, 255]
    attached = read_frame_by_sdk(
        frames.encode_attach(
            "n",
            3,
            False,
            0,
            1,
            amqp.Terminus("q", {amqp.Symbol("f"): "s"}),
            amqp.Terminus("t"),
            0,
            2**64 - 1,
            [],
            [],
            {amqp.Symbol("p"): 2**50},
        )
    )[1]
    assert (attached[0], attached[1], attached[9], attached[10], attached[13]) == (b"n", 3, 0, 2**64 - 1, {b"p": 2**50})
    assert isinstance(attached[5], list) and attached[5][0] == b"q" and attached[5][7] == {b"f": b"s"}
    detached = read_frame_by_sdk(frames.encode_detach(3, True, amqp.AmqpError("amqp:not-found", "d")))[1]
    assert detached == [3, True, [b"amqp:not-found", b"d", None]]
    assert read_frame_by_sdk(frames.encode_close(amqp.AmqpError("a:b")))[1] == [[b"a:b", None, None]]
    of_link = frames.link_flow_frame(1, 2, 3, 4, 5, 6, 7, 8, True, False)
    for flow in (frames.session_flow_frame(1, 2, 3, 4, 5), of_link):
        fields = read_frame_by_sdk(flow[8:])[1]
        assert fields[:4] == [2, 3, 4, 5]
        if flow is of_link:
            assert fields[4:10] == [6, 7, 8, None, True, False]
    accepted = read_frame_by_sdk(frames.disposition_frame(1, True, 300, 305, True, amqp.ACCEPTED)[8:])[1]
    assert accepted[:4] == [True, 300, 305, True] and accepted[4] == {"accepted": []}
    rejected = read_frame_by_sdk(frames.disposition_frame(1, True, 3, 3, True, amqp.encode_rejected(amqp.AmqpError("a:b", "x" * 300)))[8:])[
        1
    ]
    assert rejected[4] == {"rejected": [[b"a:b", b"x" * 300, None]]}
