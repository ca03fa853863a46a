"""Microsoft's Java client against the relay, as a process over TLS: its own tests, and with other clients at the other end.

No registry has it (Maven Central knows no `com.microsoft.azure:azure-relay`): it is compiled from a checkout that the environment names.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import aiohttp
import pytest
import websockets

from tandem.engine_client.endpoint import Endpoint
from tandem.model.clock import SystemClock
from tandem.model.sas_token import make_token
from tests.cli.broker_process import BrokerProcess
from tests.conformance.jvm import needs_java, trust_store

SOURCE = os.environ.get("TANDEM_AZURE_RELAY_JAVA", "")
ECHO = Path(__file__).resolve().parents[1] / "java" / "relay" / "RelayEcho.java"
TESTS = "com.microsoft.azure.relay"
RELAYS = ("SendReceiveTest", "HybridConnectionListenerTest", "echo")
NOT_OURS = {
    "parseRequestPathWithSpacesAndQueryTest",  # wants a Content-Type that its own listener did not set; a relay invents none
    "webSocketConnectionTest",  # two connections at once, taken for each other if accepted in the other order; half a second to close
    "acceptHandlerTest",  # closes what it accepted at once, and fails when the sender hears of it before it looked
}
"""Of its tests: those that fail by themselves, always or on a busy machine."""

pytestmark = [
    *needs_java,
    pytest.mark.skipif(
        not SOURCE, reason="no registry has it: TANDEM_AZURE_RELAY_JAVA names a checkout of github.com/Azure/azure-relay-java"
    ),
]


@pytest.fixture(scope="module")
def classes(module_path: Path) -> str:
    """The client with its tests, compiled in a copy of the checkout: the class path."""
    copy = module_path / "azure-relay-java"
    shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns(".git", "target"))
    goals = ["test-compile", "dependency:copy-dependencies", "-DoutputDirectory=target/dependency"]
    done = subprocess.run(["mvn", "-q", "-B", *goals], cwd=copy, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stdout
    return os.pathsep.join(str(copy / "target" / one) for one in ("classes", "test-classes", "dependency/*"))


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    directory = module_path / "broker"
    directory.mkdir()
    (directory / "tandem.toml").write_text("".join(f'[[relay]]\nname = "{name}"\n' for name in RELAYS))
    with BrokerProcess(directory, "--port", "0", "--data", "data", "--dev", "--config", "tandem.toml") as broker:
        yield broker


def java(broker: BrokerProcess, classes: str, relay: str, *program: str) -> subprocess.Popen[str]:
    endpoint = Endpoint.parse(broker.connection_string)
    keys = f"SharedAccessKeyName={endpoint.key_name};SharedAccessKey={endpoint.key};EntityPath={relay}"
    trust = [f"-Djavax.net.ssl.trustStore={trust_store(broker)}", "-Djavax.net.ssl.trustStorePassword=changeit"]
    return subprocess.Popen(
        ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *trust, "-cp", classes, *program],
        env=os.environ | {"RELAY_CONNECTION_STRING": f"Endpoint=sb://localhost:{broker.port}/;{keys}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def failures(told: str) -> list[str]:
    return re.findall(r"^\d+\) (\w+)\(", told, re.MULTILINE)


@pytest.mark.parametrize(("name", "count"), [("SendReceiveTest", 19), ("HybridConnectionListenerTest", 11)])
def test_its_own_tests(broker: BrokerProcess, classes: str, name: str, count: int) -> None:
    told, _ = java(broker, classes, name, "org.junit.runner.JUnitCore", f"{TESTS}.{name}").communicate(timeout=300)
    assert f"({count} tests)" in told or f"Tests run: {count}," in told, told
    assert set(failures(told)) <= NOT_OURS, told


@contextmanager
def java_listener(broker: BrokerProcess, classes: str) -> Iterator[None]:
    with java(broker, classes, "echo", str(ECHO), "listen") as listener:
        assert listener.stdout is not None
        try:
            assert listener.stdout.readline() == "listening\n"
            yield
            listener.communicate("\n", timeout=60)
        finally:
            listener.kill()


@pytest.fixture(scope="module")
def listening(broker: BrokerProcess, classes: str) -> Iterator[None]:
    with java_listener(broker, classes):
        yield


def token(broker: BrokerProcess) -> str:
    endpoint = Endpoint.parse(broker.connection_string)
    return make_token(f"http://localhost:{broker.port}/", endpoint.key_name, endpoint.key, SystemClock().now_ms() + 600_000)


def trusting(broker: BrokerProcess) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=broker.line("CA file:"))


@pytest.mark.usefixtures("listening")
async def test_a_message_larger_than_its_frames_reaches_its_listener_and_comes_back(broker: BrokerProcess) -> None:
    sent = bytes(range(256)) * 4_000
    uri = f"wss://localhost:{broker.port}/$hc/echo?sb-hc-action=connect&sb-hc-token={quote(token(broker), safe='')}"
    async with websockets.connect(uri, ssl=trusting(broker), proxy=None, max_size=None) as stream:
        await stream.send(sent)
        back = b""
        async with asyncio.timeout(60):
            while len(back) < len(sent):
                part = await stream.recv()
                assert isinstance(part, bytes)
                back += part
    assert back == sent


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("size", [0, 1_000, 65_536, 65_537, 1_000_000])
async def test_a_request_is_answered_by_its_listener_whose_large_bodies_end_with_a_close(broker: BrokerProcess, size: int) -> None:
    sent = os.urandom(size)
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as session:
        url = f"https://localhost:{broker.port}/echo/some/where?a=b"
        headers = {"ServiceBusAuthorization": token(broker)}
        async with session.post(url, data=sent, headers=headers, ssl=trusting(broker)) as reply:
            assert reply.status == 201
            assert "/echo/some/where?a=b" in reply.headers["X-Asked"]
            assert await reply.read() == sent


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("size", [10, 65_536, 1_000_000])
def test_its_sender_reaches_its_listener(broker: BrokerProcess, classes: str, size: int) -> None:
    told, _ = java(broker, classes, "echo", str(ECHO), "send", str(size)).communicate(timeout=120)
    assert told == "same\n"
