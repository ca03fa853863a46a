"""Reads the fields of a composite one by one, and says which field of which composite was wrong and how."""

from __future__ import annotations

from typing import Final, cast

from mypy_extensions import i64

from tandem.amqp.codec import Decoder, part
from tandem.amqp.errors import AmqpError, DecodeError
from tandem.amqp.types import Array, Symbol, type_name

DESCRIPTORS: Final[dict[str, int]] = {
    "amqp:open:list": 0x10,
    "amqp:begin:list": 0x11,
    "amqp:attach:list": 0x12,
    "amqp:flow:list": 0x13,
    "amqp:transfer:list": 0x14,
    "amqp:disposition:list": 0x15,
    "amqp:detach:list": 0x16,
    "amqp:end:list": 0x17,
    "amqp:close:list": 0x18,
    "amqp:error:list": 0x1D,
    "amqp:received:list": 0x23,
    "amqp:accepted:list": 0x24,
    "amqp:rejected:list": 0x25,
    "amqp:released:list": 0x26,
    "amqp:modified:list": 0x27,
    "amqp:source:list": 0x28,
    "amqp:target:list": 0x29,
    "amqp:coordinator:list": 0x30,
    "amqp:declare:list": 0x31,
    "amqp:discharge:list": 0x32,
    "amqp:declared:list": 0x33,
    "amqp:transactional-state:list": 0x34,
    "amqp:sasl-mechanisms:list": 0x40,
    "amqp:sasl-init:list": 0x41,
    "amqp:sasl-challenge:list": 0x42,
    "amqp:sasl-response:list": 0x43,
    "amqp:sasl-outcome:list": 0x44,
    "amqp:header:list": 0x70,
    "amqp:delivery-annotations:map": 0x71,
    "amqp:message-annotations:map": 0x72,
    "amqp:properties:list": 0x73,
    "amqp:application-properties:map": 0x74,
    "amqp:data:binary": 0x75,
    "amqp:amqp-sequence:list": 0x76,
    "amqp:amqp-value:*": 0x77,
    "amqp:footer:map": 0x78,
}
"""Symbolic descriptors: legal on the wire, used by few."""

NAMES: Final[dict[int, str]] = {code: name.split(":")[1] for name, code in DESCRIPTORS.items()}


def read_descriptor(buf: bytes, at: i64, end: i64) -> tuple[i64, i64]:
    """(code, offset of the value) of the described value at `at`."""
    if end - at < 3:
        raise DecodeError(f"described value cut short at byte {end}")
    if buf[at] != 0:
        raise DecodeError(f"expected a described value at byte {at}, found {type_name(buf[at])}")
    if buf[at + 1] == 0x53:
        return buf[at + 2], at + 3
    if buf[at + 1] == 0:
        raise DecodeError(f"described descriptor at byte {at}")
    decoder = Decoder(buf, at + 1, end)
    descriptor = decoder.value()
    code: i64 = -1
    if isinstance(descriptor, Symbol):
        code = DESCRIPTORS.get(descriptor, -1)
    elif isinstance(descriptor, int) and (buf[at + 1] == 0x80 or buf[at + 1] == 0x44):
        code = descriptor if descriptor <= 0xFFFFFFFF else -1
    if code < 0:
        raise DecodeError(f"unknown descriptor {descriptor!r} at byte {at}")
    return code, decoder.at


class Fields:
    """The list of a composite, at its constructor. Absent trailing fields read as null."""

    def __init__(self, name: str, buf: bytes, at: i64, end: i64) -> None:
        self.name = name
        self.field = ""
        self.buf = buf
        decoder = Decoder(buf, at, end)
        self.decoder = decoder
        self.left: i64 = 0
        code = decoder.code()
        if code == 0x45:
            self.list_end = decoder.at
        elif code == 0xC0 or code == 0xD0:
            size = decoder.size(code == 0xD0)
            self.list_end = decoder.at + size
            if self.list_end > end:
                raise DecodeError(f"{name}: list of {size} bytes, {end - decoder.at} left in the frame")
            self.left = decoder.size(code == 0xD0)
            decoder.stop_at(self.list_end)
        else:
            raise DecodeError(f"{name}: expected list, found {type_name(code)}")

    def explain(self, error: DecodeError) -> DecodeError:
        """The error with composite and field in front, unless it has them."""
        prefix = f"{self.name}.{self.field}" if self.field else self.name
        if error.description.startswith(self.name):
            return error
        return DecodeError(f"{prefix}: {error.description}")

    def finish(self) -> None:
        """Fields this version does not know are stepped over; the list must end where its size says."""
        self.field = ""
        decoder = self.decoder
        while self.left > 0:
            self.left -= 1
            decoder.skip_from(decoder.at)
            if decoder.at > decoder.end:
                raise DecodeError(f"{self.name}: value runs past the end of the list")
        if decoder.at != self.list_end:
            raise DecodeError(f"{self.name}: list ends at byte {decoder.at}, its size says {self.list_end}")

    def code(self, field: str, expected: str, needed: bool) -> i64:
        self.field = field
        if self.left <= 0:
            found: i64 = 0x40
        else:
            self.left -= 1
            found = self.decoder.code()
        if needed and found == 0x40:
            raise self.wrong(expected, found)
        return found

    def wrong(self, expected: str, found: i64) -> DecodeError:
        return DecodeError(f"{self.name}.{self.field}: expected {expected}, found {type_name(found)}")

    def skip(self, field: str) -> None:
        if self.code(field, "", False) != 0x40:
            self.decoder.skip_from(self.decoder.at - 1)

    def raw(self, field: str) -> bytes:
        """The value as it is encoded; empty when null."""
        if self.code(field, "", False) == 0x40:
            return b""
        start: i64 = self.decoder.at - 1
        self.decoder.skip_from(start)
        return part(self.buf, start, self.decoder.at)

    def boolean(self, field: str, default: bool, needed: bool = False) -> bool:
        code = self.code(field, "boolean", needed)
        if code == 0x41:
            return True
        if code == 0x42:
            return False
        if code == 0x40:
            return default
        if code == 0x56:
            found = self.decoder.code()
            if found <= 1:
                return found == 1
            raise DecodeError(f"{self.name}.{field}: expected boolean 0 or 1, found {found}")
        raise self.wrong("boolean", code)

    def ubyte(self, field: str, default: int) -> int:
        code = self.code(field, "ubyte", False)
        if code == 0x50:
            return self.decoder.code()
        if code == 0x40:
            return default
        raise self.wrong("ubyte", code)

    def ushort(self, field: str, default: int) -> int:
        code = self.code(field, "ushort", False)
        if code == 0x60:
            return int.from_bytes(self.decoder.take(2), "big")
        if code == 0x40:
            return default
        raise self.wrong("ushort", code)

    def uint(self, field: str, default: int, needed: bool = False) -> int:
        code = self.code(field, "uint", needed)
        if code == 0x43:
            return 0
        if code == 0x52:
            return self.decoder.code()
        if code == 0x70:
            return self.decoder.size(True)
        if code == 0x40:
            return default
        raise self.wrong("uint", code)

    def ulong(self, field: str, default: int) -> int:
        code = self.code(field, "ulong", False)
        if code == 0x44:
            return 0
        if code == 0x53:
            return self.decoder.code()
        if code == 0x80:
            return int.from_bytes(self.decoder.take(8), "big")
        if code == 0x40:
            return default
        raise self.wrong("ulong", code)

    def _text(self, field: str, expected: str, kind: i64, needed: bool) -> str | None:
        code = self.code(field, expected, needed)
        if code == 0x40:
            return None
        if code & 0xEF != kind or code < 0xA0:
            raise self.wrong(expected, code)
        return cast(str, self.decoder.of(code))

    def string(self, field: str, needed: bool = False) -> str | None:
        return self._text(field, "string", 0xA1, needed)

    def symbol(self, field: str, needed: bool = False) -> str | None:
        return self._text(field, "symbol", 0xA3, needed)

    def address(self, field: str) -> str | None:
        """`address` is any type in the specification; in practice a string, and a symbol is as good."""
        code = self.code(field, "string", False)
        if code == 0x40:
            return None
        if code == 0xA1 or code == 0xB1 or code == 0xA3 or code == 0xB3:
            return str(self.decoder.of(code))
        raise self.wrong("string", code)

    def binary(self, field: str, needed: bool = False) -> bytes | None:
        code = self.code(field, "binary", needed)
        if code == 0x40:
            return None
        if code == 0xA0 or code == 0xB0:
            return self.decoder.take(self.decoder.size(code == 0xB0))
        raise self.wrong("binary", code)

    def map(self, field: str) -> dict[object, object] | None:
        code = self.code(field, "map", False)
        if code == 0x40:
            return None
        if code == 0xC1 or code == 0xD1:
            return cast("dict[object, object]", self.decoder.of(code))
        raise self.wrong("map", code)

    def symbols(self, field: str) -> list[str]:
        """A `multiple` symbol field: null, one symbol, or an array of them."""
        code = self.code(field, "symbol or array of symbols", False)
        if code == 0x40:
            return []
        if code == 0xA3 or code == 0xB3:
            return [cast(str, self.decoder.of(code))]
        if code == 0xE0 or code == 0xF0:
            array = cast(Array, self.decoder.of(code))
            if array.type_code == 0xA3 or array.type_code == 0xB3 or not array.values:
                return cast("list[str]", array.values)
            raise self.wrong("array of symbols, found array of " + type_name(array.type_code), code)
        raise self.wrong("symbol or array of symbols", code)

    def value(self, field: str) -> object:
        code = self.code(field, "", False)
        return None if code == 0x40 else self.decoder.of(code)

    def composite(self, field: str) -> tuple[i64, i64]:
        """(descriptor, offset of its list) of a described field, stepped over; (0, 0) when null."""
        code = self.code(field, "described list", False)
        if code == 0x40:
            return 0, 0
        if code != 0:
            raise self.wrong("described list", code)
        start: i64 = self.decoder.at - 1
        descriptor, at = read_descriptor(self.buf, start, self.decoder.end)
        self.decoder.skip_from(at)
        return descriptor, at

    def error(self, field: str) -> AmqpError | None:
        descriptor, at = self.composite(field)
        if descriptor == 0:
            return None
        if descriptor != 0x1D:
            raise DecodeError(f"{self.name}.{field}: expected error, found descriptor 0x{int(descriptor):02x}")
        return read_error(self.buf, at, self.decoder.end)


def read_error(buf: bytes, at: i64, end: i64) -> AmqpError:
    fields = Fields("error", buf, at, end)
    try:
        condition = fields.symbol("condition", True)
        description = fields.string("description")
        info = fields.map("info")
        fields.finish()
    except DecodeError as error:
        raise fields.explain(error) from None
    return AmqpError(str(condition), description, info)
