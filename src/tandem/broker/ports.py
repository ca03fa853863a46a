"""Every seam of the broker: what it needs of stores, of receivers and of whoever speaks AMQP, and what turns are made of."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, Protocol

from mypy_extensions import mypyc_attr, trait

from tandem.broker.queue.index import READY, Index
from tandem.broker.rules.message_view import MessageView, view_of
from tandem.model.errors import StoreUnavailable

if TYPE_CHECKING:
    from tandem.model.errors import BusError
    from tandem.model.message import Message

RowId = tuple[int, int, int]
"""A queue, as journals number it, a sequence number in it, and when the message was enqueued there: a store that failed may give the
number to another message."""

HELD_BYTES_MAX: Final = 2_097_152
"""Bytes chosen for one receive-and-delete consumer that may wait for the disk, about."""


class StoreState(Enum):
    """How a store is; everything but UP, DEGRADED and SUSPENDED refuses appends."""

    UP = "up"
    DEGRADED = "degraded"
    """Works, but slowly, or will not for long (a stalled sync, no room for the next segment)."""
    SUSPENDED = "suspended"
    """Its engine does not answer for now: what comes in waits, nothing is delivered."""
    DOWN = "down"
    CORRUPT = "corrupt"
    RECOVERING = "recovering"
    """Not replayed yet."""
    ELSEWHERE = "elsewhere"
    """Nothing is wrong with it: another node serves it."""


@dataclass(frozen=True, slots=True)
class StoreHealth:
    state: StoreState
    cause: str = ""
    """One line for a person; empty when UP."""
    notes: tuple[str, ...] = ()
    """What was found and done when it was opened last, a line each: a torn tail cut off, an index read anew, messages set aside."""

    def refusal(self) -> str:
        """What a client is told that comes to an entity of this store."""
        why = f": {self.cause}" if self.cause else ""
        return f"The messaging store that holds this entity is {self.state.value}{why}. Try again."


IN_SERVICE: Final = (StoreState.UP, StoreState.DEGRADED, StoreState.SUSPENDED)
"""Appends are taken."""

HEALTHY: Final = StoreHealth(StoreState.UP)


@mypyc_attr(allow_interpreted_subclasses=True)
class Effect:
    """Something that may happen only once the disk knows: a confirmation, a delivery, a reply."""

    __slots__ = ()

    def done(self, error: BaseException | None) -> None:
        """Called on the loop, in order of registration; `error` is set when the append failed."""


def run_effects(effects: list[Effect], error: BaseException | None) -> None:
    """All of them, in order, whatever one of them raises; the first exception is raised again at the end."""
    trouble: Exception | None = None
    for effect in effects:
        try:
            effect.done(error)
        except Exception as raised:  # noqa: BLE001 - raised again below: one bad effect must not silence the others
            trouble = trouble or raised
    if trouble is not None:
        raise trouble


@mypyc_attr(allow_interpreted_subclasses=True)
class FetchEffect:
    """What waits for bodies read back from the store."""

    __slots__ = ()

    def fetched(self, bodies: list[bytes], error: BaseException | None) -> None: ...


class Tenant(Protocol):
    """Whoever owns the facts: told of each one on replay, asked for what still matters on compaction."""

    def replayed(
        self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, location: int, body_bytes: int
    ) -> None: ...

    def relocate(
        self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes | None, location: int
    ) -> bool:
        """What still matters is appended again. `body`: None if it has one that was not read. True: it is needed; nothing was done."""
        ...

    def segment_leaving(self, entities: set[int]) -> None: ...

    def numbers_begin_at(self, seq: int, entity_max: int) -> None:
        """Told before any fact by a store that was begun anew in the place of a lost one: entities up to this id had numbers before."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Journal:
    """An append-only log of facts with group commit. See docs/internals/contracts.md.

    A class and no protocol: every message is appended more than once, and compiled that is a call of a C function.
    """

    @property
    @abstractmethod
    def pending_bytes(self) -> int:
        """Appended and not yet durable."""

    @property
    @abstractmethod
    def health(self) -> StoreHealth: ...

    @property
    @abstractmethod
    def short_of_room(self) -> str:
        """Why no new messages should be taken although the store works: the room that is left is for settling. Empty: take them."""

    @abstractmethod
    def when_room_changes(self, tell: Callable[[], None]) -> None:
        """`tell` is called on the loop whenever `short_of_room` may have changed: a disk fills up faster than anybody looks."""

    @abstractmethod
    def append(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes) -> int: ...

    def append_run(self, kind: int, flags: int, entity: int, seqs: list[int], at: int) -> int:
        """The same fact, which has neither aux, key nor body, of each of these. Returns how many were taken before the store stopped."""
        for done, seq in enumerate(seqs):
            try:
                self.append(kind, flags, entity, seq, at, 0, b"", b"")
            except StoreUnavailable:
                return done
        return len(seqs)

    @abstractmethod
    def when_durable(self, effect: Effect) -> None: ...

    @abstractmethod
    def flush(self) -> None: ...

    @abstractmethod
    def fetch(self, locations: list[int], effect: FetchEffect) -> None: ...

    @abstractmethod
    def forget(self, location: int) -> None: ...

    @abstractmethod
    def replay(self, tenant: Tenant) -> None: ...

    @abstractmethod
    def step_compaction(self) -> bool: ...

    @abstractmethod
    def reopen(self, tenant: Tenant) -> None:
        """The way back from DOWN: replays again. What was not durable when the store stopped is gone."""

    @abstractmethod
    def fail(self, cause: str) -> None:
        """Stop the store as after a failed write: everybody who waits is told."""

    @abstractmethod
    def check_stalled(self, stall_ms_max: int) -> None:
        """A commit that has not returned for so long takes the store down, so that nobody waits for it any longer."""

    @abstractmethod
    def close(self) -> None: ...


class Lock:
    """Somebody's exclusive hold on one message."""

    __slots__ = ("count", "deferred", "held", "locked_until", "seq", "session", "token")

    def __init__(self, seq: int, token: bytes, locked_until: int, count: int, session: MessageSession | None, deferred: bool) -> None:
        self.seq: int = seq
        self.token: bytes = token
        """16 bytes: the delivery tag on the wire; the same bytes in .NET's order are the lock token as a GUID."""
        self.locked_until: int = locked_until
        self.count: int = count
        """Deliveries that failed before this one."""
        self.session: MessageSession | None = session
        self.deferred: bool = deferred
        self.held: bool = True

    def renew(self, locked_until: int) -> None:
        self.locked_until = locked_until

    def lose(self) -> None:
        self.held = False


class MessageSession:
    """One session id of one queue."""

    __slots__ = ("holder", "id", "locked_until", "locks", "number", "ready", "returned", "state", "state_updated_at", "total")

    def __init__(self, session_id: str, number: int) -> None:
        self.id: str = session_id
        self.number: int = number
        self.ready: deque[int] = deque()
        self.returned: list[int] = []
        """Heap of messages given back: they come before everything in `ready`."""
        self.holder: Consumer | None = None
        self.locked_until: int = 0
        self.locks: dict[int, Lock] = {}
        """By sequence number: what the holder has in hand."""
        self.total: int = 0
        """Messages of this session in the queue, in any state."""
        self.state: bytes | None = None
        self.state_updated_at: int = 0

    def set_state(self, state: bytes | None, at: int) -> None:
        self.state = state
        self.state_updated_at = at

    def hold(self, consumer: Consumer | None) -> None:
        """None: nobody does."""
        if self.holder is not None:
            self.holder.take_session(None)
        self.holder = consumer
        self.locked_until = 0
        if consumer is not None:
            consumer.take_session(self)

    def renew(self, locked_until: int) -> None:
        """With every lock in its holder's hand."""
        self.locked_until = locked_until
        for lock in self.locks.values():
            lock.renew(locked_until)

    def shift(self, by_ms: int) -> None:
        if self.holder is not None:
            self.locked_until += by_ms

    def add_one(self) -> None:
        """A message of it has come into the queue."""
        self.total += 1

    def remove(self, seq: int) -> None:
        """A message of it has left the queue."""
        self.total -= 1
        self.locks.pop(seq, None)
        if self.total == 0:
            self.ready.clear()  # the row of the last one still stands; without this the session would seem to have more
            self.returned.clear()

    def give_back(self, seq: int) -> None:
        heapq.heappush(self.returned, seq)

    def first(self, index: Index) -> int:
        """The next message to deliver, left where it is; 0 when there is none."""
        returned = self.returned
        while returned:
            if index.state(returned[0]) == READY:
                return returned[0]
            heapq.heappop(returned)
        ready = self.ready
        while ready:
            if index.state(ready[0]) == READY:
                return ready[0]
            ready.popleft()
        return 0

    def take_first(self) -> None:
        """Remove what `first` has just shown."""
        if self.returned:
            heapq.heappop(self.returned)
        else:
            self.ready.popleft()


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

    def select(self, selector: Selector | None) -> None:
        self.selector = selector

    def only_look(self) -> None:
        """It gets copies, of everything that its selector lets through."""
        self.copies = True
        self.peek_lock = False
        self.selector = self.selector or Selector()

    def stand(self) -> None:
        """It is in line for messages."""
        self.waiting = True

    def leave_line(self) -> None:
        self.waiting = False

    def search(self, more: bool) -> None:
        self.searching = more

    def take_session(self, session: MessageSession | None) -> None:
        self.session = session

    def room(self) -> int:
        """How many messages it can take now."""
        return 0

    def room_left(self) -> int:
        """The same, less what is on its way; none while as many bytes are as may be."""
        return self.room() - self.reserved if self.reserved_bytes < HELD_BYTES_MAX else 0

    def reserve(self, messages: int, size_bytes: int) -> None:
        """So many more, or fewer, wait for the disk on its behalf."""
        self.reserved += messages
        self.reserved_bytes += size_bytes

    def deliver(self, message: Message, seq: int, enqueued_at: int, count: int, expires_at: int, lock: Lock | None) -> None:
        """One message; `lock` is None when it is already gone from the queue."""

    def caught_up(self) -> None:
        """What kept the queue from delivering to it (the disk, a body to be read) is over: answer a drain now."""

    def lost(self, error: BusError) -> None:
        """The queue takes something away from it: its session, or itself."""


@mypyc_attr(allow_interpreted_subclasses=True)
class SessionAcceptor:
    """A client that waits for the next free session. The gateway answers its attach from here."""

    __slots__ = ("consumer", "deadline", "looks")

    def __init__(self, consumer: Consumer, deadline: int, looks: bool = False) -> None:
        self.consumer: Consumer = consumer
        self.deadline: int = deadline
        self.looks: bool = looks
        """It is told that there is one, which stays free."""

    def shift(self, by_ms: int) -> None:
        """The clock was set: it waits as long as before."""
        self.deadline += by_ms

    def accepted(self, session: MessageSession) -> None: ...

    def timed_out(self) -> None: ...


@mypyc_attr(allow_interpreted_subclasses=True)
class Watcher:
    """Somebody who is told how much an entity has for one receiver, or for whoever receives next, without receiving."""

    __slots__ = ("consumer",)

    def __init__(self, consumer: Consumer | None = None) -> None:
        self.consumer: Consumer | None = consumer

    def looked(self, ready: int) -> None:
        """So many messages were left ready after everybody in line was served. For one that selects or only looks: 1 if there is
        something that it has not looked at."""


@mypyc_attr(allow_interpreted_subclasses=True)
class LeaseWaiter:
    """Somebody waits for messages to lease."""

    __slots__ = ()

    def ready(self) -> None:
        """There may be some now: ask again, and wait again if somebody else was faster."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Loaded:
    """What waits for messages to be in memory."""

    __slots__ = ()

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        """In the order asked for; None where a message left the queue meanwhile."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Rewriter:
    """Changes application properties of a stored message. The gateway, which speaks AMQP, brings one."""

    __slots__ = ()

    def with_properties(self, message: Message, properties: dict[str, object]) -> Message:
        return message

    def with_changes(self, message: Message, changes: Sequence[tuple[str, str, object]]) -> Message:
        """Apply what the action of a rule changed: (scope, name, value or REMOVED)."""
        return message

    def forwarded(self, message: Message, seq: int, dead_letter_source: str) -> Message:
        """A copy that says under which number it was first known, and, given a source, where it was dead-lettered."""
        return message

    def damaged(self, message: Message) -> Message:
        """What stands for a message whose body was lost: its id and session, and no body."""
        return message.with_bare(b"")

    def view(self, message: Message, now: int) -> MessageView:
        """The message as rules see it."""
        return view_of({}, {})


class Pumped:
    """Something with work to do at the end of a turn, or at an instant: a queue. It asks for that through its slot."""

    def pump(self, now: int) -> None:
        """Deliver what can be delivered."""

    def due(self, now: int) -> None:
        """The instant asked for has come."""


@trait
class Flushed:
    """Something with bytes to write at the end of a turn: a connection. It knows whether it has asked for that."""

    def flush(self) -> None:
        """Write them; who has more afterwards asks again."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Recorded:
    """Something that writes facts of its own at the end of a turn."""

    __slots__ = ()

    def record(self, now: int) -> None:
        """Before the journals commit."""
