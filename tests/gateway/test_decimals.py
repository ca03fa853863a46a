"""Decimal properties leave in the layout that official clients read."""

from __future__ import annotations

import decimal

import pytest

from tandem import amqp
from tandem.gateway.decimals import in_service_layout

NET_12_50 = bytes((0x0C, 0x3C)) + bytes(12) + (1250).to_bytes(2, "big")


def ieee(value: decimal.Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    magnitude = int("".join(map(str, digits)))
    return (sign << 127 | (exponent + 6176) << 113 | magnitude).to_bytes(16, "big")


@pytest.mark.parametrize("wide", [False, True])
def test_ieee_layout_becomes_the_services_and_everything_else_stays(wide: bool) -> None:
    properties: dict[object, object] = {"a": 1, "price": amqp.Decimal128(ieee(decimal.Decimal("12.50"))), "z": "x" * (300 if wide else 1)}
    section = amqp.encode_value(properties)
    assert section[0] == (0xD1 if wide else 0xC1)
    found, _ = amqp.decode_value(in_service_layout(section, 0), 0)
    assert found == properties | {"price": amqp.Decimal128(NET_12_50)}


def test_the_sign_is_kept() -> None:
    section = amqp.encode_value({"debt": amqp.Decimal128(ieee(decimal.Decimal("-12.50")))})
    found, _ = amqp.decode_value(in_service_layout(section, 0), 0)
    assert found == {"debt": amqp.Decimal128(bytes((0x8C, 0x3C)) + NET_12_50[2:])}


@pytest.mark.parametrize(
    "value",
    [NET_12_50, ieee(decimal.Decimal("1E+5")), ieee(decimal.Decimal("1E-29")), ieee(decimal.Decimal(2**96)), bytes(16), b"\xff" * 16],
    ids=["service layout already", "positive exponent", "scale 29", "97 bits", "zeros", "ones"],
)
def test_what_the_other_layout_cannot_hold_is_left_alone(value: bytes) -> None:
    section = amqp.encode_value({"d": amqp.Decimal128(value)})
    assert in_service_layout(section, 0) == section
