"""What goes wrong around a relay: brokers that are killed, listeners that hang, peers that read nothing, and bytes that mean nothing."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
import websockets

from tandem.aio.relay import RelayEndpoint, RelayListener, RelayRequest, RelayResponse, RelaySender, RelayUnavailableError
from tandem.model.backoff import Backoff
from tandem.model.limits import Limits
from tandem.testing.ports import free_port
from tests.cli.broker_process import BrokerProcess
from tests.relay.house import RelayHouse, accept, next_command, relay, relay_house
from tests.relay.raw import RawSocket, frame, upgrade
from tests.relay.test_bad_input import joined

KEY = "AAAAAAAAAAAAAAAAAAAAAA=="
UPGRADE = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {KEY}\r\n"


def sockets_of(house: RelayHouse) -> list[Any]:
    """Every WebSocket that the relay still has."""
    pulse = house.server._front._relay._pulse  # type: ignore[union-attr]
    return [socket for socket in pulse._sockets if not socket.lost]


async def until(what: Any, seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not what():
            await asyncio.sleep(0.01)


async def fill(socket: RawSocket, data: bytes, bytes_max: int = 50_000_000) -> int:
    """Writes until nothing more fits anywhere; how much did."""
    sent = 0
    while sent < bytes_max:
        socket.send(data)
        try:
            await asyncio.wait_for(socket.writer.drain(), 0.5)
        except TimeoutError:  # or only slow
            left = socket.writer.transport.get_write_buffer_size()
            await asyncio.sleep(0.5)
            if socket.writer.transport.get_write_buffer_size() == left:
                return sent
        sent += len(data)
    raise AssertionError(f"{sent} bytes were taken for a peer that reads nothing")


# --- a broker dies


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_killed_broker_breaks_what_ran_through_it_and_its_listeners_are_back_when_it_is(tmp_path: Path) -> None:
    port = free_port()
    arguments = ("--dev", "--port", str(port), "--data", "data")
    gone = asyncio.Event()
    states: list[bool] = []

    def on_state(_: RelayListener, online: bool, error: BaseException | None) -> None:
        states.append(online)
        if not online:
            gone.set()

    async def handle(request: RelayRequest) -> RelayResponse:
        if request.path.endswith("/hang"):
            await gone.wait()
        return RelayResponse(body="here")

    with BrokerProcess(tmp_path, *arguments) as broker:
        endpoint = RelayEndpoint.from_connection_string(broker.connection_string, "web")
        made = [sys.executable, "-m", "tandem", "relay", "create", "web", "-c", broker.connection_string]
        await asyncio.to_thread(subprocess.run, made, check=True, capture_output=True)
        listener = RelayListener(endpoint, on_state=on_state, back_off=Backoff(0.05, 0.2, lambda: 0.5))
        await listener.start()
        listener.handle_http(handle)
        streams: list[Any] = []

        async def take() -> None:
            async for stream in listener:
                streams.append(stream)

        taking = asyncio.create_task(take())
        sender = RelaySender(endpoint)
        stream = await sender.open()
        await stream.send("before")
        await until(lambda: streams)
        assert await streams[0].receive() == "before"
        hanging = asyncio.create_task(sender.request("POST", "hang"))
        await until(lambda: listener._answering.under_way == 1)
        broker.process.kill()
        broker.process.wait()
        with pytest.raises(RelayUnavailableError) as lost:
            await asyncio.wait_for(hanging, 20)
        assert lost.value.delivered, "it may have been done"
        for end in (stream, streams[0]):
            with pytest.raises(RelayUnavailableError):
                await asyncio.wait_for(end.receive(), 20)
        with pytest.raises(RelayUnavailableError) as refused:
            await sender.request("POST", "x")
        assert not refused.value.delivered
    with BrokerProcess(tmp_path, *arguments):
        await listener.wait_online(30)
        assert (await sender.request("POST", "x")).text == "here"
        again = await sender.open()
        await until(lambda: len(streams) == 2)
        await again.close()
        assert states == [True, False, True] and listener.reconnects >= 1
        taking.cancel()
        await sender.close()
        await listener.close()


async def test_a_listener_that_dies_takes_its_own_connections_along_and_nobody_elses() -> None:
    async with relay_house(relay("hyco")) as house, house.listen("hyco") as one, house.listen("hyco") as other:

        async def take(channel: Any, name: str) -> None:
            while True:
                listener = await accept(channel)
                taken[name].append(listener)
                await listener.send(name)

        taken: dict[str, list[Any]] = {"one": [], "other": []}
        taking = [asyncio.create_task(take(channel, name)) for channel, name in ((one, "one"), (other, "other"))]
        senders: dict[str, list[Any]] = {"one": [], "other": []}
        while not (senders["one"] and senders["other"]):
            sender = await house.connect("hyco")
            senders[await sender.recv()].append(sender)
        for task in taking:
            task.cancel()
        for listener in taken["one"]:  # all that this process had
            listener.transport.abort()
        one.transport.abort()
        for sender in senders["one"]:
            with pytest.raises(websockets.ConnectionClosed):
                await asyncio.wait_for(sender.recv(), 20)
            assert sender.close_code == 1011
        for sender, listener in zip(senders["other"], taken["other"], strict=True):
            await sender.send("still there")
            assert await listener.recv() == "still there"
            await sender.close()


async def test_a_listener_that_dies_in_the_middle_of_a_response_breaks_it_and_is_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with relay_house(relay("hyco", requires_client_authorization=False)) as house:
        endpoint = RelayEndpoint.from_connection_string(house.connection_string, "hyco")
        listener = RelayListener(endpoint)

        async def part() -> AsyncIterator[bytes]:
            yield b"x" * 200_000
            await asyncio.to_thread(began.wait, 20)
            raise ConnectionAbortedError("dies")

        async def answer(request: RelayRequest) -> RelayResponse:
            return RelayResponse(body=part())

        began = threading.Event()
        listener.handle_http(answer)
        async with listener, aiohttp.ClientSession() as session, session.get(f"http://{house.host}/hyco/x") as response:
            assert response.headers["Server"] == "Tandem", "the listener named none"
            assert len(await response.content.readexactly(200_000)) == 200_000
            began.set()
            with pytest.raises(aiohttp.ClientPayloadError):
                await asyncio.wait_for(response.content.read(), 20)
    told = [record for record in caplog.records if "/hyco/x" in record.getMessage()]
    assert [record.getMessage() for record in told] == ["GET /hyco/x broke off: the listener's response ended in the middle"]
    assert told[0].exc_info is None


# --- peers that hang


async def test_a_listener_that_hangs_is_waited_for_so_long_and_then_taken_for_dead() -> None:
    """As a machine that is frozen, or whose cable is cut: its connection stands and nothing comes."""
    limits = replace(Limits(), relay_accept_ms_max=300, relay_response_ms_max=300)
    async with relay_house(relay("hyco"), limits=limits) as house:
        hanging = await upgrade(house.uri("hyco", "listen"))
        assert hanging.status == 101
        auth = {"ServiceBusAuthorization": house.token()}
        async with aiohttp.ClientSession(headers=auth) as http:
            connecting = await upgrade(house.uri("hyco", "connect"))
            assert connecting.status == 504
            async with http.get(house.http("hyco")) as answer:
                assert (answer.status, answer.headers.get("X-Tandem-Delivered")) == (504, None)
            async with http.post(house.http("hyco"), data=b"z" * 200_000) as answer:  # a large one never reached it
                assert (answer.status, answer.headers.get("X-Tandem-Delivered")) == (504, "false")
        assert house.entity("hyco").requests == 0 and len(sockets_of(house)) == 1
        hanging.close()
    async with relay_house(relay("hyco"), limits=replace(limits, relay_ping_ms=300)) as house:
        hanging = await upgrade(house.uri("hyco", "listen"))
        await until(lambda: not house.entity("hyco").listeners)
        assert (await upgrade(house.uri("hyco", "connect"))).status == 404
        assert not sockets_of(house)


async def test_what_is_kept_for_a_listener_that_does_not_read_its_control_channel_has_a_bound() -> None:
    limits = replace(Limits(), relay_response_ms_max=60_000)
    async with relay_house(relay("hyco"), limits=limits) as house:
        deaf = await upgrade(house.uri("hyco", "listen"))
        assert deaf.status == 101
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        channel = next(iter(house.entity("hyco").listeners))
        async with aiohttp.ClientSession(headers={"ServiceBusAuthorization": house.token()}) as http:

            async def ask() -> int:
                async with http.post(house.http("hyco"), data=b"z" * 50_000) as answer:
                    return answer.status

            asking = [asyncio.create_task(ask()) for _ in range(400)]
            await until(lambda: sum(task.done() for task in asking) > 100)
            assert channel.socket.transport.get_write_buffer_size() < limits.relay_buffer_bytes_max + 2 * 65_536
            assert {task.result() for task in asking if task.done()} == {502}
            assert (await upgrade(house.uri("hyco", "connect"))).status == 404
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        deaf.close()


async def test_a_sender_that_reads_nothing_stops_its_listener_and_little_is_kept_for_it() -> None:
    async with relay_house(relay("hyco")) as house, joined(house) as (_, listener):
        await fill(listener, frame(2, b"z" * 60_000))
        connection = next(iter(house.entity("hyco").connections))
        assert connection.listener.reading_paused
        assert connection.sender.transport.get_write_buffer_size() < 2 * Limits().relay_buffer_bytes_max


@asynccontextmanager
async def http_exchange(house: RelayHouse, body: bytes, announced: int) -> AsyncIterator[tuple[Any, Any, Any]]:
    """(sender's reader, its writer, the listener's rendezvous) of a request whose body is `announced` long."""
    async with house.listen("hyco") as channel:
        reader, writer = await asyncio.open_connection("localhost", house.port)
        head = f"POST /hyco HTTP/1.1\r\nHost: {house.host}\r\nServiceBusAuthorization: {house.token()}\r\n"
        writer.write(f"{head}Content-Length: {announced}\r\n\r\n".encode() + body)
        command = await next_command(channel, "request")
        rendezvous = await upgrade(command["address"])
        assert rendezvous.status == 101
        yield reader, writer, rendezvous
        writer.close()
        rendezvous.close()


async def test_a_listener_that_reads_no_body_stops_the_upload_and_a_sender_that_reads_no_response_stops_the_listener() -> None:
    async with relay_house(relay("hyco")) as house:
        async with http_exchange(house, b"", 1_000_000_000) as (_, writer, rendezvous):
            await rendezvous.frame()
            await fill(RawSocket(None, writer, b"HTTP/1.1 101 -\r\n"), b"z" * 60_000)  # type: ignore[arg-type]
            socket = next(socket for socket in sockets_of(house) if not socket.is_writable)
            assert socket.transport.get_write_buffer_size() < 3 * Limits().relay_buffer_bytes_max
        await until(lambda: house.entity("hyco").requests == 0)
        async with http_exchange(house, b"", 100_000) as (reader, writer, rendezvous):
            writer.write(b"z" * 100_000)
            request = json.loads((await rendezvous.frame())[2])["request"]
            answer = {"requestId": request["id"], "statusCode": 200, "responseHeaders": {}, "body": True}
            rendezvous.send(frame(1, json.dumps({"response": answer}).encode()))
            rendezvous.send(frame(2, b"z" * 10, fin=False))
            sent = await fill(rendezvous, frame(0, b"z" * 60_000, fin=False))
            reader._transport.resume_reading()
            seen = 0
            while seen < sent - 100_000:  # and it all comes once somebody reads
                seen += len(await asyncio.wait_for(reader.read(1_000_000), 20))
        await until(lambda: house.entity("hyco").requests == 0)


# --- who comes and goes in the same moment


@pytest.mark.slow
async def test_senders_that_hang_up_at_any_moment_leave_no_socket_behind() -> None:
    dice = Random(7)
    async with relay_house(relay("hyco")) as house, house.listen("hyco") as channel:

        async def take() -> None:
            while True:
                told = json.loads(await channel.recv())
                kind = "accept" if "accept" in told else "request"
                coming = asyncio.create_task(upgrade(told[kind]["address"]))
                kept.add(coming)
                coming.add_done_callback(kept.discard)

        kept: set[asyncio.Task[Any]] = set()
        taking = asyncio.create_task(take())
        auth = house.token()

        async def come_and_go(number: int) -> None:
            _, writer = await asyncio.open_connection("localhost", house.port)
            head = f"Host: {house.host}\r\nServiceBusAuthorization: {auth}\r\n"
            if number % 2:
                writer.write(f"POST /hyco HTTP/1.1\r\n{head}Content-Length: 200000\r\n\r\n".encode() + bytes(1000))
            else:
                writer.write(f"GET /$hc/hyco?sb-hc-action=connect HTTP/1.1\r\n{head}{UPGRADE}\r\n".encode())
            for _ in range(dice.randrange(40)):
                await asyncio.sleep(0)
            writer.transport.abort()

        for number in range(200):
            await come_and_go(number)
        await until(lambda: not kept)
        await until(lambda: len(sockets_of(house)) == 1)  # the listener's channel
        entity = house.entity("hyco")
        assert (entity.requests, len(entity.connections), len(entity.listeners)) == (0, 0, 1)
        taking.cancel()


# --- nonsense


@pytest.mark.slow
async def test_bytes_that_mean_nothing_break_their_own_connection_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """Handshakes and frames, whole and mutilated, on every kind of socket; the same seed says the same."""
    dice = Random(int(os.environ.get("TANDEM_FUZZ_SEED", "11")))
    rounds = int(os.environ.get("TANDEM_FUZZ_ROUNDS", "150"))
    failed: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    async with relay_house(relay("hyco", requires_client_authorization=False), limits=Limits(relay_accept_ms_max=500)) as house:
        caplog.set_level(logging.ERROR)

        def mutilated(data: bytes) -> bytes:
            changed = bytearray(data)
            for _ in range(dice.randrange(6)):
                at = dice.randrange(len(changed) + 1)
                match dice.randrange(4):
                    case 0:
                        changed[at : at + dice.randrange(20)] = b""
                    case 1:
                        changed[at:at] = dice.randbytes(dice.randrange(20))
                    case 2:
                        changed[at : at + 1] = bytes([dice.randrange(256)])
                    case _:
                        changed[at:at] = bytes(changed[: dice.randrange(len(changed) + 1)])[:500]
            return bytes(changed)

        def handshake() -> bytes:
            action = dice.choice(["listen", "connect", "accept", "request", "no"])
            uri = house.uri(dice.choice(["hyco", "hyco/x", "none", "%24hc", ""]), action).partition(house.host)[2]
            key = dice.choice([KEY, "x", ""])
            return f"GET {uri} HTTP/1.1\r\nHost: {house.host}\r\n{UPGRADE.replace(KEY, key)}\r\n".encode()

        def command() -> bytes:
            value = dice.choice([None, 1, "x", [], {}, {"token": 5}, {"requestId": {}, "statusCode": [], "responseHeaders": 7, "body": 1}])
            return json.dumps({dice.choice(["response", "renewToken", "accept", "?"]): value}).encode()

        def frames() -> bytes:
            parts = [
                frame(dice.randrange(16), dice.choice([b"", command(), dice.randbytes(dice.randrange(200))]), fin=dice.random() < 0.8)
                for _ in range(dice.randrange(5))
            ]
            return b"".join(parts)

        async def one() -> None:
            reader, writer = await asyncio.open_connection("localhost", house.port)
            try:
                writer.write(mutilated(handshake()) if dice.random() < 0.5 else handshake())
                writer.write(mutilated(frames()) if dice.random() < 0.5 else frames())
                if dice.random() < 0.5:
                    writer.write_eof()
                async with asyncio.timeout(dice.choice([0.01, 0.05, 2.0])):
                    while await reader.read(65_536):
                        pass
            except (TimeoutError, ConnectionError):
                pass
            finally:
                writer.transport.abort()

        for _ in range(rounds // 10):
            await asyncio.gather(*(one() for _ in range(10)))
        await until(lambda: not sockets_of(house))
        await until(lambda: house.entity("hyco").requests == 0)
        async with joined(house) as (sender, listener):  # all is well
            sender.send(frame(2, b"hello"))
            assert (await listener.frame())[2] == b"hello"
    assert failed == []
    assert [record.message for record in caplog.records] == []
