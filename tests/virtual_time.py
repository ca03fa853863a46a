"""An asyncio loop that does not wait: when nothing is ready and no thread is at work, its clock jumps to the next timer.

For tests whose only partners are doubles in the same process. A sleep in them costs nothing, and a deadline of an hour is over at once.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._selector_that_waits = selectors.DefaultSelector()
        super().__init__(_Jumping(self._selector_that_waits, self))
        self.waited = 0.0
        """What nobody had to wait for in fact; the loop's time is that and what the machine has taken to compute."""
        self._threads = 0

    def time(self) -> float:
        return super().time() + self.waited

    def jump(self, seconds: float) -> bool:
        """False while a thread is at work: it answers in real time."""
        if self._threads:
            return False
        self.waited += seconds
        return True

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        self._threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._thread_done)
        return future

    def _thread_done(self, future: asyncio.Future[Any]) -> None:
        self._threads -= 1


class _Jumping(selectors.BaseSelector):
    def __init__(self, inner: selectors.BaseSelector, loop: VirtualTimeLoop) -> None:
        self._inner = inner
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = self._inner.select(0)
        if ready or timeout == 0 or (timeout is not None and self._loop.jump(timeout)):
            return ready
        return self._inner.select(timeout)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._inner.modify(fileobj, events, data)

    def get_map(self) -> Any:
        return self._inner.get_map()

    def close(self) -> None:
        self._inner.close()
