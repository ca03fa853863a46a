"""The verbs behind both doors: all is checked before anything is done, and nobody hears of it before the disk does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from tandem.broker.meters import describe
from tandem.broker.queue.index import DEFERRED, READY
from tandem.broker.queue.locks import Lock
from tandem.gateway import verbs
from tandem.gateway.verbs import SettlementArguments
from tandem.model import address as addresses
from tandem.model.address import SubQueue
from tandem.model.entity import QueueDescription
from tandem.model.errors import LockLost, MessageNotFound, QuotaExceeded
from tandem.model.limits import Limits
from tandem.server.context import NamespaceContext
from tandem.server.tracking import Tracker
from tests.broker.desk import Desk, Done, message

T = TypeVar("T")


@pytest.fixture
def desk() -> Desk:
    return Desk(QueueDescription(name="q"))


def context_of(desk: Desk) -> NamespaceContext:
    namespace = desk.namespace
    tracker = Tracker("desk", "G0", lambda count: bytes(count))
    return NamespaceContext(namespace, desk.turn, namespace.builder.rewriter, tracker, Limits(), lambda line: None)  # type: ignore[arg-type]


def held(desk: Desk, *texts: str) -> list[Lock]:
    desk.send(*texts)
    return desk.receive(len(texts)).locks


async def awaited(desk: Desk, work: Coroutine[Any, Any, T]) -> T:
    """The disk answers whenever the work waits for it."""
    task = asyncio.ensure_future(work)
    for _ in range(20):
        await asyncio.sleep(0)
        desk.run()
    return await task


def counted(desk: Desk) -> dict[tuple[str, str], int]:
    book = desk.namespace.stores[0].meters
    return {describe(slot, book.paths)[1:3]: tally.count for slot, tally in book.totals.items()}


def test_messages_sent_together_are_numbered_in_their_order(desk: Desk) -> None:
    placed = verbs.send_all(desk.queue(), [message(text) for text in "abc"], desk.now)
    numbers = [one.seq for one in placed]
    assert numbers == sorted(numbers) and len(set(numbers)) == 3
    assert all(one.part is desk.queue() for one in placed)
    assert desk.queue().accessed_at == desk.turn.now
    desk.run()
    assert desk.texts() == ["a", "b", "c"]


def test_what_fits_one_by_one_must_fit_together(desk: Desk) -> None:
    desk.queue().terms.quota_bytes = 500
    with pytest.raises(QuotaExceeded):
        verbs.send_all(desk.queue(), [message("x" * 150) for _ in range(4)], desk.now)
    desk.run()
    assert desk.texts() == []


@pytest.mark.parametrize(
    ("settlement", "where", "count", "meter"),
    [
        (verbs.ABANDONED, READY, 1, "abandoned"),
        (SettlementArguments(verbs.DEFER), DEFERRED, 1, "deferred"),
        (SettlementArguments(verbs.RELEASE), READY, 0, "released"),
    ],
)
def test_each_settlement_puts_the_message_where_it_belongs_and_counts_itself(
    desk: Desk, settlement: SettlementArguments, where: int, count: int, meter: str
) -> None:
    [lock] = held(desk, "a")
    done = Done()
    verbs.settle(desk.queue(), settlement, lock, desk.now, done)
    assert done.errors == [], "nobody hears before the disk does"
    desk.run()
    assert done.errors == [None]
    assert desk.texts(state=where) == ["a"]
    assert desk.queue().index.count(lock.seq) == count
    assert counted(desk)["settle", meter] == 1


def test_completed_is_gone_and_dead_lettered_is_in_the_dead_letter_queue(desk: Desk) -> None:
    first, second = held(desk, "a", "b")
    done = Done()
    verbs.settle(desk.queue(), verbs.COMPLETED, first, desk.now, done)
    verbs.settle(desk.queue(), SettlementArguments(verbs.DEAD_LETTER, {}, "why", "how"), second, desk.now, done)
    desk.run()
    assert done.errors == [None, None]
    assert desk.queue().index.total == 0
    assert desk.texts(sub_queue=SubQueue.DEAD_LETTER) == ["b"]


def test_an_abandoned_message_comes_back_when_it_was_asked_to(desk: Desk) -> None:
    [lock] = held(desk, "a")
    verbs.settle(desk.queue(), SettlementArguments(verbs.ABANDON, deliver_at=desk.now + 5_000), lock, desk.now, Done())
    desk.run()
    assert desk.receive().got == []
    desk.wait(5_001)
    assert desk.receive().got == [("a", 1)]


@pytest.mark.parametrize("what", [lambda queue, locks, now: verbs.settle_all(queue, verbs.COMPLETED, locks, now), verbs.renew])
async def test_of_several_locks_all_are_good_or_nothing_is_done(desk: Desk, what: Callable[..., Any]) -> None:
    first, second = held(desk, "a", "b")
    verbs.settle(desk.queue(), verbs.COMPLETED, second, desk.now, Done())
    desk.run()
    before = first.locked_until
    desk.clock.now += 10
    with pytest.raises(LockLost):
        what(desk.queue(), [first, second], desk.now)
    desk.run()
    assert first.held and first.locked_until == before


def test_a_run_is_completed_up_to_the_first_lock_that_is_lost(desk: Desk) -> None:
    locks = held(desk, "a", "b", "c", "d")
    verbs.settle(desk.queue(), verbs.COMPLETED, locks[2], desk.now, Done())
    assert verbs.complete_run(desk.queue(), locks, 0, desk.now) == 2
    with pytest.raises(LockLost):
        verbs.complete_run(desk.queue(), locks, 2, desk.now)
    assert verbs.complete_run(desk.queue(), locks, 3, desk.now) == 1
    desk.run()
    assert desk.queue().counts().total == 0


async def test_all_that_were_settled_are_waited_for(desk: Desk) -> None:
    locks = held(desk, "a", "b")
    waits = verbs.settle_all(desk.queue(), verbs.COMPLETED, locks, desk.now)
    assert [one.future.done() for one in waits] == [False, False]
    desk.run()
    assert [one.future.done() for one in waits] == [True, True]


async def test_a_peek_shows_everything_and_holds_nothing(desk: Desk) -> None:
    desk.send("a", "b")
    found = await awaited(desk, verbs.peek(context_of(desk), addresses.parse("q"), 0, 10, None))
    assert [text in payload for text, payload in zip((b"a", b"b"), found, strict=True)] == [True, True]
    assert desk.queue().counts().locked == 0


async def test_deferred_messages_are_received_by_number_all_or_none(desk: Desk) -> None:
    locks = held(desk, "a", "b")
    for lock in locks:
        verbs.settle(desk.queue(), SettlementArguments(verbs.DEFER), lock, desk.now, Done())
    desk.run()
    context, numbers = context_of(desk), [lock.seq for lock in locks]
    with pytest.raises(MessageNotFound):
        await awaited(desk, verbs.receive_deferred(context, desk.queue(), [*numbers, 99], None, True))
    assert desk.texts(state=DEFERRED) == ["a", "b"]
    received = await awaited(desk, verbs.receive_deferred(context, desk.queue(), numbers, None, True))
    assert [lock.seq for lock, _ in received] == numbers and all(lock.held for lock, _ in received)


async def test_deferred_messages_that_are_received_and_deleted_are_gone_from_the_disk(desk: Desk) -> None:
    [lock] = held(desk, "a")
    verbs.settle(desk.queue(), SettlementArguments(verbs.DEFER), lock, desk.now, Done())
    desk.run()
    [(_, payload)] = await awaited(desk, verbs.receive_deferred(context_of(desk), desk.queue(), [lock.seq], None, False))
    assert b"a" in payload
    desk.restart()
    assert desk.queue().index.total == 0
