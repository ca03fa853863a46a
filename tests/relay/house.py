"""A broker with relays in the loop of the test, reached over real sockets."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import websockets

from tandem.model.clock import SystemClock
from tandem.model.entity import AuthorizationRule, HybridConnectionDescription, Right
from tandem.model.limits import Limits
from tandem.model.sas_token import make_token
from tandem.server.server import Server
from tandem.server.settings import Listener, NamespaceSettings, ServerSettings, StoresSettings
from tandem.stores.engines import MemoryEngines

ROOT_NAME = "RootManageSharedAccessKey"
ROOT_KEY = "SAS_KEY_VALUE"
ROOT = AuthorizationRule(key_name=ROOT_NAME, primary_key=ROOT_KEY, secondary_key="second", rights=frozenset(Right))
RULES = tuple(
    AuthorizationRule(key_name=name, primary_key=f"{name}-key", secondary_key=f"{name}-other", rights=frozenset({right}))
    for name, right in (("listener", Right.LISTEN), ("sender", Right.SEND))
)
JS = Path(__file__).resolve().parent.parent / "js"

needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="MISSING: curl")
needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not (JS / "node_modules" / "hyco-ws").exists(), reason="needs Node.js and the packages of tests/js"
)


def relay(name: str, **settings: Any) -> HybridConnectionDescription:
    return HybridConnectionDescription(name=name, authorization_rules=RULES, **settings)


class RelayHouse:
    def __init__(self, relays: tuple[HybridConnectionDescription, ...], limits: Limits, address: str = "127.0.0.1") -> None:
        namespace = NamespaceSettings(name="relay-tests", authorization_rules=(ROOT,), relays=relays)
        listeners = (Listener(host=address, port=0),)
        settings = ServerSettings(listeners=listeners, namespaces=(namespace,), limits=limits, stores=StoresSettings(count=1))
        self.server = Server(settings, MemoryEngines())

    @property
    def port(self) -> int:
        return self.server.ports[0]

    @property
    def host(self) -> str:
        return f"localhost:{self.port}"

    @property
    def connection_string(self) -> str:
        return f"Endpoint=sb://{self.host};SharedAccessKeyName={ROOT_NAME};SharedAccessKey={ROOT_KEY};UseDevelopmentEmulator=true"

    def entity(self, name: str) -> Any:
        return self.server.contexts[0].relays.find(name)

    def token(self, path: str = "", key_name: str = ROOT_NAME, key: str = ROOT_KEY, lasts_ms: int = 600_000) -> str:
        return make_token(f"http://{self.host}/{path}", key_name, key, SystemClock().now_ms() + lasts_ms)

    def uri(self, path: str, action: str, token: str | None = "", query: str = "") -> str:
        """`token` "": the root key's; None: none."""
        token = self.token() if token == "" else token
        lead = f"{query}&" if query else ""
        tail = f"&sb-hc-token={quote(token, safe='')}" if token else ""
        return f"ws://{self.host}/$hc/{path}?{lead}sb-hc-action={action}{tail}"

    def http(self, path: str) -> str:
        return f"http://{self.host}/{path}"

    def listen(self, path: str, token: str | None = "", **options: Any) -> Any:
        return websockets.connect(self.uri(path, "listen", token), proxy=None, **options)

    def connect(self, path: str, token: str | None = "", query: str = "", **options: Any) -> Any:
        return websockets.connect(self.uri(path, "connect", token, query), proxy=None, **options)


@asynccontextmanager
async def relay_house(
    *relays: HybridConnectionDescription, limits: Limits | None = None, address: str = "127.0.0.1"
) -> AsyncIterator[RelayHouse]:
    house = RelayHouse(relays, limits or Limits(), address)
    await house.server.start()
    try:
        yield house
    finally:
        await house.server.stop()


async def next_command(channel: Any, kind: str) -> dict[str, Any]:
    """The next command on a control channel, which must be of this kind."""
    told = json.loads(await asyncio.wait_for(channel.recv(), 20))
    assert list(told) == [kind]
    command: dict[str, Any] = told[kind]
    return command


async def accept(channel: Any, **options: Any) -> Any:
    """What a listener does with the next sender."""
    command = await next_command(channel, "accept")
    offered = command["connectHeaders"].get("Sec-WebSocket-Protocol")
    chosen = [offered.split(",")[0].strip()] if offered else None
    return await websockets.connect(command["address"], subprotocols=chosen, compression=None, proxy=None, **options)


class NodeProcess:
    """A script of tests/js: says one JSON value per line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> Any:
        assert self.process.stdout is not None
        text = await asyncio.wait_for(self.process.stdout.readline(), 30)
        assert text, "the script ended"
        return json.loads(text)

    async def until(self, event: str) -> Any:
        while True:
            told = await self.line()
            if told["event"] == event:
                return told


@asynccontextmanager
async def node(script: str, **environ: str) -> AsyncIterator[NodeProcess]:
    process = await asyncio.create_subprocess_exec(
        "node", str(JS / script), env={**os.environ, **environ}, stdout=asyncio.subprocess.PIPE, cwd=JS
    )
    try:
        yield NodeProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
