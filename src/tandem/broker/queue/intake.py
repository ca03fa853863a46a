"""How messages come into a queue: everything a send must meet, then a number, a row, and with the next commit a place in the line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.broker.meters import DUPLICATE, OK, PING, SCHEDULE, SEND, Meter
from tandem.broker.ports import Effect
from tandem.broker.queue.index import READY, SCHEDULED
from tandem.broker.queue.ledger import Ledger
from tandem.broker.queue.rows import Rows
from tandem.broker.queue.sessions import SessionEvents
from tandem.broker.queue.terms import Terms
from tandem.model.entity import MAX_DURATION_MS
from tandem.model.errors import EntityDisabled, MessageSizeExceeded, NotAllowed, QuotaExceeded, StoreFull
from tandem.model.message import NO_TTL, OVERHEAD_BYTES, Message

if TYPE_CHECKING:
    from tandem.broker.ports import RowId

_FOREVER_MS: Final = MAX_DURATION_MS


class Intake:
    """The sending half of a queue."""

    def __init__(self, ledger: Ledger, terms: Terms, meter: Meter) -> None:
        self.ledger: Ledger = ledger
        self.rows: Rows = ledger.rows
        self.terms: Terms = terms
        self.meter: Meter = meter
        self.sessions: SessionEvents = SessionEvents()
        self.shares_room: bool = False
        """Its size is not that of its own rows alone: only `check_room` knows it."""
        self.names_rows: bool = False
        """What it takes may have rows elsewhere, and `rows_of` knows them until it takes the next."""
        self.pings: int = 0
        self.duplicates_dropped: int = 0
        self._visible: _Visible | None = None

    def tell_sessions(self, sessions: SessionEvents) -> None:
        self.sessions = sessions

    # -- checks ------------------------------------------------------------------------------

    def check_send(self, message: Message, body_bytes: int) -> None:
        """Everything a send must meet; a ping must meet it too, because it stands for one."""
        check_terms(self.terms, message, body_bytes)
        self.check_room(body_bytes)

    def check_room(self, body_bytes: int) -> None:
        path = self.terms.path
        short_of_room = self.rows.backing.short_of_room
        if short_of_room:
            raise StoreFull(f"'{path}' takes no messages: {short_of_room}. Receive messages, or try again later.")
        quota = self.terms.quota_bytes
        if self.rows.index.size_bytes + body_bytes > quota:
            raise QuotaExceeded(f"The maximum entity size of '{path}' ({quota} bytes) is reached. Receive messages, or raise the size.")

    # -- taking ------------------------------------------------------------------------------

    def enqueue(self, message: Message, now: int) -> int:
        """Take a message in; returns its sequence number, 0 when it is accepted and dropped (ping, duplicate).

        Nobody sees it, and nobody may be told, before the journal's next commit.
        """
        size = message.size_bytes
        terms = self.terms
        rows = self.rows
        if (
            not terms.may_send
            or terms.has_sessions
            or size > terms.message_bytes_max
            or self.shares_room
            or rows.backing.short_of_room
            or rows.index.size_bytes + size > terms.quota_bytes
        ):
            self.check_send(message, size)
        if message.is_ping or rows.history is not None or message.scheduled_at > now:
            return self.admit(message, now)
        number = self.place(message, now)
        self.meter.sent(size)
        return number

    def admit(self, message: Message, now: int) -> int:
        """As `enqueue`, for a message that was checked."""
        if message.is_ping:
            self.pings += 1
            self.meter.add(PING, OK, 1, message.size_bytes)
            return 0
        history = self.rows.history
        if history is not None and history.seen(message.message_id, now):
            self.duplicates_dropped += 1
            self.meter.add(SEND, DUPLICATE, 1, message.size_bytes)
            return 0
        number = self.place(message, now)
        if message.scheduled_at > now:
            self.meter.add(SCHEDULE, OK, 1, message.size_bytes)
        else:
            self.meter.sent(message.size_bytes)
        return number

    def place(self, message: Message, now: int) -> int:
        """Everything was checked: the message gets its number and its row."""
        if message.scheduled_at > now:
            seq = self.ledger.enqueue(message, SCHEDULED, now, 0, 0)
            self.ledger.slot.wake(message.scheduled_at)
        else:
            terms = self.terms
            never = message.ttl_ms == NO_TTL and terms.default_ttl_ms >= _FOREVER_MS
            expires_at = 0 if never else terms.expiry(message.ttl_ms, now)
            seq = self.ledger.enqueue(message, READY, now, expires_at, 0)
            self.rows.keep_hot(seq, message, False)
            if expires_at:
                self.ledger.slot.wake(expires_at)
        self._await_visibility(seq)
        return seq

    def take_over(self, message: Message, enqueued_at: int, count: int) -> int:
        """A message that moves in from another (sub-)queue, in the same block as its leaving there."""
        seq = self.ledger.enqueue(message, READY, enqueued_at, 0, count)
        self.rows.keep_hot(seq, message, False)
        self._await_visibility(seq)
        return seq

    def add_shared(self, message: Message, location: int, size: int, seq: int, expires_at: int, now: int) -> None:
        """A row whose body is kept once for several queues: the topic wrote it, this queue only points at it."""
        self.rows.apply_published(seq, message.session_id, now, expires_at, location, size)
        self.rows.keep_hot(seq, message, False)
        self.ledger.slot.wake(expires_at)
        self._await_visibility(seq)

    def rows_of(self, number: int, now: int) -> list[RowId] | None:
        """The rows of the message that was taken last, as journals name them; None: it cannot be moved."""
        return [(self.rows.entity_id, number, now)] if number else []

    # -- visibility --------------------------------------------------------------------------

    def _await_visibility(self, seq: int) -> None:
        """The row exists; it becomes visible with the commit of this turn."""
        visible = self._visible
        turn = self.ledger.slot.turn
        if visible is None or visible.turn_number != turn.number:
            visible = _Visible(self, turn.number)
            self._visible = visible
            self.rows.backing.journal.when_durable(visible)
            turn.schedule()
        visible.add(seq, self.rows.sessions is not None)

    def wake_for_scheduled(self, now: int) -> None:
        scheduled = self.rows.scheduled
        if scheduled and scheduled[0][1] <= self.rows.durable_seq:
            self.ledger.slot.wake(max(scheduled[0][0], self.rows.backing.passage.next_look(now)))


def check_terms(terms: Terms, message: Message, body_bytes: int) -> None:
    """What the description demands of a message, wherever it will lie."""
    if not terms.may_send:
        raise EntityDisabled(f"Messaging entity '{terms.path}' is currently disabled for sending. Set its status to Active.")
    if terms.has_sessions and message.session_id is None:
        raise NotAllowed(
            f"The SessionId was not set on a message, and it cannot be sent to the entity '{terms.path}'. "
            "Entities that have session support enabled can only receive messages that have the SessionId set."
        )
    received_bytes = body_bytes - OVERHEAD_BYTES
    if received_bytes > terms.message_bytes_max:
        raise MessageSizeExceeded(
            f"The received message (size {received_bytes} bytes) exceeds the limit of {terms.message_bytes_max} bytes of '{terms.path}'."
        )


class _Visible(Effect):
    """With the commit of its turn, what was enqueued in that turn may be delivered."""

    __slots__ = ("in_sessions", "intake", "turn_number", "upto")

    def __init__(self, intake: Intake, turn_number: int) -> None:
        self.intake = intake
        self.turn_number: int = turn_number
        self.upto: int = 0
        self.in_sessions: list[int] = []

    def add(self, seq: int, in_session: bool) -> None:
        self.upto = seq
        if in_session:
            self.in_sessions.append(seq)

    def done(self, error: BaseException | None) -> None:
        if error is not None:
            return
        intake = self.intake
        rows = intake.rows
        slot = intake.ledger.slot
        rows.now_durable(self.upto)
        for seq in self.in_sessions:
            session = rows.session_of(seq) if rows.index.state(seq) == READY else None
            if session is not None:
                session.ready.append(seq)
                intake.sessions.has_more(session)
        if rows.scheduled:
            intake.wake_for_scheduled(slot.turn.now)
        slot.touch()
