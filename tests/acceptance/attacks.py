"""Strangers and bad neighbours, one process each: `python -m tests.acceptance.attacks NAME PORT SECONDS`.

They attack this machine's own broker only, and for a bounded time. Each attack is a coroutine that does its worst once and returns; it is
started again until the time is over. Prints how often it went round.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import sys
import time
from collections.abc import Awaitable, Callable
from typing import cast

from tandem import amqp
from tandem.simulator.amqp_client import AmqpClient, Gone, PeerRefused

SASL = b"AMQP\x03\x01\x00\x00"
AMQP = b"AMQP\x00\x01\x00\x00"
VICTIM = "innocent"
QUEUE = "battlefield"
ROUND_SECONDS_MAX = 10.0


async def connection(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port)


def frame(channel: int, body: bytes, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(body), 2, kind, channel) + body


def described(code: int, *fields: object) -> bytes:
    return b"\x00\x53" + bytes((code,)) + amqp.encode_value(list(fields))


def opening() -> bytes:
    mechanism = frame(0, described(0x41, amqp.Symbol("ANONYMOUS"), b"", "localhost"), 1)
    return SASL + mechanism + AMQP + frame(0, described(0x10, "stranger", "localhost", amqp.UInt(65_536), amqp.UShort(255)))


def begin(channel: int) -> bytes:
    return frame(channel, described(0x11, None, amqp.UInt(0), amqp.UInt(5_000), amqp.UInt(5_000), amqp.UInt(65_535)))


def attach(channel: int, handle: int, address: str = "$cbs") -> bytes:
    source, target = amqp.Described(amqp.ULong(0x28), [address]), amqp.Described(amqp.ULong(0x29), [address])
    sending = [f"l{channel}-{handle}", amqp.UInt(handle), False, None, None, source, target, None, None, amqp.UInt(0)]
    return frame(channel, described(0x12, *sending))


def upgrade() -> bytes:
    return (
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
    )


async def _pour(port: int, chunks: list[bytes]) -> None:
    """Say all of it, read whatever comes, until the broker hangs up or has nothing more to say."""
    reader, writer = await connection(port)
    reading = asyncio.ensure_future(_read(reader))
    try:
        for chunk in chunks:
            writer.write(chunk)
            await writer.drain()
        await asyncio.wait([reading], timeout=0.5)
    except ConnectionError:
        pass  # hung up on, as it should be
    finally:
        reading.cancel()
        writer.close()


async def _read(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(65_536):
            pass


# -- strangers, without a token ------------------------------------------------------------------------------------------


async def garbage(port: int) -> None:
    await asyncio.gather(*(_pour(port, [random.randbytes(20_000)]) for _ in range(20)))


async def mutated_frames(port: int) -> None:
    good = bytearray(opening() + begin(0) + b"".join(attach(0, handle) for handle in range(8)))
    for _ in range(random.randint(1, 12)):
        good[random.randrange(8, len(good))] = random.randrange(256)
    await _pour(port, [bytes(good)])


async def half_open(port: int) -> None:
    """Connect, say three bytes, stay."""
    writers = [(await connection(port))[1] for _ in range(300)]
    for writer in writers:
        writer.write(random.choice((b"AMQ", b"GET", b"\x16\x03\x01")))
    await asyncio.sleep(1)
    for writer in writers:
        writer.close()


async def connect_and_go(port: int) -> None:
    for _ in range(200):
        _, writer = await connection(port)
        writer.close()


async def links_without_a_token(port: int) -> None:
    """As many sessions and links on `$cbs` as the broker allows, and then all of them again, backwards."""
    chunks = [opening()]
    for channel in range(255):
        chunks.append(begin(channel) + b"".join(attach(channel, handle) for handle in range(255)))
    for channel in reversed(range(255)):
        chunks.append(b"".join(frame(channel, described(0x16, amqp.UInt(handle), True)) for handle in reversed(range(255))))
    await _pour(port, chunks)


async def empty_frames(port: int) -> None:
    await _pour(port, [opening(), *([frame(0, b"") * 50_000] * 4)])


async def http_slowly(port: int) -> None:
    writers = [(await connection(port))[1] for _ in range(100)]
    for _ in range(5):
        for writer in writers:
            with contextlib.suppress(ConnectionError):
                writer.write(b"GET /$tandem/health HTTP/1.1\r\n" if random.random() < 0.1 else b"X-Long: " + b"a" * 500 + b"\r\n")
        await asyncio.sleep(0.2)
    for writer in writers:
        writer.close()


async def http_large(port: int) -> None:
    head = b"POST /battlefield/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n"
    await asyncio.gather(*(_pour(port, [head, b"a" * 2_000_000]) for _ in range(5)))


async def http_pipelined(port: int) -> None:
    """Thousands of requests at once, and no answer is read."""
    request = b"GET /$tandem/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    writers = [(await connection(port))[1] for _ in range(8)]
    for writer in writers:
        cast(asyncio.Transport, writer.transport).pause_reading()
        writer.write(request * 5_000)
    await asyncio.sleep(1)
    for writer in writers:
        writer.transport.abort()


async def websocket_small_frames(port: int) -> None:
    """As many WebSocket frames as fit into the bytes: pings, pongs, messages that are empty, messages in pieces that are."""
    nothing = b"\x80\0\0\0\0"
    kinds = (b"\x89", b"\x8a", b"\x82", b"\x00")
    chunks = [[upgrade(), b"\x02" + nothing if kind == b"\x00" else b"", *([(kind + nothing) * 40_000] * 8)] for kind in kinds]
    await asyncio.gather(*(_pour(port, each) for each in chunks * 2))


async def nested_deeply(port: int) -> None:
    bomb = b"\xc0\xff\x01" * 5_000
    await _pour(port, [opening(), frame(0, b"\x00\x53\x11" + bomb)])


# -- neighbours, with a token ----------------------------------------------------------------------------------------------


async def links_and_detaches(port: int) -> None:
    client = await AmqpClient.connect(port)
    try:
        for _ in range(20):
            session = client._running().begin()
            links = [session.attach_sender(f"n{n}", amqp.Terminus("x"), amqp.Terminus(QUEUE), amqp.LinkHandler()) for n in range(200)]
            client.plan_flush()
            await asyncio.sleep(0.02)
            for link in reversed(links):
                link.detach()
            client.plan_flush()
            await asyncio.sleep(0.02)
    finally:
        client.abort()


async def oversize(port: int) -> None:
    client = await AmqpClient.connect(port)
    try:
        sender = await client.sender(QUEUE)
        answers = [sender.send(amqp.encode_message(body=[b"x" * 1_500_000])) for _ in range(20)]
        await asyncio.wait(answers, timeout=5)
        for answer in answers:
            if answer.done():
                answer.exception()
    finally:
        client.abort()


async def never_reads(port: int) -> None:
    client = await AmqpClient.connect(port)
    sender = await client.sender(QUEUE)
    answers = [sender.send(amqp.encode_message(body=[b"x" * 50_000])) for _ in range(200)]
    await asyncio.wait(answers, timeout=5)
    receiver = await client.receiver(QUEUE, credit=0, delete=True)
    assert client._transport is not None
    client._transport.pause_reading()
    receiver.grant(100_000)
    client.flush()
    await asyncio.sleep(0.5)
    client.abort()


async def abandon_storm(port: int) -> None:
    client = await AmqpClient.connect(port)
    try:
        sender = await client.sender(QUEUE)
        await asyncio.wait([sender.send(amqp.encode_message(body=[b"x"])) for _ in range(100)], timeout=5)
        receiver = await client.receiver(QUEUE, credit=200)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            incoming = await asyncio.wait_for(receiver.get(), 1)
            receiver.settle(incoming, amqp.RELEASED)
    finally:
        client.abort()


async def peek_storm(port: int) -> None:
    client = await AmqpClient.connect(port)
    try:
        request = {"from-sequence-number": 1, "message-count": amqp.Int(256)}
        await client.request(QUEUE, "com.microsoft:peek-message", request)
        await asyncio.gather(*(client.request(QUEUE, "com.microsoft:peek-message", request) for _ in range(300)))
    finally:
        client.abort()


ATTACKS: dict[str, Callable[[int], Awaitable[None]]] = {
    attack.__name__: attack
    for attack in (
        garbage, mutated_frames, half_open, connect_and_go, links_without_a_token, empty_frames, http_slowly, http_large, http_pipelined,
        websocket_small_frames, nested_deeply, links_and_detaches, oversize, never_reads, abandon_storm, peek_storm,
    )
}  # fmt: skip


async def main() -> None:
    name, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    end = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < end:
        with contextlib.suppress(Gone, PeerRefused, TimeoutError, ConnectionError):
            await asyncio.wait_for(ATTACKS[name](port), ROUND_SECONDS_MAX)
        rounds += 1
    sys.stdout.write(f"{rounds}\n")


if __name__ == "__main__":
    asyncio.run(main())
