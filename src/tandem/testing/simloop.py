"""An asyncio event loop in virtual time: it never waits, has one order for everything, and drops what belongs to a dead machine."""

from __future__ import annotations

import asyncio
import contextvars
import heapq
from asyncio import events
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tandem.testing.simnet import SimNet

_T = TypeVar("_T")


class Machine:
    """Whoever owns callbacks: a broker's process, or the clients. Callbacks of a dead one never run."""

    __slots__ = ("alive", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True


CLIENTS = Machine("clients")
MACHINE: contextvars.ContextVar[Machine] = contextvars.ContextVar("machine", default=CLIENTS)


class Stuck(Exception):
    """Nothing is planned and the story has not ended: somebody waits for what will never come."""


class _Event:
    """Quacks like asyncio.TimerHandle."""

    __slots__ = ("args", "callback", "context", "gone", "when_")

    def __init__(self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context) -> None:
        self.when_ = when
        self.callback = callback
        self.args = args
        self.context = context
        self.gone = False

    def cancel(self) -> None:
        self.gone = True

    def cancelled(self) -> bool:
        return self.gone

    def when(self) -> float:
        return self.when_


class SimLoop(asyncio.AbstractEventLoop):
    """`run` returns what the coroutine returns. Exceptions that no task takes are collected in `mishaps`."""

    def __init__(self) -> None:
        self._time = 0.0
        self.now_ms = 0
        self._number = 0
        self._ready: deque[_Event] = deque()
        self._timers: list[tuple[float, int, _Event]] = []
        self.over = False
        self._running = False
        self._graveyard: list[object] = []
        self.net: SimNet | None = None
        self.mishaps: list[BaseException] = []
        self.event_count = 0
        self.executor_delay: Callable[[], float] = lambda: 0.0
        self.failed: BaseException | None = None
        """Set by whoever finds a promise broken: ends the run at once."""

    # -- running -----------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, _T]) -> _T:
        events._set_running_loop(self)
        self._running = True
        task = asyncio.Task(main, loop=self)
        try:
            while not task.done():
                if self.failed is not None:
                    raise self.failed
                if not self._ready:
                    self._advance()
                self._run_ready()
            if self.failed is not None:
                raise self.failed
            return task.result()
        finally:
            self._bury(task)
            self._running = False
            events._set_running_loop(None)

    def _advance(self) -> None:
        timers = self._timers
        while timers and timers[0][2].gone:
            heapq.heappop(timers)
        if not timers:
            raise Stuck("nothing is planned any more")
        when = timers[0][0]
        if when > self._time:
            self._time = when
            self.now_ms = round(when * 1000)
        while timers and timers[0][0] <= when:
            self._ready.append(heapq.heappop(timers)[2])

    def _run_ready(self) -> None:
        ready = self._ready
        for _ in range(len(ready)):
            event = ready.popleft()
            if event.gone:
                continue
            machine = event.context.get(MACHINE) or CLIENTS
            if not machine.alive:
                continue
            self.event_count += 1
            try:
                event.context.run(event.callback, *event.args)
            except Exception as error:  # noqa: BLE001 - the story judges it: nothing may escape from a callback
                if machine.alive:
                    self.mishaps.append(error)

    def _bury(self, main: asyncio.Task[Any]) -> None:
        """What never ended is closed quietly: nothing it does now may matter."""
        self.over = True
        for task in asyncio.all_tasks(self):
            if task is main:
                continue
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            try:
                if isinstance(coroutine, Generator | Coroutine):
                    coroutine.close()
            except BaseException as error:  # noqa: BLE001 - a `finally` that awaits cannot be closed; it is over anyway
                self._graveyard.append(error)
        self._ready.clear()
        self._timers.clear()

    def keep(self, thing: object) -> None:
        """A dead machine's objects must not be collected: closing them would run their last words in somebody else's turn."""
        self._graveyard.append(thing)
        self._graveyard.append(list(asyncio.all_tasks(self)))

    # -- what asyncio asks of a loop -----------------------------------------------------------

    def time(self) -> float:
        return self._time

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Event:
        event = _Event(self._time, callback, args, context if context is not None else contextvars.copy_context())
        if not self.over:
            self._ready.append(event)
        return event

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Event:
        return self.call_at(self._time + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> _Event:
        self._number += 1
        event = _Event(when, callback, args, context if context is not None else contextvars.copy_context())
        if not self.over:
            heapq.heappush(self._timers, (when, self._number, event))
        return event

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, _T], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[_T]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

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
        if not self.over:
            self.mishaps.append(error if isinstance(error, BaseException) else RuntimeError(str(context.get("message"))))

    def get_debug(self) -> bool:
        return False

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
