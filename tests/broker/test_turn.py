"""The turn of the house: everything once, in order; a defect in one queue or connection does not stop the others."""

from __future__ import annotations

import pytest

from tandem.broker.ports import Flushed, Pumped
from tandem.broker.turn import Turn, TurnSlot
from tests.stores.harness import ManualClock


class Recorder(Pumped):
    def __init__(self, name: str, log: list[str], turn: Turn, breaks: bool = False) -> None:
        self.name, self.log, self.breaks = name, log, breaks
        self.slot = TurnSlot(turn, self)

    def pump(self, now: int) -> None:
        self.log.append(f"pump {self.name}")
        if self.breaks:
            raise ZeroDivisionError(self.name)

    def due(self, now: int) -> None:
        self.log.append(f"due {self.name} at {now}")
        if self.breaks:
            raise ZeroDivisionError(self.name)
        self.slot.touch()


class Socket(Flushed):
    def __init__(self, name: str, log: list[str], breaks: bool = False) -> None:
        self.name, self.log, self.breaks = name, log, breaks

    def flush(self) -> None:
        self.log.append(f"flush {self.name}")
        if self.breaks:
            raise ZeroDivisionError(self.name)


class House:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.wanted = 0
        self.turn = Turn(self.clock, self._want)
        self.log: list[str] = []

    def _want(self) -> None:
        self.wanted += 1

    def run_all(self) -> list[str]:
        """As the loop does: once per wish. Defects are told."""
        told = []
        while self.wanted:
            self.wanted -= 1
            try:
                self.turn.run()
            except ZeroDivisionError as defect:
                told.append(str(defect))
        return told


def test_queues_pump_once_and_connections_flush_after_them() -> None:
    house = House()
    a, b = (Recorder(name, house.log, house.turn) for name in "ab")
    socket = Socket("s", house.log)
    house.turn.add_connection(socket)
    for queue in (a, b, a):
        queue.slot.touch()
    assert house.wanted == 1
    assert house.run_all() == []
    assert house.log == ["pump a", "pump b", "flush s"]


def test_timers_fire_once_at_their_instant_and_the_earliest_wish_holds() -> None:
    house = House()
    queue = Recorder("q", house.log, house.turn)
    start = house.clock.now
    queue.slot.wake(start + 500)
    queue.slot.wake(start + 900)
    queue.slot.wake(start + 100)
    assert house.turn.deadline() == start + 100
    house.turn.run()
    assert house.log == []
    house.clock.now += 100
    house.turn.run()
    assert house.log == [f"due q at {start + 100}", "pump q"]
    house.clock.now += 900
    house.turn.run()
    assert house.log == [f"due q at {start + 100}", "pump q"], "it asks again if it wants more"


@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_defect_in_one_queue_is_told_and_the_others_go_on(where: int) -> None:
    house = House()
    queues = [Recorder(str(n), house.log, house.turn, breaks=n == where) for n in range(3)]
    socket = Socket("s", house.log)
    house.turn.add_connection(socket)
    for queue in queues:
        queue.slot.touch()
    assert house.run_all() == [str(where)]
    assert house.log == ["pump 0", "pump 1", "pump 2", "flush s"]
    queues[(where + 1) % 3].slot.touch()
    house.run_all()
    assert house.log[-1] == f"pump {(where + 1) % 3}"


def test_a_defect_in_a_timer_or_a_connection_is_confined_too() -> None:
    house = House()
    bad, good = Recorder("bad", house.log, house.turn, breaks=True), Recorder("good", house.log, house.turn)
    bad.slot.wake(house.clock.now + 1)
    good.slot.wake(house.clock.now + 1)
    sockets = [Socket("one", house.log), Socket("two", house.log, breaks=True), Socket("three", house.log)]
    for socket in sockets:
        house.turn.add_connection(socket)
    house.clock.now += 1
    assert house.run_all() == ["bad", "two"]
    assert [entry.split(" at")[0] for entry in house.log] == ["due bad", "due good", "pump good", "flush one", "flush two", "flush three"]
