"""Waiting for what another process, thread or counter does and nobody announces: looked at again and again, and in vain only for so long.

Where there is an event, a future or a line to read, await that instead.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LOOK_AGAIN_SECONDS = 0.02


async def until(holds: Callable[[], object], seconds: float = 30, what: str = "") -> None:
    try:
        async with asyncio.timeout(seconds):
            while not holds():
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
    except TimeoutError:
        raise TimeoutError(f"{what or 'it'} did not come true within {seconds} s") from None


def wait_until(holds: Callable[[], object], what: str | Callable[[], str], seconds: float = 60) -> None:
    """Without a loop. `what` is waited for, or says what is so instead."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what if isinstance(what, str) else what()}"
        time.sleep(LOOK_AGAIN_SECONDS)
