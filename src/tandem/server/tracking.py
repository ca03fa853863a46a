"""Tracking ids: what ties an error a client saw to the line in our log, in the shape the service gives it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from tandem.model.errors import BusError, LockLost

Entropy = Callable[[int], bytes]
"""n -> n random bytes (`os.urandom` in production, seeded in tests)."""

_TAIL: Final = "TrackingId:"
_DESCRIPTION_CHARS_MAX: Final = 1_024


class Tracker:
    """Makes tracking ids and finishes descriptions for one namespace of one broker."""

    __slots__ = ("_entropy", "_namespace", "_node")

    def __init__(self, namespace: str, node: str, entropy: Entropy) -> None:
        self._namespace = namespace
        self._node = node
        self._entropy = entropy

    def new_id(self, store: int | None = None) -> str:
        """`<guid>_<node>`, with `_B<n>` when the trouble is with one store."""
        identity = f"{self._guid()}_{self._node}"
        return identity if store is None else f"{identity}_B{store}"

    def tail(self, tracking_id: str, entity: str, now: int) -> str:
        """What follows every description; `entity` may be empty (the namespace), `Queue:orders` or `orders`."""
        system = f"{self._namespace}:{entity}" if entity else self._namespace
        at = datetime.fromtimestamp(now // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        return f"{_TAIL}{tracking_id}, SystemTracker:{system}, Timestamp:{at}"

    def describe(self, error: BusError, entity: str, now: int, tracking_id: str | None = None) -> str:
        """The description as a client reads it. Finishing a finished one again changes nothing."""
        return self.finish(error.description, entity, now, tracking_id, reference=isinstance(error, LockLost))

    def finish(self, text: str, entity: str, now: int, tracking_id: str | None = None, reference: bool = False) -> str:
        """A text with its tail: lock errors carry a `Reference:` before it, as the service's do."""
        if _TAIL in text and ", SystemTracker:" in text:
            return text
        text = " ".join(text.split())
        if len(text) > _DESCRIPTION_CHARS_MAX:
            text = text[: _DESCRIPTION_CHARS_MAX - 1] + "…"
        lead = f"Reference:{self._guid()}, " if reference else ""
        tail = self.tail(tracking_id or self.new_id(), entity, now)
        return f"{text} {lead}{tail}" if text else lead + tail

    def _guid(self) -> str:
        return str(uuid.UUID(bytes=self._entropy(16), version=4))
