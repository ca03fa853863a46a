"""One sender that waits for each message to be accepted, against a bare fdatasync on the same disk in the same run.

    python benchmarks/latency.py --amqpload PATH [--build LABEL=DIR] [--messages N] [--rounds R] [--json]

Rounds alternate (bare, broker, bare, broker, …), so that a disk that gets slower for a while gets slower for both. What a bare fdatasync
takes depends on the file: overwriting blocks is cheapest, reserved ones have to be marked as written, a growing file changes its size too.

The bare server is what a network adds on this machine before a broker has done anything: one thread that reads a request, writes it over
old blocks, waits for the disk and answers a client that waits for each answer. It may block on its disk, which a broker must not: the bare
server with a loop hands each request to a thread that waits for the disk in its stead, and does nothing else. That is the floor under any
broker built like ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import cast

import uvloop
from under_test import Broker, Build, Load, Table, builds, parser, percentile, workplace

CONFIG = '[[queue]]\nname = "bench"\n'
RECORD_BYTES = 1_300
FILE_BYTES = 67_108_864


class BareDisk:
    """What nobody can beat: write a record to a file of its own, and wait for the disk."""

    def __init__(self, file: Path, kind: str) -> None:
        self._descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
        if kind == "overwriting":
            zeros = bytes(1 << 20)
            for _ in range(FILE_BYTES >> 20):
                os.write(self._descriptor, zeros)
        elif kind == "reserved":
            os.posix_fallocate(self._descriptor, 0, FILE_BYTES)
        os.fsync(self._descriptor)
        self._at = 0

    def keep(self, record: bytes) -> None:
        os.pwrite(self._descriptor, record, self._at)
        os.fdatasync(self._descriptor)
        self._at = (self._at + RECORD_BYTES) % (FILE_BYTES - RECORD_BYTES)

    def sync_times_us(self, count: int) -> list[float]:
        record = os.urandom(RECORD_BYTES)
        found = []
        for _ in range(count):
            began = time.perf_counter_ns()
            self.keep(record)
            found.append((time.perf_counter_ns() - began) / 1000)
        return found

    def close(self) -> None:
        os.close(self._descriptor)


def _serve(listener: socket.socket, file: Path) -> None:
    disk = BareDisk(file, "overwriting")
    connection, _ = listener.accept()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        record = connection.recv(RECORD_BYTES, socket.MSG_WAITALL)
        if not record:
            return
        disk.keep(record)
        connection.sendall(b"accepted")


class _Handing(asyncio.Protocol):
    """Gives what it reads to a thread, and answers when that is done."""

    def __init__(self, records: SimpleQueue[tuple[bytes, Callable[[], None]]], over: asyncio.Event) -> None:
        self._records = records
        self._over = over
        self._read = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._read += data
        if len(self._read) >= RECORD_BYTES:
            self._records.put((self._read, self._answer))
            self._read = b""

    def _answer(self) -> None:
        assert self._transport is not None
        self._transport.write(b"accepted")

    def connection_lost(self, error: Exception | None) -> None:
        self._over.set()


def _serve_with_loop(listener: socket.socket, file: Path) -> None:
    records: SimpleQueue[tuple[bytes, Callable[[], None]]] = SimpleQueue()
    disk = BareDisk(file, "overwriting")

    async def serve() -> None:
        loop = asyncio.get_running_loop()

        def commit() -> None:
            while True:
                record, answer = records.get()
                disk.keep(record)
                loop.call_soon_threadsafe(answer)

        threading.Thread(target=commit, daemon=True).start()
        over = asyncio.Event()
        await loop.create_server(lambda: _Handing(records, over), sock=listener)
        await over.wait()

    uvloop.run(serve())


@contextlib.contextmanager
def bare_server(serve: Callable[[socket.socket, Path], None], file: Path) -> Iterator[socket.socket]:
    """A connection to a process of its own."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = multiprocessing.get_context("fork").Process(target=serve, args=(listener, file), daemon=True)
    server.start()
    with socket.create_connection(listener.getsockname()) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield client
    server.join()


def answer_times_us(client: socket.socket, count: int) -> list[float]:
    record = os.urandom(RECORD_BYTES)
    found = []
    for _ in range(count):
        began = time.perf_counter_ns()
        client.sendall(record)
        client.recv(100)
        found.append((time.perf_counter_ns() - began) / 1000)
    return found


TARGET = "overwriting"
"""The hardest of them is what the broker is held to; the others say how much of it is the file."""
KINDS = {
    "overwriting": "blocks that were written before: the cheapest there is",
    "reserved": "blocks that were reserved and never written, as in the journal",
    "growing": "the end of a file that grows: what most programs do",
}


SERVERS: dict[str, Callable[[socket.socket, Path], None]] = {"bare server": _serve, "bare server with a loop": _serve_with_loop}


def measure(build: Build, directory: Path, load: Load, messages: int, rounds: int, table: Table) -> None:
    bare: dict[str, list[float]] = {kind: [] for kind in KINDS}
    tails: dict[str, list[float]] = {kind: [] for kind in KINDS}
    sends: list[float] = []
    slowest: list[float] = []
    served: dict[str, list[float]] = {name: [] for name in SERVERS}
    with Broker(build, directory, CONFIG, {"TANDEM_STALLS": ""}) as broker, contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(bare_server(serve, directory / name)) for name, serve in SERVERS.items()}
        disks = {kind: BareDisk(directory / kind, kind) for kind in KINDS}
        load.run(broker, "send", "bench", n=100, s=1024, w=1)
        cpu = 0.0
        for _ in range(rounds):
            for kind, disk in disks.items():
                syncs = disk.sync_times_us(messages)
                bare[kind].append(percentile(syncs, 50))
                tails[kind].append(percentile(syncs, 99))
            for name, server in servers.items():
                served[name].append(percentile(answer_times_us(server, messages), 50))
            done = load.run(broker, "send", "bench", n=messages, s=1024, w=1)
            cpu += done["broker_cpu_s"]
            sends.append(done["settle_us"]["p50"])
            slowest.append(done["settle_us"]["p99"])
        for disk in disks.values():
            disk.close()
    table.add(build.label, "send to accepted, p50 us (median round)", percentile(sends, 50))
    for kind in KINDS:
        ratios = [ours / theirs for ours, theirs in zip(sends, bare[kind], strict=True)]
        last = [ours / theirs for ours, theirs in zip(slowest, tails[kind], strict=True)]
        table.add(build.label, f"bare fdatasync, {kind}, p50 us (median round)", percentile(bare[kind], 50))
        table.add(build.label, f"  ratio of p50 (median round), {kind}", percentile(ratios, 50), "<= 2" if kind == TARGET else "")
        table.add(build.label, f"  ratio of p50 (best, worst round), {kind}", f"{min(ratios):.2f}, {max(ratios):.2f}")
        table.add(build.label, f"  ratio of p99 (median round), {kind}", percentile(last, 50))
    for name in SERVERS:
        table.add(build.label, f"{name}, p50 us (median round)", percentile(served[name], 50))
        ratios = [ours / theirs for ours, theirs in zip(sends, served[name], strict=True)]
        table.add(build.label, f"  ratio of p50 (median round), the broker's to the {name}'s", percentile(ratios, 50))
        ratios = [theirs / disk for theirs, disk in zip(served[name], bare[TARGET], strict=True)]
        table.add(build.label, f"  ratio of p50 (median round), the {name}'s to bare fdatasync, {TARGET}", percentile(ratios, 50))
    table.add(build.label, "broker CPU us/message", cpu / (messages * rounds) * 1e6)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--messages", type=int, default=1_000, help="per round")
    options.add_argument("--rounds", type=int, default=5)
    arguments = options.parse_args()
    load = Load(arguments)
    table = Table("latency: one synchronous sender, 1 KB messages")
    with workplace(arguments) as directory:
        for number, build in enumerate(builds(arguments)):
            measure(build, directory / str(number), load, arguments.messages, arguments.rounds, table)
    table.show(arguments.json)


if __name__ == "__main__":
    main()
