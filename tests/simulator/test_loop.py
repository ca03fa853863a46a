"""The loop in virtual time."""

from __future__ import annotations

import asyncio
import gc
import warnings

from tandem.simulator.loop import SimLoop


def test_what_last_words_begin_is_buried_with_those_who_spoke_them() -> None:
    """As a path of a pair does that lets a receiver go, and does not wait for it."""
    ended: list[str] = []

    async def close() -> None:
        ended.append("closed")

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("left")
            asyncio.ensure_future(close())  # noqa: RUF006

    async def story() -> None:
        working = asyncio.ensure_future(work())
        await asyncio.sleep(1)
        assert not working.done()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        SimLoop().run(story())
        gc.collect()
    assert ended == ["left"], "nothing begins after the end"
    assert [str(one.message) for one in said if "never awaited" in str(one.message)] == []  # others may leave litter in this process
