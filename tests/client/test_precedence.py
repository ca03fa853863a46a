"""Which messages of a session kept in order may go home: the same answer for every syphon."""

from __future__ import annotations

from tandem.client.envelope import Destination
from tandem.client.places import Place
from tandem.client.precedence import DivertedMessage, Precedence, earlier

NOBODY = earlier([], True)


def message(number: int, session: str | None = "s", after: str | None = "", fence: bool = False, path: str = "Orders") -> DivertedMessage:
    return DivertedMessage(number, number, Destination(path, session, None, None, None, after, fence), b"")


def numbers(messages: list[DivertedMessage]) -> list[int]:
    return [message.sequence_number for message in messages]


def test_once_a_message_waits_all_behind_it_in_its_session_do_and_other_sessions_go() -> None:
    mine = [message(1), message(2), message(3, "t"), message(4), message(5, None, None)]
    go, wait = Precedence().divide(mine, NOBODY, {2})
    assert (numbers(go), numbers(wait)) == ([1, 3, 5], [2, 4])


def test_a_session_with_earlier_messages_in_the_queue_waits_wholly() -> None:
    go, wait = Precedence().divide([message(5), message(6, "t")], earlier([Place(1, 1, "orders", "s", "")], True), ())
    assert (numbers(go), numbers(wait)) == ([6], [5])


def test_a_later_page_of_the_same_attempt_waits_for_what_waited_before() -> None:
    order = Precedence()
    order.divide([message(7)], NOBODY, {7})
    go, wait = order.divide([message(6), message(8)], NOBODY, ())
    assert (numbers(go), numbers(wait)) == ([6], [8])


def test_a_fence_waits_for_whatever_of_its_path_waits() -> None:
    fence, elsewhere = message(9, None, None, fence=True), message(10, None, None, fence=True, path="other")
    go, wait = Precedence().divide([message(8), fence, elsewhere], NOBODY, {8})
    assert (numbers(go), numbers(wait)) == ([10], [8, 9])


def test_with_too_much_to_look_through_everything_in_order_waits() -> None:
    go, wait = Precedence().divide([message(1), message(2, "t", None)], earlier([], False), ())
    assert (numbers(go), numbers(wait)) == ([2], [1])
