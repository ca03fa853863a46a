"""What may be asked of an entity that holds messages, be it one queue or a front for fragments in several stores."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from mypy_extensions import trait

from tandem.broker.ports import Pumped
from tandem.broker.queue.delivery import Receivers
from tandem.broker.queue.index import READY
from tandem.broker.queue.terms import Terms
from tandem.broker.turn import TurnSlot

if TYPE_CHECKING:
    from tandem.broker.ports import Consumer, Effect, LeaseWaiter, Loaded, RowId, SessionAcceptor
    from tandem.broker.queue.lease import Lease
    from tandem.broker.queue.locks import Lock
    from tandem.broker.queue.queue import Queue
    from tandem.broker.queue.rows import StateCounts
    from tandem.broker.queue.sessions import MessageSession
    from tandem.broker.turn import Turn
    from tandem.model.entity import QueueDescription
    from tandem.model.errors import BusError
    from tandem.model.message import Message


class Placement:
    """Where a message went."""

    __slots__ = ("part", "seq")

    def __init__(self, part: Queue, seq: int) -> None:
        self.part: Queue = part
        """The queue, or the fragment, whose journal has it."""
        self.seq: int = seq
        """0: it was accepted and dropped (ping, duplicate)."""


class MovablePlacement(Placement):
    """In a fragment. Should its store fail before the disk knows, the message might go to another."""

    __slots__ = ("_rows", "at", "message")

    def __init__(self, part: Queue, seq: int, at: int, message: Message, rows: list[RowId] | None) -> None:
        super().__init__(part, seq)
        self.at: int = at
        self.message: Message = message
        self._rows: list[RowId] | None = rows

    def rows(self) -> list[RowId]:
        """All it may have, as journals name them; unless somebody named them, its own."""
        if self._rows is not None:
            return self._rows
        return self.part.intake.rows_of(self.seq, self.at) or []


@trait
class SessionVerbs:
    """What may be asked about the sessions of an entity."""

    @abstractmethod
    def held(self, session_id: str, now: int) -> MessageSession:
        """The session, if somebody holds its lock."""

    @abstractmethod
    def accept(self, session_id: str, consumer: Consumer, now: int) -> MessageSession:
        """Take this session; it need not exist yet."""

    @abstractmethod
    def await_next(self, acceptor: SessionAcceptor) -> None:
        """Give the next free session with something to read to this one, in its turn."""

    @abstractmethod
    def forget(self, acceptor: SessionAcceptor) -> None: ...

    @abstractmethod
    def close(self, session: MessageSession, consumer: Consumer, now: int, failed: bool = False) -> None:
        """The holder's link closed: the session is free at once. Delivery counts stay, unless the holder failed."""

    @abstractmethod
    def renew(self, session_id: str, now: int) -> int: ...

    @abstractmethod
    def state(self, session_id: str, now: int) -> bytes | None: ...

    @abstractmethod
    def set_state(self, session_id: str, state: bytes | None, now: int) -> None: ...

    @abstractmethod
    def list_ids(self, updated_after: int | None, skip: int, top: int) -> list[str]:
        """With messages or state, or (given an instant) those whose state was set after it."""


class LeaseVerbs:
    """What may be asked about the batch leases of an entity."""

    @abstractmethod
    def lease(self, lease_id: str, messages_max: int, bytes_max: int, duration_ms: int, now: int, before: int = 0) -> Lease:
        """Set up to so many ready messages aside. The same id again gives the same lease, whatever the limits.

        With `before`, only messages that were enqueued by that instant.
        """

    @abstractmethod
    def lease_again(self, lease_id: str, seqs: list[int], duration_ms: int, now: int, before: int = 0) -> Lease:
        """Exactly these messages, or none: for a batch that was planned and whose lease has lapsed since."""

    @abstractmethod
    def find(self, lease_id: str, now: int) -> Lease: ...

    @abstractmethod
    def renew(self, lease_id: str, duration_ms: int, now: int) -> Lease: ...

    @abstractmethod
    def complete(self, lease_id: str, now: int) -> int:
        """All its messages are done: one fact. Completing it again does nothing. Returns how many left the queue."""

    @abstractmethod
    def abandon(self, lease_id: str, now: int) -> int:
        """Give the messages back as they were; unknown or ended leases have nothing to give."""

    @abstractmethod
    def complete_part(self, lease_id: str, seqs: list[int], now: int) -> int:
        """These messages are done; the others stay leased. What is not (or no longer) in the lease is passed over. Returns how many."""

    @abstractmethod
    def dead_letter_part(self, lease_id: str, seq: int, reason: str, description: str, now: int, effect: Effect) -> bool:
        """Move one message of the lease to the dead-letter queue; False (and no effect) when it is not in the lease."""

    @abstractmethod
    def return_part(self, lease_id: str, seqs: list[int], now: int) -> int:
        """Give these back to the queue before the others."""

    @abstractmethod
    def all_leases(self) -> list[Lease]: ...

    @abstractmethod
    def await_ready(self, waiter: LeaseWaiter) -> None: ...

    @abstractmethod
    def forget_waiter(self, waiter: LeaseWaiter) -> None: ...


class BrowsingVerbs:
    """What may be asked by number or by instant, whoever stands in line."""

    @abstractmethod
    def peek(self, start: int, most: int, session_id: str | None, now: int) -> list[int]:
        """Sequence numbers of up to `most` messages from `start` on, active, locked, deferred and scheduled; load them next."""

    @abstractmethod
    def load(self, seqs: list[int], then: Loaded) -> None:
        """Give `then` these messages: at once when all are in memory, else when the store has read them."""

    @abstractmethod
    def receive_deferred(self, seqs: list[int], session_id: str | None, now: int) -> list[Lock]:
        """Lock these deferred messages, all or none."""

    @abstractmethod
    def cancel_scheduled(self, seqs: list[int], now: int) -> None:
        """All or nothing: an unknown number cancels none."""

    @abstractmethod
    def purge(self, before: int, most: int, now: int, session_id: str | None = None) -> int:
        """Remove up to `most` active messages (of this session) enqueued before this instant; returns how many."""


class Entity(Pumped):
    """The verbs that others may use, whatever it is made of."""

    def __init__(self, turn: Turn, terms: Terms) -> None:
        self.turn: Turn = turn
        self.slot: TurnSlot = TurnSlot(turn, self)
        self.terms: Terms = terms
        self.receivers: Receivers = Receivers(self.slot)
        self.accessed_at: int = 0

    def access(self, now: int) -> None:
        """Somebody uses it."""
        self.accessed_at = now

    @property
    def path(self) -> str:
        return self.terms.path

    @property
    def description(self) -> QueueDescription:
        return self.terms.description

    @property
    @abstractmethod
    def sessions(self) -> SessionVerbs: ...

    @property
    @abstractmethod
    def leases(self) -> LeaseVerbs: ...

    @property
    @abstractmethod
    def browsing(self) -> BrowsingVerbs: ...

    @abstractmethod
    def configure(self, description: QueueDescription) -> None:
        """Take over a new description; what it changes holds for messages from now on."""

    # -- where ---------------------------------------------------------------------------------

    @abstractmethod
    def part_of(self, seq: int) -> Queue:
        """The queue that holds this row; its `settlement` is what a lock of this row is good for."""

    @abstractmethod
    def parts(self) -> list[Queue]:
        """The queues that hold its rows."""

    @abstractmethod
    def destination(self, message: Message) -> Queue:
        """The queue that will really hold this message; of several parts, one."""

    # -- sending -------------------------------------------------------------------------------

    @abstractmethod
    def check_send(self, message: Message, body_bytes: int) -> None:
        """Everything a send must meet; a ping must meet it too, because it stands for one."""

    def check_sends(self, messages: list[Message]) -> None:
        """Several are taken whole or not at all: all that may refuse one is asked first, and what fits one by one must fit together."""
        sizes: dict[Queue, int] = {}
        for message in messages:
            size = message.size_bytes
            self.check_send(message, size)
            part = self.destination(message)
            sizes[part] = sizes.get(part, 0) + size
        for part, total in sizes.items():
            part.intake.check_room(total)

    @abstractmethod
    def enqueue(self, message: Message, now: int) -> Placement:
        """Take a message in. Nobody sees it, and nobody may be told, before the journal's next commit."""

    @abstractmethod
    def when_durable(self, effect: Effect) -> None:
        """When everything appended so far is on disk. A store that is down answers at once."""

    # -- receiving -----------------------------------------------------------------------------

    @abstractmethod
    def add_consumer(self, consumer: Consumer) -> None: ...

    @abstractmethod
    def remove_consumer(self, consumer: Consumer) -> None: ...

    @abstractmethod
    def consumer_ready(self, consumer: Consumer) -> None:
        """The consumer has room: it queues up behind those who asked before."""

    def line_of(self, consumer: Consumer) -> Entity:
        """What this consumer is in line for: all of it, or the fragment that has its session."""
        return self

    @abstractmethod
    def tell_all(self, error: BusError) -> None:
        """Everybody who receives from here loses it: the entity was deleted, or its store is down."""

    # -- one message ---------------------------------------------------------------------------

    @abstractmethod
    def find_lock(self, token: bytes) -> Lock: ...

    @abstractmethod
    def complete_run(self, locks: list[Lock], at: int, now: int) -> int:
        """As many from `at` on as can be completed in one go; returns how many. Ask its `settlement` about the next one."""

    @abstractmethod
    def lose_locks(self, error: BusError, now: int) -> None:
        """Every lock is gone at once, as after its time: deliveries in hand count, holders of sessions are told."""

    # -- looking -------------------------------------------------------------------------------

    @abstractmethod
    def counts(self) -> StateCounts: ...

    def oldest_ms(self, now: int) -> int | None:
        """How long the oldest message that is ready has waited; None when there is none."""
        ages = []
        for part in self.parts():
            first = part.index.first_in_state(READY)
            if first >= 0:
                ages.append(now - part.index.enqueued_at(first))
        return max(ages) if ages else None

    @abstractmethod
    def metered(self, operation: int, outcome: int) -> None:
        """One operation without a message of its own."""

    @abstractmethod
    def is_in_use(self) -> bool:
        """Somebody is attached or waits for a session, or a message waits for its time."""

    @abstractmethod
    def close(self) -> None:
        """The entity is deleted: nobody receives from it any more, its bodies are free."""
