from __future__ import annotations

import asyncio

import pytest

from tandem.client.call_guard import CallGuard, Watchdog
from tests.waiting import until


async def test_a_body_that_ends_by_itself_is_left_alone():
    calls: dict[CallGuard, None] = {}
    with CallGuard(calls):
        assert len(calls) == 1
        await asyncio.sleep(0)
    assert not calls


async def test_a_cut_raises_a_timeout_in_the_body_and_the_task_goes_on():
    calls: dict[CallGuard, None] = {}
    asyncio.get_running_loop().call_soon(lambda: [call.interrupt() for call in calls])
    with pytest.raises(TimeoutError), CallGuard(calls):
        await asyncio.sleep(60)
    await asyncio.sleep(0)
    assert not calls


async def test_a_cancellation_from_elsewhere_is_not_swallowed():
    calls: dict[CallGuard, None] = {}

    async def work() -> None:
        with CallGuard(calls):
            await asyncio.sleep(60)

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    (call,) = calls
    call.interrupt()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_error_of_the_body_is_not_hidden_by_a_cut():
    calls: dict[CallGuard, None] = {}

    async def work() -> None:
        with CallGuard(calls):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise ZeroDivisionError from None

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    next(iter(calls)).interrupt()
    with pytest.raises(ZeroDivisionError):
        await task


async def test_a_watchdog_cuts_what_outstays_its_deadline_and_nothing_else():
    watchdog = Watchdog()
    now = asyncio.get_running_loop().time()

    async def work(deadline: float, seconds: float) -> str:
        try:
            with watchdog.guard(deadline):
                await asyncio.sleep(seconds)
        except TimeoutError:
            return "cut"
        return "done"

    assert await asyncio.gather(work(now, 60), work(now + 60, 0.7), work(now + 60, 0)) == ["cut", "done", "done"]


async def test_a_watchdog_without_work_has_no_timer():
    watchdog = Watchdog()
    with watchdog.guard(asyncio.get_running_loop().time() + 60):
        assert watchdog.timer is not None
    await until(lambda: watchdog.timer is None, 5)
    watchdog.stop()


async def test_an_interruption_cuts_all_that_is_under_way_and_what_comes_later_is_left_alone():
    watchdog = Watchdog()

    async def work() -> str:
        try:
            with watchdog.guard(asyncio.get_running_loop().time() + 60):
                await asyncio.sleep(60)
        except TimeoutError:
            return "cut"
        return "done"

    tasks = [asyncio.ensure_future(work()) for _ in range(2)]
    await asyncio.sleep(0)
    watchdog.interrupt()
    assert await asyncio.gather(*tasks) == ["cut", "cut"]
    with watchdog.guard(asyncio.get_running_loop().time() + 60):
        await asyncio.sleep(0)
    watchdog.stop()


async def test_a_reusable_guard_serves_one_call_after_the_other():
    watchdog = Watchdog()
    call = watchdog.reusable()

    async def work(seconds: float) -> BaseException | None:
        watchdog.begin(call, asyncio.get_running_loop().time())
        try:
            await asyncio.sleep(seconds)
        except BaseException as error:
            return call.end(error)
        call.done()
        return None

    assert await work(0) is None
    assert isinstance(await work(60), TimeoutError)  # the watchdog
    assert await work(0) is None
    watchdog.interrupt()  # nothing is under way: nobody is cut, not even the next
    assert await work(0) is None
    watchdog.stop()
