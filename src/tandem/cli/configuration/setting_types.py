"""What a setting may hold: each kind reads a value and says, in words, what it allows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from tandem.model.duration import parse_microseconds
from tandem.model.entity import MAX_DURATION_MS

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 3_600_000
DAY_MS: Final = 86_400_000

_SHORT: Final = re.compile(r"(?:(\d+)d)?\s*(?:(\d+)h)?\s*(?:(\d+)m(?!s))?\s*(?:(\d+)s)?\s*(?:(\d+)ms)?", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9._~-]+(?:/[A-Za-z0-9._~-]+)*", re.ASCII)
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)
_TRUE: Final = ("true", "1", "yes", "on")
_FALSE: Final = ("false", "0", "no", "off")


class InvalidSetting(ValueError):
    """The value is not one this kind allows."""


class SettingType(Protocol):
    @property
    def allowed(self) -> str:
        """In words, for error messages and the reference page."""

    def read(self, found: object) -> object:
        """The value as the house uses it, or InvalidSetting."""

    def read_text(self, found: str) -> object:
        """The same from the environment or the command line, where everything is text."""


@dataclass(frozen=True, slots=True)
class Flag:
    allowed: str = "true or false"

    def read(self, found: object) -> bool:
        if isinstance(found, bool):
            return found
        raise InvalidSetting

    def read_text(self, found: str) -> bool:
        folded = found.strip().casefold()
        if folded in _TRUE:
            return True
        if folded in _FALSE:
            return False
        raise InvalidSetting


@dataclass(frozen=True, slots=True)
class Integer:
    low: int = 0
    high: int = 2**63 - 1
    scale: int = 1
    """What one unit is worth inside: 1024 for kilobytes kept as bytes."""

    @property
    def allowed(self) -> str:
        if self.high >= 2**31 - 1:
            return f"a whole number from {self.low}"
        return f"a whole number from {self.low} to {self.high}"

    def read(self, found: object) -> int:
        if isinstance(found, int) and not isinstance(found, bool) and self.low <= found <= self.high:
            return found * self.scale
        raise InvalidSetting

    def read_text(self, found: str) -> int:
        digits = found.strip().replace("_", "")
        if not re.fullmatch(r"-?\d{1,19}", digits, re.ASCII):
            raise InvalidSetting
        return self.read(int(digits))


@dataclass(frozen=True, slots=True)
class Text:
    chars_max: int = 1_024
    empty: bool = False
    allowed: str = "a text"

    def read(self, found: object) -> str:
        if isinstance(found, str) and len(found) <= self.chars_max and (found or self.empty):
            return found
        raise InvalidSetting

    def read_text(self, found: str) -> str:
        return self.read(found)


@dataclass(frozen=True, slots=True)
class Name:
    """A path of an entity, or any other name that ends up in one."""

    chars_max: int = 260
    plain: bool = False
    """Also the name of a directory or a host: no dots, no slashes."""

    @property
    def allowed(self) -> str:
        marks = "'-' and '_'" if self.plain else "'.', '-', '_', '~' and '/'"
        return f"a name of letters, digits, {marks}, at most {self.chars_max} characters"

    def read(self, found: object) -> str:
        pattern = _PLAIN_NAME if self.plain else _NAME
        if isinstance(found, str) and len(found) <= self.chars_max and pattern.fullmatch(found):
            return found
        raise InvalidSetting

    def read_text(self, found: str) -> str:
        return self.read(found)


@dataclass(frozen=True, slots=True)
class Duration:
    low: int = 0
    high: int = MAX_DURATION_MS

    @property
    def allowed(self) -> str:
        bounds = (
            f"of at least {show_duration(self.low)}"
            if self.high >= MAX_DURATION_MS
            else f"from {show_duration(self.low)} to {show_duration(self.high)}"
        )
        return f'a duration {bounds}, written as "PT1M30S" or "1m 30s"'

    def read(self, found: object) -> int:
        if not isinstance(found, str):
            raise InvalidSetting
        ms = parse_duration(found)
        if ms is None or not self.low <= ms <= self.high:
            raise InvalidSetting
        return ms

    def read_text(self, found: str) -> int:
        return self.read(found)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words, whatever their case."""

    words: tuple[str, ...]
    make: Callable[[str], object] = str

    @property
    def allowed(self) -> str:
        return " or ".join(f'"{word}"' for word in self.words)

    def read(self, found: object) -> object:
        if isinstance(found, str):
            for word in self.words:
                if word.casefold() == found.casefold():
                    return self.make(word)
        raise InvalidSetting

    def read_text(self, found: str) -> object:
        return self.read(found)


@dataclass(frozen=True, slots=True)
class Many:
    """A list of one kind; as text, separated by commas."""

    of: SettingType
    least: int = 0

    @property
    def allowed(self) -> str:
        return f"a list, each {self.of.allowed}"

    def read(self, found: object) -> tuple[object, ...]:
        if isinstance(found, Sequence) and not isinstance(found, str) and len(found) >= self.least:
            return tuple(self.of.read(item) for item in found)
        raise InvalidSetting

    def read_text(self, found: str) -> tuple[object, ...]:
        items = [item for item in (part.strip() for part in found.split(",")) if item]
        if len(items) < self.least:
            raise InvalidSetting
        return tuple(self.of.read_text(item) for item in items)


@dataclass(frozen=True, slots=True)
class File:
    """A path, relative to the file it stands in."""

    allowed: str = "a path"

    def read(self, found: object) -> Path:
        if isinstance(found, str) and found and "\0" not in found:
            return Path(found)
        raise InvalidSetting

    def read_text(self, found: str) -> Path:
        return self.read(found)


def parse_duration(text: str) -> int | None:
    """Milliseconds of `PT1M30S` or `1m 30s`; None when it is neither. "For ever" is capped, not refused."""
    text = text.strip()
    microseconds = parse_microseconds(text.upper().replace(",", "."))
    if microseconds is not None:
        return min(microseconds // 1000, MAX_DURATION_MS) if microseconds >= 0 else None
    match = _SHORT.fullmatch(text)
    if not match or not any(match.groups()):
        return None
    days, hours, minutes, seconds, ms = (int(found or 0) for found in match.groups())
    return min(days * DAY_MS + hours * HOUR_MS + minutes * MINUTE_MS + seconds * SECOND_MS + ms, MAX_DURATION_MS)


def show_duration(ms: int) -> str:
    """The short form: `1d 2h 3m 4s 5ms`."""
    if ms >= MAX_DURATION_MS:
        return "for ever"
    parts = []
    for unit, size in (("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS), ("s", SECOND_MS), ("ms", 1)):
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"
