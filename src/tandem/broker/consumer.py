"""A receiver as its queue sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from tandem.broker.locks import Lock
    from tandem.broker.message_sessions import MessageSession
    from tandem.model.errors import BusError
    from tandem.model.message import Message

HELD_BYTES_MAX: Final = 2_097_152
"""Bytes chosen for one receive-and-delete consumer that may wait for the disk, about."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Selector:
    """Lets everything through. The gateway, which can read messages, subclasses it."""

    __slots__ = ()

    def matches(self, message: Message, count: int) -> bool:
        """`count` deliveries have failed."""
        return True


@mypyc_attr(allow_interpreted_subclasses=True)
class Consumer:
    """A receiver as the queue sees it. The gateway subclasses it per link."""

    __slots__ = ("copies", "peek_lock", "reserved", "reserved_bytes", "searching", "selector", "session", "waiting")

    def __init__(self, peek_lock: bool) -> None:
        self.peek_lock: bool = peek_lock
        self.session: MessageSession | None = None
        self.waiting: bool = False
        self.reserved: int = 0
        """Receive-and-delete deliveries that wait for the disk: room already spent."""
        self.reserved_bytes: int = 0
        self.selector: Selector | None = None
        """It wants only what this lets through."""
        self.copies: bool = False
        """It only looks (with a selector, if need be one that lets everything through)."""
        self.searching: bool = False
        """There may be more for it among what is there: it is being looked for."""

    def room(self) -> int:
        """How many messages it can take now."""
        return 0

    def room_left(self) -> int:
        """The same, less what is on its way; none while as many bytes are as may be."""
        return self.room() - self.reserved if self.reserved_bytes < HELD_BYTES_MAX else 0

    def deliver(self, message: Message, seq: int, enqueued_at: int, count: int, expires_at: int, lock: Lock | None) -> None:
        """One message; `lock` is None when it is already gone from the queue."""

    def caught_up(self) -> None:
        """What kept the queue from delivering to it (the disk, a body to be read) is over: answer a drain now."""

    def lost(self, error: BusError) -> None:
        """The queue takes something away from it: its session, or itself."""
