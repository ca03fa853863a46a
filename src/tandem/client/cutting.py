"""Ends a piece of work from outside, for a fraction of the price of `asyncio.timeout`: no timer per call, so every send can afford it."""

from __future__ import annotations

import asyncio
from types import TracebackType

CHECK_SECONDS = 0.5


class Cut:
    """`with Cut(calls): await …` raises TimeoutError in the body once `cut()` was called; it stands in `calls` meanwhile.

    Whoever makes the same call over and over keeps one in `calls`, sets `task`, `cancelling` and `deadline` before the call, and calls
    `end` when it fails, or sets `task` to None when it does not.
    """

    __slots__ = ("_calls", "_was_cut", "cancelling", "deadline", "task")

    def __init__(self, calls: dict[Cut, None], deadline: float = 0.0) -> None:
        self._calls = calls
        self._was_cut = False
        self.deadline = deadline
        self.task: asyncio.Task[object] | None = None
        """None: nothing is under way."""
        self.cancelling = 0

    def cut(self) -> None:
        if not self._was_cut and self.task is not None:
            self._was_cut = True
            self.task.cancel()

    def end(self, error: BaseException | None) -> BaseException | None:
        """What the body ended with, seen from outside: TimeoutError if it was cut short."""
        task, self.task = self.task, None
        was_cut, self._was_cut = self._was_cut, False
        # A cancellation from elsewhere at the same time is not ours to swallow.
        if was_cut and task is not None and task.uncancel() <= self.cancelling and isinstance(error, asyncio.CancelledError):
            return TimeoutError()
        return error

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("only a task can be cut short")
        self.task = task
        self.cancelling = task.cancelling()
        self._calls[self] = None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._calls.pop(self, None)
        seen = self.end(error)
        if seen is not None and seen is not error:
            raise seen from error


class Watchdog:
    """Cuts short what outstays its deadline, within half a second: one timer for any number of calls, none while there are none."""

    def __init__(self) -> None:
        self._calls: dict[Cut, None] = {}
        self.timer: asyncio.TimerHandle | None = None

    def lasting(self) -> Cut:
        """For one call after the other; `watch` has to be called before each while there is no timer."""
        cut = Cut(self._calls)
        self._calls[cut] = None
        return cut

    def guard(self, deadline: float) -> Cut:
        """For the body of a `with`; `deadline` in the loop's time."""
        if self.timer is None:
            self.watch()
        return Cut(self._calls, deadline)

    def watch(self) -> None:
        self.timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        self.timer = None
        now = asyncio.get_running_loop().time()
        under_way = [call for call in self._calls if call.task is not None]
        for call in under_way:
            if now >= call.deadline:
                call.cut()
        if under_way:
            self.watch()

    def interrupt(self) -> None:
        """All that is under way is cut short now."""
        for call in tuple(self._calls):
            call.cut()

    def stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
