"""Bodies that are not on disk yet, found by location without having cost the append anything."""

from __future__ import annotations

from tandem.stores.blocks import RECORD_BYTES


class RecentBodies:
    """A map over a group's parts, built only as far and as soon as somebody asks."""

    __slots__ = ("_bodies", "_done", "_next", "_parts")

    def __init__(self, parts: list[bytes], first_location: int) -> None:
        self._parts: list[bytes] = parts
        self._next: int = first_location
        self._done: int = 0
        self._bodies: dict[int, bytes] = {}

    def find(self, location: int) -> bytes | None:
        parts = self._parts
        location_of = self._next
        for at in range(self._done, len(parts), 3):
            key = parts[at + 1]
            body = parts[at + 2]
            self._bodies[location_of] = body
            location_of += RECORD_BYTES + len(key) + len(body)
        self._next = location_of
        self._done = len(parts)
        return self._bodies.get(location)
