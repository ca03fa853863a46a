"""What goes on when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from tandem.gateway.waiting import to_the_end
from tandem.model.errors import StoreUnavailable


@pytest.fixture
async def told() -> list[dict[str, Any]]:
    """What the event loop was told, of which an operator sees a traceback."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    return told


@pytest.fixture
def nothing_collected_early() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def gone_before(error: Exception | None) -> list[str]:
    """The client goes while the work is under way, and then it ends."""
    go_on = asyncio.Event()
    done: list[str] = []

    async def work() -> None:
        await go_on.wait()
        done.append("done")
        if error is not None:
            raise error

    waiting = asyncio.ensure_future(to_the_end(work()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not done
    del waiting
    go_on.set()
    for _ in range(4):
        await asyncio.sleep(0)
    gc.collect()
    return done


@pytest.mark.usefixtures("nothing_collected_early")
@pytest.mark.parametrize("error", [None, StoreUnavailable("down"), ConnectionRefusedError()], ids=["done", "refused", "unreachable"])
async def test_work_goes_on_without_its_client_and_a_refusal_leaves_no_traceback(
    told: list[dict[str, Any]], error: Exception | None
) -> None:
    assert await gone_before(error) == ["done"]
    assert told == []


async def test_a_defect_is_told_although_its_client_has_gone(told: list[dict[str, Any]]) -> None:
    assert await gone_before(ValueError("a defect")) == ["done"]
    assert [type(context["exception"]) for context in told] == [ValueError]


async def test_who_stays_hears_of_it() -> None:
    async def refused() -> None:
        raise StoreUnavailable("down")

    with pytest.raises(StoreUnavailable):
        await to_the_end(refused())
