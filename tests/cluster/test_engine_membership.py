"""Several engines: who serves a store beats in the engine that it lives in, and what is away holds up nothing else."""

from __future__ import annotations

from dataclasses import replace

from tandem.cluster.membership import BEATS_PER_LEASE, EngineView, Membership, NodeRow, View
from tandem.model.store_row import StoreRow


def store(number: int, owner: str = "", engine: str = "", epoch: int = 1, wanted: str = "") -> StoreRow:
    return StoreRow(number + 1, "tandem", number, bytes(16), 2, epoch, owner, 1, wanted, 1, 1, 1, engine=engine)


class Story:
    """What node `name` sees: stores 0 and 1 in the first engine, 2 and 3 in the second."""

    def __init__(self, name: str, owners: str, nodes: str = "ab") -> None:
        self.membership = Membership(name)
        self.rows = [store(number, owner.strip(), "second" if number > 1 else "") for number, owner in enumerate(owners)]
        self.first = dict.fromkeys(nodes, 0)
        self.second = dict.fromkeys(nodes, 0)
        self.draining: set[str] = set()
        self.seen = EngineView()

    def beat(self, times: int = 1, answers: bool = True, silent: str = "", cut_off: str = "") -> None:
        """`silent` nodes are dead, `cut_off` ones do not reach the second engine."""
        for _ in range(times):
            for name in self.first:
                self.first[name] += name not in silent
                self.second[name] += answers and name not in silent + cut_off
            if answers:
                there = tuple(row for row in self.rows if row.engine)
                self.seen = EngineView(self.seen.beats + 1, {name: (1, beat) for name, beat in self.second.items()}, there, True)
            else:
                self.seen = replace(self.seen, answers=False)
            nodes = tuple(NodeRow(name, 1, beat, f"{name}:1", "1", name in self.draining) for name, beat in self.first.items())
            stores = (*(row for row in self.rows if not row.engine), *self.seen.stores)
            self.membership.beat(View(nodes, stores, spread=frozenset({"tandem"}), engines={"second": self.seen}))

    def opens(self) -> list[int]:
        return [number for number in range(4) if self.membership.should_open("tandem", number)]

    def owners(self) -> list[str | None]:
        return [self.membership.owner("tandem", number) for number in range(4)]

    def leaves(self) -> list[str]:
        return [self.membership.should_leave("tandem", number) for number in range(4)]


def test_a_node_that_dies_leaves_its_stores_in_both_engines() -> None:
    story = Story("b", "aabb")
    story.rows = [store(0, "a"), store(1, "b"), store(2, "a", "second"), store(3, "b", "second")]
    story.beat(BEATS_PER_LEASE, silent="a")
    story.beat(2, silent="a")
    assert story.owners() == [None, "b", None, "b"]
    assert story.opens() == [0, 1, 2, 3], "its own ones are open already"


def test_while_an_engine_is_away_nobody_ages_there_and_nobody_tries_to_open_anything() -> None:
    story = Story("b", "abab")
    story.beat(2)
    story.beat(3 * BEATS_PER_LEASE, answers=False)
    assert story.owners() == ["a", "b", "a", "b"]
    assert story.opens() == [1], "b has nothing to look for in the second engine"
    story.beat()
    assert story.owners() == ["a", "b", "a", "b"], "it is back, and nothing has moved"


def test_a_node_that_lives_and_does_not_reach_an_engine_loses_its_stores_there_and_only_those() -> None:
    story = Story("b", "abab")
    story.beat(2)
    story.beat(BEATS_PER_LEASE + 1, cut_off="a")
    assert story.owners() == ["a", "b", None, "b"]
    assert story.opens() == [1, 2, 3]


def test_nothing_is_moved_to_a_node_that_does_not_reach_the_engine_of_a_store() -> None:
    story = Story("b", "a bb")
    story.rows = [store(0, "b"), store(1, "b"), store(2, "b", "second"), store(3, "b", "second")]
    story.beat(3 * BEATS_PER_LEASE, cut_off="a")
    assert sorted(filter(None, story.leaves())) == ["a"], "one at a time"
    assert story.leaves()[2:] == ["", ""]


def test_stores_of_an_engine_that_is_away_are_not_moved_and_hold_up_no_others() -> None:
    story = Story("a", "aaab")
    story.beat(2 * BEATS_PER_LEASE)
    story.rows = [store(0, "a"), store(1, "a"), *story.rows[2:]]
    story.beat(answers=False)
    story.draining = {"a"}
    story.beat(2 * BEATS_PER_LEASE, answers=False, silent="")
    assert story.leaves() == ["b", "", "", ""], "what lives in the first engine leaves one at a time"
    story.rows[0] = store(0, "b", epoch=2)
    story.beat(answers=False)
    assert story.leaves() == ["", "b", "", ""]
    story.rows[1] = store(1, "b", epoch=2)
    story.beat(2)
    assert story.leaves() == ["", "", "b", ""], "the rest when it is back"


def test_a_look_that_is_older_than_what_was_acquired_is_not_believed() -> None:
    story = Story("a", "  b ", nodes="a")
    story.beat()
    story.membership.took(store(2, "a", "second", epoch=5))
    story.beat()
    row = story.membership.store("tandem", 2)
    assert row is not None
    assert (row.owner, row.epoch) == ("a", 5)


def test_stores_are_shared_evenly_over_the_nodes_whatever_engine_they_live_in() -> None:
    story = Story("a", "aaaa")
    story.beat(3 * BEATS_PER_LEASE)
    moves = story.leaves()
    assert moves.count("b") == 1
    story.rows = [store(0, "b"), store(1, "b"), store(2, "a", "second"), store(3, "a", "second")]
    story.beat(3 * BEATS_PER_LEASE)
    assert story.leaves() == [""] * 4, "two each"
