"""What becomes of a diverted message its destination does not take: it waits, or it can never be delivered. One rule for every syphon.

Away, busy, or not for us: it waits for ever. The destination is missing, disabled or full: it waits as long as a setting says, counted from
the first refusal since the destination last took something. The message itself is refused: it goes to the backlog's dead letters.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

from tandem.client.verdicts import Verdict, classify_condition

WAIT_SECONDS: Final = 86_400
"""A day: time to find out that a queue is gone, and to put it back."""
_DESTINATIONS_MAX: Final = 10_000
_MISSING_OR_DISABLED: Final = frozenset({"amqp:not-found", "amqp:resource-deleted", "com.microsoft:entity-disabled"})


class Trouble(enum.Enum):
    """Why a message was not taken."""

    AWAY = "away"
    DESTINATION = "destination"
    """Missing, disabled or full: somebody may mend that."""
    MESSAGE = "message"
    """Too large, without the session it needs, not decodable: refused today and tomorrow."""


class Fate(enum.Enum):
    """Of a message that was not taken."""

    WAIT = "wait"
    DEAD_LETTER = "dead-letter"
    DEAD_LETTER_ALL = "dead-letter all"
    """And with it whatever else is for the same destination: it would hear the same."""


def trouble_of(verdict: Verdict, condition: str) -> Trouble:
    if verdict is Verdict.QUOTA or (verdict is Verdict.REFUSED and condition in _MISSING_OR_DISABLED):
        return Trouble.DESTINATION
    return Trouble.MESSAGE if verdict is Verdict.REFUSED else Trouble.AWAY


def trouble_of_condition(condition: str) -> Trouble:
    """The same for a transport that has only the condition."""
    return trouble_of(classify_condition(condition), condition)


class Destinations:
    """Which destinations refuse everything, and since when (milliseconds of the caller's clock)."""

    def __init__(self, wait_ms: int, refusing: Mapping[str, int] | None = None) -> None:
        self._wait_ms = wait_ms
        self.refusing: dict[str, int] = dict(refusing or {})
        """By path, without case; a message dead-lettered because the time was over does not end it."""

    def judge(self, trouble: Trouble, path: str, now_ms: int) -> Fate:
        if trouble is Trouble.AWAY:
            return Fate.WAIT
        if trouble is Trouble.MESSAGE:
            return Fate.DEAD_LETTER
        if len(self.refusing) >= _DESTINATIONS_MAX:
            self.refusing.pop(next(iter(self.refusing)))
        since = self.refusing.setdefault(path.casefold(), now_ms)
        return Fate.WAIT if now_ms - since < self._wait_ms else Fate.DEAD_LETTER_ALL

    def took(self, path: str) -> bool:
        """The destination has taken a message; whether it had refused before."""
        return self.refusing.pop(path.casefold(), None) is not None
