"""When a broker has its turns: at once after news from a store, when something is due, and a few times a second to look after itself."""

from __future__ import annotations

import asyncio

from tandem.server.turn_driver import TurnDriver
from tandem.simulator.agenda import SimClock
from tandem.simulator.loop import SimLoop

EPOCH_MS = 1_000_000


class House:
    """A driver in virtual time, without stores and connections."""

    def __init__(self, *, real_time: bool = True) -> None:
        self.loop = SimLoop()  # type: ignore[abstract]
        self.clock = SimClock(self.loop.agenda, EPOCH_MS)
        self.driver = TurnDriver(self.clock, self.clock, 1_000_000, real_time)
        self.driver.start(self.loop)
        self.turn = self.driver.turn


class Chore:
    def __init__(self) -> None:
        self.looked_at: list[int] = []
        self.breaks = False

    def look_after(self, now: int) -> None:
        self.looked_at.append(now - EPOCH_MS)
        if self.breaks:
            raise ValueError("a defect")


def test_what_a_store_has_made_durable_is_announced_before_anything_else_of_the_loop_runs() -> None:
    house = House()
    order: list[str] = []

    async def story() -> None:
        before = house.turn.number

        def news() -> None:
            order.append(f"news in turn {house.turn.number - before}")
            house.turn.schedule()

        house.driver.hand_over(news)
        house.loop.call_soon(lambda: order.append(f"then turn {house.turn.number - before}"))
        await asyncio.sleep(0.001)
        assert house.turn.number == before + 1, "one turn, not two"

    house.loop.run(story())
    assert order == ["news in turn 0", "then turn 1"]


def test_news_that_changes_nothing_costs_no_turn_and_news_before_a_planned_turn_waits_for_it() -> None:
    house = House()

    async def story() -> None:
        before = house.turn.number
        house.driver.hand_over(lambda: None)
        await asyncio.sleep(0.001)
        assert house.turn.number == before
        house.driver.hand_over(house.turn.schedule)
        house.turn.schedule()
        await asyncio.sleep(0.001)
        assert house.turn.number == before + 1

    house.loop.run(story())


def test_news_that_breaks_does_not_keep_others_from_their_turn() -> None:
    house = House()

    def broken() -> None:
        house.turn.schedule()
        raise ValueError("a defect")

    async def story() -> None:
        before = house.turn.number
        house.driver.hand_over(broken)
        await asyncio.sleep(0.001)
        assert house.turn.number == before + 1
        house.turn.schedule()
        await asyncio.sleep(0.001)
        assert house.turn.number == before + 2

    house.loop.run(story())
    assert [repr(mishap) for mishap in house.loop.agenda.mishaps] == ["ValueError('a defect')"]


def test_the_house_is_kept_at_its_pace_until_told_to_stop_also_after_a_defect() -> None:
    house = House()
    chore = Chore()
    house.driver.chores.append(chore)

    async def story() -> None:
        house.driver.start_housekeeping(0.25)
        await asyncio.sleep(0.6)
        chore.breaks = True
        await asyncio.sleep(0.25)
        chore.breaks = False
        await asyncio.sleep(0.25)
        house.driver.stop_housekeeping()
        await asyncio.sleep(10.0)

    house.loop.run(story())
    assert chore.looked_at == [250, 500, 750, 1000]
    assert [repr(mishap) for mishap in house.loop.agenda.mishaps] == ["ValueError('a defect')"]
