"""Outcomes as AMQP carries them, read as settlements."""

from __future__ import annotations

import pytest

from tandem.amqp import AmqpError, Outcome
from tandem.amqp.outcomes import ACCEPTED_CODE, MODIFIED_CODE, RECEIVED, REJECTED_CODE, RELEASED_CODE
from tandem.amqp.terminus import Terminus
from tandem.amqp.types import Described, Symbol, Timestamp
from tandem.gateway import verbs
from tandem.gateway.amqp.settlements import counts_by_default, settlement_of, transaction_of
from tandem.model.errors import DecodeFailed


def rejected(condition: str, description: str | None = None, info: dict[object, object] | None = None) -> Outcome:
    return Outcome(REJECTED_CODE, AmqpError(condition, description, info))


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome(ACCEPTED_CODE), verbs.COMPLETE),
        (Outcome(RELEASED_CODE), verbs.RELEASE),
        (Outcome(REJECTED_CODE), verbs.DEAD_LETTER),
        (Outcome(MODIFIED_CODE), verbs.ABANDON),
    ],
)
def test_each_outcome_is_one_kind_of_settlement(outcome: Outcome, kind: int) -> None:
    settlement = settlement_of(outcome)
    assert settlement is not None and settlement.kind == kind and settlement.changes() == {}


def test_a_state_that_is_no_outcome_says_nothing_about_the_message() -> None:
    assert settlement_of(Outcome(0)) is None
    assert settlement_of(Outcome(RECEIVED)) is None


def test_reason_and_description_of_a_dead_lettering_are_taken_from_where_each_client_puts_them() -> None:
    info = {Symbol("DeadLetterReason"): "why", Symbol("DeadLetterErrorDescription"): "how", Symbol("own"): 1}
    told = settlement_of(rejected("com.microsoft:dead-letter", None, info))
    assert told is not None
    assert (told.reason, told.description, told.properties) == ("why", "how", {"own": 1})
    assert told.changes() == {"own": 1, "DeadLetterReason": "why", "DeadLetterErrorDescription": "how"}
    plain = settlement_of(rejected("app:broken", "it is broken"))
    assert plain is not None and (plain.reason, plain.description) == ("app:broken", "it is broken")


def test_a_modified_outcome_brings_properties_a_time_to_come_back_and_the_wish_to_defer() -> None:
    outcome = Outcome(MODIFIED_CODE)
    outcome.message_annotations = {Symbol("x-opt-delivery-time"): Timestamp(5_000), Symbol("tries"): 2}
    abandoned = settlement_of(outcome)
    assert abandoned is not None
    assert (abandoned.kind, abandoned.properties, abandoned.deliver_at) == (verbs.ABANDON, {"tries": 2}, 5_000)
    outcome.undeliverable_here = True
    deferred = settlement_of(outcome)
    assert deferred is not None and deferred.kind == verbs.DEFER


def test_a_delivery_counts_by_default_only_if_its_receiver_said_so_when_it_attached() -> None:
    assert not counts_by_default(None)
    assert not counts_by_default(Terminus("q"))
    assert not counts_by_default(Terminus("q", default_outcome=Described(0x26, [])))
    assert counts_by_default(Terminus("q", default_outcome=Described(0x27, [True])))
    assert not counts_by_default(Terminus("q", default_outcome=Described(0x27, [False])))


def test_the_state_of_a_transfer_that_cannot_be_read_is_refused() -> None:
    assert transaction_of(b"\x00\x53\x24\x45") is None
    with pytest.raises(DecodeFailed):
        transaction_of(b"\x00")
