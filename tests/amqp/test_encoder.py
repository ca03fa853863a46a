from __future__ import annotations

import enum
import uuid

import pytest

from tandem import amqp
from tandem.amqp.encoder import described_list, encode_list, encode_uint, encode_ulong

UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 300


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (None, "40"),
        (True, "41"),
        (False, "42"),
        (0, "5500"),
        (127, "557f"),
        (-129, "81ffffffffffffff7f"),
        (amqp.Int(-1), "54ff"),
        (amqp.Int(128), "7100000080"),
        (amqp.UInt(0), "43"),
        (amqp.UInt(255), "52ff"),
        (amqp.UInt(256), "7000000100"),
        (amqp.ULong(0), "44"),
        (amqp.ULong(255), "53ff"),
        (amqp.ULong(2**64 - 1), "80ffffffffffffffff"),
        (amqp.UShort(1), "600001"),
        (amqp.UByte(7), "5007"),
        (amqp.Byte(-1), "51ff"),
        (amqp.Short(-2), "61fffe"),
        (amqp.Timestamp(1700000000000), "830000018bcfe56800"),
        (amqp.Float(1.5), "723fc00000"),
        (1.5, "823ff8000000000000"),
        (amqp.Char("A"), "7300000041"),
        (UUID, "98" + UUID.hex),
        ("é", "a102c3a9"),
        (b"\x01", "a00101"),
        (amqp.Symbol("one"), "a3036f6e65"),
        (amqp.Decimal32(b"\x22\x50\x00\x01"), "7422500001"),
        (amqp.Decimal64(b"\x01" * 8), "84" + "01" * 8),
        (amqp.Decimal128(b"\x01" * 16), "94" + "01" * 16),
        ([], "45"),
        ([1], "c003015501"),
        ((1,), "c003015501"),
        ({}, "c10100"),
        ({"a": 1}, "c10602a101615501"),
        (amqp.Described(amqp.ULong(0x24), []), "00532445"),
        (amqp.Array(0x98, [UUID]), "e01201" + "98" + UUID.hex),
        (amqp.Array(0xA3, ["a", "b"]), "e00602a3" + "01610162"),
        (amqp.Array(0x81, []), "e0020081"),
        (Colour.RED, "a103726564"),
        (Level.HIGH, "81000000000000012c"),
        (bytearray(b"x"), "a00178"),
        (memoryview(b"x"), "a00178"),
    ],
)
def test_values_take_their_smallest_form(value: object, encoded: str) -> None:
    assert amqp.encode_value(value).hex() == encoded


def test_long_values_take_the_wide_form() -> None:
    assert amqp.encode_value("x" * 256)[:5].hex() == "b100000100"
    assert amqp.encode_value(b"x" * 256)[:5].hex() == "b000000100"
    assert amqp.encode_value(amqp.Symbol("x" * 256))[:5].hex() == "b300000100"
    assert amqp.encode_value([1] * 127)[0] == 0xC0
    assert amqp.encode_value([1] * 128)[0] == 0xD0
    assert amqp.encode_value([None] * 256)[0] == 0xD0
    assert amqp.encode_value({str(i): None for i in range(200)})[0] == 0xD1
    assert amqp.encode_value(amqp.Array(0x81, list(range(100))))[0] == 0xF0


def test_an_array_widens_its_elements_when_one_does_not_fit() -> None:
    for code, values, widened in (
        (0xA1, ["a", "b" * 300], 0xB1),
        (0xA0, [b"a", b"b" * 300], 0xB0),
        (0xA3, ["a", "b" * 300], 0xB3),
        (0x52, [1, 300], 0x70),
        (0x53, [1, 300], 0x80),
        (0x54, [1, 300], 0x71),
        (0x55, [1, 300], 0x81),
        (0x43, [0, 1], 0x52),
        (0x44, [0, 300], 0x80),
        (0x41, [True, False], 0x56),
        (0xC0, [[1], ["x" * 300]], 0xD0),
        (0xC1, [{"a": 1}, {"a": "x" * 300}], 0xD1),
        (0x45, [[], [1]], 0xC0),
        (0xE0, [amqp.Array(0x55, [1]), amqp.Array(0x81, list(range(99)))], 0xF0),
    ):
        decoded, _ = amqp.decode_value(amqp.encode_value(amqp.Array(code, values)), 0)
        assert isinstance(decoded, amqp.Array)
        assert decoded.type_code == widened
        assert decoded.values == values


def test_arrays_of_described_values_keep_their_descriptor() -> None:
    array = amqp.Array(0x55, [1, 2], amqp.ULong(0x99))
    assert amqp.decode_value(amqp.encode_value(array), 0)[0] == array


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        -(2**63) - 1,
        amqp.UInt(-1),
        amqp.UInt(2**32),
        amqp.ULong(-1),
        amqp.ULong(2**64),
        amqp.UByte(256),
        amqp.Byte(128),
        amqp.Short(40000),
        amqp.UShort(-1),
        amqp.Int(2**31),
        amqp.Timestamp(2**63),
        amqp.Symbol("é"),
        amqp.Char("ab"),
        amqp.Decimal32(b"123"),
        "\ud800",
        object(),
        {1, 2},
        amqp.Array(0x98, ["no uuid"]),
        amqp.Array(0x70, [-1]),
        amqp.Array(0xB1, [b"no text"]),
        amqp.Array(0x56, [3]),
        amqp.Array(0x74, [b"12345"]),
        [object()],
    ],
)
def test_what_has_no_amqp_form_is_an_encode_error(value: object) -> None:
    with pytest.raises(amqp.EncodeError):
        amqp.encode_value(value)


def test_composites_leave_trailing_nulls_out() -> None:
    assert described_list(0x24, []).hex() == "00532445"
    assert described_list(0x24, [b"\x40", b"\x40"]).hex() == "00532445"
    assert described_list(0x24, [b"\x40", b"\x41", b"\x40"]).hex() == "005324c003024041"
    assert encode_list([b"\x40"]).hex() == "c0020140"


def test_unsigned_numbers_of_performatives_are_as_small_as_they_can_be() -> None:
    assert [encode_uint(n).hex() for n in (0, 1, 255, 256)] == ["43", "5201", "52ff", "7000000100"]
    assert [encode_ulong(n).hex() for n in (0, 1, 255, 256)] == ["44", "5301", "53ff", "800000000000000100"]
