"""The official SDK, sync and async, under one skin: a story is written once and told with both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any

import azure.servicebus
import azure.servicebus.aio
from azure.servicebus import ServiceBusMessage

from tests.conformance.house import Broker, connection_string
from tests.conformance.raw import Raw


class Proxy:
    """An object of the async SDK whose coroutines are awaited on its own loop, so that it reads like the sync one."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Any) -> None:
        self._loop = loop
        self._target = target

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(110)

    def _wrap(self, value: Any) -> Any:
        ours = type(value).__module__.startswith("azure.servicebus.aio") or hasattr(value, "__anext__")
        return Proxy(self._loop, value) if ours else value

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return self._wrap(value)

        async def call(*arguments: Any, **options: Any) -> Any:
            plain = [a._target if isinstance(a, Proxy) else a for a in arguments]
            result = value(*plain, **options)
            return await result if inspect.isawaitable(result) else result

        return lambda *arguments, **options: self._wrap(self._run(call(*arguments, **options)))

    def __iter__(self) -> Iterator[Any]:
        async def following() -> Any:
            return await self._target.__anext__()

        while True:
            try:
                yield self._run(following())
            except StopAsyncIteration:
                return

    def __enter__(self) -> Proxy:
        self.__getattr__("__aenter__")()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Flavour:
    """One of the two SDKs. Closing takes it half a second of its own sleep, so that is done aside."""

    name = "sync"

    def __init__(self) -> None:
        self._closing: list[threading.Thread] = []

    def client(self, text: str, **options: Any) -> Any:
        return azure.servicebus.ServiceBusClient.from_connection_string(text, **options)

    def renewer(self) -> Any:
        return azure.servicebus.AutoLockRenewer()

    def close_aside(self, thing: Any) -> None:
        thread = threading.Thread(target=thing.close, daemon=True)
        thread.start()
        self._closing.append(thread)

    def finish(self) -> None:
        for thread in self._closing:
            thread.join(30)


class AsyncFlavour(Flavour):
    name = "async"

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def client(self, text: str, **options: Any) -> Any:
        return self._made(lambda: azure.servicebus.aio.ServiceBusClient.from_connection_string(text, **options))

    def renewer(self) -> Any:
        return self._made(azure.servicebus.aio.AutoLockRenewer)

    def _made(self, make: Callable[[], Any]) -> Proxy:
        made: Future[Any] = Future()
        self._loop.call_soon_threadsafe(lambda: made.set_result(make()))
        return Proxy(self._loop, made.result(10))

    def finish(self) -> None:
        super().finish()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)


class Bus:
    """One broker seen through one flavour; what a test opens here is closed after it."""

    def __init__(self, flavour: Flavour, broker: Any, feeder: Raw) -> None:
        self.flavour = flavour
        self.broker = broker
        self._feeder = feeder
        self._opened: list[Any] = []
        self._client: Any = None

    # -- the SDK -----------------------------------------------------------------------------

    def client(self, text: str | None = None, **options: Any) -> Any:
        """Without retries: what the broker says first is what the test sees."""
        options.setdefault("retry_total", 0)
        return self.flavour.client(text or connection_string(self.broker.port), **options)

    @property
    def shared_client(self) -> Any:
        if self._client is None:
            self._client = self.client()
        return self._client

    def sender(self, queue: str, client: Any = None, **options: Any) -> Any:
        return self._keep((client or self.shared_client).get_queue_sender(queue, **options))

    def receiver(self, queue: str, client: Any = None, **options: Any) -> Any:
        """Open already, so that the patience a test shows later is for messages alone."""
        return self._keep((client or self.shared_client).get_queue_receiver(queue, **options)).__enter__()

    def list_sessions(self, queue: str) -> list[str]:
        return list(self.shared_client.list_queue_sessions(queue))

    def _keep(self, thing: Any) -> Any:
        self._opened.append(thing)
        return thing

    def close(self) -> None:
        for thing in self._opened:
            self.flavour.close_aside(thing)

    # -- around it ---------------------------------------------------------------------------

    def queue(self, kind: str = "plain") -> str:
        name: str = self.broker.queue(kind)
        return name

    def feed(self, queue: str, *bodies: str, **options: Any) -> None:
        """Messages sent by other means than the flavour under test, in milliseconds: for stories that begin after the send."""
        self._feeder.feed(queue, *bodies, **options)

    def seen(self, queue: str) -> list[tuple[str, int]]:
        """Body and state of everything there, peeked by other means than the flavour under test."""
        found: list[tuple[str, int]] = []
        for entry in self._feeder.peek(queue):
            body: Any = entry.body
            state: Any = entry.message_annotations.get("x-opt-message-state", 0)
            found.append((b"".join(body).decode(), int(state)))
        return found

    def left(self, queue: str) -> list[str]:
        return [body for body, _ in self.seen(queue)]


def bodies(messages: list[Any]) -> list[str]:
    return [str(message) for message in messages]


def text(body: str, **options: Any) -> ServiceBusMessage:
    return ServiceBusMessage(body, **options)


__all__ = ["AsyncFlavour", "Broker", "Bus", "Flavour", "bodies", "text"]
