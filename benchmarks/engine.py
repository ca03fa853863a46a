"""CPU microseconds the AMQP engine spends per operation, whichever build of it is importable.

PYTHONPATH=src python benchmarks/engine.py [--json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

from tandem import amqp
from tandem.amqp import connection as engine

ROUNDS = 7
MESSAGES = 20_000
CHUNK_BYTES = 65_536


class Sink(amqp.LinkHandler):
    """Takes everything and does nothing with it: what is measured is the engine."""

    def __init__(self) -> None:
        self.deliveries = 0
        self.settled = 0

    def on_transfer(
        self,
        link: amqp.ReceiverLink,
        delivery_id: int,
        tag: bytes,
        payload: bytes,
        settled: bool,
        message_format: int,
        state: bytes | None,
    ) -> None:
        self.deliveries += 1

    def on_disposition(self, link: amqp.SenderLink, deliveries: list[amqp.Delivery], outcome: amqp.Outcome, settled: bool) -> None:
        self.settled += len(deliveries)


class Accepting(amqp.ConnectionHandler):
    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.links: list[amqp.Link] = []

    def on_attach(self, link: amqp.Link) -> None:
        link.handler = self.sink
        if isinstance(link, amqp.ReceiverLink):
            link.auto_credit = 5000
        link.accept(max_message_size=262_144)
        self.links.append(link)


class Bench:
    """A server engine with one link each way, opened by a client engine that then steps aside."""

    def __init__(self) -> None:
        self.sink = Sink()
        accepting = Accepting(self.sink)
        self.server = amqp.Connection(accepting, amqp.ConnectionConfig(sasl=amqp.SaslServer(), next_outgoing_id=0x40000000), True)
        client = amqp.Connection(amqp.ConnectionHandler(), amqp.ConnectionConfig(sasl=amqp.SaslClient()), False)
        client.open()
        session = client.begin()
        session.attach_sender("in", amqp.Terminus("a"), amqp.Terminus("q"), amqp.LinkHandler())
        session.attach_receiver("out", amqp.Terminus("q"), amqp.Terminus("b"), amqp.LinkHandler()).grant(1_000_000)
        for _ in range(6):
            self.server.receive_bytes(client.bytes_to_send())
            client.receive_bytes(self.server.bytes_to_send())
        receiver, sender = accepting.links
        assert isinstance(receiver, amqp.ReceiverLink) and isinstance(sender, amqp.SenderLink)
        self.receiver = receiver
        self.sender = sender
        self.channel = sender.session.remote_channel
        # the window a client would reopen from time to time; a benchmark without one would measure the buffering of sends
        sender.session.window = 1 << 40


def message(body_bytes: int = 1024) -> bytes:
    return amqp.encode_message(
        header={"ttl": 60_000},
        properties={"message-id": "0b2f5ad5-58c7-4d11-9a2e-8a3c5a1d7a10", "content-type": "application/json"},
        application_properties={"kind": "bench"},
        body=b"x" * body_bytes,
    )


def transfers(channel: int, handle: int, payload: bytes, count: int) -> list[bytes]:
    """Transfers in the layout of the Python SDK, cut into reads of the usual size."""
    frames: list[bytes] = []
    for i in range(count):
        fields = (
            bytes((0x52, handle))
            + b"\x70"
            + i.to_bytes(4, "big")
            + b"\xa0\x04"
            + (i + 1).to_bytes(4, "big")
            + b"\x43\x42\x42"
            + b"\x40" * 5
        )
        performative = b"\x00\x53\x14\xc0" + bytes((len(fields) + 1, 11)) + fields
        size = 8 + len(performative) + len(payload)
        frames.append(size.to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big") + performative + payload)
    stream = b"".join(frames)
    return [stream[at : at + CHUNK_BYTES] for at in range(0, len(stream), CHUNK_BYTES)]


def dispositions(channel: int, first: int, count: int) -> list[bytes]:
    frames: list[bytes] = []
    for i in range(first, first + count):
        fields = b"\x41\x70" + i.to_bytes(4, "big") + b"\x70" + i.to_bytes(4, "big") + b"\x41" + amqp.ACCEPTED + b"\x40"
        performative = b"\x00\x53\x15\xc0" + bytes((len(fields) + 1, 6)) + fields
        frames.append((8 + len(performative)).to_bytes(4, "big") + b"\x02\x00" + channel.to_bytes(2, "big") + performative)
    stream = b"".join(frames)
    return [stream[at : at + CHUNK_BYTES] for at in range(0, len(stream), CHUNK_BYTES)]


def ingest() -> float:
    bench = Bench()
    chunks = transfers(bench.channel, bench.receiver.remote_handle, message(), MESSAGES)
    began = time.process_time()
    for chunk in chunks:
        bench.server.receive_bytes(chunk)
        bench.server.bytes_to_send()
    spent = time.process_time() - began
    assert bench.sink.deliveries == MESSAGES
    return spent


def emit(settled: bool) -> Callable[[], float]:
    def run() -> float:
        bench = Bench()
        payload = message()
        tags = [i.to_bytes(16, "little") for i in range(MESSAGES)]
        send = bench.sender.send
        began = time.process_time()
        for i, tag in enumerate(tags):
            send(payload, tag, settled, None)
            if i & 63 == 63:
                bench.server.bytes_to_send()
        return time.process_time() - began

    return run


def disposition_in() -> float:
    bench = Bench()
    for i in range(MESSAGES):
        bench.sender.send(b"", i.to_bytes(16, "little"), False, None)
    bench.server.bytes_to_send()
    chunks = dispositions(bench.channel, 0x40000000, MESSAGES)
    began = time.process_time()
    for chunk in chunks:
        bench.server.receive_bytes(chunk)
    spent = time.process_time() - began
    assert bench.sink.settled == MESSAGES
    return spent


def disposition_out(step: int) -> Callable[[], float]:
    def run() -> float:
        bench = Bench()
        answer = bench.receiver.session.send_disposition
        accepted = amqp.ACCEPTED
        began = time.process_time()
        for i in range(0, MESSAGES * step, step):
            answer(True, i, i, True, accepted)
            if i & 63 == 63:
                bench.server.bytes_to_send()
        return time.process_time() - began

    return run


def flow_in() -> float:
    """One credit more, as a client sends that takes messages one by one."""
    bench = Bench()
    handle = bench.sender.remote_handle
    fields = b"".join(b"\x70" + n.to_bytes(4, "big") for n in (0x40000000, 5000, 7, 5000, handle, 9, 1)) + b"\x40\x42\x42"
    performative = b"\x00\x53\x13\xc0" + bytes((len(fields) + 1, 10)) + fields
    frame = (8 + len(performative)).to_bytes(4, "big") + b"\x02\x00" + bench.channel.to_bytes(2, "big") + performative
    chunk = frame * MESSAGES
    began = time.process_time()
    bench.server.receive_bytes(chunk)
    spent = time.process_time() - began
    assert not bench.server.closed
    return spent


def empty_frames() -> float:
    bench = Bench()
    chunk = b"\x00\x00\x00\x08\x02\x00\x00\x00" * MESSAGES
    began = time.process_time()
    bench.server.receive_bytes(chunk)
    return time.process_time() - began


def scan() -> float:
    payload = message()
    began = time.process_time()
    for _ in range(MESSAGES):
        amqp.scan(payload)
    return time.process_time() - began


OPERATIONS: dict[str, Callable[[], float]] = {
    "ingest a 1 KB transfer": ingest,
    "emit a 1 KB delivery, unsettled": emit(False),
    "emit a 1 KB delivery, settled": emit(True),
    "take a disposition": disposition_in,
    "give dispositions, consecutive": disposition_out(1),
    "give dispositions, scattered": disposition_out(3),
    "take a flow": flow_in,
    "skip an empty frame": empty_frames,
    "scan the sections of a message": scan,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    build = "pure Python" if str(engine.__file__).endswith(".py") else "compiled"
    figures = {name: min(run() for _ in range(ROUNDS)) / MESSAGES * 1e6 for name, run in OPERATIONS.items()}
    if arguments.json:
        print(json.dumps({"build": build, "cpu_us": figures}))
        return
    print(f"engine: {build}; CPU us per operation, best of {ROUNDS} runs of {MESSAGES}")
    for name, figure in figures.items():
        print(f"  {name:<36} {figure:7.3f}")


if __name__ == "__main__":
    main()
