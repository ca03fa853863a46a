"""Which numbered messages were accepted lately, so that two attempts of one task that send the same one have it stored once.

Kept in memory, for the few thousand messages that an attempt may have sent and not yet noted elsewhere; a restart of the broker forgets.
"""

from __future__ import annotations

from typing import Final

NUMBERS_MAX: Final = 8_192
"""Of one scope and entity; the syphon settles long before."""
_SCOPES_MAX: Final = 1_000


class SentOnce:
    """Of one namespace. A scope is whatever the sender numbers its messages in: a lease."""

    def __init__(self) -> None:
        self._scopes: dict[tuple[str, str], dict[int, bool]] = {}
        """(scope, path) -> number -> whether it is on disk."""

    def unseen(self, scope: str, path: str, numbers: list[int]) -> list[int] | None:
        """Places of those that are not here yet; None while one of them is on its way to the disk."""
        known = self._scopes.get((scope, path.casefold()), {})
        if any(known.get(number, True) is False for number in numbers):
            return None
        return [place for place, number in enumerate(numbers) if number not in known]

    def taken(self, scope: str, path: str, numbers: list[int]) -> None:
        """They are on their way to the disk; `stored` or `lost` has to follow."""
        key = scope, path.casefold()
        known = self._scopes.pop(key, {})
        self._scopes[key] = known  # the one used last is forgotten last
        while len(self._scopes) > _SCOPES_MAX:
            del self._scopes[next(iter(self._scopes))]
        for number in numbers:
            known[number] = False
        while len(known) > NUMBERS_MAX:
            del known[next(iter(known))]

    def stored(self, scope: str, path: str, numbers: list[int]) -> None:
        known = self._scopes.get((scope, path.casefold()), {})
        for number in numbers:
            if number in known:
                known[number] = True

    def lost(self, scope: str, path: str, numbers: list[int]) -> None:
        known = self._scopes.get((scope, path.casefold()), {})
        for number in numbers:
            known.pop(number, None)
