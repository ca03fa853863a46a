"""A receiving link: what is delivered, and what becomes of each outcome."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.amqp import AmqpError, Outcome
from tandem.amqp.outcomes import ACCEPTED_CODE, MODIFIED_CODE, REJECTED_CODE, RELEASED_CODE
from tandem.broker.entities.queue_entity import QueueEntity
from tandem.broker.queue.delivery import PUMP_MAX
from tandem.broker.queue.index import DEFERRED, READY
from tandem.model.address import SubQueue
from tandem.model.entity import EntityStatus, QueueDescription
from tandem.model.limits import Limits
from tests.gateway.amqp.connected import Connected, payload


def modified(undeliverable_here: bool = False) -> Outcome:
    outcome = Outcome(MODIFIED_CODE)
    outcome.delivery_failed = True
    outcome.undeliverable_here = undeliverable_here
    return outcome


def fed(*texts: str, limits: Limits | None = None) -> Connected:
    both = Connected(limits=limits)
    both.desk.send(*texts)
    return both


def test_messages_come_as_far_as_credit_goes() -> None:
    both = fed("a", "b", "c")
    link, notes = both.receiver(credit=2)
    assert len(notes.transfers) == 2
    link.grant(5)
    both.exchange()
    assert len(notes.transfers) == 3


def test_a_run_of_completions_is_answered_once_and_not_before_the_disk_knows() -> None:
    both = fed("a", "b", "c")
    _, notes = both.receiver()
    first, last = notes.transfers[0][0], notes.transfers[-1][0]
    both.say(first, Outcome(ACCEPTED_CODE), last)
    both.exchange()
    assert notes.settled_incoming == []
    both.settle()
    assert notes.settled_incoming == [(first, last, ACCEPTED_CODE, True)]
    assert both.desk.queue().index.total == 0


@pytest.mark.parametrize(
    ("outcome", "shown", "where", "count"),
    [
        (Outcome(RELEASED_CODE), RELEASED_CODE, READY, 0),
        (modified(), MODIFIED_CODE, READY, 1),
        (modified(undeliverable_here=True), MODIFIED_CODE, DEFERRED, 1),
    ],
)
def test_an_outcome_decides_where_the_message_is_and_whether_the_delivery_counts(
    outcome: Outcome, shown: int, where: int, count: int
) -> None:
    both = fed("a")
    _, notes = both.receiver(credit=1)
    both.say(notes.transfers[0][0], outcome)
    both.settle()
    assert [code for _, _, code, _ in notes.settled_incoming] == [shown]
    queue = both.desk.queue()
    assert both.desk.texts(state=where) == ["a"]
    assert queue.index.count(queue.index.seqs_from(0, 1)[0]) == count


def test_a_rejected_message_is_dead_lettered_with_the_words_of_its_receiver() -> None:
    both = fed("a")
    _, notes = both.receiver()
    info = {"DeadLetterReason": "bad", "DeadLetterErrorDescription": "very"}
    both.say(notes.transfers[0][0], Outcome(REJECTED_CODE, AmqpError("com.microsoft:dead-letter", None, info)))
    both.settle()
    assert both.desk.texts(sub_queue=SubQueue.DEAD_LETTER) == ["a"]
    _, dead = both.receiver("q/$DeadLetterQueue")
    assert b"bad" in dead.transfers[0][2] and b"very" in dead.transfers[0][2]


def test_settling_after_the_lock_is_over_is_refused_with_its_condition() -> None:
    both = fed("a")
    _, notes = both.receiver(credit=1)
    delivery_id = notes.transfers[0][0]
    both.desk.wait(3_600_000)
    both.say(delivery_id, Outcome(ACCEPTED_CODE))
    both.settle()
    assert [code for _, _, code, _ in notes.settled_incoming] == [REJECTED_CODE]
    assert both.desk.texts() == ["a"]


def test_no_more_is_delivered_than_may_be_unsettled() -> None:
    both = fed("a", "b", "c", limits=Limits(unsettled_deliveries_per_link_max=2))
    _, notes = both.receiver(credit=10)
    assert len(notes.transfers) == 2
    both.say(notes.transfers[0][0], Outcome(ACCEPTED_CODE))
    both.settle()
    assert len(notes.transfers) == 3


def test_what_one_link_has_unsettled_keeps_no_other_link_of_its_session_from_receiving() -> None:
    both = fed("a", "b", "c", "d", "e", limits=Limits(unsettled_deliveries_per_link_max=2))
    _, first = both.receiver(credit=10)
    _, second = both.receiver("Q", credit=10)  # the same queue, another link
    assert (len(first.transfers), len(second.transfers)) == (2, 2)


def test_receiving_and_deleting_waits_for_the_disk() -> None:
    both = fed("a")
    _, notes = both.receiver(settle_mode=1)
    assert notes.transfers == []
    both.settle()
    assert [settled for _, _, _, settled, _, _ in notes.transfers] == [True]
    assert both.desk.queue().index.total == 0


def test_a_drain_is_answered_when_there_is_nothing_more() -> None:
    both = fed("a")
    link, notes = both.receiver(credit=5)
    link.ask_drain()
    both.settle()
    assert len(notes.transfers) == 1
    assert notes.flows[-1][0] == 0


def test_locks_stay_when_a_link_is_detached_and_go_when_the_connection_breaks() -> None:
    both = fed("a", "b")
    link, _ = both.receiver(credit=1)
    link.detach()
    both.settle()
    assert both.desk.queue().counts().locked == 1
    both.receiver(credit=1)
    both.peer.connection_lost()
    both.desk.run()
    assert both.desk.queue().counts().locked == 1
    [seq] = [seq for seq in both.desk.queue().index.seqs_from(0, 2) if both.desk.queue().index.state(seq) == READY]
    assert both.desk.queue().index.count(seq) == 1


def test_what_is_sent_is_what_is_received() -> None:
    both = Connected()
    sender, _ = both.sender()
    sender.send(payload("hello"), b"a", False, None)
    both.settle()
    _, notes = both.receiver()
    assert b"hello" in notes.transfers[0][2]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
@pytest.mark.parametrize("held", ["suspended", "disabled"])
def test_a_drain_is_answered_though_delivering_was_stopped_in_the_middle_of_a_backlog(partitioned: bool, held: str) -> None:
    both = Connected(QueueDescription(name="q", enable_partitioning=partitioned))
    both.desk.send(*(f"{number}" for number in range(2 * PUMP_MAX)))
    link, notes = both.receiver(credit=0)
    link.grant(2 * PUMP_MAX)
    both.peer.receive(both.client.bytes_to_send())
    entity = both.desk.namespace.find("q")
    assert isinstance(entity, QueueEntity)
    queue = entity.main
    queue.pump(both.desk.turn.now)
    assert queue.receivers.has_more
    if held == "suspended":
        for store in both.desk.namespace.stores:
            store.backing.suspended = True
    else:
        queue.configure(replace(queue.description, status=EntityStatus.RECEIVE_DISABLED))
    link.ask_drain()
    both.exchange()
    assert len(notes.transfers) == PUMP_MAX
    assert link.credit == 0
