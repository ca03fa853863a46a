"""Relays over TLS with unmodified clients: hyco-ws, hyco-https, curl, websockets, and our own library."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import websockets

from tandem.aio.relay import RelayEndpoint, RelayListener, RelayRequest, RelayResponse, RelaySender, RelayUnavailableError
from tandem.model.clock import SystemClock
from tandem.model.sas_token import make_token
from tests.cli.broker_process import BrokerProcess
from tests.relay.house import ROOT_NAME, accept, needs_curl, needs_node, node
from tests.relay.test_bounds import memory_kilobytes

KEY = "a-key"


class House:
    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.ca = str(broker.directory / broker.line("CA file:"))
        self.host = f"localhost:{broker.port}"
        self.connection_string = f"Endpoint=sb://{self.host};SharedAccessKeyName={ROOT_NAME};SharedAccessKey={KEY}"

    @property
    def ssl_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.ca)

    def endpoint(self, relay: str) -> RelayEndpoint:
        return RelayEndpoint.from_connection_string(self.connection_string, relay, ca_file=self.ca)

    def token(self) -> str:
        return make_token(f"http://{self.host}/", ROOT_NAME, KEY, SystemClock().now_ms() + 600_000)

    def uri(self, relay: str, action: str) -> str:
        return f"wss://{self.host}/$hc/{relay}?sb-hc-action={action}&sb-hc-token={quote(self.token(), safe='')}"

    def environ(self, relay: str) -> dict[str, str]:
        return {
            "SCHEME": "wss",
            "HOST": self.host,
            "RELAY_PATH": relay,
            "KEY_NAME": ROOT_NAME,
            "KEY": KEY,
            "NODE_EXTRA_CA_CERTS": self.ca,
        }


@pytest.fixture(scope="module")
def house(module_path: Path) -> Iterator[House]:
    (module_path / "tandem.toml").write_text(
        "".join(f'[[relay]]\nname = "{name}"\n' for name in ("hyco", "web", "own", "slow", "conformance"))
    )
    with BrokerProcess(module_path, "--memory", "--port", "0", "--config", "tandem.toml", "--key", KEY) as broker:
        yield House(broker)


@pytest.mark.js
@needs_node
async def test_hyco_ws_listens_and_connects(house: House) -> None:
    async with node("relay_ws.mjs", ROLE="listener", **house.environ("hyco")) as listener:
        await listener.until("listening")
        async with node("relay_ws.mjs", ROLE="sender", **house.environ("hyco")) as sender:
            assert (await sender.line())["event"] == "open"
            assert await sender.line() == {"event": "message", "text": "text über Grenzen"}
            assert await sender.line() == {"event": "message", "bytes": 300_000, "ok": True}
            assert await sender.line() == {"event": "closed", "code": 1000, "reason": "done"}
        async with websockets.connect(house.uri("hyco", "connect"), ssl=house.ssl_context, proxy=None) as socket:
            await socket.send(b"x" * 1_000_000)
            assert await socket.recv() == b"x" * 1_000_000


@pytest.mark.js
@needs_node
@needs_curl
async def test_curl_uploads_to_and_downloads_from_hyco_https(house: House, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"\x02" * 3_000_000)
    async with node("relay_https.mjs", **house.environ("web")) as listener:
        await listener.until("listening")

        async def curl(path: str, *arguments: str) -> bytes:
            command = ["curl", "-sS", "--fail", "--cacert", house.ca, "-H", f"ServiceBusAuthorization: {house.token()}", *arguments]
            process = await asyncio.create_subprocess_exec(*command, f"https://{house.host}/web/{path}", stdout=asyncio.subprocess.PIPE)
            said, _ = await asyncio.wait_for(process.communicate(), 60)
            assert process.returncode == 0
            return said

        told = json.loads(await curl("echo", "--data-binary", f"@{tmp_path / 'body'}"))
        assert (told["method"], told["bytes"], told["sum"]) == ("POST", 3_000_000, 6_000_000)
        assert await curl("large") == b"\x05" * 3_000_000


async def test_our_library_connects_requests_and_streams(house: House) -> None:
    piece = b"z" * 1_000_000

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield piece

    async def answer(request: RelayRequest) -> RelayResponse:
        return RelayResponse(body=pieces()) if request.method == "GET" else RelayResponse(body=str(len(await request.read())))

    async def echo(listener: RelayListener) -> None:
        async for stream in listener:
            async for message in stream:
                await stream.send(message)

    async with RelayListener(house.endpoint("own")) as listener, RelaySender(house.endpoint("own")) as sender:
        listener.handle_http(answer)
        echoing = asyncio.create_task(echo(listener))
        async with sender.connect("x") as stream:
            for n in range(10):
                await stream.send(piece + bytes([n]))
                assert await stream.receive() == piece + bytes([n])
        assert (await sender.request("POST", data=pieces())).text == "20000000"
        assert len((await sender.request("GET")).body) == 20_000_000
        echoing.cancel()
    stranger = RelayEndpoint.from_connection_string(house.connection_string, "own")  # trusts what the machine trusts
    async with RelaySender(stranger) as sender:
        with pytest.raises(RelayUnavailableError, match=r"(?i)certificate.verify.failed"):
            await sender.request("GET")


async def test_a_slow_reader_stops_its_writer_and_the_broker_keeps_little_for_it(house: House) -> None:
    def open_(action: str) -> websockets.connect:
        return websockets.connect(house.uri("slow", action), ssl=house.ssl_context, proxy=None, compression=None, ping_interval=None)

    async with open_("listen") as channel:
        connecting = asyncio.ensure_future(open_("connect").__aenter__())
        listener = await accept(channel, ssl=house.ssl_context, max_queue=1, ping_interval=None)
        sender = await connecting
        before = memory_kilobytes(house.broker.process.pid)
        sent = 0
        while True:  # until nothing more fits anywhere
            try:
                await asyncio.wait_for(sender.send(b"z" * 60_000), 1.0)
            except TimeoutError:
                break
            sent += 1
            assert sent < 2_000
        assert memory_kilobytes(house.broker.process.pid) - before < 10_000
        for _ in range(sent):
            assert len(await asyncio.wait_for(listener.recv(), 20)) == 60_000
        sender.transport.abort()
        listener.transport.abort()


@pytest.mark.js
@pytest.mark.slow
@needs_node
@pytest.mark.timeout(300)
async def test_the_tests_that_hyco_https_brings_along_pass(house: House) -> None:
    """They run listener and sender in one process, with small and large bodies both ways, in one piece, in many, and piped."""
    environ = {
        "SB_HC_NAMESPACE": "localhost",
        "SB_HC_PATH": "conformance",
        "SB_HC_KEYRULE": ROOT_NAME,
        "SB_HC_KEY": KEY,
        "PORT": str(house.broker.port),
        "NODE_EXTRA_CA_CERTS": house.ca,
    }
    outcomes: dict[str, str] = {}
    async with node("hyco_https_suite.mjs", **environ) as suite:
        while (told := await suite.line())["event"] == "test":
            outcomes[told["name"]] = told["outcome"]
    assert len(outcomes) > 30
    assert {name: outcome for name, outcome in outcomes.items() if outcome} == {}
