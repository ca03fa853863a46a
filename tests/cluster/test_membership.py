"""Who is believed to live, and who takes what: beats are counted, nobody's clock is asked."""

from __future__ import annotations

from dataclasses import replace

from tandem.cluster.membership import BEATS_PER_LEASE, Membership, NodeRow, View
from tandem.model.store_row import StoreRow

STORES = 2


def node(name: str, beat: int, incarnation: int = 1, draining: bool = False) -> NodeRow:
    return NodeRow(name, incarnation, beat, f"{name}:5700", "1", draining)


def store(number: int, owner: str = "", epoch: int = 1, wanted: str = "") -> StoreRow:
    return StoreRow(number + 1, "tandem", number, bytes(16), 2, epoch, owner, 1, wanted, 1, 1, 1)


def view(nodes: list[NodeRow], owner: str = "", wanted: str = "", epoch: int = 1) -> View:
    return View(tuple(nodes), tuple(store(number, owner, epoch, wanted) for number in range(STORES)))


def beaten(name: str, views: list[View]) -> Membership:
    membership = Membership(name)
    for seen in views:
        membership.beat(seen)
    return membership


def test_a_node_is_dead_for_whoever_has_made_a_lease_of_beats_while_it_made_none() -> None:
    membership = Membership("b")
    for beat in range(BEATS_PER_LEASE):
        membership.beat(view([node("a", 7), node("b", beat)], owner="a"))
        assert membership.owner("tandem", 0) == "a", "it may just be slow"
        assert not membership.should_open("tandem", 0)
    membership.beat(view([node("a", 7), node("b", 9)], owner="a"))
    assert membership.owner("tandem", 0) is None
    assert membership.may_take(store(0, "a"))


def test_one_beat_brings_a_node_back() -> None:
    membership = beaten("b", [view([node("a", 7), node("b", beat)], owner="a") for beat in range(BEATS_PER_LEASE + 1)])
    membership.beat(view([node("a", 8), node("b", 9)], owner="a"))
    assert membership.owner("tandem", 0) == "a"
    assert not membership.may_take(store(0, "a"))


def test_nobody_ages_while_nobody_beats() -> None:
    """An engine that is away takes no beats: whatever the clocks say, nobody is older after it."""
    membership = beaten("b", [view([node("a", 1), node("b", 1)], owner="a")])
    assert membership.owner("tandem", 0) == "a"


def test_of_two_that_could_take_a_free_namespace_one_tries_first_and_the_other_a_beat_later() -> None:
    seen = [view([node("a", beat), node("b", beat)]) for beat in range(2)]
    first = {name: beaten(name, seen[:1]).should_open("tandem", 0) for name in "ab"}
    assert sorted(first.values()) == [False, True]
    assert all(beaten(name, seen).should_open("tandem", 0) for name in "ab")


def test_the_stores_of_a_namespace_go_together() -> None:
    membership = beaten("b", [view([node("a", 1), node("b", 1)]), view([node("a", 2), node("b", 2)])])
    assert not membership.should_open("tandem", 1), "the first one decides"
    membership.took(store(0, "b", 2))
    assert membership.should_open("tandem", 1)
    assert membership.may_take(store(1, "a")), "whoever has the first has them all"


def test_a_node_that_restarts_acquires_its_own_stores_at_once() -> None:
    assert beaten("a", [view([node("a", 0, 2), node("b", 5)], owner="a")]).should_open("tandem", 0)


def test_a_wanted_move_is_left_by_the_owner_and_taken_by_the_wanted_alone() -> None:
    nodes = [node("a", 1), node("b", 1), node("c", 1)]
    assert beaten("a", [view(nodes, "a", "b")]).should_leave("tandem") == "b"
    assert not beaten("b", [view(nodes, "a", "b")]).should_open("tandem", 0), "not before it is free"
    assert beaten("b", [view(nodes, "", "b")]).should_open("tandem", 0)
    assert not beaten("c", [view(nodes, "", "b")] * 4).may_take(store(0, "", 1, "b"))
    gone = [node("a", 1), node("b", 1), node("c", 1)]
    dead = beaten("c", [view(gone, "", "b")] * (BEATS_PER_LEASE + 1))
    assert dead.may_take(store(0, "", 1, "b")), "a wanted node that died is not waited for"


def test_a_drained_node_leaves_what_it_has_and_takes_nothing_while_others_live() -> None:
    nodes = [replace(node("a", 1), draining=True), node("b", 1)]
    assert beaten("a", [view(nodes, "a")]).should_leave("tandem") == "b"
    free = [view(nodes), view([replace(node("a", 2), draining=True), node("b", 2)])]
    assert not beaten("a", free).should_open("tandem", 0)
    assert beaten("b", free).should_open("tandem", 0)


def test_a_store_whose_epoch_rose_is_lost() -> None:
    membership = beaten("a", [view([node("a", 1), node("b", 1)], "b", epoch=4)])
    assert membership.lost("tandem", 0, 3) == "b"
    assert membership.lost("tandem", 0, 4) == ""
