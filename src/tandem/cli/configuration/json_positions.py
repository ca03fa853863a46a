"""JSON that remembers on which line everything stands, and forgives comments and trailing commas as the emulator does."""

from __future__ import annotations

import json
import re
from typing import Final

Path = tuple[str | int, ...]

_BLANK: Final = re.compile(r"(?:[\s\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SCALAR: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_DEPTH_MAX: Final = 64


class JsonError(ValueError):
    """Not JSON. Knows the line."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(problem)
        self.line = line
        self.problem = problem


def parse(text: str) -> tuple[object, dict[Path, int]]:
    """The value, and the line of every key and list item by its path."""
    reader = _JsonReader(text)
    value = reader.value((), 0)
    reader.blank()
    if reader.at < len(text):
        raise JsonError(reader.line(), f"nothing may follow the end of the document, found {reader.excerpt()}")
    return value, reader.lines


class _JsonReader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self._counted_at = 0
        self._counted = 1

    def line(self) -> int:
        """Only ever asked at growing offsets, so counting goes on where it stopped."""
        self._counted += self.text.count("\n", self._counted_at, self.at)
        self._counted_at = self.at
        return self._counted

    def blank(self) -> None:
        match = _BLANK.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def excerpt(self) -> str:
        rest = self.text[self.at : self.at + 20].split("\n")[0]
        return f"'{rest}'" if rest else "the end of the file" if self.at >= len(self.text) else "the end of the line"

    def value(self, path: Path, depth: int) -> object:
        self.blank()
        self.lines.setdefault(path, self.line())
        if depth > _DEPTH_MAX:
            raise JsonError(self.line(), f"nested deeper than {_DEPTH_MAX} levels")
        here = self.text[self.at : self.at + 1]
        if here == "{":
            return self.members(path, depth)
        if here == "[":
            return self.items(path, depth)
        if here == '"':
            return self.string()
        match = _SCALAR.match(self.text, self.at)
        if not match or len(match.group()) > 400:
            raise JsonError(self.line(), f"a value is expected, found {self.excerpt()}")
        self.at = match.end()
        parsed: object = json.loads(match.group())
        return parsed

    def string(self) -> str:
        match = _STRING.match(self.text, self.at)
        if not match:
            raise JsonError(self.line(), f"a text in double quotes is expected, found {self.excerpt()}")
        try:
            parsed: str = json.loads(match.group())
        except ValueError as error:
            raise JsonError(self.line(), f"the text {match.group()[:40]} is not valid ({error})") from None
        self.at = match.end()
        return parsed

    def members(self, path: Path, depth: int) -> dict[str, object]:
        self.at += 1
        found: dict[str, object] = {}
        while not self.closes("}"):
            key = self.string()
            here = (*path, key)
            if key in found:
                raise JsonError(self.line(), f"the key '{key}' appears twice")
            self.lines[here] = self.line()
            self.blank()
            if self.text[self.at : self.at + 1] != ":":
                raise JsonError(self.line(), f"':' is expected after the key '{key}', found {self.excerpt()}")
            self.at += 1
            found[key] = self.value(here, depth + 1)
            self.separator("}")
        return found

    def items(self, path: Path, depth: int) -> list[object]:
        self.at += 1
        found: list[object] = []
        while not self.closes("]"):
            found.append(self.value((*path, len(found)), depth + 1))
            self.separator("]")
        return found

    def closes(self, bracket: str) -> bool:
        self.blank()
        if self.text[self.at : self.at + 1] != bracket:
            return False
        self.at += 1
        return True

    def separator(self, bracket: str) -> None:
        self.blank()
        here = self.text[self.at : self.at + 1]
        if here == ",":
            self.at += 1
        elif here != bracket:
            raise JsonError(self.line(), f"',' or '{bracket}' is expected, found {self.excerpt()}")
