"""Sequence numbers as text: runs of consecutive ones as "first-last", in the order given."""

from __future__ import annotations

from collections.abc import Iterable

NUMBERS_MAX = 10_000_000
"""More than any batch holds: a range is a cheap way to ask for a lot of memory."""


def pack_ranges(numbers: Iterable[int]) -> str:
    """ "1-3,7,9-10". Order is kept, so 3, 2, 1 is "3,2,1". Zeros (places that are empty) are left out."""
    parts: list[str] = []
    first = last = 0
    for number in numbers:
        if number == 0:
            continue
        if first and number == last + 1:
            last = number
            continue
        if first:
            parts.append(_run(first, last))
        first = last = number
    if first:
        parts.append(_run(first, last))
    return ",".join(parts)


def _run(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def unpack_ranges(text: str, numbers_max: int = NUMBERS_MAX) -> list[int]:
    """Undo `pack_ranges`; ValueError says which part is none."""
    numbers: list[int] = []
    if not text:
        return numbers
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (first.isascii() and first.isdigit() and (not dash or (last.isascii() and last.isdigit()))):
            raise ValueError(f"{part[:40]!r} is no sequence number and no range of them")
        start, end = int(first), int(last) if dash else int(first)
        if not 0 < start <= end or len(numbers) + end - start >= numbers_max:
            raise ValueError(f"{part[:40]!r} is no range, or too large a one")
        numbers.extend(range(start, end + 1))
    return numbers
