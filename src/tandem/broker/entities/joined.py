"""One answer from several fragments: when all have committed, when all have read, when one has a session, what all have leased or hold."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

from tandem.broker.ports import Effect, Loaded, SessionAcceptor
from tandem.broker.queue.entity import BrowsingVerbs, LeaseVerbs, SessionVerbs
from tandem.broker.queue.lease import Lease
from tandem.broker.queue.queue import Queue
from tandem.broker.queue.sessions import MessageSession
from tandem.model.errors import BusError, MessageNotFound, StoreUnavailable

if TYPE_CHECKING:
    from tandem.broker.ports import Consumer, LeaseWaiter
    from tandem.broker.queue.locks import Lock
    from tandem.model.message import Message

FRAGMENT_SHIFT: Final = 48
"""The upper 16 bits of a sequence number name the fragment, as in the service."""


def key_of(message: Message, detects_duplicates: bool) -> str | bytes | None:
    """What ties a message to a fragment: session id, else partition key, else message id where duplicates are detected."""
    if message.session_id is not None:
        return message.session_id
    if message.partition_key is not None:
        return message.partition_key
    return message.message_id if detects_duplicates else None


def fragment_of_key(key: str | bytes, count: int) -> int:
    """Where a key belongs: the same for ever, in every process."""
    return zlib.crc32(key.encode() if isinstance(key, str) else key) % count


class Fragments:
    """The fragments of one entity, in the order of their numbers."""

    def __init__(self, path: str, queues: list[Queue]) -> None:
        self.path: str = path
        self.queues: list[Queue] = queues

    def usable(self) -> list[Queue]:
        """Those whose store is up."""
        return [queue for queue in self.queues if not queue.terms.out_of_service]

    def some_usable(self) -> list[Queue]:
        usable = self.usable()
        if not usable:
            raise StoreUnavailable(f"All stores that hold '{self.path}' are down. Try again.")
        return usable

    def of_key(self, key: str | bytes) -> Queue:
        return self.queues[fragment_of_key(key, len(self.queues))]

    def of_seq(self, seq: int) -> Queue:
        number = seq >> FRAGMENT_SHIFT
        if number >= len(self.queues):
            raise MessageNotFound(f"There is no message with sequence number {seq} in '{self.path}'.")
        return self.queues[number]

    def by_fragment(self, seqs: list[int]) -> dict[Queue, list[int]]:
        groups: dict[Queue, list[int]] = {}
        for seq in seqs:
            groups.setdefault(self.of_seq(seq), []).append(seq)
        return groups


class AllOf(Effect):
    """Done when all are; with the first error, if there was one."""

    __slots__ = ("_effect", "_error", "_left")

    def __init__(self, effect: Effect, left: int) -> None:
        self._effect = effect
        self._left: int = left
        self._error: BaseException | None = None

    def done(self, error: BaseException | None) -> None:
        self._left -= 1
        if error is not None and self._error is None:
            self._error = error
        if self._left == 0:
            self._effect.done(self._error)


class JoinedLoad:
    """Messages asked of several fragments, put together in the order asked for."""

    def __init__(self, seqs: list[int], left: int, then: Loaded) -> None:
        self._seqs = seqs
        self._left = left
        self._then = then
        self._found: dict[int, Message | None] = {}
        self._error: BaseException | None = None

    def take(self, seqs: list[int], messages: list[Message | None], error: BaseException | None) -> None:
        self._left -= 1
        if error is not None:
            self._error = error
        else:
            for seq, message in zip(seqs, messages, strict=True):
                self._found[seq] = message
        if self._left == 0:
            if self._error is not None:
                self._then.loaded([], self._error)
            else:
                self._then.loaded([self._found.get(seq) for seq in self._seqs], None)


class FragmentLoad(Loaded):
    __slots__ = ("_joined", "_seqs")

    def __init__(self, joined: JoinedLoad, seqs: list[int]) -> None:
        self._joined = joined
        self._seqs = seqs

    def loaded(self, messages: list[Message | None], error: BaseException | None) -> None:
        self._joined.take(self._seqs, messages, error)


# --- sessions


class AcceptorInFragment(SessionAcceptor):
    """One client's place in one fragment's line for sessions."""

    __slots__ = ("_acceptor", "_sessions")

    def __init__(self, acceptor: SessionAcceptor, sessions: JoinedSessions) -> None:
        super().__init__(acceptor.consumer, acceptor.deadline, acceptor.looks)
        self._acceptor = acceptor
        self._sessions = sessions

    def accepted(self, session: MessageSession) -> None:
        self._sessions.forget(self._acceptor)
        self._acceptor.accepted(session)

    def timed_out(self) -> None:
        self._sessions.forget(self._acceptor)
        self._acceptor.timed_out()


class JoinedSessions(SessionVerbs):
    """A session lies in the fragment of its id."""

    def __init__(self, fragments: Fragments) -> None:
        self._fragments: Fragments = fragments
        self._awaiting: dict[SessionAcceptor, list[tuple[Queue, AcceptorInFragment]]] = {}

    def _of(self, session_id: str) -> Queue:
        part = self._fragments.of_key(session_id)
        if part.terms.out_of_service:
            raise StoreUnavailable(f"The store that holds session '{session_id}' of '{self._fragments.path}' is down. Try again.")
        return part

    def held(self, session_id: str, now: int) -> MessageSession:
        return self._of(session_id).holding.held(session_id, now)

    def accept(self, session_id: str, consumer: Consumer, now: int) -> MessageSession:
        return self._of(session_id).holding.accept(session_id, consumer, now)

    def await_next(self, acceptor: SessionAcceptor) -> None:
        """It waits in every fragment; the first that has a session for it wins."""
        places = [(part, AcceptorInFragment(acceptor, self)) for part in self._fragments.some_usable()]
        self._awaiting[acceptor] = places
        for part, place in places:
            part.holding.await_next(place)

    def forget(self, acceptor: SessionAcceptor) -> None:
        for part, place in self._awaiting.pop(acceptor, ()):
            part.holding.forget(place)

    def close(self, session: MessageSession, consumer: Consumer, now: int, failed: bool = False) -> None:
        part = self._fragments.of_key(session.id)
        if not part.terms.out_of_service:  # else it is free with all the others when its store is back
            part.holding.close(session, consumer, now, failed)

    def renew(self, session_id: str, now: int) -> int:
        return self._of(session_id).holding.renew(session_id, now)

    def state(self, session_id: str, now: int) -> bytes | None:
        return self._of(session_id).holding.state(session_id, now)

    def set_state(self, session_id: str, state: bytes | None, now: int) -> None:
        self._of(session_id).holding.set_state(session_id, state, now)

    def list_ids(self, updated_after: int | None, skip: int, top: int) -> list[str]:
        found: list[str] = []
        for part in self._fragments.usable():
            found.extend(part.holding.list_ids(updated_after, 0, skip + top))
        return sorted(found)[skip : skip + top]

    def is_awaited(self) -> bool:
        return len(self._awaiting) > 0


# --- leases


class JoinedLeases(LeaseVerbs):
    """One lease over several fragments: each remembers its part under the same id."""

    def __init__(self, fragments: Fragments) -> None:
        self._fragments: Fragments = fragments

    def _holders(self, lease_id: str) -> list[Queue]:
        """Those that hold a part of it; if none does, one that can say what became of it."""
        queues = self._fragments.queues
        return [part for part in queues if part.lending.holds(lease_id)] or queues[:1]

    def lease(self, lease_id: str, messages_max: int, bytes_max: int, duration_ms: int, now: int, before: int = 0) -> Lease:
        whole: Lease | None = None
        for part in self._fragments.some_usable():
            taken = part.lending.lease(lease_id, messages_max, bytes_max, duration_ms, now, before)
            messages_max -= len(taken.seqs)
            bytes_max -= taken.size_bytes
            whole = taken if whole is None else whole.joined(taken)
            if messages_max <= 0 or bytes_max <= 0:
                break
        assert whole is not None
        return whole

    def lease_again(self, lease_id: str, seqs: list[int], duration_ms: int, now: int, before: int = 0) -> Lease:
        """All fragments or none: whoever took its part gives it back when another cannot."""
        whole: Lease | None = None
        parts = self._fragments.by_fragment(seqs)
        try:
            for part, own in parts.items():
                taken = part.lending.lease_again(lease_id, own, duration_ms, now, before)
                whole = taken if whole is None else whole.joined(taken)
        except BusError:
            for part in parts:
                part.lending.abandon(lease_id, now)
            raise
        return self._fragments.queues[0].lending.lease_again(lease_id, [], duration_ms, now) if whole is None else whole

    def find(self, lease_id: str, now: int) -> Lease:
        parts = self._holders(lease_id)
        whole = parts[0].lending.find(lease_id, now)
        for part in parts[1:]:
            whole = whole.joined(part.lending.find(lease_id, now))
        return whole

    def renew(self, lease_id: str, duration_ms: int, now: int) -> Lease:
        self.find(lease_id, now)  # all parts of it, or none
        for part in self._holders(lease_id):
            part.lending.renew(lease_id, duration_ms, now)
        return self.find(lease_id, now)

    def complete(self, lease_id: str, now: int) -> int:
        return sum([part.lending.complete(lease_id, now) for part in self._holders(lease_id)])

    def abandon(self, lease_id: str, now: int) -> int:
        return sum([part.lending.abandon(lease_id, now) for part in self._fragments.queues])

    def complete_part(self, lease_id: str, seqs: list[int], now: int) -> int:
        return sum([part.lending.complete_part(lease_id, own, now) for part, own in self._fragments.by_fragment(seqs).items()])

    def dead_letter_part(self, lease_id: str, seq: int, reason: str, description: str, now: int, effect: Effect) -> bool:
        return self._fragments.of_seq(seq).lending.dead_letter_part(lease_id, seq, reason, description, now, effect)

    def return_part(self, lease_id: str, seqs: list[int], now: int) -> int:
        return sum([part.lending.return_part(lease_id, own, now) for part, own in self._fragments.by_fragment(seqs).items()])

    def all_leases(self) -> list[Lease]:
        """Each once, however many fragments hold a part of it."""
        whole: dict[str, Lease] = {}
        for part in self._fragments.queues:
            for lease in part.lending.all_leases():
                known = whole.get(lease.id)
                whole[lease.id] = lease if known is None else known.joined(lease)
        return list(whole.values())

    def await_ready(self, waiter: LeaseWaiter) -> None:
        for part in self._fragments.usable():
            part.lending.await_ready(waiter)

    def forget_waiter(self, waiter: LeaseWaiter) -> None:
        for part in self._fragments.queues:
            part.lending.forget_waiter(waiter)


class JoinedBrowsing(BrowsingVerbs):
    """Each number names its fragment."""

    def __init__(self, fragments: Fragments) -> None:
        self._fragments: Fragments = fragments

    def peek(self, start: int, most: int, session_id: str | None, now: int) -> list[int]:
        found: list[int] = []
        for number, part in enumerate(self._fragments.queues):
            if len(found) >= most or part.terms.out_of_service:
                continue
            base = number << FRAGMENT_SHIFT
            if start < base + (1 << FRAGMENT_SHIFT):
                found.extend(part.lookup.peek(max(start, base), most - len(found), session_id, now))
        return found

    def load(self, seqs: list[int], then: Loaded) -> None:
        groups = self._fragments.by_fragment(seqs)
        if not groups:
            then.loaded([], None)
            return
        joined = JoinedLoad(seqs, len(groups), then)
        for part, some in groups.items():
            part.bodies.load(some, FragmentLoad(joined, some))

    def receive_deferred(self, seqs: list[int], session_id: str | None, now: int) -> list[Lock]:
        groups = self._fragments.by_fragment(seqs)
        for part, some in groups.items():
            part.lookup.check_deferred(some, session_id, now)
        locks: dict[int, Lock] = {}
        for part, some in groups.items():
            for lock in part.lookup.receive_deferred(some, session_id, now):
                locks[lock.seq] = lock
        return [locks[seq] for seq in seqs]

    def cancel_scheduled(self, seqs: list[int], now: int) -> None:
        for part, some in self._fragments.by_fragment(seqs).items():
            part.lookup.cancel_scheduled(some, now)

    def purge(self, before: int, most: int, now: int, session_id: str | None = None) -> int:
        removed = 0
        for part in self._fragments.usable():
            removed += part.lookup.purge(before, most - removed, now, session_id)
        return removed
