"""Makes a class without `await` from an asynchronous one: each call runs on one background loop and is waited for."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

_END_SECONDS = 5.0
"""What the loop is doing may take so long when the interpreter ends."""


class LoopThread:
    """One event loop in a daemon thread, started on first use and shared by everything synchronous."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def begin_anew(self) -> None:
        """In a process that was forked: threads stay behind, and the lock may be in the hand of one of them."""
        self._lock = threading.Lock()
        self._loop = self._thread = None

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=loop.run_forever, name="tandem-loop", daemon=True)
                self._thread.start()
                atexit.register(self._end)
                self._loop = loop
            return self._loop

    def _end(self) -> None:
        """The interpreter ends. What was registered for that before comes later, and may want to close something: see `run`."""
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_END_SECONDS)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        loop, here = self.loop(), threading.current_thread()
        ended = self._thread is not None and not self._thread.is_alive()
        if here is self._thread or (ended and loop.is_running()):
            work.close()
            raise RuntimeError("a callback runs on the loop: use the asynchronous objects there, or another thread")
        if ended:
            return loop.run_until_complete(work)
        waiting: concurrent.futures.Future[Any] = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return waiting.result()
        except KeyboardInterrupt:
            waiting.cancel()
            raise


_THREAD = LoopThread()
os.register_at_fork(after_in_child=_THREAD.begin_anew)
_FACADES: dict[type, type[Facade]] = {}


class Facade:
    """A synchronous stand-in for one asynchronous object, which is `facade.aio`."""

    _async_class: type
    _process: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        async def make() -> Any:
            return self._async_class(*map(_unwrap, args), **{name: _unwrap(value) for name, value in kwargs.items()})

        self._process = os.getpid()
        self.aio = _THREAD.run(make())

    def __getattr__(self, name: str) -> Any:
        """Properties and plain values of the asynchronous object."""
        if name.startswith("_") or name == "aio":
            raise AttributeError(name)
        return wrap(getattr(self.aio, name))

    def __enter__(self) -> Any:
        entered = _THREAD.run(_own(self).__aenter__())
        return self if entered is self.aio else wrap(entered)

    def __exit__(self, *exception: object) -> None:
        if self._process == os.getpid():  # else it is for the parent to close
            _THREAD.run(self.aio.__aexit__(*exception))

    def __iter__(self) -> Iterator[Any]:
        iterator: AsyncIterator[Any] = _own(self).__aiter__()

        async def following() -> tuple[bool, Any]:
            try:
                return True, await iterator.__anext__()
            except StopAsyncIteration:
                return False, None

        while True:
            more, item = _THREAD.run(following())
            if not more:
                return
            yield wrap(item)


def _own(stand_in: Facade) -> Any:
    """The asynchronous object, which works in the process that made it, and in no other."""
    if stand_in._process != os.getpid():
        raise RuntimeError(
            f"this {type(stand_in).__name__} was made before the process was forked, and its connections are the parent's: make one in "
            "each process (gunicorn: post_fork; Celery: worker_process_init; multiprocessing: initializer, or the start method 'spawn')"
        )
    return stand_in.aio


def _unwrap(value: Any) -> Any:
    return _own(value) if isinstance(value, Facade) else value


def wrap(value: Any) -> Any:
    """Asynchronous objects leave as their stand-ins; everything else as it is."""
    facade = next((_FACADES[kind] for kind in type(value).__mro__ if kind in _FACADES), None)
    if facade is None:
        return value
    made = facade.__new__(facade)
    made._process = os.getpid()
    made.aio = value
    return made


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(self: Facade, *args: Any, **kwargs: Any) -> Any:
        inside = _own(self)

        async def work() -> Any:
            result = getattr(inside, function.__name__)(*map(_unwrap, args), **{name: _unwrap(value) for name, value in kwargs.items()})
            return await result if inspect.isawaitable(result) else result

        return wrap(_THREAD.run(work()))

    return call


def _class_method(function: Callable[..., Any]) -> Any:
    """One that makes an object, which then belongs to the loop as any other does."""

    @functools.wraps(function)
    def call(cls: type[Facade], *args: Any, **kwargs: Any) -> Any:
        async def work() -> Any:
            return getattr(cls._async_class, function.__name__)(*args, **kwargs)

        return wrap(_THREAD.run(work()))

    return classmethod(call)


def facade(async_class: type, module: str) -> Any:
    """The synchronous class for an asynchronous one: same name, same methods, same documentation."""
    members: dict[str, Any] = {"_async_class": async_class, "__doc__": async_class.__doc__, "__module__": module}
    for name, value in inspect.getmembers(async_class, inspect.isroutine):
        if name.startswith("_"):
            continue
        if inspect.isfunction(value):
            members[name] = _method(value)
        elif inspect.ismethod(value):
            members[name] = _class_method(value.__func__)
    made = type(async_class.__name__, (Facade,), members)
    _FACADES[async_class] = made
    return made
