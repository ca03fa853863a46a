"""Relaying shares the event loop with queues: so much per round, whoever carries the bytes, and everybody in turn."""

from __future__ import annotations

import asyncio

from tandem.relay.share import PIECE_COST, ROUND_COST_MAX, LoopShare


async def test_tasks_that_carry_bytes_spend_one_share_per_round_of_the_loop_and_take_turns() -> None:
    share = LoopShare()
    rounds = 0
    carried: list[tuple[int, str]] = []

    def count() -> None:
        nonlocal rounds
        rounds += 1
        asyncio.get_running_loop().call_soon(count)

    async def carry(name: str) -> None:
        for _ in range(40):
            await share.turn(65_536)
            carried.append((rounds, name))

    count()
    await asyncio.gather(carry("a"), carry("b"))
    per_round = [sum(at == number for at, _ in carried) for number in range(rounds + 1)]
    assert max(per_round) * 65_536 <= 2 * ROUND_COST_MAX, "a round may begin in the middle of what the loop does"
    assert rounds >= len(carried) * 65_536 / ROUND_COST_MAX - 2
    halves = [[name for _, name in part] for part in (carried[: len(carried) // 2], carried[len(carried) // 2 :])]
    assert all(half.count("a") >= 10 and half.count("b") >= 10 for half in halves), "neither waits for the other to be done"


async def test_who_waits_has_its_turn_in_the_order_of_coming() -> None:
    share = LoopShare()
    taken: list[int] = []

    class Socket:
        def __init__(self, number: int) -> None:
            self.number = number

        def take_turn(self) -> None:
            taken.append(self.number)
            share.spend(ROUND_COST_MAX // 2 + PIECE_COST)

    share.spend(ROUND_COST_MAX)
    for number in range(5):
        share.wait(Socket(number))
    assert taken == []
    await asyncio.sleep(0)
    assert taken == [0, 1], "what is left of a round is the next one's"
    while len(taken) < 5:
        await asyncio.sleep(0)
    assert taken == [0, 1, 2, 3, 4]
