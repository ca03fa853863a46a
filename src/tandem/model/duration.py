"""ISO 8601 durations of days, hours, minutes and seconds; years and months have no fixed length and are none."""

from __future__ import annotations

import re
from typing import Final

_FORM: Final = re.compile(
    r"(-)?P(?=[0-9T])(?:([0-9]{1,12})D)?(?:T(?=[0-9])(?:([0-9]{1,12})H)?(?:([0-9]{1,12})M)?(?:([0-9]{1,12})(?:\.([0-9]{1,12}))?S)?)?",
    re.ASCII,
)


def parse_microseconds(text: str) -> int | None:
    """Of `P1DT2H3M4.5S`; what is finer is cut off. None: it is no duration."""
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    sign, days, hours, minutes, seconds, fraction = match.groups()
    whole = ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    total = whole * 1_000_000 + int((fraction or "").ljust(6, "0")[:6])
    return -total if sign else total


def format_microseconds(microseconds: int) -> str:
    sign, left = ("-", -microseconds) if microseconds < 0 else ("", microseconds)
    seconds, fraction = divmod(left, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    second_text = f"{seconds}.{fraction:06d}".rstrip("0") if fraction else str(seconds)
    time = "".join(f"{value}{unit}" for value, unit in ((hours, "H"), (minutes, "M")) if value)
    if seconds or fraction:
        time += f"{second_text}S"
    if not days and not time:
        return "PT0S"
    return f"{sign}P{f'{days}D' if days else ''}{f'T{time}' if time else ''}"
