"""What a relay may cost: memory stays flat whatever passes through, slow readers hold up nobody else, the dead are noticed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import websockets

from tandem.aio.relay import RelayEndpoint, RelayListener, RelayRequest, RelayResponse, RelaySender
from tandem.model.limits import Limits
from tests.cli.broker_process import BrokerProcess
from tests.relay.house import accept, relay, relay_house
from tests.relay.raw import frame
from tests.relay.test_bad_input import joined

GIGABYTE = 1_000_000_000


def memory_kilobytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1])


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_body_of_a_gigabyte_streams_both_ways_and_memory_stays_flat(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text('[[relay]]\nname = "web"\n')
    piece = b"x" * 262_144

    async def pieces(total: int) -> AsyncIterator[bytes]:
        for _ in range(total // len(piece)):
            yield piece

    async def handle(request: RelayRequest) -> RelayResponse:
        if request.method == "GET":
            return RelayResponse(body=pieces(GIGABYTE))
        total = 0
        async for part in request:
            total += len(part)
        return RelayResponse(body=str(total))

    with BrokerProcess(tmp_path, "--memory", "--port", "0", "--config", "tandem.toml", "--key", "a-key") as broker:
        endpoint = RelayEndpoint.from_connection_string(broker.connection_string, "web")
        async with RelayListener(endpoint) as listener, RelaySender(endpoint) as sender:
            listener.handle_http(handle)
            await sender.request("POST", data=b"warm")
            before = memory_kilobytes(broker.process.pid)
            expected = GIGABYTE // len(piece) * len(piece)
            reply = await sender.request("POST", data=pieces(GIGABYTE))
            assert int(reply.text) == expected
            after_upload = memory_kilobytes(broker.process.pid)
            received = 0
            async for chunk in await sender.request("GET", stream=True):
                received += len(chunk)
            assert received == expected
            after = memory_kilobytes(broker.process.pid)
    assert max(after_upload, after) - before < 30_000, (before, after_upload, after)


async def test_one_slow_reader_holds_up_its_own_writer_and_nobody_else() -> None:
    async with (
        relay_house(relay("slow"), relay("quick")) as house,
        joined(house, "slow") as (slow_sender, _),
        joined(house, "quick") as (sender, listener),
    ):
        message = frame(2, b"z" * 60_000)
        sent = 0
        while True:  # until nothing more fits anywhere
            slow_sender.send(message)
            try:
                await asyncio.wait_for(slow_sender.writer.drain(), 0.5)
            except TimeoutError:
                break
            sent += len(message)
            assert sent < 100_000_000
        connection = next(iter(house.entity("slow").connections))
        assert connection.sender.reading_paused
        assert connection.listener.transport.get_write_buffer_size() < 2 * Limits().relay_buffer_bytes_max
        for n in range(200):
            sender.send(frame(2, bytes([n])))
            assert (await listener.frame())[2] == bytes([n])


async def test_a_peer_that_answers_no_pings_is_taken_for_dead() -> None:
    limits = replace(Limits(), relay_ping_ms=200)
    async with relay_house(relay("hyco"), limits=limits) as house, joined(house) as (sender, _):
        pings = 0
        while (told := await sender.frame())[0] == 9:  # who answers stays
            pings += 1
            sender.send(frame(10, told[2]))
        assert pings >= 2
        assert (told[0], int.from_bytes(told[2][:2], "big")) == (8, 1011)  # the listener said nothing at all


async def test_those_who_are_refused_and_come_again_at_once_are_answered_late() -> None:
    async with relay_house(relay("hyco")) as house:

        async def attempt() -> float:
            began = time.monotonic()
            with pytest.raises(websockets.InvalidStatus):
                await house.listen("hyco", "nonsense")
            return time.monotonic() - began

        took = [await attempt() for _ in range(12)]
        assert max(took[:10]) < 1.0 <= min(took[10:])
        async with house.listen("hyco") as channel:  # who is welcome does not wait
            connecting = asyncio.ensure_future(house.connect("hyco").__aenter__())
            listener = await accept(channel)
            await (await connecting).close()
            await listener.close()
