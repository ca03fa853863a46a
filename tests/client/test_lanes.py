"""One lane of a syphon: what goes next, and what a refusal does to the rest."""

from __future__ import annotations

import pytest

from tandem.client.destinations import Fate
from tandem.client.envelope import Destination
from tandem.client.lanes import BATCH_BYTES, MESSAGE_BYTES, Lane
from tandem.client.precedence import DivertedMessage


def lane_of(names: str, most: int = 10) -> Lane[DivertedMessage]:
    """Capital letters are fences."""
    return Lane("orders", [DivertedMessage(ord(name), 0, destination(name.isupper()), b"x" * 100) for name in names], most)


def destination(fence: bool) -> Destination:
    return Destination("orders", None, None, None, None, None, fence)


def named(messages: list[DivertedMessage] | None) -> str | None:
    return None if messages is None else "".join(chr(message.sequence_number) for message in messages)


def test_a_transfer_holds_what_its_bytes_and_its_number_allow_and_at_least_one_message() -> None:
    lane = lane_of("abcdef", most=3)
    assert named(lane.next_transfer(1_000_000)) == "abc"
    assert named(lane.next_transfer(BATCH_BYTES + 2 * (100 + MESSAGE_BYTES))) == "ab"
    assert named(lane.next_transfer(1)) == "a"


def test_what_is_under_way_stays_in_the_lane_until_it_is_accepted() -> None:
    lane = lane_of("abcd", most=2)
    lane.next_transfer(1_000_000)
    assert named(lane.left()) == "abcd"
    assert named(lane.accepted()) == "ab"
    assert named(lane.left()) == "cd" == named(lane.next_transfer(1_000_000))


def test_a_fence_is_passed_alone_when_all_before_it_have_gone() -> None:
    lane = lane_of("abFcG")
    gone = []
    while lane.next_transfer(1_000_000):
        gone.append(named(lane.accepted()))
    assert gone == ["ab", "F", "c", "G"]


def test_messages_refused_together_go_singly_until_the_refused_one_is_found() -> None:
    lane = lane_of("abcdef", most=3)
    lane.next_transfer(1_000_000)
    assert named(lane.refused(Fate.DEAD_LETTER)) == ""
    assert named(lane.next_transfer(1_000_000)) == "a"
    lane.accepted()
    assert named(lane.next_transfer(1_000_000)) == "b"
    assert named(lane.refused(Fate.DEAD_LETTER)) == "b"
    assert named(lane.next_transfer(1_000_000)) == "c"
    lane.accepted()
    assert named(lane.next_transfer(1_000_000)) == "def"


def test_a_destination_that_is_away_keeps_everything_waiting_in_its_order() -> None:
    lane = lane_of("abc", most=2)
    lane.next_transfer(1_000_000)
    assert lane.refused(Fate.WAIT) is None
    assert named(lane.left()) == "abc"
    assert named(lane.next_transfer(1_000_000)) == "ab"


@pytest.mark.parametrize(("fate", "whole_lane"), [(Fate.DEAD_LETTER_ALL, False), (Fate.DEAD_LETTER, True)])
def test_a_destination_that_takes_nothing_any_more_gets_nothing_any_more(fate: Fate, whole_lane: bool) -> None:
    lane = lane_of("abcd", most=2)
    lane.next_transfer(1_000_000)
    lane.accepted()
    lane.next_transfer(1_000_000)
    assert named(lane.refused(fate, whole_lane)) == "cd"
    assert lane.next_transfer(1_000_000) == []
