"""Everything of a queue that happens at an instant: scheduled, delayed, expired, the ends of locks, sessions and leases."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final

from tandem.broker import facts
from tandem.broker.ports import Loaded
from tandem.broker.queue.delivery import Receivers
from tandem.broker.queue.index import DELAYED, SCHEDULED
from tandem.broker.queue.intake import Intake
from tandem.broker.queue.leases import Leases
from tandem.broker.queue.ledger import Ledger
from tandem.broker.queue.moves import AGAIN_MS, Moves
from tandem.broker.queue.rows import Rows
from tandem.broker.queue.session_holding import SessionHolding
from tandem.broker.queue.settlement import Settlement
from tandem.broker.queue.terms import Terms

if TYPE_CHECKING:
    from tandem.broker.turn import TurnSlot
    from tandem.model.message import Message

_DUE_MAX: Final = 1_000
"""Messages that one timer may touch before others get their turn."""


class Schedule:
    """Asks to be woken at the next of these instants, and does what is due."""

    def __init__(
        self, ledger: Ledger, terms: Terms, intake: Intake, moves: Moves, settlement: Settlement, sessions: SessionHolding, leases: Leases
    ) -> None:
        self.ledger: Ledger = ledger
        self.rows: Rows = ledger.rows
        self.slot: TurnSlot = ledger.slot
        self.terms: Terms = terms
        self.intake: Intake = intake
        self.moves: Moves = moves
        self.settlement: Settlement = settlement
        self.sessions: SessionHolding = sessions
        self.leases: Leases = leases

    @property
    def receivers(self) -> Receivers:
        return self.sessions.receivers

    def due(self, now: int) -> None:
        """An instant this queue asked for has come."""
        self.settlement.lose_ended(now)
        self._end_delays(now)
        self.leases.due(now)
        self._activate_due(now)
        self.sessions.due(now)
        if not self.terms.dead_letter_expired or self.rows.backing.passage.room():
            for seq in self.rows.index.expired(now, _DUE_MAX):
                self.moves.expire(seq, now)
        if self.terms.forwards:
            self.slot.touch()
        self.plan(now)

    def plan(self, now: int) -> None:
        self.settlement.wake_for_locks()
        self.sessions.wake()
        expiry = self.rows.index.next_expiry()
        if expiry:
            self.slot.wake(max(expiry, self.rows.backing.passage.next_look(now)))
        if self.rows.delayed:
            self.slot.wake(self.rows.delayed[0][0])
        self.intake.wake_for_scheduled(now)

    def clock_jumped(self, by_ms: int) -> None:
        """The machine's clock was set: what lasts for a time lasts as long as before, what is due at an instant is due when it says so."""
        self.settlement.locks.shift(by_ms)
        if self.rows.sessions is not None:
            self.rows.sessions.shift(by_ms)
        self.rows.apply_clock_set(by_ms)
        self.leases.restore()
        self.plan(self.slot.turn.now)

    def replay_ended(self, now: int) -> None:
        """The journal has told all: timers are set."""
        self.rows.replay_ended()
        self.leases.restore()
        self.plan(now)
        if self.terms.forwards:
            self.slot.touch()

    def _end_delays(self, now: int) -> None:
        rows = self.rows
        while rows.delayed and rows.delayed[0][0] <= now:
            until, seq = heapq.heappop(rows.delayed)
            if rows.delayed_until.get(seq) == until:
                del rows.delayed_until[seq]
                if rows.index.state(seq) == DELAYED:
                    self.moves.ready.give_back(seq)

    # -- scheduled messages ------------------------------------------------------------------

    def _activate_due(self, now: int) -> None:
        rows = self.rows
        ready: list[int] = []
        scheduled = rows.scheduled
        room = rows.backing.passage.room()
        while scheduled and scheduled[0][0] <= now and len(ready) < _DUE_MAX and room > 0:
            _, seq = scheduled[0]
            if seq > rows.durable_seq:
                break  # not on disk yet: its commit comes first and wakes the queue
            heapq.heappop(scheduled)
            if rows.index.state(seq) == SCHEDULED:
                ready.append(seq)
                room -= rows.index.size(seq)
        if ready:
            self.moves.bodies.load_to_write(ready, _Activation(self, ready))
        self.intake.wake_for_scheduled(now)

    def not_read(self, seqs: list[int], error: BaseException) -> None:
        """They stay scheduled, and are due again."""
        now = self.slot.turn.now
        for seq in seqs:
            heapq.heappush(self.rows.scheduled, (now + AGAIN_MS, seq))
        self.intake.wake_for_scheduled(now)
        self.receivers.failed(self.terms.path, error)

    def activate(self, seqs: list[int], messages: list[Message | None]) -> None:
        """Scheduled messages become active under new numbers, so that they queue up behind what is there."""
        now = self.slot.turn.now
        for seq, message in zip(seqs, messages, strict=True):
            if message is not None and self.rows.index.state(seq) == SCHEDULED:
                self.ledger.settle(seq, facts.ACTIVATED, now)
                self.intake.place(message, now)


class _Activation(Loaded):
    __slots__ = ("schedule", "seqs")

    def __init__(self, schedule: Schedule, seqs: list[int]) -> None:
        self.schedule = schedule
        self.seqs = seqs

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        if error is not None:
            self.schedule.not_read(self.seqs, error)
            return
        self.schedule.activate(self.seqs, messages)
