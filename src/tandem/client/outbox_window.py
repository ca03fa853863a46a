"""What an outbox has read from its disk and not delivered yet: in lanes, bounded, with no more of whom it cannot reach than a try needs."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tandem.client.outbox_store import Kept
from tandem.client.pauses import Pauses

Lane = tuple[str, str | int]
"""An entity and a session or key, within which order is kept; a number for messages that are in order with nobody."""


class Window:
    """Rows are read in the order of their ids. Entities of which some were passed over are left out of further readings, and read from the
    start when their turn comes: so what is here of a lane is always its front, in order."""

    def __init__(self, pauses: Pauses, messages_max: int, bytes_max: int, try_max: int, spread: int) -> None:
        """`try_max`: messages of an entity that failed last, until it takes one. `spread`: lanes for messages that have none."""
        self.lanes: dict[Lane, list[Kept]] = {}
        self.left_out: set[str] = set()
        self.read_to = 0
        self._pauses = pauses
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._try_max = try_max
        self._spread = spread

    def room(self) -> tuple[int, int]:
        """Messages and bytes that may be read now; one of them is 0 if none may."""
        held = [len(kept.entry.payload) for lane in self.lanes.values() for kept in lane]
        return max(0, self._messages_max - len(held)), max(0, self._bytes_max - sum(held))

    def entities(self) -> set[str]:
        return {entity for entity, _ in self.lanes}

    def known(self) -> set[int]:
        return {kept.id for lane in self.lanes.values() for kept in lane}

    def let_in(self, now: float) -> None:
        """Entities that took something meanwhile, or whose pause is over, are read again, from the start."""
        held = self.entities()
        untils = {entity: self._pauses.until(entity) for entity in self.left_out}
        back = {entity for entity, until in untils.items() if until == 0 or (now >= until and entity not in held)}
        if back:
            self.left_out -= back
            self.read_to = 0

    def take(self, found: Iterable[Kept], read_to: int) -> int:
        """How many of the rows that were read are new, and here now. `read_to`: no other row up to there is of interest."""
        self.read_to = max(self.read_to, read_to)
        known = self.known()
        taken = 0
        for kept in found:
            entity = kept.entry.entity
            self.read_to = max(self.read_to, kept.id)
            if kept.id in known or entity in self.left_out:
                continue
            if self._pauses.until(entity) and self._count(entity) >= self._try_max:
                self.left_out.add(entity)
                continue
            lane: Lane = (entity, kept.entry.lane if kept.entry.lane is not None else kept.id % self._spread)
            self.lanes.setdefault(lane, []).append(kept)
            taken += 1
        return taken

    def _count(self, entity: str) -> int:
        return sum(len(kept) for lane, kept in self.lanes.items() if lane[0] == entity)

    def delivered(self, lane: Lane, count: int) -> None:
        """From the front; what is left of the lane comes after all others."""
        kept = self.lanes.pop(lane)
        if kept[count:]:
            self.lanes[lane] = kept[count:]

    def failed(self, lane: Lane, busy: Collection[Lane]) -> None:
        """Its entity cannot be reached: what is not under way is safe on the disk, and makes room for others."""
        self.left_out.add(lane[0])
        for one in [one for one in self.lanes if one == lane or (one[0] == lane[0] and one not in busy)]:
            del self.lanes[one]

    def forget(self) -> None:
        """Somebody else may have delivered what is here."""
        self.lanes.clear()
        self.left_out.clear()
        self.read_to = 0
