"""Whatever happened to a queue, a second namespace built from the same facts stands where the first one would after a restart."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem.broker.queue.index import DEFERRED, SCHEDULED
from tandem.broker.queue.locks import Lock
from tandem.model.address import SubQueue
from tandem.model.entity import QueueDescription
from tandem.model.errors import BusError
from tandem.model.message import NO_TTL
from tests.broker.desk import Desk, Done, Hand, as_after_a_restart, message

PLAIN = QueueDescription(
    name="plain",
    lock_duration_ms=30_000,
    max_delivery_count=3,
    requires_duplicate_detection=True,
    duplicate_detection_history_ms=60_000,
    dead_lettering_on_message_expiration=True,
)
SESSIONS = QueueDescription(name="sessions", lock_duration_ms=30_000, max_delivery_count=3, requires_session=True)

COMMANDS = (
    "send", "send", "send", "receive", "receive", "delete", "complete", "complete", "abandon", "modify", "delay", "release", "defer",
    "modify-defer", "dead-letter", "fetch", "renew", "advance", "cancel", "purge", "accept", "close", "state", "compact", "restart",
)  # fmt: skip


class Story:
    """Interprets numbers as commands to one of the two queues; refusals are part of life."""

    def __init__(self, segment_bytes: int, hot_bytes: int) -> None:
        self.desk = Desk(PLAIN, SESSIONS, segment_bytes=segment_bytes, hot_bytes=hot_bytes)
        self.locks: dict[str, list[Lock]] = {"plain": [], "sessions": []}
        self.hands: dict[str, Hand] = {}
        self.sent = 0

    def tell(self, command: str, a: int, b: int) -> None:
        name = "plain" if a % 3 else "sessions"
        try:
            getattr(self, "_" + command.replace("-", "_"))(name, a, b)
        except BusError:
            pass  # a lock that is gone, a session that is held: the queue said no, which must leave no trace
        self.desk.run()

    def _lock(self, name: str, b: int) -> Lock | None:
        locks = self.locks[name]
        return locks[b % len(locks)] if locks else None

    def _send(self, name: str, a: int, b: int) -> None:
        self.sent += 1
        now = self.desk.now
        options: dict[str, Any] = {"message_id": f"id {b % 40}" if b % 5 == 0 else f"unique {self.sent}"}
        if name == "sessions":
            options["session"] = f"s{b % 4}"
        options["ttl_ms"] = 20_000 + b * 100 if b % 4 == 1 else NO_TTL
        options["scheduled_at"] = now + 1000 * b if b % 4 == 2 else 0
        self.desk.queue(name).enqueue(message(f"m{self.sent}", **options), now)

    def _take(self, name: str, most: int, delete: bool) -> None:
        if name == "sessions":
            session = f"s{most % 4}"
            hand = self.hands.get(session)
            if hand is None or hand.session is None:
                return
            hand.peek_lock = not delete
            hand.credit = most % 5 + 1
            self.desk.queue(name).consumer_ready(hand)
            self.desk.run()
            hand.credit = 0
        else:
            hand = self.desk.receive(most % 5 + 1, name, delete)
        self.locks[name] += hand.locks
        hand.locks = []

    def _receive(self, name: str, a: int, b: int) -> None:
        self._take(name, b, False)

    def _delete(self, name: str, a: int, b: int) -> None:
        self._take(name, b, True)

    def _complete(self, name: str, a: int, b: int) -> None:
        if lock := self._lock(name, b):
            self.desk.queue(name).settlement.complete(lock, self.desk.now)

    def _abandon(self, name: str, a: int, b: int) -> None:
        if lock := self._lock(name, b):
            self.desk.queue(name).settlement.abandon(lock, self.desk.now, 0, None, Done())

    def _modify(self, name: str, a: int, b: int) -> None:
        if lock := self._lock(name, b):
            self.desk.queue(name).settlement.abandon(lock, self.desk.now, 0, {"tried": f"{a} times", "more": "x" * (b % 60)}, Done())

    def _delay(self, name: str, a: int, b: int) -> None:
        if lock := self._lock(name, b):
            changes: dict[str, object] = {"late": a} if b % 2 else {}
            self.desk.queue(name).settlement.abandon(lock, self.desk.now, self.desk.now + 500 * (a + 1), changes, Done())

    def _release(self, name: str, a: int, b: int) -> None:
        if lock := self._lock(name, b):
            self.desk.queue(name).settlement.release(lock, self.desk.now)

    def _defer(self, name: str, a: int, b: int) -> None:
        if lock := self._lock(name, b):
            self.desk.queue(name).settlement.defer(lock, self.desk.now, None, Done())

    def _modify_defer(self, name: str, a: int, b: int) -> None:
        if lock := self._lock(name, b):
            self.desk.queue(name).settlement.defer(lock, self.desk.now, {"aside": True}, Done())

    def _dead_letter(self, name: str, a: int, b: int) -> None:
        if lock := self._lock(name, b):
            self.desk.queue(name).settlement.dead_letter(lock, "why", "words", {}, self.desk.now, Done())

    def _fetch(self, name: str, a: int, b: int) -> None:
        queue = self.desk.queue(name)
        deferred = [seq for seq in queue.index.seqs_from(0, 10_000) if queue.index.state(seq) == DEFERRED]
        if deferred:
            session = queue.rows.session_of(deferred[b % len(deferred)])
            self.locks[name] += queue.browsing.receive_deferred(
                [deferred[b % len(deferred)]], session.id if session else None, self.desk.now
            )

    def _renew(self, name: str, a: int, b: int) -> None:
        if lock := self._lock(name, b):
            self.desk.queue(name).settlement.renew(lock, self.desk.now)

    def _advance(self, name: str, a: int, b: int) -> None:
        self.desk.wait(a * b * 20)

    def _cancel(self, name: str, a: int, b: int) -> None:
        queue = self.desk.queue(name)
        waiting = [seq for seq in queue.index.seqs_from(0, 10_000) if queue.index.state(seq) == SCHEDULED]
        if waiting:
            queue.browsing.cancel_scheduled([waiting[b % len(waiting)]], self.desk.now)

    def _purge(self, name: str, a: int, b: int) -> None:
        self.desk.queue(name).browsing.purge(self.desk.now - b * 50, a % 3 + 1, self.desk.now)

    def _accept(self, name: str, a: int, b: int) -> None:
        hand = Hand()
        queue = self.desk.queue("sessions")
        session = queue.sessions.accept(f"s{b % 4}", hand, self.desk.now)
        queue.add_consumer(hand)
        self.hands[session.id] = hand

    def _close(self, name: str, a: int, b: int) -> None:
        hand = self.hands.pop(f"s{b % 4}", None)
        if hand is not None and hand.session is not None:
            self.desk.queue("sessions").sessions.close(hand.session, hand, self.desk.now)

    def _state(self, name: str, a: int, b: int) -> None:
        self.desk.queue("sessions").sessions.set_state(f"s{b % 4}", None if a % 4 == 0 else bytes(a), self.desk.now)

    def _compact(self, name: str, a: int, b: int) -> None:
        self.desk.store.step_compaction()
        self.desk.run()

    def _restart(self, name: str, a: int, b: int) -> None:
        self.compare_and_restart()

    def compare_and_restart(self) -> None:
        desk = self.desk
        desk.run()
        places = [(name, sub_queue) for name in ("plain", "sessions") for sub_queue in (SubQueue.MAIN, SubQueue.DEAD_LETTER)]
        for place in places:
            queue = desk.queue(*place)
            for lock in list(queue.locks.by_seq.values()):
                if 0 < queue.index.expires_at(lock.seq) <= desk.clock.now and not lock.deferred:
                    queue.settlement.release(lock, desk.now)  # in hand it outlives its time; a restart takes it out of that hand
            desk.sweep(queue)
        before = {place: as_after_a_restart(desk, desk.queue(*place)) for place in places}
        seen = _remembered(desk)
        for place in places:
            _check_books(desk.queue(*place))
        now = desk.clock.now
        desk._open()
        assert desk.clock.now == now
        # Timers that were due at this very instant have run by now in both; nothing else may differ.
        after = {place: as_after_a_restart(desk, desk.queue(*place)) for place in places}
        assert after == before
        assert _remembered(desk) == seen
        self.locks = {"plain": [], "sessions": []}
        self.hands.clear()


def _remembered(desk: Desk) -> set[str]:
    """Ids the duplicate detection would still recognise."""
    history = desk.queue("plain").rows.history
    assert history is not None
    known = [f"id {n}" for n in range(40)]
    return {one for one in known if history.seen(b"\xa1" + bytes((len(one),)) + one.encode(), desk.clock.now)}


def _check_books(queue: Any) -> None:
    """Invariants of a quiet queue: columns add up, sessions know their messages, a lock stands for a locked row."""
    index = queue.index
    seqs = index.seqs_from(0, index.total + 1)
    assert len(seqs) == index.total == sum(index.by_state)
    assert index.size_bytes == sum(index.size(seq) for seq in seqs)
    states = [index.state(seq) for seq in seqs]
    assert [states.count(n) for n in range(len(index.by_state))] == index.by_state
    held = sorted(lock.seq for lock in queue.locks.by_seq.values())
    assert held == sorted(seq for seq in seqs if index.state(seq) in (2, 9))
    if queue.sessions.table is not None:
        for session in queue.sessions.table.by_id.values():
            assert session.total == sum(index.owner(seq) == session.number for seq in seqs)
            if session.holder is None and session.first(index):
                assert queue.sessions.table.free.get(session.id) is session
        for name, session in queue.sessions.table.free.items():
            assert queue.sessions.table.by_id.get(name) is session
            assert session.holder is None


@pytest.mark.slow
@pytest.mark.compiled_too
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from(COMMANDS), st.integers(0, 30), st.integers(0, 60)), min_size=20, max_size=120),
    st.sampled_from([1_024, 8_388_608]),
    st.sampled_from([0, 67_108_864]),
)
def test_a_namespace_rebuilt_from_its_facts_is_the_namespace_that_wrote_them(
    commands: list[tuple[str, int, int]], segment_bytes: int, hot_bytes: int
) -> None:
    story = Story(segment_bytes, hot_bytes)
    for command, a, b in commands:
        story.tell(command, a, b)
    story.compare_and_restart()


@pytest.mark.compiled_too
@pytest.mark.parametrize("seed", [*range(20), 53, 104, 112, 116, 120, 244])
def test_long_lives_are_rebuilt_too(seed: int) -> None:
    """Those above twenty once showed a lock renewed twice in a millisecond, ids from the wrong instant, compaction without end."""
    chance = random.Random(seed)
    story = Story(chance.choice([1_024, 8_388_608]), chance.choice([0, 67_108_864]))
    for _ in range(chance.choice([20, 60, 200])):
        story.tell(chance.choice(COMMANDS), chance.randrange(31), chance.randrange(61))
    story.compare_and_restart()
