"""A sending link: what it is answered, when, and with how many frames."""

from __future__ import annotations

import pytest

from tandem.amqp.message import DATA, VALUE, encode_message
from tandem.amqp.outcomes import ACCEPTED_CODE, REJECTED_CODE
from tandem.broker.entities.reopening import Reopening
from tandem.gateway.amqp.sending import BATCH_FORMAT, split_batch
from tandem.model.entity import QueueDescription
from tandem.model.errors import DecodeFailed
from tests.gateway.amqp.connected import Connected, outcomes, payload


def batch(*texts: str) -> bytes:
    return encode_message(body=[payload(text) for text in texts], body_kind=DATA)


def test_a_run_of_transfers_is_accepted_with_one_disposition_and_not_before_the_disk_knows() -> None:
    both = Connected()
    link, notes = both.sender()
    for text in "abcde":
        link.send(payload(text), text.encode(), False, None)
    both.exchange()
    assert notes.dispositions == []
    both.settle()
    assert outcomes(notes) == [([0, 1, 2, 3, 4], ACCEPTED_CODE, "")]
    assert len(both.desk.texts()) == 5


def test_what_the_next_turn_brings_has_an_answer_of_its_own() -> None:
    both = Connected()
    link, notes = both.sender()
    link.send(payload("a"), b"a", False, None)
    both.exchange()
    link.send(payload("b"), b"b", False, None)
    both.settle()
    assert [(ids, code) for ids, code, _ in outcomes(notes)] in ([([0], ACCEPTED_CODE), ([1], ACCEPTED_CODE)], [([0, 1], ACCEPTED_CODE)])


def test_a_message_that_cannot_be_read_is_rejected_alone() -> None:
    both = Connected()
    link, notes = both.sender()
    link.send(payload("a"), b"a", False, None)
    link.send(b"\x00\x53\x75", b"b", False, None)
    link.send(payload("c"), b"c", False, None)
    both.settle()
    assert sorted(outcomes(notes)) == [([0], ACCEPTED_CODE, ""), ([1], REJECTED_CODE, "amqp:decode-error"), ([2], ACCEPTED_CODE, "")]
    assert both.desk.texts() == ["a", "c"]


def test_a_message_larger_than_the_entity_takes_is_rejected_with_the_limit() -> None:
    both = Connected(QueueDescription(name="q", max_message_bytes=1_048_576))
    link, notes = both.sender()
    link.send(payload("x" * 1_100_000), b"a", False, None)
    both.settle()
    [(_, outcome, _)] = notes.dispositions
    assert outcome.error is not None and outcome.error.condition == "amqp:link:message-size-exceeded"
    assert "1048576" in (outcome.error.description or "")


def test_a_batch_is_one_delivery_and_is_taken_whole() -> None:
    both = Connected()
    link, notes = both.sender()
    link.send(batch("a", "b", "c"), b"a", False, None, BATCH_FORMAT)
    both.settle()
    assert outcomes(notes) == [([0], ACCEPTED_CODE, "")]
    assert both.desk.texts() == ["a", "b", "c"]


def test_a_batch_that_does_not_fit_leaves_nothing_behind() -> None:
    both = Connected()
    both.desk.queue().terms.quota_bytes = 300
    link, notes = both.sender()
    link.send(batch(*["x" * 100] * 6), b"a", False, None, BATCH_FORMAT)
    both.settle()
    assert outcomes(notes) == [([0], REJECTED_CODE, "amqp:resource-limit-exceeded")]
    assert both.desk.texts() == []


def test_a_presettled_message_that_is_refused_is_told_to_the_operator() -> None:
    both = Connected()
    link, notes = both.sender(settle_mode=1)
    link.send(payload("a"), b"a", True, None)
    link.send(b"\x00\x53\x75", b"b", True, None)
    both.settle()
    assert notes.dispositions == []
    assert both.desk.texts() == ["a"]
    assert [line for line in both.log if "pre-settled message from test refused: amqp:decode-error" in line]


def test_a_sender_to_a_queue_whose_store_was_reopened_goes_on_with_the_new_one() -> None:
    both = Connected()
    link, notes = both.sender()
    old = both.desk.queue()
    tenant = both.desk.namespace.stores[0]
    tenant.take_out_of_service()
    both.desk.store.fail("a test")
    reopening = Reopening(both.desk.namespace, 0)
    both.desk.store.reopen(reopening.tenant)
    reopening.swap()
    link.send(payload("a"), b"a", False, None)
    both.settle()
    assert outcomes(notes) == [([0], ACCEPTED_CODE, "")]
    assert both.desk.queue() is not old and both.desk.texts() == ["a"]


def test_attaching_without_a_right_or_to_nothing_is_refused_with_its_condition() -> None:
    both = Connected()
    _, missing = both.sender("nowhere")
    both.peer.grants.clear()
    _, forbidden = both.sender("q")
    assert [error.condition for [error] in (missing.detached, forbidden.detached) if error] == [
        "amqp:not-found",
        "amqp:unauthorized-access",
    ]


@pytest.mark.parametrize("broken", [b"", b"\x00\x53\x75\xa0\x05abc", encode_message(body="text", body_kind=VALUE)])
def test_a_batch_without_messages_is_no_batch(broken: bytes) -> None:
    with pytest.raises(DecodeFailed):
        split_batch(broken)


def test_a_broker_on_its_way_out_refuses_sends_and_links_so_that_clients_try_again_and_delivers_nothing() -> None:
    both = Connected()
    link, notes = both.sender()
    link.send(payload("before"), b"a", False, None)
    both.exchange()
    both.context.draining = True
    link.send(payload("after"), b"b", False, None)
    _, refused = both.receiver()
    both.settle()
    assert sorted(outcomes(notes)) == [([0], ACCEPTED_CODE, ""), ([1], REJECTED_CODE, "com.microsoft:server-busy")]
    assert [error.condition for error in refused.detached if error is not None] == ["com.microsoft:server-busy"]
    assert both.desk.texts() == ["before"]


def test_a_receiver_keeps_what_it_has_and_gets_no_more_from_a_broker_on_its_way_out() -> None:
    both = Connected()
    link, _ = both.sender()
    _, received = both.receiver(credit=10)
    link.send(payload("before"), b"a", False, None)
    both.settle()
    link.send(payload("in between"), b"b", False, None)
    both.context.draining = True
    both.settle()
    assert both.peer.unsettled_count() == len(received.transfers) == 1
