"""A listener that speaks everything, in a thread of its own, in front of a namespace kept in memory."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from tandem.gateway.http.front import HttpFront
from tandem.model.clock import SystemClock
from tandem.model.entity import AuthorizationRule, Right
from tandem.model.limits import Limits
from tandem.server import sas
from tandem.wire.sniff import Doors, SniffProtocol
from tandem.wire.tls import ensure_certificates, server_context
from tests.gateway.http.memory_site import MemoryNamespace

KEY = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3I="
ROOT = AuthorizationRule(key_name="RootManageSharedAccessKey", primary_key=KEY, secondary_key="second", rights=frozenset(Right))

T = TypeVar("T")


class Echo(asyncio.Protocol):
    """Stands where AMQP would: says back what it hears, and what it was told of the end."""

    ends: list[str] = []  # noqa: RUF012

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if data == b"quit":
            self.transport.write(b"bye")
            self.transport.close()
        else:
            self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.append("lost")


class HttpHouse:
    """Everything a test needs to know about the running listener."""

    def __init__(self, directory: Path, limits: Limits, sku: str) -> None:
        self.limits = limits
        self.clock = SystemClock()
        self.namespace = MemoryNamespace(ROOT, self.clock, limits, sku)
        self.certificates = ensure_certificates(directory, (), self.clock.now_ms())
        self.ca = str(self.certificates.ca)
        self.port = 0
        self.loop: asyncio.AbstractEventLoop
        self.front: HttpFront

    @property
    def host(self) -> str:
        return f"localhost:{self.port}"

    @property
    def connection_string(self) -> str:
        return self.connection_string_for(ROOT.key_name, KEY)

    def connection_string_for(self, key_name: str, key: str) -> str:
        return f"Endpoint=sb://{self.host};SharedAccessKeyName={key_name};SharedAccessKey={key};UseDevelopmentEmulator=true"

    def token(self, key_name: str = ROOT.key_name, key: str = KEY, path: str = "", lasts_ms: int = 600_000) -> str:
        return sas.make_token(f"https://{self.host}/{path}", key_name, key, self.clock.now_ms() + lasts_ms)

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """On the listener's own loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(20)

    async def open(self) -> asyncio.Server:
        self.loop = asyncio.get_running_loop()
        site = self.namespace.site(os.urandom)
        self.front = HttpFront(
            namespace_for=lambda host: None if host.startswith("stranger") else site,
            amqp=Echo,
            limits=self.limits,
            clock=self.clock,
            entropy=os.urandom,
        )
        context = server_context(self.certificates.certificate, self.certificates.private_key)
        doors = Doors(amqp=Echo, http=self.front.protocol_factory, tls=context)
        server = await self.loop.create_server(lambda: SniffProtocol(doors), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server


@contextmanager
def http_house(directory: Path, *, loop: str = "asyncio", limits: Limits | None = None, sku: str = "Standard") -> Iterator[HttpHouse]:
    house = HttpHouse(directory, limits if limits is not None else Limits(), sku)
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop if loop == "uvloop" else asyncio.new_event_loop
    ready, done = threading.Event(), threading.Event()

    async def serve() -> None:
        server = await house.open()
        stop = asyncio.Event()
        house.stop = lambda: house.loop.call_soon_threadsafe(stop.set)  # type: ignore[attr-defined]
        ready.set()
        await stop.wait()
        server.close()
        await house.front.close(0.1)

    def thread() -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(serve())
        done.set()

    threading.Thread(target=thread, daemon=True).start()
    assert ready.wait(20)
    try:
        yield house
    finally:
        house.stop()  # type: ignore[attr-defined]
        assert done.wait(20)
