"""The machine's clock, as everybody is handed it."""

from __future__ import annotations

from tandem.model.clock import JUMP_MS, SystemClock

MS = 1_000_000


class Hands:
    """A machine whose two clocks are moved by a test."""

    def __init__(self) -> None:
        self.wall_ns = 1_700_000_000_000 * MS
        self.steady_ns = 5_000 * MS
        self.clock = SystemClock(lambda: self.wall_ns, lambda: self.steady_ns)

    def pass_ms(self, ms: int) -> None:
        self.wall_ns += ms * MS
        self.steady_ns += ms * MS


def test_an_instant_is_the_machines_and_a_duration_is_steady() -> None:
    hands = Hands()
    assert (hands.clock.now_ms(), hands.clock.steady_ms()) == (1_700_000_000_000, 5_000)
    hands.pass_ms(250)
    assert (hands.clock.now_ms(), hands.clock.steady_ms()) == (1_700_000_000_250, 5_250)
    assert hands.clock.jumped() == 0


def test_a_clock_that_was_set_is_followed_when_it_is_looked_at_and_not_before() -> None:
    hands = Hands()
    hands.wall_ns -= 3_600_000 * MS
    assert hands.clock.now_ms() == 1_700_000_000_000
    assert hands.clock.jumped() == -3_600_000
    assert (hands.clock.now_ms(), hands.clock.steady_ms()) == (1_700_000_000_000 - 3_600_000, 5_000)


def test_drift_is_followed_a_little_at_a_time() -> None:
    hands = Hands()
    hands.wall_ns += (JUMP_MS - 1) * MS
    looks = 0
    while hands.clock.now_ms() < hands.wall_ns // MS:
        assert hands.clock.jumped() == 0
        looks += 1
    assert looks == 50
