"""Dispositions out: equal answers to consecutive deliveries leave as one range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.amqp.frames import disposition_frame
from tandem.amqp.outcomes import REJECTED_CODE, decode_outcome, encode_rejected

if TYPE_CHECKING:
    from tandem.amqp.connection import Connection
    from tandem.amqp.session import Session

_MASK: Final = 0xFFFFFFFF


class Answers:
    """At most one range waits, of whichever session answered last."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.session: Session | None = None
        self.first = 0
        self.last = 0
        self.receiver_role = False
        self.settled = False
        self.state = b""

    def give(self, session: Session, receiver_role: bool, first: int, last: int, settled: bool, state: bytes) -> None:
        if (
            self.session is session
            and (self.last + 1) & _MASK == first
            and self.receiver_role == receiver_role
            and self.settled == settled
            and self.state == state
        ):
            self.last = last
            return
        if self.session is not None:
            self.flush()
        self.session = session
        self.first = first
        self.last = last
        self.receiver_role = receiver_role
        self.settled = settled
        self.state = state

    def flush(self) -> None:
        session = self.session
        if session is None:
            return
        self.session = None
        connection = self.connection
        state = self.state
        if len(state) > connection.outgoing_frame_bytes_max - 64:
            outcome = decode_outcome(state)
            if outcome.code == REJECTED_CODE:
                state = encode_rejected(connection.fitting(outcome.error))
        connection.out.append(disposition_frame(session.channel, self.receiver_role, self.first, self.last, self.settled, state))
