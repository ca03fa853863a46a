"""Wrong types in every field of every performative: which error the peer gets, and that it names performative, field and types."""

from __future__ import annotations

import pytest

from tandem import amqp
from tandem.amqp import errors
from tandem.amqp.performatives import ABSENT, Flow, read_flow
from tests.amqp.peers import Raw, RawPeer, frame, performative

UINT = amqp.UInt(1)
LONG = Raw(amqp.encode_value(1))
SOURCE = amqp.Described(amqp.ULong(0x28), ["a"])
TARGET = amqp.Described(amqp.ULong(0x29), ["b"])

# per performative: (field, type the error names, a value that is right, a value that is wrong and what it is called, mandatory)
FIELDS: dict[int, tuple[str, list[tuple[str, str, object, object, str, bool]]]] = {
    0x10: (
        "open",
        [
            ("container-id", "string", "c", LONG, "long", True),
            ("hostname", "string", "h", b"h", "binary", False),
            ("max-frame-size", "uint", amqp.UInt(1024), amqp.ULong(1024), "ulong", False),
            ("channel-max", "ushort", amqp.UShort(9), amqp.UInt(9), "uint", False),
            ("idle-time-out", "uint", UINT, "1", "string", False),
            ("outgoing-locales", "symbol or array of symbols", amqp.Symbol("en"), "en", "string", False),
            ("incoming-locales", "symbol or array of symbols", amqp.Symbol("en"), LONG, "long", False),
            ("offered-capabilities", "symbol or array of symbols", amqp.Array(0xA3, ["a", "b"]), ["a"], "list", False),
            ("desired-capabilities", "symbol or array of symbols", amqp.Symbol("c"), {}, "map", False),
            ("properties", "map", {}, [1], "list", False),
        ],
    ),
    0x11: (
        "begin",
        [
            ("remote-channel", "ushort", None, UINT, "uint", False),
            ("next-outgoing-id", "uint", UINT, amqp.ULong(1), "ulong", True),
            ("incoming-window", "uint", UINT, LONG, "long", True),
            ("outgoing-window", "uint", UINT, True, "boolean", True),
            ("handle-max", "uint", UINT, amqp.UByte(1), "ubyte", False),
            ("offered-capabilities", "symbol or array of symbols", None, "x", "string", False),
            ("desired-capabilities", "symbol or array of symbols", None, "x", "string", False),
            ("properties", "map", {}, "x", "string", False),
        ],
    ),
    0x12: (
        "attach",
        [
            ("name", "string", "n", amqp.Symbol("n"), "symbol", True),
            ("handle", "uint", UINT, amqp.UShort(1), "ushort", True),
            ("role", "boolean", True, UINT, "uint", True),
            ("snd-settle-mode", "ubyte", amqp.UByte(0), UINT, "uint", False),
            ("rcv-settle-mode", "ubyte", amqp.UByte(0), True, "boolean", False),
            ("source", "described list", SOURCE, ["a"], "list", False),
            ("target", "described list", TARGET, "b", "string", False),
            ("unsettled", "", None, None, "", False),
            ("incomplete-unsettled", "boolean", False, UINT, "uint", False),
            ("initial-delivery-count", "uint", UINT, LONG, "long", False),
            ("max-message-size", "ulong", amqp.ULong(1), UINT, "uint", False),
            ("offered-capabilities", "symbol or array of symbols", None, "x", "string", False),
            ("desired-capabilities", "symbol or array of symbols", None, "x", "string", False),
            ("properties", "map", {}, UINT, "uint", False),
        ],
    ),
    0x13: (
        "flow",
        [
            ("next-incoming-id", "uint", None, "x", "string", False),
            ("incoming-window", "uint", UINT, LONG, "long", True),
            ("next-outgoing-id", "uint", UINT, True, "boolean", True),
            ("outgoing-window", "uint", UINT, amqp.ULong(1), "ulong", True),
            ("handle", "uint", amqp.UInt(0), LONG, "long", False),
            ("delivery-count", "uint", UINT, amqp.Int(1), "int", False),
            ("link-credit", "uint", UINT, 1.5, "double", False),
            ("available", "uint", UINT, b"", "binary", False),
            ("drain", "boolean", False, UINT, "uint", False),
            ("echo", "boolean", False, "no", "string", False),
            ("properties", "map", {}, [1], "list", False),
        ],
    ),
    0x14: (
        "transfer",
        [
            ("handle", "uint", amqp.UInt(0), LONG, "long", True),
            ("delivery-id", "uint", UINT, amqp.ULong(1), "ulong", False),
            ("delivery-tag", "binary", b"t", "t", "string", False),
            ("message-format", "uint", amqp.UInt(0), amqp.UByte(0), "ubyte", False),
            ("settled", "boolean", False, UINT, "uint", False),
            ("more", "boolean", False, "x", "string", False),
            ("rcv-settle-mode", "ubyte", None, UINT, "uint", False),
            ("state", "", None, None, "", False),
            ("resume", "boolean", False, UINT, "uint", False),
            ("aborted", "boolean", False, UINT, "uint", False),
            ("batchable", "boolean", False, UINT, "uint", False),
        ],
    ),
    0x15: (
        "disposition",
        [
            ("role", "boolean", True, UINT, "uint", True),
            ("first", "uint", UINT, LONG, "long", True),
            ("last", "uint", UINT, LONG, "long", False),
            ("settled", "boolean", True, UINT, "uint", False),
            ("state", "", None, None, "", False),
            ("batchable", "boolean", None, "x", "string", False),
        ],
    ),
    0x16: (
        "detach",
        [
            ("handle", "uint", amqp.UInt(0), LONG, "long", True),
            ("closed", "boolean", True, UINT, "uint", False),
            ("error", "described list", None, "boom", "string", False),
        ],
    ),
    0x17: ("end", [("error", "described list", None, UINT, "uint", False)]),
    0x18: ("close", [("error", "described list", None, {}, "map", False)]),
}

WRONG = [
    pytest.param(code, index, id=f"{name}.{fields[index][0]}")
    for code, (name, fields) in FIELDS.items()
    for index in range(len(fields))
    if fields[index][1]
]
MANDATORY = [
    pytest.param(code, index, id=f"{name}.{fields[index][0]}")
    for code, (name, fields) in FIELDS.items()
    for index in range(len(fields))
    if fields[index][5]
]


def peer_for(code: int) -> RawPeer:
    """A peer that has said everything that comes before this performative."""
    if code == 0x10:
        return RawPeer().send(b"AMQP\x00\x01\x00\x00")
    if code == 0x11:
        return RawPeer().opened()
    if code == 0x12:
        return RawPeer().begun()
    return RawPeer().attached(receiver=code == 0x13)


def right_values(code: int) -> list[object]:
    return [field[2] for field in FIELDS[code][1]]


@pytest.mark.parametrize("code", FIELDS)
def test_right_values_in_every_field_are_no_error(code: int) -> None:
    peer = peer_for(code).send(frame(0, performative(code, *right_values(code))))
    assert peer.notes.closed == ([None] if code == 0x18 else [])


@pytest.mark.parametrize("code", FIELDS)
def test_fields_of_a_later_version_are_stepped_over(code: int) -> None:
    extra = [None] * (11 - len(right_values(code))) + ["unheard of", {"a": 1}]
    peer = peer_for(code).send(frame(0, performative(code, *right_values(code), *extra)))
    assert [e for e in peer.notes.closed if e is not None] == []


@pytest.mark.parametrize(("code", "index"), WRONG)
def test_a_wrong_type_closes_with_a_decode_error_that_names_field_and_types(code: int, index: int) -> None:
    name, fields = FIELDS[code]
    field, expected, _, wrong, found, _ = fields[index]
    values = right_values(code)
    values[index] = wrong
    error = peer_for(code).send(frame(0, performative(code, *values))).error()
    assert error.condition == errors.DECODE_ERROR
    assert error.description == f"{name}.{field}: expected {expected}, found {found}"


@pytest.mark.parametrize(("code", "index"), MANDATORY)
def test_a_missing_mandatory_field_closes_with_a_decode_error(code: int, index: int) -> None:
    name, fields = FIELDS[code]
    values = right_values(code)
    for absent in (None, "cut"):
        sent = [*values[:index], None, *values[index + 1 :]] if absent is None else values[:index]
        error = peer_for(code).send(frame(0, performative(code, *sent))).error()
        assert error.condition == errors.DECODE_ERROR
        assert error.description == f"{name}.{fields[index][0]}: expected {fields[index][1]}, found null"


@pytest.mark.parametrize("code", FIELDS)
def test_something_other_than_a_list_closes_with_a_decode_error(code: int) -> None:
    body = b"\x00\x53" + bytes((code,)) + amqp.encode_value({"a": 1})
    error = peer_for(code).send(frame(0, body)).error()
    assert error.condition == errors.DECODE_ERROR
    assert error.description == f"{FIELDS[code][0]}: expected list, found map"


@pytest.mark.parametrize("code", FIELDS)
def test_a_list_that_lies_about_its_size_closes_with_a_decode_error(code: int) -> None:
    values = right_values(code)
    good = performative(code, *values)
    for lie in (
        good[:4] + bytes((good[4] + 1,)) + good[5:] + b"\x40",  # one byte more than the fields take
        good[:4] + bytes((good[4] - 1,)) + good[5:],  # one byte less
        good[:4] + b"\xff" + good[5:],  # beyond the frame
        good[:5] + bytes((good[5] + 1,)) + good[6:],  # one field more than there are
        good[:5] + b"\x00" + good[6:],  # fields that were not announced
    ):
        peer = peer_for(code).send(frame(0, lie))
        error = peer.error()
        assert error.condition == errors.DECODE_ERROR, lie.hex()
        assert error.description is not None and error.description.startswith(FIELDS[code][0])


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({5: amqp.Described(amqp.ULong(0x28), [UINT])}, "attach.source: source.address: expected string, found uint"),
        ({5: amqp.Described(amqp.ULong(0x28), ["a", "b"])}, "attach.source: source.durable: expected uint, found string"),
        ({5: amqp.Described(amqp.ULong(0x28), ["a", None, None, None, None, None, None, [1]])}, "source.filter: expected map, found list"),
        ({5: amqp.Described(amqp.ULong(0x29), ["a"])}, "attach.source: expected source, found descriptor 0x29"),
        ({6: amqp.Described(amqp.ULong(0x28), ["a"])}, "attach.target: expected target or coordinator, found descriptor 0x28"),
        ({6: amqp.Described(amqp.ULong(0x29), ["a", None, UINT])}, "target.expiry-policy: expected symbol, found uint"),
        ({6: amqp.Described(amqp.ULong(0x30), ["text"])}, "coordinator.capabilities: expected symbol or array of symbols, found string"),
        ({5: amqp.Described(amqp.Symbol("amqp:nothing:list"), [])}, "unknown descriptor"),
        ({5: Raw(b"\x00\x53\x28\xc0\x05\x01\xa1\x09ab")}, "source.address"),
        ({3: amqp.UByte(3)}, "attach.snd-settle-mode: expected 0 to 2, found 3"),
        ({4: amqp.UByte(2)}, "attach.rcv-settle-mode: expected 0 or 1, found 2"),
        ({11: amqp.Array(0xA1, ["x"])}, "attach.offered-capabilities: expected array of symbols"),
        ({2: Raw(b"\x56\x02")}, "attach.role: expected boolean 0 or 1, found 2"),
        ({0: Raw(b"\xa1\x02\xc3\x28")}, "attach.name: string at byte"),
    ],
)
def test_what_is_wrong_inside_an_attach_is_named_too(values: dict[int, object], says: str) -> None:
    fields = right_values(0x12)
    for index, value in values.items():
        fields[index] = value
    error = RawPeer().begun().send(frame(0, performative(0x12, *fields))).error()
    assert error.condition == errors.DECODE_ERROR
    assert error.description is not None and says in error.description


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (amqp.Described(amqp.ULong(0x99), []), "disposition.state: state: expected a delivery state, found descriptor 0x99"),
        (amqp.Described(amqp.ULong(0x25), [5]), "disposition.state: rejected.error: expected described list, found long"),
        ("accepted", "disposition.state: expected a described value at byte 0, found string"),
    ],
)
def test_a_broken_state_is_named_too(state: object, says: str) -> None:
    error = RawPeer().attached(True).send(frame(0, performative(0x15, True, 1, 1, True, state))).error()
    assert (error.condition, error.description) == (errors.DECODE_ERROR, says)


def test_symbolic_and_long_descriptors_of_performatives_are_understood() -> None:
    peer = RawPeer().send(b"AMQP\x00\x01\x00\x00")
    fields = performative(0x10, "me")[3:]
    peer.send(frame(0, b"\x00\xa3\x0eamqp:open:list" + fields))
    peer.send(frame(3, b"\x00\x80\x00\x00\x00\x00\x00\x00\x00\x11" + performative(0x11, None, 0, 1, 1)[3:]))
    assert peer.server.remote_container_id == "me"
    assert [s.remote_channel for s in peer.notes.sessions] == [3]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"\x41", "cut short"),
        (b"\x41\x41\x41", "expected a described value at byte 8, found boolean"),
        (b"\x00\x53\x19\x45", "descriptor 0x19 is no performative"),
        (b"\x00\x53\x00\x45", "descriptor 0x00 is no performative"),
        (b"\x00\x53\x70\x45", "descriptor 0x70 is no performative"),
        (b"\x00\xa1\x04open\x45", "unknown descriptor 'open'"),
        (b"\x00\x00\x53\x10\x45", "described descriptor"),
        (b"\x00\x53\x10", "cut short"),
    ],
)
def test_a_frame_that_is_no_performative_closes_with_a_decode_error(body: bytes, says: str) -> None:
    error = RawPeer().opened().send(frame(0, body)).error()
    assert error.condition == errors.DECODE_ERROR
    assert error.description is not None and says in error.description


def test_both_readings_of_a_flow_agree() -> None:
    wide = b"\xd0" + (4 + 4 * 5 + 4 * 5 + 2).to_bytes(4, "big") + (10).to_bytes(4, "big")
    fields = b"".join(b"\x70" + n.to_bytes(4, "big") for n in range(1, 9)) + b"\x41\x42"
    plain = b"\xc0" + bytes((len(fields) + 1, 10)) + fields
    for encoded in (plain, wide + fields, plain[:1] + bytes((plain[1] + 1, 11)) + fields + b"\x40"):
        flow = read_flow(encoded, 0, len(encoded))
        assert isinstance(flow, Flow)
        assert (flow.next_incoming_id, flow.incoming_window, flow.next_outgoing_id, flow.outgoing_window) == (1, 2, 3, 4)
        assert (flow.handle, flow.delivery_count, flow.link_credit, flow.available, flow.drain, flow.echo) == (5, 6, 7, 8, True, False)
    short = b"\xc0\x08\x04\x40\x52\x09\x43\x52\x07"
    flow = read_flow(short[:1] + bytes((len(short) - 2,)) + short[2:], 0, len(short))
    assert (flow.next_incoming_id, flow.incoming_window, flow.next_outgoing_id, flow.outgoing_window, flow.handle) == (
        ABSENT,
        9,
        0,
        7,
        ABSENT,
    )
