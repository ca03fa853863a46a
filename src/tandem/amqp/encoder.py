"""Python values to AMQP bytes, each in its smallest form."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import Final

from tandem.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    EncodeError,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    type_name,
)

DEPTH_MAX: Final = 32
NULL: Final = b"\x40"
TRUE: Final = b"\x41"
FALSE: Final = b"\x42"

_U8: Final = Struct(">B")
_U32: Final = Struct(">I")
_CU32: Final = Struct(">BI")
_CU64: Final = Struct(">BQ")
_CI32: Final = Struct(">Bi")
_CI64: Final = Struct(">Bq")
_CF32: Final = Struct(">Bf")
_CF64: Final = Struct(">Bd")
_CI16: Final = Struct(">Bh")
_CU16: Final = Struct(">BH")
_CI8: Final = Struct(">Bb")
_C8: Final = Struct(">BBB")
_C32: Final = Struct(">BII")


def encode_value(value: object) -> bytes:
    """Python value to AMQP bytes. Plain int is long, float double, str string, bytes binary; the wrappers of `types` are what they say."""
    return _encode(value, 0)


def encode_uint(value: int) -> bytes:
    if value == 0:
        return b"\x43"
    if value < 256:
        return b"\x52" + _U8.pack(value)
    return _CU32.pack(0x70, value)


def encode_ulong(value: int) -> bytes:
    if value == 0:
        return b"\x44"
    if value < 256:
        return b"\x53" + _U8.pack(value)
    return _CU64.pack(0x80, value)


def encode_string(value: str) -> bytes:
    return _variable(0xA1, value.encode("utf-8"))


def encode_symbol(value: str) -> bytes:
    try:
        return _variable(0xA3, value.encode("ascii"))
    except UnicodeEncodeError:
        raise EncodeError(f"symbol {value!r} is not ASCII") from None


def encode_binary(value: bytes) -> bytes:
    return _variable(0xA0, value)


def encode_list(items: list[bytes]) -> bytes:
    """A list of values already encoded."""
    body = b"".join(items)
    return compound(0xC0, body, len(items)) if items else b"\x45"


def compound(code: int, body: bytes, count: int) -> bytes:
    """`code` is the one-byte-size form (0xC0, 0xC1); the wide form is taken when needed."""
    size = len(body) + 1
    if size < 256 and count < 256:
        return _C8.pack(code, size, count) + body
    return _C32.pack(code + 0x10, size + 3, count) + body


def whole_list(code: int, items: list[bytes]) -> bytes:
    """A performative with every field it has, nulls and all. The last ones may be left out, but the Python SDK before 7.15 reads fields
    by their place and fails then."""
    return b"\x00\x53" + _U8.pack(code) + compound(0xC0, b"".join(items), len(items))


def described_list(code: int, items: list[bytes]) -> bytes:
    """A composite: descriptor in its one-byte form, trailing nulls left out, list0 when nothing remains."""
    n = len(items)
    while n and items[n - 1] == NULL:
        n -= 1
    return b"\x00\x53" + _U8.pack(code) + encode_list(items[:n])


def _variable(code: int, raw: bytes) -> bytes:
    n = len(raw)
    if n < 256:
        return bytes((code, n)) + raw
    return _CU32.pack(code + 0x10, n) + raw


def _encode(value: object, depth: int) -> bytes:
    if depth > DEPTH_MAX:
        raise EncodeError(f"values nest deeper than {DEPTH_MAX}")
    leaf = _LEAVES.get(type(value))
    if leaf is not None:
        try:
            return leaf(value)
        except StructError:
            raise EncodeError(f"{value!r} does not fit {type(value).__name__}") from None
        except UnicodeEncodeError:
            raise EncodeError(f"{value!r} has no {type(value).__name__} form") from None
    if isinstance(value, Described):
        return b"\x00" + _encode(value.descriptor, depth + 1) + _encode(value.value, depth + 1)
    if isinstance(value, dict):
        return compound(0xC1, _map_items(value, depth), 2 * len(value))
    if isinstance(value, (list, tuple)):
        return encode_list([_encode(v, depth + 1) for v in value])
    if isinstance(value, Array):
        return _encode_array(value, depth)
    return _encode_subclass(value)


def _map_items(value: dict[object, object], depth: int) -> bytes:
    parts: list[bytes] = []
    for k, v in value.items():
        parts.append(_encode(k, depth + 1))
        parts.append(_encode(v, depth + 1))
    return b"".join(parts)


def _encode_subclass(value: object) -> bytes:
    """Enumerations and the like: by the nearest type that has a form."""
    for base in type(value).__mro__:
        leaf = _LEAVES.get(base)
        if leaf is not None:
            return leaf(value)
    if isinstance(value, (bytearray, memoryview)):
        return encode_binary(bytes(value))
    raise EncodeError(f"{type(value).__name__} has no AMQP form")


def _encode_array(array: Array, depth: int) -> bytes:
    constructor = b""
    if array.descriptor is not None:
        constructor = b"\x00" + _encode(array.descriptor, depth + 1)
    code = array.type_code
    while True:
        try:
            elements = [_element(code, v, depth) for v in array.values]
            break
        except (StructError, ValueError, TypeError, UnicodeEncodeError):
            if code not in _WIDER:
                raise EncodeError(f"array of {type_name(code)} holds a value of another type or size") from None
            code = _WIDER[code]
    body = constructor + _U8.pack(code) + b"".join(elements)
    size = len(body) + 1
    count = len(array.values)
    if size < 256 and count < 256:
        return _C8.pack(0xE0, size, count) + body
    return _C32.pack(0xF0, size + 3, count) + body


_WIDER: Final[dict[int, int]] = {
    0x41: 0x56,
    0x42: 0x56,
    0x43: 0x52,
    0x44: 0x53,
    0x45: 0xC0,
    0x52: 0x70,
    0x53: 0x80,
    0x54: 0x71,
    0x55: 0x81,
    0xA0: 0xB0,
    0xA1: 0xB1,
    0xA3: 0xB3,
    0xC0: 0xD0,
    0xC1: 0xD1,
    0xE0: 0xF0,
}
"""The constructor to try when a value does not fit the one an array names."""

_ELEMENTS: Final[dict[int, Struct]] = {
    0x50: Struct(">B"),
    0x51: Struct(">b"),
    0x52: Struct(">B"),
    0x53: Struct(">B"),
    0x54: Struct(">b"),
    0x55: Struct(">b"),
    0x56: Struct(">?"),
    0x60: Struct(">H"),
    0x61: Struct(">h"),
    0x70: Struct(">I"),
    0x71: Struct(">i"),
    0x72: Struct(">f"),
    0x80: Struct(">Q"),
    0x81: Struct(">q"),
    0x82: Struct(">d"),
    0x83: Struct(">q"),
}
_OPAQUE: Final = {0x74: 4, 0x84: 8, 0x94: 16}
_ZERO_WIDTH: Final[dict[int, object]] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0, 0x45: []}


def _element(code: int, value: object, depth: int) -> bytes:
    """One array element: its encoding without the constructor."""
    if code in _ELEMENTS:
        if code == 0x56 and not isinstance(value, bool):
            raise ValueError("not a boolean")
        return _ELEMENTS[code].pack(value)
    if code in _ZERO_WIDTH:
        if value != _ZERO_WIDTH[code]:
            raise ValueError("needs bytes")
        return b""
    if code == 0x98:
        return _uuid(value)[1:]
    if code == 0x73:
        return _char(value)[1:]
    if code in _OPAQUE:
        if not isinstance(value, bytes) or len(value) != _OPAQUE[code]:
            raise ValueError("wrong width")
        return value
    raw = _sized(code, value, depth)
    if code & 0x10:
        return raw
    # the same body with one-byte sizes: only when it fits
    return _narrow(code, raw)


def _sized(code: int, value: object, depth: int) -> bytes:
    """An element that begins with its size, in the four-byte form."""
    kind = code & 0xEF
    if kind == 0xA0 and isinstance(value, bytes):
        return _U32.pack(len(value)) + value
    if kind == 0xA1 and isinstance(value, str):
        raw = value.encode("utf-8")
        return _U32.pack(len(raw)) + raw
    if kind == 0xA3 and isinstance(value, str):
        raw = value.encode("ascii")
        return _U32.pack(len(raw)) + raw
    if kind == 0xC0 and isinstance(value, (list, tuple)):
        body = b"".join([_encode(v, depth + 2) for v in value])
        return _U32.pack(len(body) + 4) + _U32.pack(len(value)) + body
    if kind == 0xC1 and isinstance(value, dict):
        body = _map_items(value, depth + 1)
        return _U32.pack(len(body) + 4) + _U32.pack(2 * len(value)) + body
    if kind == 0xE0 and isinstance(value, Array):
        encoded = _encode_array(value, depth + 1)
        if encoded[0] == 0xF0:
            return encoded[1:]
        return _U32.pack(encoded[1] + 3) + _U32.pack(encoded[2]) + encoded[3:]
    raise ValueError(f"not a {type_name(code)}")


def _narrow(code: int, raw: bytes) -> bytes:
    if code < 0xB0:
        return _U8.pack(len(raw) - 4) + raw[4:]
    return _U8.pack(len(raw) - 7) + _U8.pack(int.from_bytes(raw[4:8], "big")) + raw[8:]


def _none(value: object) -> bytes:
    return NULL


def _bool(value: object) -> bytes:
    return TRUE if value else FALSE


def _long(value: object) -> bytes:
    assert isinstance(value, int)
    return _CI8.pack(0x55, value) if -128 <= value <= 127 else _CI64.pack(0x81, value)


def _int(value: object) -> bytes:
    assert isinstance(value, int)
    return _CI8.pack(0x54, value) if -128 <= value <= 127 else _CI32.pack(0x71, value)


def _uint(value: object) -> bytes:
    assert isinstance(value, int)
    return encode_uint(value)


def _ulong(value: object) -> bytes:
    assert isinstance(value, int)
    return encode_ulong(value)


def _ushort(value: object) -> bytes:
    return _CU16.pack(0x60, value)


def _ubyte(value: object) -> bytes:
    assert isinstance(value, int)
    return b"\x50" + _U8.pack(value)


def _byte(value: object) -> bytes:
    return _CI8.pack(0x51, value)


def _short(value: object) -> bytes:
    return _CI16.pack(0x61, value)


def _timestamp(value: object) -> bytes:
    return _CI64.pack(0x83, value)


def _float32(value: object) -> bytes:
    return _CF32.pack(0x72, value)


def _float64(value: object) -> bytes:
    return _CF64.pack(0x82, value)


def _char(value: object) -> bytes:
    assert isinstance(value, str)
    if len(value) != 1:
        raise EncodeError(f"char of {len(value)} characters")
    return b"\x73" + value.encode("utf-32-be")


def _decimal(code: int, value: object, width: int) -> bytes:
    assert isinstance(value, bytes)
    if len(value) != width:
        raise EncodeError(f"{type_name(code)} of {len(value)} bytes")
    return _U8.pack(code) + value


def _decimal32(value: object) -> bytes:
    return _decimal(0x74, value, 4)


def _decimal64(value: object) -> bytes:
    return _decimal(0x84, value, 8)


def _decimal128(value: object) -> bytes:
    return _decimal(0x94, value, 16)


def _uuid(value: object) -> bytes:
    if not isinstance(value, uuid.UUID):
        raise TypeError("not a uuid")
    return b"\x98" + value.bytes


def _string(value: object) -> bytes:
    assert isinstance(value, str)
    return encode_string(value)


def _symbol(value: object) -> bytes:
    assert isinstance(value, str)
    return encode_symbol(value)


def _binary(value: object) -> bytes:
    assert isinstance(value, bytes)
    return encode_binary(value)


_LEAVES: Final[dict[type, Callable[[object], bytes]]] = {
    type(None): _none,
    bool: _bool,
    int: _long,
    Int: _int,
    UInt: _uint,
    ULong: _ulong,
    UShort: _ushort,
    UByte: _ubyte,
    Byte: _byte,
    Short: _short,
    Timestamp: _timestamp,
    Float: _float32,
    float: _float64,
    Char: _char,
    Decimal32: _decimal32,
    Decimal64: _decimal64,
    Decimal128: _decimal128,
    uuid.UUID: _uuid,
    str: _string,
    Symbol: _symbol,
    bytes: _binary,
}
