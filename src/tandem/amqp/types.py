"""AMQP primitive types that Python has no type for, each a thin wrapper that keeps its wire type through a round trip."""

from __future__ import annotations

from collections.abc import Sequence


class EncodeError(ValueError):
    """A Python value that has no AMQP form: the caller's mistake, never the peer's."""


class Symbol(str):
    """ASCII text from a constrained domain; equal to the same `str`, encoded as a symbol."""

    __slots__ = ()


class UByte(int):
    __slots__ = ()


class UShort(int):
    __slots__ = ()


class UInt(int):
    __slots__ = ()


class ULong(int):
    __slots__ = ()


class Byte(int):
    __slots__ = ()


class Short(int):
    __slots__ = ()


class Int(int):
    """32 bits. A plain `int` is a long."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since the Unix epoch, UTC."""

    __slots__ = ()


class Float(float):
    """32 bits. A plain `float` is a double."""

    __slots__ = ()


class Char(str):
    """One Unicode character."""

    __slots__ = ()


class Decimal32(bytes):
    """The four bytes as they came: never computed with, re-encoded equal."""

    __slots__ = ()


class Decimal64(bytes):
    __slots__ = ()


class Decimal128(bytes):
    __slots__ = ()


class Described:
    """A value with a descriptor; equal when both parts are."""

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: object, value: object) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Described) and self.descriptor == other.descriptor and self.value == other.value

    def __hash__(self) -> int:
        return hash((self.descriptor, self.value))

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


class Array:
    """Values of one type, `type_code` being their constructor (0x98 uuid, 0x81 long, 0xA1 string …); `descriptor` if they are described."""

    __slots__ = ("descriptor", "type_code", "values")

    def __init__(self, type_code: int, values: Sequence[object], descriptor: object = None) -> None:
        self.type_code = type_code
        self.values = list(values)
        self.descriptor = descriptor

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Array)
            and self.type_code == other.type_code
            and self.values == other.values
            and self.descriptor == other.descriptor
        )

    def __hash__(self) -> int:
        return hash((self.type_code, tuple(self.values)))

    def __repr__(self) -> str:
        return f"Array(0x{self.type_code:02x}, {self.values!r})"


TYPE_NAMES: dict[int, str] = {
    0x00: "described value",
    0x40: "null",
    0x41: "boolean",
    0x42: "boolean",
    0x43: "uint",
    0x44: "ulong",
    0x45: "list",
    0x50: "ubyte",
    0x51: "byte",
    0x52: "uint",
    0x53: "ulong",
    0x54: "int",
    0x55: "long",
    0x56: "boolean",
    0x60: "ushort",
    0x61: "short",
    0x70: "uint",
    0x71: "int",
    0x72: "float",
    0x73: "char",
    0x74: "decimal32",
    0x80: "ulong",
    0x81: "long",
    0x82: "double",
    0x83: "timestamp",
    0x84: "decimal64",
    0x94: "decimal128",
    0x98: "uuid",
    0xA0: "binary",
    0xA1: "string",
    0xA3: "symbol",
    0xB0: "binary",
    0xB1: "string",
    0xB3: "symbol",
    0xC0: "list",
    0xC1: "map",
    0xD0: "list",
    0xD1: "map",
    0xE0: "array",
    0xF0: "array",
}
"""Every constructor the specification defines; anything else cannot be decoded."""


def type_name(code: int) -> str:
    return TYPE_NAMES.get(code, f"unknown constructor 0x{code:02x}")
