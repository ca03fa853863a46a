"""What looking at a backlog queue without taking from it shows: whose messages stand where."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tandem.client.envelope import FENCE, PATH, SESSION_ID, text

ANYWHERE: Final = "*"
"""Instead of a list of queues that would be too long to travel with a message."""
_NAMED_MAX: Final = 16

Key = tuple[str, str]
"""(path without case, session id): what is kept in order."""


@dataclass(frozen=True, slots=True)
class Place:
    """One message of a backlog queue, whether it waits, is locked or leased."""

    sequence_number: int
    enqueued_ms: int
    path: str
    """Without case; empty if the message names none."""
    session_id: str | None
    fence: str
    """Its id if the message is one, else empty."""

    @property
    def key(self) -> Key | None:
        """None for what is not kept in order."""
        return (self.path, self.session_id) if self.session_id is not None and not self.fence else None


def place_of(
    sequence_number: int, enqueued_ms: int, application_properties: Mapping[Any, object] | None, annotations: Mapping[Any, object] | None
) -> Place:
    """From the sections of a message as either codec decodes them."""
    path, session = _get(application_properties, PATH), _get(application_properties, SESSION_ID)
    fence = _get(annotations, FENCE)
    return Place(sequence_number, enqueued_ms, (path or "").casefold(), session, fence or "")


def _get(section: Mapping[Any, object] | None, name: str) -> str | None:
    if not section:
        return None
    value = section.get(name, section.get(name.encode()))
    return text(value) if isinstance(value, (str, bytes)) else None


def gaps(sequence_numbers: Iterable[int]) -> list[tuple[int, int]]:
    """(first, end) of every stretch below the highest of these that none of them is in: where others may stand before them."""
    found = []
    next_number = 1
    for number in sorted(sequence_numbers):
        if number > next_number:
            found.append((next_number, number))
        next_number = number + 1
    return found


def write_after(queues: Iterable[str]) -> str:
    """Backlog queues as a message carries them: by what tells them apart, their number."""
    numbers = sorted(name.rpartition("/")[2] for name in queues)
    return ANYWHERE if len(numbers) > _NAMED_MAX else ",".join(numbers)


def read_after(after: str, queue: str, all_queues: Iterable[str]) -> list[str]:
    """The backlog queues meant by a message that stands in `queue`."""
    if after == ANYWHERE:
        return [name for name in all_queues if name != queue]
    prefix = queue.rpartition("/")[0]
    named = [f"{prefix}/{number}" if prefix else number for number in after.split(",") if number]
    return [name for name in named if name != queue]
