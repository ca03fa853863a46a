"""RFC 1982 arithmetic on 32-bit sequence numbers, which wrap where Python integers do not."""

from __future__ import annotations

from typing import Final

MASK: Final = 0xFFFFFFFF


def add(a: int, n: int) -> int:
    return (a + n) & MASK


def difference(a: int, b: int) -> int:
    """How far `a` lies ahead of `b`: negative when behind, in -2^31 … 2^31-1."""
    d = (a - b) & MASK
    return d - 0x100000000 if d & 0x80000000 else d
