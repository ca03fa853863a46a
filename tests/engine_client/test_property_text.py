"""Property values as text and back."""

from __future__ import annotations

import uuid

import pytest

from tandem.amqp import (
    Byte,
    Char,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from tandem.engine_client.property_text import parse, render

VALUES = [
    "text",
    "",
    5,
    -(2**63),
    Int(7),
    UInt(8),
    ULong(2**64 - 1),
    Short(-3),
    UShort(9),
    Byte(-1),
    UByte(255),
    1.5,
    float("inf"),
    Float(0.25),
    True,
    False,
    None,
    uuid.UUID(int=5),
    Timestamp(1_700_000_000_123),
    Timestamp(2**62),
    b"\x00\xff",
    Symbol("sym"),
    Char("é"),
    Decimal128(bytes(16)),
    Described(Symbol("com.microsoft:timespan"), 50_000_000),
    [1, "a"],
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_every_value_comes_back_with_its_type(value: object) -> None:
    text, kind = render(value)
    back = parse("p", text, kind)
    assert back == value
    assert type(back) is type(value)


def test_instants_read_well() -> None:
    assert render(Timestamp(0)) == ("1970-01-01T00:00:00.000Z", "timestamp")


def test_a_wrong_text_names_the_property() -> None:
    with pytest.raises(ValueError, match=r"'colour'.*'red' is no int"):
        parse("colour", "red", "int")
    with pytest.raises(ValueError, match=r"'colour'.*'shade' is no type"):
        parse("colour", "red", "shade")
    with pytest.raises(ValueError, match="too many"):
        parse("p", "QEA=", "amqp")
