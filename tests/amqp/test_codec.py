from __future__ import annotations

import uuid

import pytest

from tandem import amqp
from tandem.amqp.codec import DEPTH_MAX, ZERO_WIDTH_MAX

UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")

VECTORS: list[tuple[str, object, type]] = [
    ("40", None, type(None)),
    ("41", True, bool),
    ("42", False, bool),
    ("5601", True, bool),
    ("5600", False, bool),
    ("50ff", 255, amqp.UByte),
    ("60ffff", 65535, amqp.UShort),
    ("43", 0, amqp.UInt),
    ("5280", 128, amqp.UInt),
    ("70ffffffff", 4294967295, amqp.UInt),
    ("44", 0, amqp.ULong),
    ("53ff", 255, amqp.ULong),
    ("80ffffffffffffffff", 18446744073709551615, amqp.ULong),
    ("5180", -128, amqp.Byte),
    ("618000", -32768, amqp.Short),
    ("54ff", -1, amqp.Int),
    ("7180000000", -2147483648, amqp.Int),
    ("5580", -128, int),
    ("818000000000000000", -9223372036854775808, int),
    ("723fc00000", 1.5, amqp.Float),
    ("823ff8000000000000", 1.5, float),
    ("7300000041", "A", amqp.Char),
    ("730001f600", "\U0001f600", amqp.Char),
    ("830000018bcfe56800", 1700000000000, amqp.Timestamp),
    ("83ffffffffffffffff", -1, amqp.Timestamp),
    ("98" + UUID.hex, UUID, uuid.UUID),
    ("a003010203", b"\x01\x02\x03", bytes),
    ("b000000003010203", b"\x01\x02\x03", bytes),
    ("a102c3a9", "é", str),
    ("b100000002c3a9", "é", str),
    ("a3036f6e65", "one", amqp.Symbol),
    ("b3000000036f6e65", "one", amqp.Symbol),
    ("7422500001", b"\x22\x50\x00\x01", amqp.Decimal32),
    ("842238000000000001", bytes.fromhex("2238000000000001"), amqp.Decimal64),
    ("94" + "22080000000000000000000000000001", bytes.fromhex("22080000000000000000000000000001"), amqp.Decimal128),
    ("45", [], list),
    ("c0020140", [None], list),
    ("c0050255015502", [1, 2], list),
    ("d0000000080000000255015502", [1, 2], list),
    ("c10100", {}, dict),
    ("c10502a1016b40", {"k": None}, dict),
    ("d10000000800000002a1016b40", {"k": None}, dict),
    ("e00402540102", None, amqp.Array),
    ("f0000000070000000254" + "0102", None, amqp.Array),
    ("e0020541", None, amqp.Array),
    ("005324" + "45", None, amqp.Described),
]


@pytest.mark.parametrize(("encoded", "value", "kind"), VECTORS)
def test_every_primitive_encoding_decodes_to_its_value_and_type(encoded: str, value: object, kind: type) -> None:
    data = bytes.fromhex(encoded)
    found, end = amqp.decode_value(data, 0)
    assert type(found) is kind
    assert end == len(data) == amqp.skip_value(data, 0)
    if not isinstance(found, (amqp.Array, amqp.Described)):
        assert found == value


@pytest.mark.parametrize(("encoded", "value", "kind"), VECTORS)
def test_a_value_cut_anywhere_is_a_decode_error_and_not_a_value(encoded: str, value: object, kind: type) -> None:
    data = bytes.fromhex(encoded)
    for n in range(len(data)):
        with pytest.raises(amqp.DecodeError):
            amqp.decode_value(data[:n], 0)


@pytest.mark.parametrize(("encoded", "value", "kind"), VECTORS)
def test_bytes_behind_a_value_are_left_alone(encoded: str, value: object, kind: type) -> None:
    data = bytes.fromhex(encoded)
    found, end = amqp.decode_value(b"\xff\xff" + data + b"\xff\x00", 2)
    assert end == 2 + len(data)
    assert type(found) is kind


def test_arrays_keep_their_element_constructor() -> None:
    array, _ = amqp.decode_value(bytes.fromhex("e00402540102"), 0)
    assert array == amqp.Array(0x54, [1, 2])
    zeros, _ = amqp.decode_value(bytes.fromhex("e0020543"), 0)
    assert zeros == amqp.Array(0x43, [0, 0, 0, 0, 0])
    nested, _ = amqp.decode_value(amqp.encode_value(amqp.Array(0xE0, [amqp.Array(0x55, [1]), amqp.Array(0x55, [2])])), 0)
    assert isinstance(nested, amqp.Array)
    assert [a.values for a in nested.values if isinstance(a, amqp.Array)] == [[1], [2]]


def test_described_values_keep_descriptor_and_value() -> None:
    found, _ = amqp.decode_value(bytes.fromhex("00a30b") + b"my:type:one" + bytes.fromhex("a10161"), 0)
    assert found == amqp.Described(amqp.Symbol("my:type:one"), "a")
    twice, _ = amqp.decode_value(bytes.fromhex("005301005302a10161"), 0)
    assert twice == amqp.Described(amqp.ULong(1), amqp.Described(amqp.ULong(2), "a"))


@pytest.mark.parametrize(
    ("encoded", "says"),
    [
        ("ff", "0xff"),
        ("3f", "0x3f"),
        ("46", "0x46"),
        ("5602", "boolean of value 2"),
        ("a102c328", "not UTF-8"),
        ("a30180", "not ASCII"),
        ("7300110000", "Unicode"),
        ("730000d800", "Unicode"),
        ("c00a02", "10 bytes"),
        ("c002ff40", "255 elements"),
        ("c003014040", "its size says"),
        ("c103014040", "odd"),
        ("c103024540", "map key"),
        ("e0050254010203", "its size says"),
        ("e006ff5401020304", "255 elements"),
        ("e00301ff00", "0xff"),
        ("00005301", "described descriptor"),
        ("d0ffffffff00000001", "bytes"),
        ("b1ffffffff", "announced"),
        ("a2016b", "0xa2"),
        ("95" + "00" * 16, "0x95"),
        ("57", "0x57"),
        ("c2020040", "0xc2"),
    ],
)
def test_malformed_values_say_what_is_wrong(encoded: str, says: str) -> None:
    with pytest.raises(amqp.DecodeError, match=says):
        amqp.decode_value(bytes.fromhex(encoded), 0)


def test_depth_is_bounded_in_both_directions() -> None:
    value: object = 1
    for _ in range(DEPTH_MAX):
        value = [value]
    assert amqp.decode_value(amqp.encode_value(value), 0)[0] == value
    encoded = b"\x55\x01"
    for _ in range(DEPTH_MAX + 1):
        encoded = b"\xc0" + bytes((len(encoded) + 1, 1)) + encoded
    with pytest.raises(amqp.DecodeError, match="nest"):
        amqp.decode_value(encoded, 0)
    with pytest.raises(amqp.EncodeError, match="nest"):
        amqp.encode_value([value])


def test_a_megabyte_of_nested_descriptors_neither_recurses_nor_takes_long() -> None:
    for junk in (b"\x00" * 1_000_000, b"\x00\x53\x24" * 300_000, b"\x00\x40" * 500_000, b"\xf0\x00\x0f\x00\x00\x00\x00\x00\x01" * 100_000):
        with pytest.raises(amqp.DecodeError):
            amqp.decode_value(junk, 0)
        with pytest.raises(amqp.DecodeError):
            amqp.skip_value(junk, 0)


def test_elements_without_bytes_cannot_be_multiplied() -> None:
    bomb = b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x43"
    with pytest.raises(amqp.DecodeError, match="without bytes"):
        amqp.decode_value(bomb, 0)
    # the allowance is for a whole value, not for each array in it
    one = b"\xf0\x00\x00\x00\x05" + (ZERO_WIDTH_MAX // 2).to_bytes(4, "big") + b"\x43"
    three = b"\xc0" + bytes((1 + 3 * len(one), 3)) + 3 * one
    with pytest.raises(amqp.DecodeError, match="without bytes"):
        amqp.decode_value(three, 0)
    assert amqp.decode_value(b"\xc0" + bytes((1 + 2 * len(one), 2)) + 2 * one, 0)[1] == 3 + 2 * len(one)


def test_skip_agrees_with_decode_on_nested_values() -> None:
    value = {"a": [1, {amqp.Symbol("b"): amqp.Array(0xA1, ["x", "y" * 300])}], amqp.UInt(7): amqp.Described(amqp.ULong(1), [None])}
    data = amqp.encode_value(value)
    assert amqp.skip_value(data + b"\x40", 0) == len(data)
