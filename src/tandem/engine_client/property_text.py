"""Property values as text beside the name of their AMQP type, and back: a table can hold them and nothing is lost."""

from __future__ import annotations

import base64
import datetime
import uuid
from collections.abc import Callable
from typing import Final

from tandem.amqp import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    DecodeError,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode_value,
    encode_value,
)

_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ENCODED: Final = "amqp"
"""Type name of a value whose text is the base64 form of its AMQP encoding: described values, lists, maps, instants out of range."""

_PLAIN: Final[dict[type, str]] = {
    str: "string",
    int: "long",
    float: "double",
    Symbol: "symbol",
    Char: "char",
    Int: "int",
    UInt: "uint",
    ULong: "ulong",
    Short: "short",
    UShort: "ushort",
    Byte: "byte",
    UByte: "ubyte",
    Float: "float",
}


def render(value: object) -> tuple[str | None, str]:
    """(text, type name); the text of null is None."""
    kind = _PLAIN.get(type(value))
    if kind is not None:
        return (repr(float(str(value))) if kind in ("double", "float") else str(value)), kind
    if value is None:
        return None, "null"
    if isinstance(value, bool):
        return ("true" if value else "false"), "boolean"
    if isinstance(value, uuid.UUID):
        return str(value), "uuid"
    if isinstance(value, Timestamp):
        try:
            return instant_text(int(value)), "timestamp"
        except OverflowError:
            return _encoded(value), ENCODED
    if isinstance(value, (Decimal32, Decimal64, Decimal128)) or not isinstance(value, bytes):
        return _encoded(value), ENCODED
    return base64.b64encode(value).decode("ascii"), "binary"


def instant_text(at_ms: int) -> str:
    """ISO 8601 in UTC, with milliseconds."""
    return (_EPOCH + datetime.timedelta(milliseconds=at_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def instant_ms(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 instant; without an offset it is UTC."""
    instant = datetime.datetime.fromisoformat(text)
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=datetime.UTC)
    return (instant - _EPOCH) // datetime.timedelta(milliseconds=1)


def _encoded(value: object) -> str:
    return base64.b64encode(encode_value(value)).decode("ascii")


def _decoded(text: str) -> object:
    raw = base64.b64decode(text, validate=True)
    try:
        value, end = decode_value(raw, 0)
    except DecodeError as error:
        raise ValueError(str(error)) from error
    if end != len(raw):
        raise ValueError(f"{len(raw) - end} bytes too many")
    return value


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError("true or false")
    return text == "true"


_PARSERS: Final[dict[str, Callable[[str], object]]] = {
    "string": str,
    "long": int,
    "double": float,
    "symbol": Symbol,
    "char": Char,
    "int": lambda text: Int(int(text)),
    "uint": lambda text: UInt(int(text)),
    "ulong": lambda text: ULong(int(text)),
    "short": lambda text: Short(int(text)),
    "ushort": lambda text: UShort(int(text)),
    "byte": lambda text: Byte(int(text)),
    "ubyte": lambda text: UByte(int(text)),
    "float": lambda text: Float(float(text)),
    "boolean": _boolean,
    "uuid": uuid.UUID,
    "timestamp": lambda text: Timestamp(instant_ms(text)),
    "binary": lambda text: base64.b64decode(text, validate=True),
    ENCODED: _decoded,
}


def parse(name: str, text: str | None, kind: str) -> object:
    """Undo `render`; ValueError names the property."""
    if text is None or kind == "null":
        return None
    parser = _PARSERS.get(kind)
    if parser is None:
        raise ValueError(f"property {name!r}: {kind!r} is no type; one of {', '.join(sorted(_PARSERS))}")
    try:
        return parser(text)
    except ValueError as error:
        raise ValueError(f"property {name!r}: {text[:60]!r} is no {kind}: {error}") from error
