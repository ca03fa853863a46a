"""TCP through one relay or through either of two, with ordinary servers and clients at the ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tandem.aio.relay import RelayEndpoint, RelayListener, RelayPair, RelaySender
from tandem.client.relay.bridge import expose, serve_bridge
from tests.cli.broker_process import BrokerProcess
from tests.relay.house import RelayHouse, relay, relay_house


def endpoint(house: RelayHouse, name: str) -> RelayEndpoint:
    return RelayEndpoint.from_connection_string(house.connection_string, name)


@asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    """Says back everything, then "bye" when the client has no more to say."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
            writer.write(b"bye")
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_bytes_pass_both_ways_and_each_direction_ends_for_itself() -> None:
    async with (
        relay_house(relay("db")) as house,
        echo_server() as server,
        RelayListener(endpoint(house, "db")) as listener,
        RelaySender(endpoint(house, "db")) as sender,
    ):
        exposing = asyncio.create_task(expose(listener, "127.0.0.1", server))
        async with await serve_bridge(sender.open, "127.0.0.1", 0) as bridge:
            reader, writer = await asyncio.open_connection("127.0.0.1", bridge.sockets[0].getsockname()[1])
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"

            async def pour() -> None:
                for _ in range(100):
                    writer.write(b"z" * 100_000)
                    await writer.drain()
                writer.write_eof()

            pouring = asyncio.create_task(pour())
            rest = await asyncio.wait_for(reader.read(), 30)
            await pouring
            assert (len(rest), rest[-3:]) == (10_000_003, b"bye")
            writer.close()
        exposing.cancel()


async def test_a_server_that_is_not_there_is_a_broken_connection_and_not_an_empty_answer() -> None:
    async with (
        relay_house(relay("db")) as house,
        RelayListener(endpoint(house, "db")) as listener,
        RelaySender(endpoint(house, "db")) as sender,
    ):
        exposing = asyncio.create_task(expose(listener, "127.0.0.1", 1))
        async with await serve_bridge(sender.open, "127.0.0.1", 0) as bridge:
            reader, _writer = await asyncio.open_connection("127.0.0.1", bridge.sockets[0].getsockname()[1])
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(reader.read(), 20)
        exposing.cancel()


def reset(writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@pytest.mark.parametrize("who", ["server", "client"])
async def test_whoever_breaks_off_is_a_broken_connection_at_the_other_end(who: str) -> None:
    served: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
    server = await asyncio.start_server(lambda reader, writer: served.put_nowait((reader, writer)), "127.0.0.1", 0)
    async with (
        server,
        relay_house(relay("db")) as house,
        RelayListener(endpoint(house, "db")) as listener,
        RelaySender(endpoint(house, "db")) as sender,
    ):
        exposing = asyncio.create_task(expose(listener, "127.0.0.1", server.sockets[0].getsockname()[1]))
        async with await serve_bridge(sender.open, "127.0.0.1", 0) as bridge:
            client = await asyncio.open_connection("127.0.0.1", bridge.sockets[0].getsockname()[1])
            client[1].write(b"hello")
            there = await asyncio.wait_for(served.get(), 20)
            assert await there[0].readexactly(5) == b"hello"
            breaks, hears = (there, client) if who == "server" else (client, there)
            reset(breaks[1])
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(hears[0].read(), 20)
            hears[1].close()
        exposing.cancel()


async def test_when_one_of_two_relays_goes_its_connections_break_and_the_next_ones_go_through_the_other() -> None:
    async with (
        relay_house(relay("db-one")) as one,
        relay_house(relay("db-two")) as two,
        echo_server() as server,
    ):
        ends = (endpoint(one, "db-one"), endpoint(two, "db-two"))
        async with RelayPair(*ends).listen() as listener, RelayPair(*ends, choose=lambda n: 0) as pair:
            await asyncio.gather(*(single.wait_online(10) for single in listener.listeners))
            exposing = asyncio.create_task(expose(listener, "127.0.0.1", server))
            async with await serve_bridge(pair.open, "127.0.0.1", 0) as bridge:
                port = bridge.sockets[0].getsockname()[1]
                idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
                idle_writer.write(b"x")
                assert await idle_reader.readexactly(1) == b"x"
                busy_reader, busy_writer = await asyncio.open_connection("127.0.0.1", port)
                busy_writer.write(b"y" * 5_000_000)
                assert await busy_reader.readexactly(100_000) == b"y" * 100_000
                await one.server.stop()
                for reader in (idle_reader, busy_reader):
                    with pytest.raises(ConnectionError):
                        await asyncio.wait_for(reader.read(), 20)
                        raise ConnectionError  # the rest of what was under way, and then the break, may be one read
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(b"after")
                assert await asyncio.wait_for(reader.readexactly(5), 20) == b"after"
                assert pair.active is ends[1]
                writer.close()
            exposing.cancel()


async def _ready(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), 60)
    assert line.startswith(b"ready: "), line
    return line.decode()


@pytest.mark.slow
async def test_the_commands_carry_http_through_either_data_centre_when_a_broker_is_killed(tmp_path: Path) -> None:
    """Real processes: two brokers, `expose`, `bridge`; an HTTP server behind it."""

    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello from behind")

    application = web.Application()
    application.router.add_get("/", hello)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server = runner.addresses[0][1]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with (
        BrokerProcess(tmp_path / "one", "--dev", "--memory", "--port", "0") as one,
        BrokerProcess(tmp_path / "two", "--dev", "--memory", "--port", "0") as two,
    ):
        for broker, name in ((one, "db"), (two, "db-elsewhere")):
            command = [sys.executable, "-m", "tandem", "relay", "create", name, "-c", broker.connection_string]
            await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
        both = ["-c", one.connection_string, "--secondary", two.connection_string, "--secondary-relay", "db-elsewhere", "--relay", "db"]

        async def start(*arguments: str) -> asyncio.subprocess.Process:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tandem", "relay", *arguments, *both, stdout=asyncio.subprocess.PIPE, env=os.environ
            )

        exposing = await start("expose", "--to", f"127.0.0.1:{server}")
        bridging = await start("bridge", "--listen", "127.0.0.1:0", "--prefer", "primary", "--events", str(tmp_path / "relay-events.jsonl"))
        try:
            await _ready(exposing)
            port = int((await _ready(bridging)).split()[1].rpartition(":")[2])
            timeout = aiohttp.ClientTimeout(total=30)

            async def fetch() -> str:
                async with aiohttp.ClientSession(timeout=timeout) as http, http.get(f"http://127.0.0.1:{port}/") as answer:
                    return await answer.text()

            assert await fetch() == "hello from behind"
            one.process.kill()
            one.process.wait()
            assert await fetch() == "hello from behind"
            bridging.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(bridging.wait(), 20) == 0
        finally:
            for process in (exposing, bridging):
                if process.returncode is None:
                    process.kill()
                await process.wait()
            await runner.cleanup()
    events = (tmp_path / "relay-events.jsonl").read_text()
    assert '"path-failed-over"' in events and '"roles-switched"' in events and '"diverted": 1' in events
