"""How many messages may be asked for at once, so that a batch stays within its bytes whatever their sizes are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

_USUAL_BYTES: Final = 262_144
"""Of the largest message that a queue takes unless it is told otherwise: before anything is known of their sizes."""


class BatchBudget:
    """A receiver asks for messages by number. The largest seen lately says how many fit; what was seen longer ago counts half as much with
    each batch, so that numbers grow again. Only a batch in which messages become larger all of a sudden can exceed the bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._largest = _USUAL_BYTES

    def count(self, wanted: int) -> int:
        """At least one: a message larger than the budget has to be moved too."""
        return max(1, min(wanted, self._bytes_max // self._largest))

    def seen(self, sizes: Iterable[int]) -> None:
        self._largest = max([*sizes, self._largest // 2, 1])
