"""What the Tandem on the path answers to generated messages and frames, as one digest per block; run it twice and compare.

`python -m tests.differential.answers FIRST COUNT FRAMES` prints `block digest` for COUNT blocks of FRAMES frames each.
With `--each`, a line per frame of one block, to find the one that differs.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Callable
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

    async def open(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._broke)
        await self.server.start()
        self.server.driver.stop_housekeeping()
        self.server.contexts[0].new_transaction_id = lambda: self._entropy(16)

    def _entropy(self, count: int) -> bytes:
        self._drawn += 1
        return hashlib.blake2b(self._drawn.to_bytes(8, "big"), digest_size=count).digest()

    def _broke(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._failed(f"{context.get('message')} {context.get('exception')!r}")

    async def settle(self) -> None:
        for _ in range(4):
            await asyncio.sleep(0)

    async def say(self, data: bytes) -> None:
        """Bytes from the peer; a new connection, well begun, when the last one is over."""
        client = self.client
        if client is None or client.gone or self.writer.hung_up:
            if client is not None:
                client.connection_lost()
            self.writer = Heard()
            client = PeerConnection(self.server._context_of, attach, self.writer, "fuzz", "tandem")
            self.client = client
            client.receive(OPENING)
            await self.settle()
            self.writer.data.clear()
        client.receive(data)

    async def answers(self) -> bytes:
        await self.settle()
        said = b"".join(self.writer.data) + (b"gone" if self.writer.hung_up else b"") + "\n".join(self.notes).encode()
        self.writer.data.clear()
        self.notes.clear()
        return said

    async def close(self) -> None:
        if self.client is not None:
            self.client.connection_lost()
        await self.server.stop()


OPENING = cases.opening()
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


def decoded(payload: bytes, house: House) -> bytes:
    """All that reads a message, one after another."""
    said: list[str] = []
    for read in (
        lambda: [getattr(house.server.contexts[0].translator.message(payload), name) for name in _SHOWN],
        lambda: repr(vars_of(decode_message(payload))),
        lambda: scan(payload).bare(payload),
        lambda: split_batch(payload),
        lambda: repr(decode_value(payload, 0)),
        lambda: skip_value(payload, 0),
        lambda: encode_outcome(decode_outcome(payload)),
    ):
        try:
            said.append(repr(read()))
        except EXPECTED as refused:
            said.append(f"{type(refused).__name__}: {refused}")
    return "\n".join(said).encode(errors="surrogatepass")


def vars_of(message: Any) -> list[object]:
    names = ("header", "delivery_annotations", "message_annotations", "properties", "application_properties", "body", "body_kind", "footer")
    return [getattr(message, name) for name in names]


async def play(block: int, frames: int, each: bool) -> tuple[str, list[str]]:
    """One block: its digest, and what broke."""
    broken: list[str] = []
    digest = hashlib.blake2b(digest_size=16)
    house = House(broken.append)
    await house.open()
    dice = cases.Dice(block)
    talk = cases.Conversation(dice)
    for number in range(frames):
        try:
            if number & 1:
                data = cases.message(dice)
                answer = decoded(data, house)
            else:
                data = talk.next()
                await house.say(data)
                answer = await house.answers() if number % 8 == 0 or each else b""
        except Exception as error:
            answer = f"ESCAPED {error!r}".encode()
            broken.append(f"frame {number} of block {block} ({data.hex()}): {error!r}")
            house.client = None
        digest.update(answer)
        if each:
            print(number, data.hex(), hashlib.blake2b(answer, digest_size=8).hexdigest(), answer[:2000].hex())
    await house.close()
    return digest.hexdigest(), broken


def main() -> None:
    arguments = [one for one in sys.argv[1:] if not one.startswith("--")]
    first, count, frames = (int(one) for one in arguments)
    print("compiled" if COMPILED else "source", flush=True)
    for block in range(first, first + count):
        digest, broken = asyncio.run(play(block, frames, "--each" in sys.argv))
        print("block", block, digest, *broken[:3], flush=True)


if __name__ == "__main__":
    main()
