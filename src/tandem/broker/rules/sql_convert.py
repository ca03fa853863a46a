"""Conversions between the sorts of value a property can hold: done where nothing is lost, refused (None) elsewhere."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final
from uuid import UUID

from tandem.broker.rules.message_view import PropertyKind
from tandem.model.duration import parse_microseconds

_INTEGER: Final = re.compile(r"\s*[+-]?[0-9]{1,19}\s*", re.ASCII)
_FLOAT: Final = re.compile(r"\s*[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\s*", re.ASCII)
_TIME_SPAN: Final = re.compile(r"(-)?(?:([0-9]{1,8})\.)?([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,7}))?)?", re.ASCII)
_TEXT_TO_CONVERT_CHARS_MAX: Final = 400
"""Longer ones are no number, date or GUID."""
_INT64_LIMIT: Final = 1 << 63


def utc(value: datetime) -> datetime:
    """A date and time without a zone is taken as UTC."""
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value


def float_text(value: float) -> str:
    """As .NET writes a double for every culture: the shortest text that reads back as the same number."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0" if math.copysign(1.0, value) < 0 else "0"
    exact = Decimal(repr(float(value))).normalize()
    exponent = exact.adjusted()
    if -5 < exponent < 15:
        return f"{exact:f}"
    digits = "".join([str(digit) for digit in exact.as_tuple().digits])
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{'-' if value < 0 else ''}{digits[0]}{fraction}E{'+' if exponent > 0 else '-'}{abs(exponent):02d}"


def concatenable(value: object) -> str | None:
    """The text of what may stand beside a string in a concatenation."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return "True" if value else "False"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return float_text(value)
    return str(value) if isinstance(value, UUID) else None


def _time_span_text(value: timedelta) -> str:
    sign = "-" if value < timedelta(0) else ""
    value = abs(value)
    hours, rest = divmod(value.seconds, 3600)
    days = f"{value.days}." if value.days else ""
    fraction = f".{value.microseconds * 10:07d}" if value.microseconds else ""
    return f"{sign}{days}{hours:02d}:{rest // 60:02d}:{rest % 60:02d}{fraction}"


def text_of(value: object) -> str | None:
    if isinstance(value, datetime):
        at = utc(value).astimezone(UTC)
        return f"{at.replace(tzinfo=None).isoformat(timespec='microseconds')}0Z"
    if isinstance(value, timedelta):
        return _time_span_text(value)
    return concatenable(value)


def _parse_time_span(text: str) -> timedelta | None:
    """As .NET writes it, or as ISO 8601 does."""
    match = _TIME_SPAN.fullmatch(text)
    if match is not None:
        sign, days, hours, minutes, seconds, fraction = match.groups()
        text = f"{sign or ''}P{days or 0}DT{hours}H{minutes}M{seconds or 0}.{fraction or 0}S"
    microseconds = parse_microseconds(text)
    try:
        return None if microseconds is None else timedelta(microseconds=microseconds)
    except OverflowError:
        return None


def _parse_instant(text: str) -> datetime | None:
    try:
        return utc(datetime.fromisoformat(text))
    except ValueError:
        return None


def _parse_guid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None


def _to_integer(value: object) -> int | None:
    if isinstance(value, int):
        return None if isinstance(value, bool) else int(value)
    if isinstance(value, float):
        whole = value.is_integer() and abs(value) < _INT64_LIMIT
        return int(value) if whole else None
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        parsed = int(value)
        return parsed if -_INT64_LIMIT <= parsed < _INT64_LIMIT else None
    return None


def _to_float(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str) and _FLOAT.fullmatch(value):
        return float(value)
    return None


def _to_boolean(value: object) -> bool | None:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        word = value.strip().lower()
        return True if word == "true" else False if word == "false" else None
    return None


def to_kind(value: object, kind: PropertyKind) -> object:
    """The value as a property of this kind holds it, None if it cannot."""
    if kind is PropertyKind.TEXT:
        return text_of(value)
    if isinstance(value, str) and len(value) > _TEXT_TO_CONVERT_CHARS_MAX:
        return None
    if kind is PropertyKind.INTEGER:
        return _to_integer(value)
    if kind is PropertyKind.BOOLEAN:
        return _to_boolean(value)
    if kind is PropertyKind.INSTANT:
        return _parse_instant(value) if isinstance(value, str) else utc(value) if isinstance(value, datetime) else None
    if kind is PropertyKind.DURATION:
        return _parse_time_span(value) if isinstance(value, str) else value if isinstance(value, timedelta) else None
    return _parse_guid(value) if isinstance(value, str) else value if isinstance(value, UUID) else None


def as_existing(value: object, existing: object) -> object:
    """The value in the sort of what the property held before, if that is possible without loss; otherwise as it is."""
    if value is None or existing is None:
        return value
    converted: object
    if isinstance(existing, bool):
        converted = to_kind(value, PropertyKind.BOOLEAN)
    elif isinstance(existing, int):
        converted = to_kind(value, PropertyKind.INTEGER)
    elif isinstance(existing, float):
        converted = _to_float(value) if not isinstance(value, str) or len(value) <= _TEXT_TO_CONVERT_CHARS_MAX else None
    elif isinstance(existing, str):
        converted = text_of(value)
    elif isinstance(existing, datetime):
        converted = to_kind(value, PropertyKind.INSTANT)
    elif isinstance(existing, timedelta):
        converted = to_kind(value, PropertyKind.DURATION)
    elif isinstance(existing, UUID):
        converted = to_kind(value, PropertyKind.GUID)
    else:
        converted = None
    return value if converted is None else converted
