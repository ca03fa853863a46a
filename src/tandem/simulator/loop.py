"""An asyncio event loop in virtual time: it never waits, has one order for everything, and drops what belongs to a dead machine."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from asyncio import events
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

from tandem.simulator.agenda import Agenda

if TYPE_CHECKING:
    from tandem.simulator.network import SimNet

_T = TypeVar("_T")


class SimLoop(asyncio.AbstractEventLoop):
    """`run` returns what the coroutine returns. What is planned is in its agenda, whose methods are the loop's own."""

    def __init__(self) -> None:
        agenda = self.agenda = Agenda()
        self.time = agenda.time  # type: ignore[method-assign]
        self.call_soon = self.call_soon_threadsafe = agenda.call_soon  # type: ignore[method-assign,assignment]
        self.call_later = agenda.call_later  # type: ignore[method-assign,assignment]
        self.call_at = agenda.call_at  # type: ignore[method-assign,assignment]
        self.create_future = functools.partial(asyncio.Future, loop=self)  # type: ignore[method-assign]
        self.get_debug = bool  # type: ignore[method-assign]  # asked for every future: bool() is False
        self._running = False
        self._over = False
        self._graveyard: list[object] = []
        self.net: SimNet | None = None
        self.executor_delay: Callable[[], float] = lambda: 0.0

    # -- running -----------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, _T]) -> _T:
        events._set_running_loop(self)
        self._running = True
        task = asyncio.Task(main, loop=self)
        agenda = self.agenda
        try:
            agenda.run(task.done)
            if agenda.failed is not None:
                raise agenda.failed
            return task.result()
        finally:
            self._bury(task)
            self._running = False
            events._set_running_loop(None)

    def _bury(self, main: asyncio.Task[Any]) -> None:
        """What never ended is closed quietly: nothing it does now may matter, nor what its last words would still begin."""
        self.agenda.end()
        self._over = True
        buried: set[asyncio.Task[Any]] = {main}
        while left := asyncio.all_tasks(self) - buried:
            for task in left:
                self._close(task)
            buried |= left

    def _close(self, task: asyncio.Task[Any]) -> None:
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        coroutine = task.get_coro()
        try:
            if isinstance(coroutine, Generator | Coroutine):
                coroutine.close()
        except BaseException as error:  # noqa: BLE001 - a `finally` that awaits cannot be closed; it is over anyway
            self._graveyard.append(error)

    def keep(self, thing: object) -> None:
        """A dead machine's objects must not be collected: closing them would run their last words in somebody else's turn."""
        self._graveyard.append(thing)
        self._graveyard.append(list(asyncio.all_tasks(self)))

    # -- what asyncio asks of a loop -----------------------------------------------------------

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, _T], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[_T]:
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        if self._over:
            self._graveyard.append(task)  # or it would be gone before it could be buried
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """A thread's work happens in one piece, a moment later."""
        future = self.create_future()
        self.call_later(self.executor_delay(), self._execute, future, func, args)
        return future

    def _execute(self, future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if future.cancelled():
            return
        try:
            result = func(*args)
        except Exception as error:  # noqa: BLE001 - whoever awaits it takes it
            future.set_exception(error)
        else:
            future.set_result(result)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        assert self.net is not None
        return self.net.listen(protocol_factory, host, port)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        assert self.net is not None
        return await self.net.connect(protocol_factory, host, port)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not self.agenda.over:
            self.agenda.mishaps.append(error if isinstance(error, BaseException) else RuntimeError(str(context.get("message"))))

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing to give back."""

    async def shutdown_asyncgens(self) -> None:
        """There are none."""


async def until(awaitable: Awaitable[_T], seconds: float) -> _T:
    """Within so many seconds of virtual time, or TimeoutError."""
    async with asyncio.timeout(seconds):
        return await awaitable
