"""Which attempt works on a lease, or at a task: one at a time, until it says that it is done or is not heard of any more.

Claims are kept in memory. After a restart the broker does not know who worked on the leases it finds in its journal: for as long as a
claim may last, only an attempt that says it had claimed one before gets it.
"""

from __future__ import annotations

from typing import Final

CLAIM_MS_MAX: Final = 60_000
_KNOWN_MAX: Final = 100_000


class ClaimedLeases:
    """Of one namespace."""

    def __init__(self) -> None:
        self._tasks: dict[tuple[str, str], tuple[str, int]] = {}
        """(path, task) -> (attempt, until)."""
        self._known: dict[tuple[str, str], tuple[str, int]] = {}
        """(path, lease) -> (attempt, until); nobody's if the attempt is empty."""
        self._found_until = 0
        """Until then a lease that nobody here has granted may be claimed by one we do not know of."""

    def granted(self, path: str, lease_id: str) -> None:
        """A new lease: nobody works on it yet."""
        while len(self._known) >= _KNOWN_MAX:
            self._known.pop(next(iter(self._known)))
        self._known[path.casefold(), lease_id] = ("", 0)

    def ended(self, path: str, lease_id: str) -> None:
        self._known.pop((path.casefold(), lease_id), None)

    def claim_task(self, path: str, task: str, attempt: str, duration_ms: int, now: int) -> tuple[str, int]:
        """(who has it now, until when). A task is any name that its attempts agree on; one that is not known is nobody's."""
        key = path.casefold(), task
        holder, until = self._tasks.get(key, ("", 0))
        if holder not in ("", attempt) and until > now:
            return holder, until
        self._tasks.pop(key, None)
        if not duration_ms:
            return "", 0
        while len(self._tasks) >= _KNOWN_MAX:
            self._tasks.pop(next(iter(self._tasks)))  # renewed the longest time ago
        self._tasks[key] = attempt, now + duration_ms
        return self._tasks[key]

    def claim(self, path: str, lease_id: str, attempt: str, duration_ms: int, held: bool, now: int) -> tuple[str, int]:
        """(who has it now, until when). `held`: the attempt says that it has had it. A duration of 0 lets it go."""
        if not self._found_until:
            self._found_until = now + CLAIM_MS_MAX
        key = path.casefold(), lease_id
        unknown = ("", 0) if held else ("unknown since a restart", self._found_until)
        holder, until = self._known.get(key, unknown)
        if holder in ("", attempt) or until <= now:
            holder, until = (attempt, now + duration_ms) if duration_ms else ("", 0)
            self._known[key] = holder, until
        return holder, until
