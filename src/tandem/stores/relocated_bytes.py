"""How many bytes compaction wrote again besides bodies: counted as live, or it would find the same bytes dead again and never end."""

from __future__ import annotations


class RelocatedBytes:
    """Bytes of facts without a body (ids seen, states of sessions, counters) and of the heads of relocated messages, by segment.

    Nobody says when such a fact is dead: it counts as alive until its segment is walked again. After a restart the books
    begin anew, which costs one walk.
    """

    __slots__ = ("_by_segment",)

    def __init__(self) -> None:
        self._by_segment: dict[int, int] = {}

    def add(self, segment: int, grown: int, body_bytes: int) -> None:
        """The log grew by this much for one record of `body_bytes`; a body that came along is counted where bodies are."""
        if grown > 0:
            relocated = grown - body_bytes if grown > body_bytes else grown
            self._by_segment[segment] = self._by_segment.get(segment, 0) + relocated

    def drop(self, segment: int) -> None:
        self._by_segment.pop(segment, None)

    def of(self, segment: int) -> int:
        return self._by_segment.get(segment, 0)

    @property
    def total(self) -> int:
        return sum(self._by_segment.values())
