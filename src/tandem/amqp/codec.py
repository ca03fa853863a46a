"""AMQP values to bytes and back: bounded in depth and count, exact about what it could not read."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from struct import Struct
from typing import Final

from mypy_extensions import i64

from tandem.amqp.errors import DecodeError
from tandem.amqp.types import (
    TYPE_NAMES,
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
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
    type_name,
)

COMPILED: Final = not __file__.endswith(".py")
"""The hottest loops read bytes one by one when compiled, and with one `struct` call when interpreted."""

DEPTH_MAX: Final = 32
ZERO_WIDTH_MAX: Final = 65536
"""Array elements that take no bytes (null, true, uint0 …) per decode: they are all a sender could multiply for free."""

_F32: Final = Struct(">f")
_F64: Final = Struct(">d")
_WIDTHS: Final = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16}


def uint32(buf: bytes, at: i64) -> i64:
    """Big-endian, no bounds of its own beyond the buffer's."""
    return (buf[at] << 24) | (buf[at + 1] << 16) | (buf[at + 2] << 8) | buf[at + 3]


def plain_uint(buf: bytes, at: i64) -> tuple[i64, i64]:
    """(value, offset of what follows) of a uint; the value is -1 when there is none. Raises IndexError at the end of the buffer."""
    code: i64 = buf[at]
    if code == 0x70:
        return uint32(buf, at + 1), at + 5
    if code == 0x52:
        return buf[at + 1], at + 2
    return 0 if code == 0x43 else -1, at + 1


def part(buf: bytes, start: i64, end: i64) -> bytes:
    """`buf[start:end]` for bounds that a peer chose: compiled, a slice that begins behind its end, or behind the buffer's, is an error."""
    return buf[start:end] if start < end and start < len(buf) else b""


def skip_value(buf: bytes, at: i64) -> i64:
    """Where the value at `at` ends. Looks at sizes only, so it is constant work except for chains of descriptors."""
    n: i64 = len(buf)
    try:
        code: i64 = buf[at]
        while code == 0:
            # the descriptor is skipped in place; a described descriptor would let zeros nest without end
            if buf[at + 1] == 0:
                raise DecodeError(f"described descriptor at byte {at}")
            at = _skip_primitive(buf, at + 1, buf[at + 1])
            code = buf[at]
        at = _skip_primitive(buf, at, code)
    except IndexError:
        raise DecodeError(f"value cut short at byte {n}") from None
    if at > n:
        raise DecodeError(f"value runs to byte {at} of {n}")
    return at


def _skip_primitive(buf: bytes, at: i64, code: i64) -> i64:
    kind: i64 = code >> 4
    if kind == 0xA or kind == 0xC or kind == 0xE:
        return at + 2 + buf[at + 1]
    if kind == 5:
        return at + 2
    if kind == 4:
        return at + 1
    if kind == 0xB or kind == 0xD or kind == 0xF:
        return at + 5 + uint32(buf, at + 1)
    if kind == 7:
        return at + 5
    if kind == 8:
        return at + 9
    if kind == 6:
        return at + 3
    if kind == 9:
        return at + 17
    raise DecodeError(f"{type_name(code)} at byte {at}")


def elements_of(buf: bytes, at: i64) -> tuple[i64, i64]:
    """(how many, where the first begins) of the list or map at `at`, whose constructor and size lie within the buffer."""
    code: i64 = buf[at]
    if code == 0xC0 or code == 0xC1:
        return buf[at + 2], at + 3
    if code == 0xD0 or code == 0xD1:
        return uint32(buf, at + 5), at + 9
    if code == 0x45:
        return 0, at + 1
    raise DecodeError(f"expected a list or map at byte {at}, found {type_name(code)}")


class Decoder:
    """Reads values one after another from `buf[at:end]`."""

    def __init__(self, buf: bytes, at: i64, end: i64) -> None:
        self.buf = buf
        self.at = at
        self.end = end
        self.depth: i64 = 0
        self.zero_width_left: i64 = ZERO_WIDTH_MAX

    def stop_at(self, end: i64) -> None:
        """Nothing is read beyond this."""
        self.end = end

    def skip_from(self, at: i64) -> None:
        """Step over the value that begins there."""
        self.at = skip_value(self.buf, at)

    def code(self) -> i64:
        if self.at >= self.end:
            raise DecodeError(f"value cut short at byte {self.at}")
        c: i64 = self.buf[self.at]
        self.at += 1
        return c

    def value(self) -> object:
        return self.of(self.code())

    def of(self, code: i64) -> object:
        """The value whose constructor `code` has been read."""
        kind: i64 = code >> 4
        if kind == 0xA or kind == 0xB:
            return self._variable(code)
        if kind == 4:
            return self._empty(code)
        if kind >= 5 and kind <= 9:
            return self._fixed(code)
        if (kind < 4 and code != 0) or code not in TYPE_NAMES:
            raise DecodeError(f"{type_name(code)} at byte {self.at - 1}")
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise DecodeError(f"values nest deeper than {DEPTH_MAX} at byte {self.at}")
        value: object
        if code == 0:
            value = self._described()
        elif kind >= 0xE:
            value = self._array(code)
        elif code & 1:
            value = self._map(code)
        else:
            value = self._list(code)
        self.depth -= 1
        return value

    def take(self, n: i64) -> bytes:
        at: i64 = self.at
        if n > self.end - at:
            raise DecodeError(f"{n} bytes announced at byte {at}, {self.end - at} left")
        self.at = at + n
        return self.buf[at : at + n]

    def size(self, wide: bool) -> i64:
        if not wide:
            return self.code()
        at: i64 = self.at
        if self.end - at < 4:
            raise DecodeError(f"value cut short at byte {self.end}")
        self.at = at + 4
        return uint32(self.buf, at)

    def _described(self) -> Described:
        code = self.code()
        if code == 0:
            raise DecodeError(f"described descriptor at byte {self.at - 1}")
        descriptor = self.of(code)
        return Described(descriptor, self.value())

    def _empty(self, code: i64) -> object:
        if code == 0x40:
            return None
        if code == 0x41:
            return True
        if code == 0x42:
            return False
        if code == 0x43:
            return UInt(0)
        if code == 0x44:
            return ULong(0)
        if code == 0x45:
            return []
        raise DecodeError(f"{type_name(code)} at byte {self.at - 1}")

    def _variable(self, code: i64) -> object:
        at: i64 = self.at
        kind: i64 = code & 0xF
        raw = self.take(self.size(code >= 0xB0))
        if kind == 0:
            return raw
        try:
            if kind == 1:
                return raw.decode("utf-8")
            if kind == 3:
                return Symbol(raw.decode("ascii"))
        except UnicodeDecodeError:
            raise DecodeError(f"{type_name(code)} at byte {at} is not {'UTF-8' if kind == 1 else 'ASCII'}") from None
        raise DecodeError(f"{type_name(code)} at byte {at - 1}")

    def _fixed(self, code: i64) -> object:
        if code not in TYPE_NAMES:
            raise DecodeError(f"{type_name(code)} at byte {self.at - 1}")
        raw = self.take(_WIDTHS[code >> 4])
        return _FIXED[code](raw)

    def _compound(self, code: i64, wide: bool) -> tuple[i64, i64]:
        """(end, count) of a list or map, with `at` on the first element."""
        size: i64 = self.size(wide)
        end: i64 = self.at + size
        if end > self.end:
            raise DecodeError(f"{type_name(code)} of {size} bytes at byte {self.at}, {self.end - self.at} left")
        count: i64 = self.size(wide)
        # every element takes at least its constructor
        if count > end - self.at:
            raise DecodeError(f"{type_name(code)} of {count} elements in {size} bytes at byte {self.at}")
        return end, count

    def _list(self, code: i64) -> list[object]:
        end, count = self._compound(code, code == 0xD0)
        values: list[object] = []
        while count > 0:
            values.append(self.value())
            count -= 1
        if self.at != end:
            raise DecodeError(f"list ends at byte {self.at}, its size says {end}")
        return values

    def _map(self, code: i64) -> dict[object, object]:
        end, count = self._compound(code, code == 0xD1)
        if count & 1:
            raise DecodeError(f"map with an odd number of elements ({count}) at byte {self.at}")
        values: dict[object, object] = {}
        while count > 0:
            at: i64 = self.at
            key = self.value()
            try:
                values[key] = self.value()
            except TypeError:
                raise DecodeError(f"{type_name(self.buf[at])} as map key at byte {at}") from None
            count -= 2
        if self.at != end:
            raise DecodeError(f"map ends at byte {self.at}, its size says {end}")
        return values

    def _array(self, code: i64) -> Array:
        wide = code == 0xF0
        size: i64 = self.size(wide)
        end: i64 = self.at + size
        if end > self.end:
            raise DecodeError(f"array of {size} bytes at byte {self.at}, {self.end - self.at} left")
        count: i64 = self.size(wide)
        descriptor: object = None
        element = self.code()
        if element == 0:
            descriptor = self.value()
            element = self.code()
        if element >> 4 == 4:
            self.zero_width_left -= count
            if self.zero_width_left < 0:
                raise DecodeError(f"more than {ZERO_WIDTH_MAX} array elements without bytes at byte {self.at}")
        elif count > end - self.at:
            raise DecodeError(f"array of {count} elements in {size} bytes at byte {self.at}")
        if element == 0:
            raise DecodeError(f"described value nested in array at byte {self.at}")
        values: list[object] = []
        while count > 0:
            values.append(self.of(element))
            count -= 1
        if self.at != end:
            raise DecodeError(f"array ends at byte {self.at}, its size says {end}")
        return Array(element, values, descriptor)


def decode_value(buf: bytes, at: int) -> tuple[object, int]:
    """The value at `at`, and where it ends."""
    decoder = Decoder(buf, at, len(buf))
    value = decoder.value()
    return value, decoder.at


def _read_bool(raw: bytes) -> object:
    if raw[0] > 1:
        raise DecodeError(f"boolean of value {raw[0]}")
    return raw[0] == 1


def _read_char(raw: bytes) -> object:
    try:
        return Char(raw.decode("utf-32-be"))
    except UnicodeDecodeError:
        raise DecodeError(f"char 0x{raw.hex()} is not a Unicode character") from None


def _read_ubyte(raw: bytes) -> object:
    return UByte(raw[0])


def _read_byte(raw: bytes) -> object:
    return Byte(int.from_bytes(raw, "big", signed=True))


def _read_uint(raw: bytes) -> object:
    return UInt(int.from_bytes(raw, "big"))


def _read_ulong(raw: bytes) -> object:
    return ULong(int.from_bytes(raw, "big"))


def _read_ushort(raw: bytes) -> object:
    return UShort(int.from_bytes(raw, "big"))


def _read_short(raw: bytes) -> object:
    return Short(int.from_bytes(raw, "big", signed=True))


def _read_int(raw: bytes) -> object:
    return Int(int.from_bytes(raw, "big", signed=True))


def _read_long(raw: bytes) -> object:
    return int.from_bytes(raw, "big", signed=True)


def _read_timestamp(raw: bytes) -> object:
    return Timestamp(int.from_bytes(raw, "big", signed=True))


def _read_float(raw: bytes) -> object:
    return Float(_F32.unpack(raw)[0])


def _read_double(raw: bytes) -> object:
    return _F64.unpack(raw)[0]


def _read_uuid(raw: bytes) -> object:
    return uuid.UUID(bytes=raw)


_FIXED: Final[dict[int, Callable[[bytes], object]]] = {
    0x50: _read_ubyte,
    0x51: _read_byte,
    0x52: _read_uint,
    0x53: _read_ulong,
    0x54: _read_int,
    0x55: _read_long,
    0x56: _read_bool,
    0x60: _read_ushort,
    0x61: _read_short,
    0x70: _read_uint,
    0x71: _read_int,
    0x72: _read_float,
    0x73: _read_char,
    0x74: Decimal32,
    0x80: _read_ulong,
    0x81: _read_long,
    0x82: _read_double,
    0x83: _read_timestamp,
    0x84: Decimal64,
    0x94: Decimal128,
    0x98: _read_uuid,
}
