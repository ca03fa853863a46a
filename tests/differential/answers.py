"""What the Tandem on the path answers to generated messages and frames, as one digest per block; run it twice and compare.

`python -m tests.differential.answers FIRST END STEP FRAMES` prints `block digest` for every STEPth block, of FRAMES frames each.
With `--each`, a line per frame of one block, to find the one that differs.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import resource
import selectors
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from tandem.amqp.codec import COMPILED, decode_value, skip_value
from tandem.amqp.errors import DecodeError
from tandem.amqp.message import decode_message, scan
from tandem.amqp.outcomes import decode_outcome, encode_outcome
from tandem.gateway.amqp.attach import attach
from tandem.gateway.amqp.connection import ConnectionWriter, PeerConnection
from tandem.gateway.amqp.sending import split_batch
from tandem.model.clock import Clock
from tandem.model.entity import AuthorizationRule, QueueDescription, Right
from tandem.model.errors import BusError
from tandem.server.server import Server
from tandem.server.settings import NamespaceSettings, ServerSettings, StoresSettings
from tandem.stores.engines import MemoryEngines
from tests.differential import cases

KEY = "SAS_KEY_VALUE"
START_MS = 1_700_000_000_000
EXPECTED = (BusError, DecodeError)
"""What bad input may raise where values are decoded; everything else is a defect, compiled or not."""


class StillClock(Clock):
    def now_ms(self) -> int:
        return START_MS

    def steady_ms(self) -> int:
        return self.now_ms()

    def jumped(self) -> int:
        return 0


class Heard(ConnectionWriter):
    """What the broker writes, kept."""

    def __init__(self) -> None:
        self.data: list[bytes] = []
        self.hung_up = False

    def write(self, data: bytes) -> None:
        self.data.append(data)

    def hang_up(self) -> None:
        self.hung_up = True

    def cut(self) -> None:
        self.hung_up = True


class House:
    """A broker in memory whose clock stands still and whose dice are counted: equal input, equal answers."""

    def __init__(self, failed: Callable[[str], None]) -> None:
        self._drawn = 0
        self._failed = failed
        root = AuthorizationRule(key_name="RootManageSharedAccessKey", primary_key=KEY, secondary_key=KEY, rights=frozenset(Right))
        queue = QueueDescription(name="q", max_delivery_count=3)
        settings = ServerSettings(
            listeners=(),
            namespaces=(NamespaceSettings(queues=(queue,), authorization_rules=(root,)),),
            stores=StoresSettings(count=1),
        )
        self.notes: list[str] = []
        self.server = Server(settings, MemoryEngines(), clock=StillClock(), real_time=False, log=self.notes.append, entropy=self._entropy)
        self.client: PeerConnection | None = None
        self.writer = Heard()
        self.connections = 0
        self._silences = 0
        """How many looks in a row found nothing said."""
        self._over = False
        """The broker has ended the session: what follows would only be ignored."""
        self.said = Counter[int]()
        """Performatives of the broker, by code."""

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._broke)
        await self.server.start()
        self.server.driver.stop_housekeeping()
        self.server.contexts[0].new_transaction_id = lambda: self._entropy(16)

    def _entropy(self, count: int) -> bytes:
        self._drawn += 1
        return hashlib.blake2b(self._drawn.to_bytes(8, "big"), digest_size=count).digest()

    def _broke(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._failed(f"{context.get('message')} {context.get('exception')!r}")

    async def settle(self) -> None:
        """Until nobody has anything left to do."""
        ready = self._loop._ready  # type: ignore[attr-defined]
        for _ in range(SETTLES_MAX):
            if not ready:
                return
            await asyncio.sleep(0)
        self._failed("a broker whose clock stands still goes on and on")

    def say(self, data: bytes) -> None:
        """Bytes from the peer."""
        assert self.client is not None
        self.client.receive(data)

    @property
    def is_over(self) -> bool:
        client = self.client
        return client is None or client.gone or self.writer.hung_up or self._over

    async def begin(self) -> None:
        """A new connection, well begun."""
        if self.client is not None:
            self.client.connection_lost()
        self.writer = Heard()
        self.client = client = PeerConnection(self.server._context_of, attach, self.writer, "fuzz", "tandem")
        self.connections += 1
        self._silences = 0
        self._over = False
        client.receive(OPENING)
        await self.settle()
        answered = performatives(b"".join(self.writer.data)[OPENING_PREAMBLE:])
        if self.writer.hung_up or [code for code in answered if code in (ATTACH, DETACH, END, CLOSE)] != [ATTACH] * OPENING_LINKS:
            raise AssertionError(f"no connection could be begun: {self.writer.data!r}")
        self.writer.data.clear()

    async def answers(self) -> bytes:
        """What was said since the last look."""
        await self.settle()
        written = b"".join(self.writer.data)
        codes = performatives(written)
        self.said.update(codes)
        self._silences = 0 if codes else self._silences + 1
        # A frame that claims to be long swallows those behind it: that is nothing to wait for either.
        self._over = self._silences >= SILENCES_MAX or ENDED in written
        said = written + (b"gone" if self.writer.hung_up else b"") + "\n".join(self.notes).encode()
        self.writer.data.clear()
        self.notes.clear()
        return said

    async def close(self) -> None:
        if self.client is not None:
            self.client.connection_lost()
        await self.server.stop()


def performatives(data: bytes) -> list[int]:
    """The codes of the frames in what the broker wrote."""
    codes = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        assert 8 < size <= len(data) - at and data[at + 8 : at + 10] == b"\0S", f"the broker wrote {data[at:].hex()}"
        codes.append(data[at + 10])
        at += size
    return codes


class NoFiles(selectors.SelectSelector):
    """Nobody here reads or writes a file: the loop does not ask the system whether one is ready."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout) if timeout is None or timeout > 0 else []


class StillLoop(asyncio.SelectorEventLoop):
    """A loop that nobody has to wake unless it is another thread."""

    def __init__(self) -> None:
        super().__init__(NoFiles())

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if threading.get_ident() == self._thread_id:  # type: ignore[attr-defined]
            return self.call_soon(callback, *args, context=context)
        return super().call_soon_threadsafe(callback, *args, context=context)


OPENING = cases.opening()
OPENING_LINKS = 2
OPENING_PREAMBLE = 83
"""Bytes of the broker's protocol headers and SASL frames before its open."""
BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x11, 0x19)
ENDED = b"\2\0\0\0\0S\x17"
"""In the end of the session on channel 0, where most is said."""
SILENCES_MAX = 3
SETTLES_MAX = 1_000
LOOK_EVERY = 8
"""Frames, decoded ones among them; so several are on their way at once."""
_SHOWN = (
    "bare",
    "message_id",
    "session_id",
    "ttl_ms",
    "scheduled_at",
    "header",
    "delivery_annotations",
    "message_annotations",
    "partition_key",
    "is_ping",
)


_shown = attrgetter(*_SHOWN)
_decoded = attrgetter(
    "header", "delivery_annotations", "message_annotations", "properties", "application_properties", "body", "body_kind", "footer"
)


def readers(house: House) -> list[Callable[[bytes], object]]:
    """All that reads a message."""
    translated = house.server.contexts[0].translator.message
    return [
        lambda payload: _shown(translated(payload)),
        lambda payload: _decoded(decode_message(payload)),
        lambda payload: scan(payload).bare(payload),
        split_batch,
        lambda payload: decode_value(payload, 0),
        lambda payload: skip_value(payload, 0),
        lambda payload: encode_outcome(decode_outcome(payload)),
    ]


def decoded(payload: bytes, reads: list[Callable[[bytes], object]]) -> bytes:
    """What each of them makes of it, one after another."""
    said: list[str] = []
    for read in reads:
        try:
            said.append(repr(read(payload)))
        except EXPECTED as refused:
            said.append(f"{type(refused).__name__}: {refused}")
    return "\n".join(said).encode(errors="surrogatepass")


@dataclass
class Played:
    """What became of one block."""

    digest: str
    connections: int
    said: Counter[int]
    broken: list[str]


async def play(block: int, frames: int, each: bool = False) -> Played:
    broken: list[str] = []
    digest = hashlib.blake2b(digest_size=16)
    house = House(broken.append)
    await house.open()
    reads = readers(house)
    dice = cases.Dice(block)
    talk = cases.Conversation(dice)
    data = b""
    for number in range(frames):
        try:
            if number & 1:
                data = cases.message(dice)
                answer = decoded(data, reads)
            else:
                if house.is_over:
                    await house.begin()
                    talk.begin()
                data = talk.next()
                house.say(data)
                answer = await house.answers() if number % LOOK_EVERY == 0 else b""
        except Exception as error:
            answer = f"ESCAPED {error!r}".encode()
            broken.append(f"frame {number} of block {block} ({data.hex()}): {error!r}")
            house.client = None
        digest.update(answer)
        if each:
            print(number, data.hex(), hashlib.blake2b(answer, digest_size=8).hexdigest(), answer[:2000].hex())
    await house.close()
    return Played(digest.hexdigest(), house.connections, house.said, broken)


def rss_kb() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * (resource.getpagesize() // 1024)


def main() -> None:
    first, end, step, frames = (int(one) for one in sys.argv[1:5])
    each = "--each" in sys.argv
    print("compiled" if COMPILED else "source", flush=True)
    gc.collect()
    gc.freeze()  # what was loaded is not looked through again and again
    for block in range(first, end, step):
        with asyncio.Runner(loop_factory=StillLoop) as runner:
            played = runner.run(play(block, frames, each))
        print("rss", rss_kb(), played.connections)
        print("block", block, played.digest, *played.broken[:3], flush=True)


if __name__ == "__main__":
    main()
