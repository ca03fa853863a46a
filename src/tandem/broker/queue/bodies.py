"""Messages are read back from the store when they are wanted and not in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.broker.ports import FetchEffect, Loaded
from tandem.broker.queue.passage import Crossing
from tandem.broker.queue.rows import Rows
from tandem.model.errors import Corrupt
from tandem.model.message import DAMAGED_TTL, Message, decode_body

if TYPE_CHECKING:
    from tandem.broker.turn import TurnSlot


class Lost:
    """What becomes of a message whose body was lost to damage."""

    def set_aside(self, seq: int, message: Message) -> None:
        """`message` says where."""


class Bodies:
    """Of one queue."""

    def __init__(self, rows: Rows, slot: TurnSlot, path: str) -> None:
        self.rows: Rows = rows
        self.slot: TurnSlot = slot
        self.lost: Lost = Lost()
        self._path: str = path

    def hand_lost_to(self, lost: Lost) -> None:
        self.lost = lost

    def load(self, seqs: list[int], then: Loaded) -> None:
        """Give `then` these messages: at once when all are hot, else when the store has read them."""
        rows = self.rows
        hot = rows.hot
        missing = [seq for seq in seqs if seq not in hot and rows.index.state(seq)]
        if not missing:
            then.loaded([hot.get(seq) for seq in seqs], None)
            return
        locations = [rows.index.location(seq) for seq in missing]
        # Kept meanwhile: one that is hot now may have cooled down, and still be here, when the others have been read.
        warm: dict[int, Message] = {}
        for seq in seqs:
            message = hot.get(seq)
            if message is not None:
                warm[seq] = message
        rows.backing.journal.fetch(locations, _Loading(self, seqs, missing, warm, then))

    def load_to_write(self, seqs: list[int], then: Loaded) -> None:
        """As `load`, for messages that are written again, in their turn: few of the store are under way at a time."""
        self.rows.backing.passage.enter(_Rewritten(self, seqs, then))

    def decode(self, seq: int, body: bytes) -> Message:
        try:
            return decode_body(body)
        except (ValueError, IndexError) as error:
            raise Corrupt(f"message {seq} of '{self._path}' cannot be read back: {error}") from error


class _Rewritten(Crossing):
    __slots__ = ("bodies", "seqs", "size", "then")

    def __init__(self, bodies: Bodies, seqs: list[int], then: Loaded) -> None:
        self.bodies = bodies
        self.seqs = seqs
        self.size: int = 0
        self.then = then

    def begin(self) -> int:
        index = self.bodies.rows.index
        size = 0
        for seq in self.seqs:
            if index.state(seq):
                size += index.size(seq)
        self.size = size
        return size

    def read(self) -> None:
        self.bodies.load(self.seqs, _ReadToWrite(self))

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        of = self.bodies
        backing = of.rows.backing
        try:
            self.then.loaded(messages, error)
        finally:
            backing.passage.arrived(self.size, backing.journal)
            of.slot.turn.schedule()


class _ReadToWrite(Loaded):
    __slots__ = ("rewritten",)

    def __init__(self, rewritten: _Rewritten) -> None:
        self.rewritten = rewritten

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        self.rewritten.loaded(messages, error)


class _Loading(FetchEffect):
    __slots__ = ("bodies", "missing", "seqs", "then", "warm")

    def __init__(self, bodies: Bodies, seqs: list[int], missing: list[int], warm: dict[int, Message], then: Loaded) -> None:
        self.bodies = bodies
        self.seqs = seqs
        self.missing = missing
        self.warm = warm
        self.then = then

    def fetched(self, bodies: list[bytes], error: BaseException | None) -> None:
        of = self.bodies
        of.slot.turn.begin()
        if error is not None:
            self.then.loaded([], error)
            return
        found = self.warm
        damaged: list[tuple[int, Message]] = []
        try:
            for seq, body in zip(self.missing, bodies, strict=True):
                message = of.decode(seq, body)
                if message.ttl_ms == DAMAGED_TTL:
                    damaged.append((seq, message))
                else:
                    found[seq] = message
        except Corrupt as damage:
            self.then.loaded([], damage)
            return
        for seq, lost in damaged:
            of.lost.set_aside(seq, lost)
        messages: list[Message | None] = []
        for seq in self.seqs:
            messages.append(found.get(seq) if of.rows.index.state(seq) else None)
        self.then.loaded(messages, None)
