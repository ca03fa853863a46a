"""Ends a piece of work from outside, for a fraction of the price of `asyncio.timeout`: no timer per call, so every send can afford it."""

from __future__ import annotations

import asyncio
from types import TracebackType

CHECK_SECONDS = 0.5


class CallGuard:
    """`with CallGuard(calls): await …` raises TimeoutError in the body once `interrupt()` was called; it stands in `calls` meanwhile.

    Whoever makes the same call over and over keeps one (`Watchdog.reusable`): `Watchdog.begin` before each call, then `done`, or `end`
    with the error it failed with.
    """

    __slots__ = ("_calls", "_was_cut", "cancelling", "deadline", "task")

    def __init__(self, calls: dict[CallGuard, None], deadline: float = 0.0) -> None:
        self._calls = calls
        self._was_cut = False
        self.deadline = deadline
        self.task: asyncio.Task[object] | None = None
        """None: nothing is under way."""
        self.cancelling = 0

    def interrupt(self) -> None:
        if not self._was_cut and self.task is not None:
            self._was_cut = True
            self.task.cancel()

    def done(self) -> None:
        """The call has returned."""
        self.task = None

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
        self._calls: dict[CallGuard, None] = {}
        self.timer: asyncio.TimerHandle | None = None

    def reusable(self) -> CallGuard:
        """For one call after the other; see `begin`."""
        guard = CallGuard(self._calls)
        self._calls[guard] = None
        return guard

    def begin(self, reusable: CallGuard, deadline: float) -> None:
        """The next call of a reusable guard is made by this task, from now on."""
        reusable.task = task = asyncio.current_task()
        if task is not None:
            reusable.cancelling = task.cancelling()
        reusable.deadline = deadline
        if self.timer is None:
            self._arm()

    def guard(self, deadline: float) -> CallGuard:
        """For the body of a `with`; `deadline` in the loop's time."""
        if self.timer is None:
            self._arm()
        return CallGuard(self._calls, deadline)

    def _arm(self) -> None:
        self.timer = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        self.timer = None
        now = asyncio.get_running_loop().time()
        under_way = [call for call in self._calls if call.task is not None]
        for call in under_way:
            if now >= call.deadline:
                call.interrupt()
        if under_way:
            self._arm()

    def interrupt(self) -> None:
        """All that is under way is cut short now."""
        for call in tuple(self._calls):
            call.interrupt()

    def stop(self) -> None:
        """No more calls will come; those under way are still cut short at their deadlines."""
        if self.timer is not None and not any(call.task is not None for call in self._calls):
            self.timer.cancel()
            self.timer = None
