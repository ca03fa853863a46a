from __future__ import annotations

import pytest

from tandem import amqp


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (amqp.ACCEPTED, 0x24),
        (amqp.RELEASED, 0x26),
        (bytes.fromhex("0080000000000000002445"), 0x24),
        (bytes.fromhex("005324c00100"), 0x24),
        (bytes.fromhex("005324d00000000400000000"), 0x24),
        (b"\x00\xa3\x12amqp:accepted:list\x45", 0x24),
        (b"\x00\xa3\x12amqp:released:list\x45", 0x26),
        (b"", 0),
    ],
)
def test_bare_outcomes_are_understood_in_every_encoding(state: bytes, code: int) -> None:
    assert amqp.decode_outcome(state).code == code
    assert amqp.decode_outcome(state).error is None


def test_rejected_carries_its_error_with_three_fields() -> None:
    error = amqp.AmqpError("com.microsoft:dead-letter", None, {amqp.Symbol("DeadLetterReason"): "r"})
    outcome = amqp.decode_outcome(amqp.encode_rejected(error))
    assert outcome.code == 0x25
    assert outcome.error == error
    bare = amqp.AmqpError("amqp:not-allowed").encode()
    # condition, null, null: all three are there
    assert bare == b"\x00\x53\x1d\xc0" + bytes((1 + 18 + 2, 3)) + b"\xa3\x10amqp:not-allowed\x40\x40"
    assert amqp.decode_outcome(amqp.encode_rejected(None)).error is None


def test_modified_keeps_its_flags_and_annotations() -> None:
    outcome = amqp.decode_outcome(amqp.encode_modified(True, False, {"k": 1}))
    assert (outcome.code, outcome.delivery_failed, outcome.undeliverable_here, outcome.message_annotations) == (0x27, True, False, {"k": 1})
    bare = amqp.decode_outcome(b"\x00\x53\x27\x45")
    assert (bare.delivery_failed, bare.undeliverable_here, bare.message_annotations) == (False, False, None)


def test_transactional_states_carry_id_and_inner_outcome() -> None:
    outcome = amqp.decode_outcome(amqp.encode_transactional(b"tx", amqp.encode_rejected(amqp.AmqpError("a:b"))))
    assert (outcome.code, outcome.txn_id) == (0x34, b"tx")
    assert outcome.inner is not None
    assert outcome.inner.error == amqp.AmqpError("a:b")
    assert amqp.decode_outcome(amqp.encode_transactional(b"tx")).inner is None
    assert amqp.decode_outcome(amqp.encode_declared(b"tx")).txn_id == b"tx"


def test_received_keeps_its_position() -> None:
    outcome = amqp.decode_outcome(b"\x00\x53\x23" + amqp.encode_value([amqp.UInt(3), amqp.ULong(400)]))
    assert (outcome.section_number, outcome.section_offset) == (3, 400)


@pytest.mark.parametrize(
    "state",
    [
        amqp.ACCEPTED,
        amqp.RELEASED,
        amqp.encode_rejected(None),
        amqp.encode_rejected(amqp.AmqpError("a:b", "why", {amqp.Symbol("k"): "v"})),
        amqp.encode_modified(True, True, {amqp.Symbol("k"): 1}),
        amqp.encode_modified(False, False),
        amqp.encode_declared(b"tx"),
        amqp.encode_transactional(b"tx", amqp.ACCEPTED),
        b"\x00\x53\x23" + amqp.encode_value([amqp.UInt(3), amqp.ULong(400)]),
        b"",
    ],
)
def test_an_outcome_is_written_as_it_was_read(state: bytes) -> None:
    outcome = amqp.decode_outcome(state)
    assert amqp.encode_outcome(outcome) == state
    assert outcome == amqp.decode_outcome(bytes(bytearray(state)))
    assert hash(outcome) == hash(amqp.decode_outcome(state))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (b"\x40", "described value"),
        (b"\x00\x53\x24", "cut short"),
        (b"\x00\x53\x24\x40", "expected list, found null"),
        (b"\x00\x53\x99\x45", "0x99"),
        (b"\x00\x53\x25\xc0\x02\x01\x41", "rejected.error: expected described list, found boolean"),
        (
            b"\x00\x53\x25" + amqp.encode_value([amqp.Described(amqp.ULong(0x1D), ["text"])]),
            "error.condition: expected symbol, found string",
        ),
        (b"\x00\x53\x25" + amqp.encode_value([amqp.Described(amqp.ULong(0x1D), [])]), "error.condition: expected symbol, found null"),
        (b"\x00\x53\x25" + amqp.encode_value([amqp.Described(amqp.ULong(0x24), [])]), "expected error"),
        (b"\x00\x53\x27" + amqp.encode_value([1]), "modified.delivery-failed: expected boolean, found long"),
        (b"\x00\x53\x33\x45", "declared.txn-id: expected binary, found null"),
        (b"\x00\x53\x34" + amqp.encode_value([b"a", amqp.Described(amqp.ULong(0x34), [b"b"])]), "inside another"),
        (amqp.ACCEPTED + b"\x40", "belong to nothing"),
        (b"\x00\xa3\x03abc\x45", "unknown descriptor"),
    ],
)
def test_broken_states_say_what_is_wrong(state: bytes, says: str) -> None:
    with pytest.raises(amqp.DecodeError, match=says):
        amqp.decode_outcome(state)
