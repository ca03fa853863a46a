"""`relay_isolation = "process"`: what is relayed passes through a process that has no queues."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import websockets
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tandem.cli.lobby import is_port_of_http
from tandem.engine_client.blocking import BlockingClient
from tandem.engine_client.endpoint import Endpoint
from tandem.engine_client.message_encoding import encode_row
from tandem.server.sas import make_token
from tests.cli.broker_process import BrokerProcess
from tests.cli.test_workers import health, pids, tcp_sockets
from tests.conformance.house import ROOT_KEY, ROOT_NAME
from tests.relay.house import accept
from tests.waiting import wait_until

CONFIG = 'relay_isolation = "process"\n[[queue]]\nname = "q"\n[[relay]]\nname = "r"\n'


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    (module_path / "tandem.toml").write_text(CONFIG)
    with BrokerProcess(module_path, "--port", "0", "--data", "data", "--dev", log=module_path / "log") as running:
        yield running


class Relay:
    def __init__(self, broker: BrokerProcess, tls: bool) -> None:
        self._port = broker.port
        self._tls = tls
        self.options: dict[str, ssl.SSLContext] = {}
        if tls:
            self.options["ssl"] = ssl.create_default_context(cafile=str(broker.directory / "data" / "ca.pem"))
            self.options["ssl"].set_alpn_protocols(["http/1.1"])

    def uri(self, action: str) -> str:
        token = quote(make_token(f"http://localhost:{self._port}/", ROOT_NAME, ROOT_KEY, 4_000_000_000_000), safe="")
        return f"{'wss' if self._tls else 'ws'}://localhost:{self._port}/$hc/r?sb-hc-action={action}&sb-hc-token={token}"


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_relayed_bytes_do_not_pass_the_process_that_has_the_queues(broker: BrokerProcess, tls: bool) -> None:
    relay = Relay(broker, tls)
    relays, queues = pids(broker)
    before = [tcp_sockets(relays), tcp_sockets(queues)]
    async with (
        websockets.connect(relay.uri("listen"), proxy=None, **relay.options) as channel,
        asyncio.TaskGroup() as group,
    ):
        accepting = group.create_task(accept(channel, max_size=None, **relay.options))
        async with websockets.connect(relay.uri("connect"), proxy=None, max_size=None, compression=None, **relay.options) as sender:
            far = await accepting
            assert [tcp_sockets(relays), tcp_sockets(queues)] == [before[0] + 3, before[1]], "handed to the process that relays"
            await sender.send(b"x" * 1_048_576)
            assert len(await far.recv()) == 1_048_576
            await far.close()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_queues_are_as_ever_and_their_connections_are_where_they_are(broker: BrokerProcess, tls: bool) -> None:
    relays, queues = pids(broker)
    before = [tcp_sockets(relays), tcp_sockets(queues)]
    endpoint = Endpoint.parse(broker.connection_string, str(broker.directory / "data" / "ca.pem"))
    with BlockingClient(dataclasses.replace(endpoint, tls=tls)) as client:
        sender = client.sender("q", 10)
        sender.send(encode_row(b"hello", "m"), None)
        sender.drain()
        assert sender.failed == []
        assert [tcp_sockets(relays), tcp_sockets(queues)] == [before[0], before[1] + 1]


def test_tls_that_does_not_say_what_is_inside_goes_by_its_port() -> None:
    assert [is_port_of_http(port, (5671, 5672, 443)) for port in (5671, 5672, 443)] == [False, False, True]
    assert not is_port_of_http(443, (443,)), "everything comes to this one"


async def test_tls_that_is_taken_for_amqp_is_relayed_all_the_same(broker: BrokerProcess) -> None:
    relay = Relay(broker, True)
    silent = {"ssl": ssl.create_default_context(cafile=str(broker.directory / "data" / "ca.pem"))}
    async with websockets.connect(relay.uri("listen"), proxy=None, **silent) as channel, asyncio.TaskGroup() as group:
        accepting = group.create_task(accept(channel, **silent))
        async with websockets.connect(relay.uri("connect"), proxy=None, **silent) as sender:
            far = await accepting
            await sender.send("hello")
            assert await far.recv() == "hello"
            await far.close()


def test_health_is_that_of_both(broker: BrokerProcess) -> None:
    told = health(broker)
    assert told["status"] == "ok" and told["workers"] == {"asked": 2, "silent": []}


@pytest.mark.slow
def test_the_process_of_relays_is_started_again_and_queues_do_not_notice(broker: BrokerProcess) -> None:
    relays, _ = pids(broker)
    with ServiceBusClient.from_connection_string(broker.connection_string) as client, client.get_queue_sender("q") as sender:
        sender.send_messages(ServiceBusMessage("before"))
        os.kill(relays, 9)
        sender.send_messages(ServiceBusMessage("meanwhile"))
        wait_until(lambda: _answers(broker), "HTTP to be back", 60)


def _answers(broker: BrokerProcess) -> bool:
    try:
        return health(broker)["status"] == "ok"
    except OSError:
        return False


@pytest.mark.slow
def test_it_needs_a_data_directory(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(CONFIG)
    with pytest.raises(AssertionError, match="relay_isolation: they share a data directory"):
        BrokerProcess(tmp_path, "--port", "0", "--memory", "--dev").__enter__()
