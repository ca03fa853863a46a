"""A relay beside nginx as a WebSocket proxy, in the same run: throughput, latency, idle memory, and what queues notice of it.

The same sender talks to the same far end: directly, through nginx, and through the broker's relay (whose far end is a listener). Needs
nginx from Debian (`apt-get install nginx-light`). Far ends and senders are processes of their own; on two processors they compete
with what is measured, so look at the ratios, and at the CPU that each proxy used.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import quote, urlsplit

import uvloop
from under_test import KEY, KEY_NAME, Broker, Build, Table, builds, parser, workplace

from tandem.model.sas_token import make_token

PIECE = 65_536
PAYLOAD = os.urandom(PIECE)
MASK = b"\x9c\x01\x7e\x35"
RELAYS = 200
ROUNDS = 5
SLOW_READERS = 20
_TICKS = os.sysconf("SC_CLK_TCK")

APART = 'relay_isolation = "process"\n'
CONFIG = "".join(f'[[relay]]\nname = "r{n}"\n' for n in range(RELAYS)) + '[[queue]]\nname = "bench"\n[limits]\nrelay_ping_ms = 600000\n'

NGINX = """
daemon off; worker_processes 1; pid {directory}/nginx.pid; error_log {directory}/error.log;
events {{ worker_connections 4096; }}
http {{ access_log off; client_body_temp_path {directory}/a; proxy_temp_path {directory}/b; fastcgi_temp_path {directory}/c;
uwsgi_temp_path {directory}/d; scgi_temp_path {directory}/e;
server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{origin}; proxy_http_version 1.1; proxy_buffering off;
proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection "upgrade"; proxy_read_timeout 600s; }} }} }}
"""


def frame(opcode: int, payload: bytes, masked: bool) -> bytes:
    bit = 0x80 if masked else 0
    length = len(payload)
    head = bytes([0x80 | opcode])
    head += (
        bytes([bit | length])
        if length < 126
        else bytes([bit | 126]) + length.to_bytes(2, "big")
        if length < 65_536
        else bytes([bit | 127]) + length.to_bytes(8, "big")
    )
    if not masked:
        return head + payload
    key = int.from_bytes(MASK * (length // 4 + 1), "big") >> 8 * (4 - length % 4)
    return head + MASK + (int.from_bytes(payload, "big") ^ key).to_bytes(length, "big")


class Wire(asyncio.Protocol):
    """One WebSocket after its handshake: counts payload bytes, echoes, or hands whole small frames on."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.received = 0
        self.total = 0
        """After so many bytes one small message says that all have come; 0: never."""
        self.echoes = False
        self.masks = False
        """It is a client: what it sends is masked."""
        self.on_frame: Callable[[bytes], None] | None = None
        self.lost = asyncio.get_running_loop().create_future()
        self._rest = b""
        self._skip = 0
        self._room = asyncio.Event()
        self._room.set()
        self._head: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        self._room.set()
        if self._head is not None and not self._head.done():
            self._head.set_exception(ConnectionError("hung up"))

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    async def room(self) -> None:
        await self._room.wait()

    async def upgrade(self, uri: str, token: str | None) -> None:
        parts = urlsplit(uri)
        given = f"ServiceBusAuthorization: {token}\r\n" if token else ""
        self.masks = True
        self._head = asyncio.get_running_loop().create_future()
        self.transport.write(
            f"GET {parts.path}?{parts.query} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{given}"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\r\n\r\n".encode()
        )
        head = await self._head
        if b" 101 " not in head.partition(b"\r\n")[0]:
            raise SystemExit(f"refused: {head.decode('latin-1')[:300]}")

    def data_received(self, data: bytes) -> None:
        if self._head is not None and not self._head.done():
            head, end, data = (self._rest + data).partition(b"\r\n\r\n")
            if not end:
                self._rest = head
                return
            self._rest = b""
            self._head.set_result(head)
        if self._skip >= len(data):
            self._skip -= len(data)
            self._count(len(data))
            return
        data = self._rest + data
        self._rest = b""
        at = self._skip
        self._count(at)
        self._skip = 0
        while at < len(data):
            if len(data) - at < 2:
                break
            length, start = data[at + 1] & 0x7F, at + 2
            if length >= 126:
                wide = 2 if length == 126 else 8
                if len(data) < start + wide:
                    break
                length, start = int.from_bytes(data[start : start + wide], "big"), start + wide
            masked = data[at + 1] & 0x80
            start += 4 if masked else 0
            if len(data) < start:
                break
            behind = start + length
            if self.echoes or self.on_frame is not None:
                if len(data) < behind:
                    break
                self._whole(data[at] & 0x0F, data[start:behind], data[start - 4 : start] if masked else b"")
            elif behind > len(data):
                self._count(len(data) - start)
                self._skip = behind - len(data)
                return
            self._count(length)
            at = behind
        self._rest = data[at:]

    def _whole(self, opcode: int, payload: bytes, mask: bytes) -> None:
        if opcode > 2:
            return
        if mask:
            payload = bytes(byte ^ mask[n % 4] for n, byte in enumerate(payload))
        if self.echoes:
            self.transport.write(frame(2, payload, self.masks))
        elif self.on_frame is not None:
            self.on_frame(payload)

    def _count(self, length: int) -> None:
        self.received += length
        if self.total and self.received >= self.total:
            self.total = 0
            self.transport.write(frame(2, b"all", self.masks))


class Origin(Wire):
    """The far end as a server: `/sink?total=N` or `/echo`."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = b""
        self._upgraded = False

    def data_received(self, data: bytes) -> None:
        if self._upgraded:
            return super().data_received(data)
        self._asked += data
        if b"\r\n\r\n" not in self._asked:
            return
        self._upgraded = True
        line = self._asked.partition(b"\r\n")[0].decode()
        self.echoes, self.total = "/echo" in line, int(line.partition("total=")[2].partition(" ")[0] or 0)
        self.transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: x\r\n\r\n"
        )


async def origin(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Origin, "127.0.0.1", port, backlog=1024)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


async def dial(uri: str, token: str | None = None) -> Wire:
    parts = urlsplit(uri)
    _, wire = await asyncio.get_running_loop().create_connection(Wire, "127.0.0.1", parts.port or 80)
    await wire.upgrade(uri, token)
    return wire


def token_for(port: int) -> str:
    return make_token(f"http://localhost:{port}/", KEY_NAME, KEY, time.time_ns() // 1_000_000 + 3_600_000)


async def listen(port: int, relay: str, keep: list[Wire]) -> Wire:
    """A listener that takes every sender: what it does with it stands in the sender's path."""
    channel = await dial(f"ws://localhost:{port}/$hc/{relay}?sb-hc-action=listen", token_for(port))

    async def take(address: str) -> None:
        wire = await dial(address)
        wire.echoes = "/echo" in address
        if "/stuck" in address:
            wire.transport.pause_reading()
        wire.total = int(address.partition("total=")[2].partition("&")[0] or 0)
        keep.append(wire)

    def told(payload: bytes) -> None:
        asyncio.get_running_loop().create_task(take(json.loads(payload)["accept"]["address"]))

    channel.on_frame = told
    return channel


async def listener(port: int) -> None:
    keep: list[Wire] = []
    channel = await listen(port, "r0", keep)
    print(json.dumps({"port": port}), flush=True)
    await channel.lost


# --- what is measured


async def throughput(uri: Callable[[str], str], token: str | None, connections: int, megabytes: int) -> float:
    """MB per second over all connections."""
    per_connection = max(PIECE, megabytes * 1_000_000 // connections // PIECE * PIECE)
    message = frame(2, PAYLOAD, masked=True)
    wires = [await dial(uri(f"sink?total={per_connection}"), token) for _ in range(connections)]
    done = [asyncio.get_running_loop().create_future() for _ in wires]
    for wire, future in zip(wires, done, strict=True):
        wire.on_frame = lambda payload, future=future: future.done() or future.set_result(None)

    async def pour(wire: Wire) -> None:
        for _ in range(per_connection // PIECE):
            wire.transport.write(message)
            await wire.room()

    began = time.monotonic()
    await asyncio.gather(*(pour(wire) for wire in wires), *done)
    took = time.monotonic() - began
    for wire in wires:
        wire.transport.abort()
    return per_connection * connections / took / 1e6


async def latency(uri: Callable[[str], str], token: str | None, rounds: int) -> tuple[float, float]:
    """p50 and p99 of an echo of 100 bytes, in microseconds."""
    wire = await dial(uri("echo"), token)
    answered: asyncio.Queue[bytes] = asyncio.Queue()
    wire.on_frame = answered.put_nowait
    message = frame(2, b"x" * 100, masked=True)
    taken: list[float] = []
    for n in range(rounds + 50):
        began = time.perf_counter()
        wire.transport.write(message)
        await answered.get()
        if n >= 50:
            taken.append((time.perf_counter() - began) * 1e6)
    wire.transport.abort()
    cut = statistics.quantiles(taken, n=100)
    return cut[49], cut[98]


async def idle(port: int, connections: int) -> list[Wire]:
    """As many listeners and as many connections, all silent."""
    keep: list[Wire] = []
    channels = [await listen(port, f"r{n % RELAYS}", keep) for n in range(connections)]
    wires: list[Wire] = []
    for start in range(0, connections, 50):
        names = [f"r{n % RELAYS}" for n in range(start, min(start + 50, connections))]
        wires += await asyncio.gather(
            *(dial(f"ws://localhost:{port}/$hc/{name}/x?sb-hc-action=connect", token_for(port)) for name in names)
        )
    return [*channels, *keep, *wires]


@contextmanager
def helper(*arguments: str) -> Iterator[int]:
    """The port of another process of this script."""
    process = subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["port"]
    finally:
        process.kill()
        process.wait()


@contextmanager
def nginx(directory: Path, port: int, origin_port: int) -> Iterator[int]:
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    if not Path(program).exists():
        raise SystemExit("nginx is not there: apt-get install nginx-light")
    directory.mkdir()
    (directory / "nginx.conf").write_text(NGINX.format(directory=directory, port=port, origin=origin_port))
    process = subprocess.Popen([program, "-c", str(directory / "nginx.conf"), "-e", str(directory / "error.log")])
    time.sleep(1.0)
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    """Of a process and its children."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(stat.parent.name) == pid or int(fields[1]) == pid:
            total += (int(fields[11]) + int(fields[12])) / _TICKS
    return total


@dataclass(frozen=True, slots=True)
class Way:
    """From a sender to a far end."""

    column: str
    uri: Callable[[str], str]
    pid: int | None
    """Of the proxy in between."""


async def compare(ways: list[Way], arguments: argparse.Namespace, table: Table) -> dict[str, dict[str, float]]:
    """In alternating rounds; of each way the least disturbed round counts."""
    found: dict[str, dict[str, float]] = {way.column: {} for way in ways}
    for _ in range(ROUNDS):
        for way in ways:
            best = found[way.column]
            p50, p99 = await latency(way.uri, None, arguments.echoes)
            best["echo of 100 bytes, p50 us"] = min(p50, best.get("echo of 100 bytes, p50 us", p50))
            best["echo of 100 bytes, p99 us"] = min(p99, best.get("echo of 100 bytes, p99 us", p99))
            for connections in (1, 100):
                label = f"{connections} connection{'s' if connections > 1 else ''}"
                before = cpu_seconds(way.pid) if way.pid is not None else 0.0
                rate = await throughput(way.uri, None, connections, arguments.megabytes)
                print(f"{way.column}: {label}: {rate:.0f} MB/s, echo {p50:.0f} us", file=sys.stderr)
                best[f"{label}, 64 KiB messages, MB/s"] = max(rate, best.get(f"{label}, 64 KiB messages, MB/s", 0.0))
                if way.pid is not None:
                    used = (cpu_seconds(way.pid) - before) / arguments.megabytes * 1000
                    best[f"{label}, CPU of the proxy, s/GB"] = min(used, best.get(f"{label}, CPU of the proxy, s/GB", used))
    for column, figures in found.items():
        for what, figure in figures.items():
            table.add(column, what, figure)
    return found


async def pour_for_ever(port: int, connections: int) -> None:
    """As fast as the relay takes it."""
    uri = relay_uri(port)
    wires = [await dial(uri("sink"), None) for _ in range(connections)]
    message = frame(2, PAYLOAD, masked=True)

    async def pour(wire: Wire) -> None:
        while not wire.lost.done():
            wire.transport.write(message)
            await wire.room()
            await asyncio.sleep(0)

    print(json.dumps({"port": port}), flush=True)
    await asyncio.gather(*(pour(wire) for wire in wires))


async def queue_rate(broker: Broker, messages: int) -> float:
    """Messages per second through a queue, sent in batches and received by the official client in this process."""
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.aio import ServiceBusClient

    async with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("bench") as sender,
        client.get_queue_receiver("bench", receive_mode="receiveanddelete") as receiver,
    ):
        began = time.monotonic()
        for _ in range(messages // 100):
            await sender.send_messages([ServiceBusMessage(b"x" * 1024) for _ in range(100)])
        got = 0
        while got < messages // 100 * 100:
            got += len(await receiver.receive_messages(max_message_count=500, max_wait_time=10))
        return got / (time.monotonic() - began)


def relay_uri(port: int) -> Callable[[str], str]:
    token = quote(token_for(port), safe="")

    def uri(what: str) -> str:
        path, _, query = what.partition("?")
        return f"ws://localhost:{port}/$hc/r0/{path}?{query + '&' if query else ''}sb-hc-action=connect&sb-hc-token={token}"

    return uri


async def measure(build: Build, directory: Path, arguments: argparse.Namespace, table: Table) -> None:
    column = f"relay, {build.label}"
    port = free_port()
    unwatched = Broker(build, directory / "broker", CONFIG, {"TANDEM_STALLS": ""})  # a timer of a millisecond would be measured, too
    with (
        helper("origin") as origin_port,
        nginx(directory / "nginx", port, origin_port) as proxy,
        unwatched as broker,
        helper("listener", str(broker.port)),
    ):
        ways = [
            Way("direct", lambda what: f"ws://localhost:{origin_port}/{what}", None),
            Way("nginx", lambda what: f"ws://localhost:{port}/{what}", proxy),
            Way(column, relay_uri(broker.port), broker.pid),
        ]
        found = await compare(ways, arguments, table)
    for what in ("1 connection", "100 connections"):
        rate = f"{what}, 64 KiB messages, MB/s"
        table.add(column, f"{what}, share of nginx's rate", found[column][rate] / found["nginx"][rate], ">= 0.6")
    echo = "echo of 100 bytes, p50 us"
    added = (found[column][echo] - found["direct"][echo]) / max(1.0, found["nginx"][echo] - found["direct"][echo])
    table.add(column, "added p50, times nginx's", added, "<= 2")
    await beside_queues(build, directory / "queues", arguments, table, column)
    await beside_slow_readers(build, directory / "slow", arguments, table, column)
    with Broker(build, directory / "idle", CONFIG, {"TANDEM_STALLS": ""}) as broker:
        await queue_rate(broker, 100)
        empty = broker.memory_mb()
        wires = await idle(broker.port, arguments.idle)
        await asyncio.sleep(1)
        what = f"{arguments.idle:,} listeners and as many connections, MB over an empty broker"
        table.add(column, what, broker.memory_mb() - empty, "<= 100")
        for wire in wires:
            wire.transport.abort()


async def beside_queues(build: Build, directory: Path, arguments: argparse.Namespace, table: Table, column: str) -> None:
    """A queue alone, and beside a hundred connections that pour as fast as they can: through the same broker, and through another.

    Where the machine has fewer processors than there are busy processes, a queue loses by the other broker's relay, too: what relaying on
    the same loop costs is the difference between the two, and a process of its own should leave none. Shares are of medians; of the rest
    the least disturbed round counts.
    """
    with (
        Broker(build, directory / "one", CONFIG) as broker,
        Broker(build, directory / "other", CONFIG) as other,
        Broker(build, directory / "apart", APART + CONFIG, {"TANDEM_STALLS": ""}) as apart,
    ):
        for warmed in (broker, apart):
            await queue_rate(warmed, arguments.messages)
        best: dict[str, dict[str, float]] = {"alone": {}, "another broker": {}, "the same broker": {}}
        rates: dict[str, list[float]] = {}
        for _ in range(ROUNDS):
            for where, relay in zip(best, (None, other, broker), strict=True):
                with saturated(relay):
                    found = await _beside(broker, arguments.messages)
                _note_best(best[where], found)
                rates.setdefault(where, []).append(found["messages/s"])
            for where, relay in (("alone, apart", None), ("the same broker, apart", apart)):
                with saturated(relay):
                    rates.setdefault(where, []).append(await queue_rate(apart, arguments.messages))
        for where, found in best.items():
            said = "queue alone" if where == "alone" else f"queue beside 100 saturated connections of {where}"
            for what, figure in found.items():
                target = "< 10" if where == "the same broker" and what == "loop busy, p99.9 ms" else ""
                table.add(column, f"{said}, {what}", figure, target)
        print(*(f"{where}: {' '.join(f'{rate:.0f}' for rate in each)}" for where, each in rates.items()), sep="\n", file=sys.stderr)
        middle = {where: statistics.median(each) for where, each in rates.items()}
        said = "queue's rate beside its own broker's relay, share of that beside another's"
        table.add(column, said, middle["the same broker"] / middle["another broker"], ">= 0.9")
        table.add(
            column, f"{said}, relays in a process of their own", middle["the same broker, apart"] / middle["another broker"], ">= 0.9"
        )


@contextmanager
def saturated(broker: Broker | None) -> Iterator[None]:
    if broker is None:
        yield
        return
    with helper("listener", str(broker.port)), helper("pour", str(broker.port), "100"):
        yield


async def beside_slow_readers(build: Build, directory: Path, arguments: argparse.Namespace, table: Table, column: str) -> None:
    """Connections whose far ends read nothing, written to until nothing more fits: what another one notices, and what the broker keeps."""
    with Broker(build, directory, CONFIG, {"TANDEM_STALLS": ""}) as broker, helper("listener", str(broker.port)):
        uri = relay_uri(broker.port)
        await throughput(uri, None, 1, arguments.megabytes)
        best: dict[str, dict[str, float]] = {"alone": {}, "beside": {}}
        kept = 0.0
        for _ in range(ROUNDS):
            _note_best(best["alone"], await _carried(broker, uri, arguments.megabytes))
            before = broker.memory_mb()
            stuck = [await dial(uri("stuck"), None) for _ in range(SLOW_READERS)]
            poured = sum(await asyncio.gather(*(_pour_until_stuck(wire) for wire in stuck)))
            kept = max(kept, broker.memory_mb() - before)
            _note_best(best["beside"], await _carried(broker, uri, arguments.megabytes))
            for wire in stuck:
                wire.transport.abort()
    said = f"1 connection beside {SLOW_READERS} that are not read"
    table.add(column, f"{said}, share of its rate alone", best["beside"]["messages/s"] / best["alone"]["messages/s"])
    table.add(column, f"{said}, CPU of the broker, times that alone", best["beside"]["CPU"] / best["alone"]["CPU"], "<= 1.2")
    table.add(column, f"{SLOW_READERS} connections that are not read, MB kept for each", kept / SLOW_READERS, "<= 1")
    table.add(column, f"{SLOW_READERS} connections that are not read, MB poured into each until it stopped", poured / SLOW_READERS / 1e6)


async def _carried(broker: Broker, uri: Callable[[str], str], megabytes: int) -> dict[str, float]:
    cpu = broker.cpu_seconds()
    return {"messages/s": await throughput(uri, None, 1, megabytes), "CPU": broker.cpu_seconds() - cpu}


async def _pour_until_stuck(wire: Wire) -> int:
    message = frame(2, PAYLOAD, masked=True)
    poured = 0
    with suppress(TimeoutError):
        while True:
            wire.transport.write(message)
            async with asyncio.timeout(1.0):
                await wire.room()
            poured += PIECE
    return poured


async def _beside(broker: Broker, messages: int) -> dict[str, float]:
    cpu, began = broker.cpu_seconds(), time.monotonic()
    broker.stalls()
    found = {"messages/s": await queue_rate(broker, messages)}
    stalls = broker.stalls()
    for name in ("late", "busy"):
        for key in ("p99", "p99.9"):
            found[f"loop {name}, {key} ms"] = stalls[name][f"{key}_ms"]
    found["CPU of its broker, %"] = (broker.cpu_seconds() - cpu) / (time.monotonic() - began) * 100
    return found | {"memory, MB": broker.memory_mb()}


def _note_best(best: dict[str, float], found: dict[str, float]) -> None:
    for what, figure in found.items():
        choose = max if what == "messages/s" else min
        best[what] = choose(figure, best.get(what, figure))


def main() -> None:
    if sys.argv[1:2] == ["origin"]:
        uvloop.run(origin(0))
        return
    if sys.argv[1:2] == ["listener"]:
        uvloop.run(listener(int(sys.argv[2])))
        return
    if sys.argv[1:2] == ["pour"]:
        uvloop.run(pour_for_ever(int(sys.argv[2]), int(sys.argv[3])))
        return
    options = parser(__doc__)
    options.add_argument("--megabytes", type=int, default=500, help="per round of throughput")
    options.add_argument("--echoes", type=int, default=1_000, help="per round of latency")
    options.add_argument("--messages", type=int, default=10_000, help="through the queue")
    options.add_argument("--idle", type=int, default=5_000, help="idle listeners, and as many connections")
    arguments = options.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    table = Table("relay: beside nginx as a WebSocket proxy, in the same run")
    with workplace(arguments) as directory:
        for number, build in enumerate(builds(arguments)):
            (directory / str(number)).mkdir()
            uvloop.run(measure(build, directory / str(number), arguments, table))
    table.show(arguments.json)


if __name__ == "__main__":
    main()
