"""How a syphon carries messages home: in order, one transfer at a time; what waits and what is dead-lettered. One rule for every syphon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic

from tandem.client.destinations import Fate
from tandem.client.precedence import M

BATCH_BYTES: Final = 1_024
"""Kept free in every transfer for what a batch adds to its messages as a whole."""
MESSAGE_BYTES: Final = 8
"""What each message in a batch costs beside itself."""


class Lane(Generic[M]):
    """Messages of one destination whose order is kept. What is under way stays in the lane until it is accepted or dead-lettered."""

    def __init__(self, path: str, messages: Sequence[M], transfer_messages_max: int) -> None:
        self.path = path
        self.under_way: list[M] = []
        self._messages = messages
        self._at = 0
        self._transfer_messages_max = transfer_messages_max
        self._singly = 0
        """So many go one by one, because they were refused together."""

    def next_transfer(self, bytes_max: int) -> list[M]:
        """What goes next, a fence or as many messages as one transfer holds; nothing when all have gone."""
        size = BATCH_BYTES
        most = 1 if self._singly else self._transfer_messages_max
        self.under_way = []
        for message in self._messages[self._at : self._at + most]:
            size += len(message.payload) + MESSAGE_BYTES
            if self.under_way and (message.fence or size > bytes_max):
                break
            self.under_way.append(message)
            if message.fence:
                break
        return self.under_way

    def accepted(self) -> list[M]:
        """The destination has what was under way, or it was a fence."""
        done, self.under_way = self.under_way, []
        self._at += len(done)
        self._singly = max(0, self._singly - len(done))
        return done

    def refused(self, fate: Fate, whole_lane: bool = False) -> list[M] | None:
        """Which messages are dead-lettered for it; None if all that is left has to wait. `whole_lane`: the destination refused the link."""
        if fate is Fate.WAIT:
            self.under_way = []
            return None
        if whole_lane or fate is Fate.DEAD_LETTER_ALL:
            self.under_way = self.left()
        elif len(self.under_way) > 1:
            # One of them is refused for good; singly, in order, it is found.
            self._singly = len(self.under_way)
            self.under_way = []
        return self.accepted()

    def left(self) -> list[M]:
        """All that is neither accepted nor dead-lettered, in order."""
        return list(self._messages[self._at :])
