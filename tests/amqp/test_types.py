from __future__ import annotations

from tandem import amqp
from tandem.amqp.types import TYPE_NAMES, type_name


def test_wrappers_compare_as_the_values_they_wrap() -> None:
    assert amqp.Symbol("a") == "a"
    assert amqp.UInt(3) == 3
    assert {amqp.Symbol("key"): 1}["key"] == 1


def test_described_values_and_arrays_compare_by_content() -> None:
    assert amqp.Described(1, "a") == amqp.Described(1, "a")
    assert amqp.Described(1, "a") != amqp.Described(2, "a")
    assert hash(amqp.Described(1, "a")) == hash(amqp.Described(1, "a"))
    assert amqp.Array(0x55, [1]) == amqp.Array(0x55, (1,))
    assert amqp.Array(0x55, [1]) != amqp.Array(0x81, [1])
    assert hash(amqp.Array(0x55, [1])) == hash(amqp.Array(0x55, [1]))
    assert "0x55" in repr(amqp.Array(0x55, [1]))
    assert repr(amqp.Described(1, "a")) == "Described(1, 'a')"


def test_every_constructor_has_a_name_and_the_rest_is_called_unknown() -> None:
    assert type_name(0x98) == "uuid"
    assert type_name(0xFF) == "unknown constructor 0xff"
    assert len(TYPE_NAMES) == 1 + 39, "described, and the constructors of the specification"
