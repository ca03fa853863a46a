"""Where the doors of a namespace ask whether a fault strikes."""

from __future__ import annotations

from tandem.server.fault_points import FaultPoints
from tandem.server.faults import FaultKind, FaultRequest, Faults
from tests.broker.desk import Desk


class Points:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.told = 0
        self.points = FaultPoints(Desk().namespace, Faults(lambda: 0.0, 1), [], self.lines.append, self.tell)

    def tell(self) -> None:
        self.told += 1


def test_nothing_strikes_until_a_fault_is_in_force() -> None:
    made = Points()
    assert not made.points.active
    assert made.points.strike(FaultKind.LOSE_ACKNOWLEDGEMENT, "q") is None
    fault = made.points.inject(FaultRequest(kind=FaultKind.ENTITY_UNREACHABLE, entity="q"))
    assert made.points.active
    assert made.points.strike(FaultKind.ENTITY_UNREACHABLE, "q") is fault
    assert made.points.strike(FaultKind.ENTITY_UNREACHABLE, "other") is None


def test_a_fault_that_was_healed_strikes_nobody() -> None:
    made = Points()
    made.points.inject(FaultRequest(kind=FaultKind.BLACK_HOLE))
    assert made.points.swallows()
    made.points.heal(None)
    assert not made.points.active
    assert not made.points.swallows()
    assert made.told == 1
    assert len(made.lines) == 2


def test_stores_are_told_of_faults_that_are_theirs() -> None:
    made = Points()
    made.points.inject(FaultRequest(kind=FaultKind.STORE_DOWN, store=0))
    assert made.told == 1
