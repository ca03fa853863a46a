"""The checker must be able to say no: each thing that may not happen, and each that may."""

from __future__ import annotations

import pytest

from tandem.simulator.checker import Checker, CheckResult


@pytest.fixture
def checker() -> Checker:
    found = Checker("orders")
    found.sending("m")
    return found


def take(checker: Checker, number: int = 1) -> None:
    checker.delivered("m", number)
    checker.settling("m")
    checker.settled("m")


def test_sent_accepted_delivered_and_settled_is_fine(checker: Checker) -> None:
    checker.accepted("m")
    take(checker)
    assert checker.verdict() == CheckResult(seen=1)
    assert checker.verdict().holds


def test_accepted_and_never_seen_is_lost(checker: Checker) -> None:
    checker.accepted("m")
    assert checker.verdict().lost == 1
    assert "orders: lost: m" in str(checker.verdict())


def test_seen_but_not_settled_when_all_is_drained_is_lost(checker: Checker) -> None:
    checker.accepted("m")
    checker.delivered("m", 1)
    assert checker.verdict().lost == 1


def test_what_at_most_once_may_lose_is_allowed_and_no_more(checker: Checker) -> None:
    checker.accepted("m")
    checker.sending("n")
    checker.accepted("n")
    checker.lost_allowed = 1
    assert checker.verdict().lost == 1


def test_unanswered_send_may_arrive_or_not(checker: Checker) -> None:
    assert checker.verdict().holds
    take(checker)
    assert checker.verdict().holds


def test_seen_again_after_confirmed_settlement_is_duplicated(checker: Checker) -> None:
    checker.accepted("m")
    take(checker)
    checker.delivered("m", 1)
    assert checker.verdict().duplicated == 1


def test_unanswered_settlement_may_have_happened_or_not(checker: Checker) -> None:
    checker.accepted("m")
    checker.delivered("m", 1)
    checker.settling("m")
    assert checker.verdict().holds
    take(checker)
    assert checker.verdict().holds


def test_redelivery_whose_settlement_never_comes_is_lost(checker: Checker) -> None:
    checker.accepted("m")
    checker.delivered("m", 1)
    checker.settling("m")
    checker.delivered("m", 1)
    assert checker.verdict().lost == 1


def test_two_sequence_numbers_are_two_messages_unless_it_moved(checker: Checker) -> None:
    checker.accepted("m")
    checker.delivered("m", 1)
    checker.moved("m")
    checker.delivered("m", 7)
    assert checker.verdict().duplicated == 0
    checker.delivered("m", 8)
    assert checker.verdict().duplicated == 1


def test_strangers_and_refused_ones_are_unexpected(checker: Checker) -> None:
    checker.refused("m")
    take(checker)
    checker.delivered("stranger", 2)
    checker.wrong("too early")
    assert checker.verdict().unexpected == 3
    assert not checker.verdict().holds


def test_recovered_counts_each_message_that_outlived_a_crash_once(checker: Checker) -> None:
    checker.delivered("m", 1)
    checker.crashed()
    checker.delivered("m", 1)
    checker.crashed()
    checker.delivered("m", 1)
    checker.sending("n")
    checker.delivered("n", 2)
    assert checker.verdict().recovered == 1


def test_total_adds_up_and_keeps_the_examples(checker: Checker) -> None:
    other = Checker("other")
    other.wrong("odd")
    checker.accepted("m")
    both = CheckResult.total([checker.verdict(), other.verdict()])
    assert (both.lost, both.unexpected, both.holds) == (1, 1, False)
    assert both.examples == ("orders: lost: m", "other: odd")
