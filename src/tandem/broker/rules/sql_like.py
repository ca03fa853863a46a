"""LIKE patterns: matched in time linear in the text, whatever the pattern."""

from __future__ import annotations

from typing import Final

_ANY: Final = ""
"""Stands for `_` in a run of characters: no character of a pattern is empty."""


class Run:
    """Characters in a row, some of which may be `_`."""

    __slots__ = ("_everywhere", "_last", "_masks", "_parts", "length", "literal")

    def __init__(self, characters: list[str]) -> None:
        self.length: int = len(characters)
        self.literal: str | None = None if _ANY in characters else "".join(characters)
        self._parts: list[tuple[int, str]] = _literal_parts(characters)
        # Shift-and: one bit per character of the run, so that one step per character of the text tries all alignments at once.
        self._everywhere: int = 0
        self._last: int = 1 << (self.length - 1) if self.length else 0
        self._masks: dict[str, int] = {}
        if self.literal is None:
            for at, c in enumerate(characters):
                if c == _ANY:
                    self._everywhere |= 1 << at
            for at, c in enumerate(characters):
                if c != _ANY:
                    self._masks[c] = self._masks.get(c, self._everywhere) | (1 << at)

    def stands_at(self, text: str, at: int) -> bool:
        for offset, part in self._parts:  # noqa: SIM110 - a generator costs more than the loop
            if not text.startswith(part, at + offset):
                return False
        return True

    def find(self, text: str, start: int, end: int) -> int:
        """Where the run first stands within text[start:end], -1 if nowhere."""
        literal = self.literal
        if literal is not None:
            return text.find(literal, start, end)
        masks = self._masks
        everywhere = self._everywhere
        last = self._last
        state = 0
        at = start
        while at < end:
            state = ((state << 1) | 1) & masks.get(text[at], everywhere)
            at += 1
            if state & last:
                return at - self.length
        return -1


def _literal_parts(characters: list[str]) -> list[tuple[int, str]]:
    parts: list[tuple[int, str]] = []
    begin = 0
    for at in range(len(characters) + 1):
        if at == len(characters) or characters[at] == _ANY:
            if at > begin:
                parts.append((begin, "".join(characters[begin:at])))
            begin = at + 1
    return parts


class LikePattern:
    """A compiled pattern: a run at the beginning, runs in between in order, a run at the end; `%` is what separates them."""

    __slots__ = ("_first", "_last", "_length_min", "_middle", "_whole")

    def __init__(self, runs: list[Run]) -> None:
        self._whole: bool = len(runs) == 1
        """There is no `%`."""
        self._first: Run = runs[0]
        self._last: Run = runs[-1]
        self._middle: list[Run] = [run for run in runs[1:-1] if run.length]
        self._length_min: int = sum([run.length for run in runs])

    def matches(self, text: str) -> bool:
        if self._whole:
            return len(text) == self._length_min and self._first.stands_at(text, 0)
        if len(text) < self._length_min:
            return False
        end = len(text) - self._last.length
        if not self._first.stands_at(text, 0) or not self._last.stands_at(text, end):
            return False
        # The leftmost place for each run leaves the most room for the next: no need ever to go back.
        at = self._first.length
        for run in self._middle:
            at = run.find(text, at, end)
            if at < 0:
                return False
            at += run.length
        return True

    def equal_to(self) -> str | None:
        """The text, if the pattern matches just that."""
        return self._first.literal if self._whole else None

    def starts_with(self) -> str | None:
        """The prefix, if the pattern asks for nothing else."""
        return self._first.literal if not self._whole and not self._middle and self._last.length == 0 else None

    def ends_with(self) -> str | None:
        return self._last.literal if not self._whole and not self._middle and self._first.length == 0 else None

    def contains(self) -> str | None:
        if self._whole or self._first.length or self._last.length or len(self._middle) != 1:
            return None
        return self._middle[0].literal


def compile_like(pattern: str, escape: str) -> LikePattern:
    """`escape` is one character, or empty for none. ValueError if the pattern ends with it."""
    runs: list[Run] = []
    characters: list[str] = []
    escaped = False
    for c in pattern:
        if escaped:
            characters.append(c)
            escaped = False
        elif c == escape:
            escaped = True
        elif c == "%":
            runs.append(Run(characters))
            characters = []
        else:
            characters.append(_ANY if c == "_" else c)
    if escaped:
        raise ValueError("the pattern of LIKE ends with its escape character")
    runs.append(Run(characters))
    return LikePattern(runs)
