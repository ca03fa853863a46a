"""Durations, instants and texts between our integers and XML Schema, in the exact forms the service writes."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final
from xml.sax.saxutils import escape

from tandem.model.duration import format_microseconds, parse_microseconds
from tandem.model.entity import MAX_DURATION_MS
from tandem.model.errors import ArgumentRefused

MAX_DURATION_TEXT: Final = "P10675199DT2H48M5.4775807S"
NEVER_TEXT: Final = "0001-01-01T00:00:00Z"

_NOT_XML: Final = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def parse_timespan(prop: str, text: str) -> int:
    """An xs:duration in microseconds."""
    found = parse_microseconds(text.strip())
    if found is None:
        shown = text.strip()[:60]
        raise ArgumentRefused(f"{prop} is '{shown}'; a duration like P1DT2H3M4.5S is needed (days, hours, minutes, seconds)")
    return found


def parse_duration(prop: str, text: str) -> int:
    """In milliseconds. Clients round the service's maximum up or down by a microsecond: all of that is the maximum."""
    ms = parse_timespan(prop, text) // 1000
    return MAX_DURATION_MS if MAX_DURATION_MS <= ms <= MAX_DURATION_MS + 1 else ms


def format_duration(ms: int) -> str:
    return MAX_DURATION_TEXT if ms >= MAX_DURATION_MS else format_microseconds(ms * 1000)


def format_instant(ms: int) -> str:
    """UTC, with Z; 0 is "never", which .NET writes as its smallest instant."""
    if ms == 0:
        return NEVER_TEXT
    instant = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{instant}.{ms % 1000:03d}Z" if ms % 1000 else f"{instant}Z"


def parse_datetime(prop: str, text: str) -> datetime:
    """Of a rule's parameter. With or without a zone, and it stays so."""
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise ArgumentRefused(f"{prop} is '{text.strip()[:60]}'; an instant like 2024-01-31T12:00:00Z is needed") from None


def format_datetime(value: datetime) -> str:
    text = value.isoformat()
    return text.removesuffix("+00:00") + "Z" if value.tzinfo is not None and value.utcoffset() == timedelta(0) else text


def escaped(text: str) -> str:
    """Text as XML content or attribute. What XML cannot say at all becomes U+FFFD rather than a broken document."""
    return escape(_NOT_XML.sub("\ufffd", text), {"\r": "&#13;", '"': "&quot;", "\n": "&#10;", "\t": "&#9;"})


def element(name: str, value: object) -> str:
    """`<name>value</name>`, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        value = "true" if value else "false"
    return f"<{name}>{escaped(str(value))}</{name}>"
