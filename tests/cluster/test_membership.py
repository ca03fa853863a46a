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


def test_a_node_that_is_back_since_our_last_beat_keeps_its_stores() -> None:
    membership = beaten("b", [view([node("a", 7), node("b", beat)], owner="a") for beat in range(BEATS_PER_LEASE + 1)])
    silent = store(0, "a")
    assert membership.may_take(silent)
    assert membership.may_take(replace(silent, owner_beat=(1, 7)))
    assert not membership.may_take(replace(silent, owner_beat=(2, 7))), "it was started again"
    assert not membership.may_take(replace(silent, owner_beat=(1, 8))), "it was slow"


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
    assert beaten("a", [view(nodes, "a", "b")]).should_leave("tandem", 0) == "b"
    assert not beaten("b", [view(nodes, "a", "b")]).should_open("tandem", 0), "not before it is free"
    assert beaten("b", [view(nodes, "", "b")]).should_open("tandem", 0)
    assert not beaten("c", [view(nodes, "", "b")] * 4).may_take(store(0, "", 1, "b"))
    gone = [node("a", 1), node("b", 1), node("c", 1)]
    dead = beaten("c", [view(gone, "", "b")] * (BEATS_PER_LEASE + 1))
    assert dead.may_take(store(0, "", 1, "b")), "a wanted node that died is not waited for"


def test_a_drained_node_leaves_what_it_has_and_takes_nothing_while_others_live() -> None:
    nodes = [replace(node("a", 1), draining=True), node("b", 1)]
    assert beaten("a", [view(nodes, "a")]).should_leave("tandem", 0) == "b"
    free = [view(nodes), view([replace(node("a", 2), draining=True), node("b", 2)])]
    assert not beaten("a", free).should_open("tandem", 0)
    assert beaten("b", free).should_open("tandem", 0)


def test_a_store_whose_epoch_rose_is_lost() -> None:
    membership = beaten("a", [view([node("a", 1), node("b", 1)], "b", epoch=4)])
    assert membership.lost("tandem", 0, 3) == "b"
    assert membership.lost("tandem", 0, 4) == ""


def test_a_store_that_is_down_with_its_owner_is_opened_there_though_it_is_wanted_elsewhere() -> None:
    """Nobody takes it from one who lives: else both would wait for ever."""
    seen = [view([node("a", beat), node("b", beat)], owner="a", wanted="b") for beat in range(2)]
    owner, wanted = beaten("a", seen), beaten("b", seen)
    assert not wanted.should_open("tandem", 0)
    assert owner.should_open("tandem", 0)
    assert owner.should_leave("tandem", 0) == "b", "when it is open"


def apart(nodes: list[NodeRow], *owners: str, wanted: str = "") -> View:
    """Stores that are placed one by one."""
    stores = tuple(store(number, owner, 1, wanted) for number, owner in enumerate(owners))
    return View(tuple(nodes), stores, spread=frozenset({"tandem"}))


def steady(name: str, owners: str, *nodes: str, wanted: str = "", draining: str = "") -> Membership:
    """What a node believes that has seen the same for long enough; everybody beats."""
    return beaten(
        name,
        [
            apart([node(one, beat, draining=one in draining) for one in nodes], *owners, wanted=wanted)
            for beat in range(BEATS_PER_LEASE + 1)
        ],
    )


def leaving(membership: Membership, count: int) -> dict[int, str]:
    return {number: to for number in range(count) if (to := membership.should_leave("tandem", number))}


def test_free_stores_are_shared_evenly_and_each_is_tried_by_one_first() -> None:
    seen = apart([node(name, 1) for name in "abc"], *[""] * 6)
    first = {name: [number for number in range(6) if beaten(name, [seen]).should_open("tandem", number)] for name in "abc"}
    assert sorted(number for numbers in first.values() for number in numbers) == list(range(6))
    assert {len(numbers) for numbers in first.values()} == {2}


def test_only_the_stores_of_a_dead_node_are_taken() -> None:
    views = [apart([node("a", beat), node("b", 7)], "a", "b", "a", "b") for beat in range(BEATS_PER_LEASE + 1)]
    membership = beaten("a", views)
    assert [membership.may_take(store(number, owner)) for number, owner in enumerate("abab")] == [True] * 4
    assert membership.owner("tandem", 1) is None
    assert [number for number in (1, 3) if membership.should_open("tandem", number)] == [1, 3]
    assert leaving(membership, 4) == {}


def test_a_node_that_was_added_gets_one_store_at_a_time_from_whoever_has_most() -> None:
    assert leaving(steady("a", "aaaa", "a", "b"), 4) == {0: "b"}
    assert leaving(steady("a", "baaa", "a", "b"), 4) == {1: "b"}
    assert leaving(steady("a", "bbaa", "a", "b"), 4) == {}
    assert leaving(steady("b", "baaa", "a", "b"), 4) == {}
    assert leaving(beaten("a", [apart([node("a", 1), node("b", 1)], *"aaaa")]), 4) == {}, "not before it has been there for a while"
    assert leaving(steady("a", "aaa", "a", "b"), 3) == {0: "b"}


def test_nothing_is_balanced_while_a_store_is_between_two_owners_or_was_put_there_by_hand() -> None:
    views = [apart([node("a", beat), node("b", beat)], "a", "a", "a", "") for beat in range(BEATS_PER_LEASE + 1)]
    assert leaving(beaten("a", views), 4) == {}
    assert leaving(steady("a", "aaaa", "a", "b", wanted="a"), 4) == {}


def test_a_store_that_was_just_given_away_is_not_taken_back_because_of_what_an_older_beat_shows() -> None:
    membership = steady("a", "aaaa", "a", "b")
    membership.leaves("tandem", 0)
    assert not membership.should_open("tandem", 0)
    membership.beat(apart([node("a", 8), node("b", 8)], "", *"aaa"))
    assert not membership.should_open("tandem", 0), "the other one has a beat"
    membership.beat(apart([node("a", 9), node("b", 9)], "", *"aaa"))
    assert membership.should_open("tandem", 0), "it did not take it"


def test_a_drained_node_gives_its_stores_away_one_at_a_time_also_those_that_were_put_there() -> None:
    drained = steady("a", "abab", "a", "b", "c", draining="a")
    assert leaving(drained, 4) == {0: "c"}
    assert leaving(steady("a", "abab", "a", "b", wanted="a", draining="a"), 4) != {}
    free = apart([node("a", 1, draining=True), node("b", 1)], "", "b", "a", "b", wanted="a")
    assert not beaten("a", [free]).should_open("tandem", 0)
    assert beaten("b", [free]).should_open("tandem", 0), "a node that is drained is not waited for"


def test_a_node_that_does_not_listen_is_given_nothing_beside_others_that_do_and_if_none_does_stores_go_together() -> None:
    deaf = replace(node("b", 1), address="")
    assert not beaten("b", [apart([node("a", 1), deaf], "", "")] * 4).should_open("tandem", 0)
    together = [apart([replace(node("a", 1), address=""), deaf], "b", "")]
    assert beaten("b", together).should_open("tandem", 1)
    assert not beaten("a", together).should_open("tandem", 1)


def test_an_epoch_that_another_node_has_too_is_noticed() -> None:
    """Of an engine that was restored to an older state, which counts epochs again."""
    nodes = [node("a", 7), node("b", 7)]
    for owner, epoch, by in (("a", 3, ""), ("", 3, ""), ("b", 2, ""), ("b", 3, "b"), ("b", 4, "")):
        assert beaten("a", [view(nodes, owner=owner, epoch=epoch)]).doubled("tandem", 0, 3) == by
