"""A node with two engines: what it holds, gives up and says while one of them is away."""

from __future__ import annotations

import pytest

from tandem.cluster.node import Node
from tandem.model.follower_row import FollowerRow
from tandem.model.store_row import StoreRow
from tests.cluster.nodes import until
from tests.cluster.test_engine_watch import Engine
from tests.stores.harness import ManualClock

LEASE_MS, STALL_MS = 50, 100


class First:
    """An engine that always answers."""

    def __init__(self) -> None:
        self.beats = 0

    def beat(self, node: str, incarnation: int) -> bool:
        self.beats += 1
        return True

    def look(self) -> tuple[list[tuple[str, int, int, str, str, bool]], list[StoreRow], dict[str, int], int, frozenset[str]]:
        row = StoreRow(1, "tandem", 0, bytes(16), 2, 1, "a", 1, "", 1, 1, 1)
        return [("a", 1, self.beats, "", "1", False)], [row], {"tandem": 1}, 0, frozenset()

    def followers(self) -> list[FollowerRow]:
        return []

    def wait(self, seconds: float) -> bool:
        return False

    def give_up_after(self, milliseconds: int) -> None:
        """It never hangs."""

    def close(self) -> None:
        """Nothing is open."""


class Held:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.epoch = 1
        self.doubts: dict[str, int] = {}
        self.held = ""
        self.given_up: list[str] = []

    def hold(self, why: str) -> None:
        self.held = why

    def hand_back(self, why: str, engine_away: bool = False) -> None:
        if engine_away:
            self.given_up.append(why)
        else:
            self.epoch = 0

    def move_away(self, why: str) -> None:
        self.epoch = 0


class House:
    """Store 0 in the first engine, 2 in the second."""

    def __init__(self) -> None:
        self.now = 1_000
        self.second = Engine()
        self.said: list[str] = []
        self.node = Node(
            "a",
            1,
            First(),
            ManualClock(),
            LEASE_MS,
            self.said.append,
            lambda: self.now,
            others=[self.second],
            engine_of=lambda namespace, store: "second" if store == 2 else "",
            stall_ms=STALL_MS,
        )
        self.here, self.there = Held(), Held()
        self.node.stores.update({("tandem", 0): self.here, ("tandem", 2): self.there})
        self.beat()

    def beat(self) -> None:
        """In the first engine; what the second has shown is looked at."""
        self.node.first_look()

    def hang(self) -> None:
        self.second.hangs.clear()
        until(lambda: self.second.hung, 10)

    @property
    def watch_beats(self) -> int:
        return self.node.watches[0].view.beats


@pytest.fixture
def house() -> House:
    return House()


def test_stores_of_an_engine_that_hangs_are_held_and_then_given_up_once_and_others_go_on(house: House) -> None:
    house.hang()
    house.now += LEASE_MS
    house.beat()
    assert "could not reach engine second" in house.there.held
    assert house.here.held == ""
    assert house.there.given_up == []
    house.now += STALL_MS
    house.beat()
    house.beat()
    assert len(house.there.given_up) == 1
    assert house.here.given_up == []
    assert any("engine second does not answer: no answer for more than" in note for note in house.node.state()["notes"])  # type: ignore[attr-defined]
    assert [(one["name"], one["answers"]) for one in house.node.engines()] == [("first", True), ("second", False)]
    assert house.node.why_away("second")
    house.second.hangs.set()
    until(lambda: house.node.watches[0].view.answers, 10)
    house.node.stop()


def test_what_is_held_is_let_go_when_what_the_engine_shows_was_looked_at_and_not_before(house: House) -> None:
    house.hang()
    house.now += LEASE_MS
    house.beat()
    before = house.watch_beats
    house.second.hangs.set()
    until(lambda: house.watch_beats > before + 1, 10)
    house.node.check()
    assert house.there.held, "somebody may have taken it over meanwhile: its row was read, and nobody has looked at it"
    house.beat()
    assert house.there.held == ""
    house.node.stop()


def test_with_one_engine_nothing_is_said_of_engines() -> None:
    node = Node("a", 1, First(), ManualClock(), LEASE_MS, lambda text: None)
    node.first_look()
    assert "engines" not in node.state()
    assert node.state()["notes"] == []
    assert node.why_away("") == ""


class Restored(First):
    """An engine of which another node has acquired our store, under the epoch under which we have it."""

    def look(self) -> tuple[list[tuple[str, int, int, str, str, bool]], list[StoreRow], dict[str, int], int, frozenset[str]]:
        row = StoreRow(1, "tandem", 0, bytes(16), 2, 1, "b", 1, "", 1, 1, 1)
        return [("a", 1, 7, "", "1", False), ("b", 1, 7, "", "1", False)], [row], {"tandem": 1}, 0, frozenset()


def test_of_two_nodes_that_have_a_store_under_one_epoch_the_one_that_the_engine_does_not_name_gives_it_up() -> None:
    node = Node("a", 1, Restored(), ManualClock(), LEASE_MS, [].append, lambda: 1_000)
    held = Held()
    node.stores["tandem", 0] = held
    node.ask(1_000)()
    assert held.epoch == 0


class Overtaken(First):
    """An engine of which another node has acquired our store, after us."""

    def look(self) -> tuple[list[tuple[str, int, int, str, str, bool]], list[StoreRow], dict[str, int], int, frozenset[str]]:
        row = StoreRow(1, "tandem", 0, bytes(16), 2, 2, "b", 1, "", 1, 1, 1)
        return [("a", 1, 7, "", "1", False), ("b", 1, 7, "", "1", False)], [row], {"tandem": 1}, 0, frozenset()


@pytest.mark.parametrize("heard_before", [True, False], ids=["of-ours-first", "of-theirs-first"])
def test_a_store_that_others_acquired_while_it_was_read_is_handed_back_when_it_is_open(heard_before: bool) -> None:
    node = Node("a", 1, Overtaken(), ManualClock(), LEASE_MS, [].append, lambda: 1_000)
    held = node.stores["tandem", 0] = Held()
    held.epoch = 0  # acquired, and being read
    ours = StoreRow(1, "tandem", 0, bytes(16), 2, 1, "a", 1, "", 1, 1, 1)
    if heard_before:
        node.took(ours)
    node.ask(1_000)()
    if not heard_before:
        node.took(ours)
    held.epoch = 1
    node.opened("tandem", 0)
    assert held.epoch == 0
    assert node.membership.owner("tandem", 0) == "b"


class Forgetful(First):
    """An engine that takes no beat of this node: it has another row of it, or none."""

    def __init__(self, incarnation: int) -> None:
        super().__init__()
        self._incarnation = incarnation

    def beat(self, node: str, incarnation: int) -> bool:
        return False

    def look(self) -> tuple[list[tuple[str, int, int, str, str, bool]], list[StoreRow], dict[str, int], int, frozenset[str]]:
        return [("a", self._incarnation, 7, "", "1", False)] if self._incarnation else [], [], {}, 0, frozenset()


@pytest.mark.parametrize(
    ("incarnation", "says"),
    [(0, "node a was struck from the cluster"), (2, "restored to an older state"), (4, "another process runs as node a")],
)
def test_a_node_that_may_not_beat_says_why_and_gives_up_what_it_has(incarnation: int, says: str) -> None:
    said: list[str] = []
    node = Node("a", 3, Forgetful(incarnation), ManualClock(), LEASE_MS, said.append, lambda: 1_000)
    held = Held()
    node.stores["tandem", 0] = held
    node.ask(1_000)()
    assert says in said[0]
    assert held.epoch == 0


def test_each_reason_why_the_engine_is_away_is_told_once_until_it_is_back() -> None:
    house = House()
    for cause in ("closed", "closed", "wrong password", "closed", *(f"odd {number}" for number in range(100))):
        house.node.is_away(cause)
    told = [line for line in house.said if "does not take our beats" in line]
    assert [line.rpartition(": ")[2] for line in told[:3]] == ["closed", "wrong password", "odd 0"]
    assert len(told) < 10
    assert house.node.engines()[0]["cause"] == "odd 99"
    house.beat()
    house.node.is_away("closed")
    assert house.said[-2:] == ["the engine takes our beats again", "the engine does not take our beats: closed"]
