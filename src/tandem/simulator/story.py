"""The people in a simulation: clients that send, receive and settle through every fault, and tell a checker what they were told."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

from tandem import amqp
from tandem.simulator.amqp_client import AmqpClient, AmqpReceiver, AmqpSender, Gone, Incoming, PeerRefused
from tandem.simulator.checker import Checker
from tandem.simulator.loop import until
from tandem.simulator.network import SimConnection
from tandem.simulator.world import KEY, LOCKS_OUTLIVE_ON, PORT, Entities, World

if TYPE_CHECKING:
    from tandem.amqp import DecodedMessage

Actor = Callable[[AmqpClient], Awaitable[None]]
SEQUENCE_NUMBER = amqp.Symbol("x-opt-sequence-number")
LOCKED_UNTIL = amqp.Symbol("x-opt-locked-until")
ABANDONED = amqp.encode_modified(True, False)
DEFERRED = amqp.encode_modified(True, True)
PATIENCE = 25.0
_LOCK_MS_MAX = 300_000
"""Seconds an answer may take before a client gives up on the connection."""
RETRYABLE = frozenset(
    {
        "",
        "amqp:internal-error",
        "amqp:connection:forced",
        "amqp:link:detach-forced",
        "com.microsoft:server-busy",
        "com.microsoft:timeout",
        "com.microsoft:message-lock-lost",
        "com.microsoft:session-lock-lost",
        "com.microsoft:session-cannot-be-locked",
        "com.tandem:lease-lost",
        "amqp:resource-limit-exceeded",
    }
)
"""What a broker in trouble may say. Everything else is an answer no client here has deserved."""


class Story:
    """One entity of one broker and the clients that use it. Subclasses say what happens."""

    queue = ""
    gap_seconds = 3.0
    """Between two sends, on average."""
    lock_ms = 30_000
    properties: ClassVar[dict[str, Any]] = {}

    def __init__(self, world: World, host: str, dice: Random) -> None:
        self.world = world
        self.host = host
        self.dice = dice
        self.checker = Checker(f"{host}/{self.queue}")
        self.draining = False
        self.ended = False
        self._number = 0
        self._owners: dict[tuple[str, int], str] = {}
        self._held: dict[str, tuple[int, int, AmqpClient | None]] = {}
        """Key -> (locked until, life of the store, holder) of the latest delivery not given back."""
        self._arrived: dict[int, tuple[str, DecodedMessage]] = {}
        self.tasks: list[asyncio.Task[None]] = []

    def entities(self) -> Entities:
        raise AssertionError("say what is needed")

    def actors(self) -> list[Actor]:
        raise AssertionError("say who acts")

    def checkers(self) -> list[Checker]:
        return [self.checker]

    def addresses(self) -> list[str]:
        """What must be empty at the end."""
        return [self.queue]

    def start(self) -> None:
        for actor in self.actors():
            self.tasks.append(asyncio.ensure_future(self._play(actor)))

    async def _play(self, actor: Actor) -> None:
        while not self.ended:
            client: AmqpClient | None = None
            try:
                client = await self.connect()
                await actor(client)
                return
            except (Gone, TimeoutError):
                await asyncio.sleep(self.dice.uniform(0.05, 2.0))
            except PeerRefused as refused:
                self.judge(refused, "a client was told")
                await asyncio.sleep(self.dice.uniform(0.05, 2.0))
            finally:
                if client is not None:
                    client.abort()

    async def connect(self) -> AmqpClient:
        host = self.world.host_for(self.host, self.dice)
        return await until(AmqpClient.connect(PORT, host=host, password=KEY, idle_timeout_ms=30_000), PATIENCE)

    def judge(self, refused: PeerRefused, what: str) -> None:
        if refused.condition not in RETRYABLE:
            self.wrong(f"{what}: {refused}")

    def wrong(self, what: str) -> None:
        self.checker.wrong(what)
        self.world.broken(f"{self.host}/{self.queue}: {what}")

    # -- sending -------------------------------------------------------------------------------

    def next_key(self) -> str:
        self._number += 1
        return f"{self.queue}-{self._number}"

    async def pace(self) -> bool:
        """Wait for the next send; False when there shall be none."""
        if self.draining:
            return False
        await asyncio.sleep(self.dice.expovariate(1 / self.gap_seconds))
        return not self.draining

    async def sender(self, client: AmqpClient) -> AmqpSender:
        return await until(client.sender(self.queue), PATIENCE)

    def follow(self, answer: asyncio.Future[None], keys: list[str]) -> None:
        def heard(future: asyncio.Future[None]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                for key in keys:
                    self.checker.accepted(key)
            elif isinstance(error, PeerRefused):
                self.judge(error, f"{keys[0]} was refused")

        answer.add_done_callback(heard)

    async def send_steadily(self, client: AmqpClient, make: Callable[[str], bytes]) -> None:
        sender = await self.sender(client)
        while await self.pace():
            if not sender.link.attached:
                raise Gone("the link is gone")
            key = self.next_key()
            self.checker.sending(key)
            self.follow(sender.send(make(key)), [key])

    # -- receiving -----------------------------------------------------------------------------

    async def receiver(self, client: AmqpClient, address: str, *, checker: Checker | None = None, **options: Any) -> AmqpReceiver:
        """Deliveries are looked at the moment they arrive: a client may be slow, its books are not."""
        receiver = await until(client.receiver(address, **options), PATIENCE)
        keep = receiver.on_message

        def arrive(incoming: Incoming) -> None:
            self._arrived[id(incoming)] = self.took(incoming.payload, address, checker, client)
            keep(incoming)

        receiver.on_message = arrive
        return receiver

    async def get(self, receiver: AmqpReceiver) -> tuple[Incoming, str, DecodedMessage]:
        incoming = await receiver.get()
        key, found = self._arrived.pop(id(incoming))
        return incoming, key, found

    def took(
        self, payload: bytes, address: str = "", checker: Checker | None = None, client: AmqpClient | None = None
    ) -> tuple[str, DecodedMessage]:
        """A delivery: the right body, under a number of its own, in nobody else's hands."""
        address = address or self.queue
        checker = checker or self.checker
        found = amqp.decode_message(payload)
        key = str(found.properties.get("message-id"))
        if found.application_properties.get("DeadLetterReason") == "MessageDamaged":
            checker.damaged(key)
        elif found.body != [body_of(key)]:
            self.wrong(f"{key} came back changed")
        number = int(found.message_annotations[SEQUENCE_NUMBER])  # type: ignore[call-overload]
        if self._came_late(found):
            checker.came_late(key)
            return key, found
        checker.delivered(key, number)
        owner = self._owners.setdefault((address, number), key)
        if owner != key:
            self.wrong(f"number {number} of {address} was {owner}'s, and is {key}'s now")
        self._check_holder(checker.name + key, found, client)
        if not checker.holds_so_far:
            self.world.broken(str(checker.verdict()))
        return key, found

    def _came_late(self, found: DecodedMessage) -> bool:
        until_ms = found.message_annotations.get(LOCKED_UNTIL)
        return isinstance(until_ms, int) and self.world.home(self.host).is_lost(int(until_ms), self.lock_ms)

    def _check_holder(self, key: str, found: DecodedMessage, client: AmqpClient | None) -> None:
        until_ms = found.message_annotations.get(LOCKED_UNTIL)
        if not isinstance(until_ms, int) or found.properties.get("group-id") is not None:
            return  # a session's messages are free as soon as its link is gone
        now = self.world.clock.now_ms()
        held = self._held.pop(key, None)
        broker = self.world.home(self.host)
        life = broker.epoch
        if held is not None and held[0] > now and held[1] == life and not self._lost_locks(held[2]):
            self.wrong(f"{key} is locked until {held[0]} by one client, and delivered to another at {now}")
        left_ms = int(until_ms) - broker.clock.now_ms()
        locked_at_ms = now + left_ms - self.lock_ms
        if (
            left_ms <= _LOCK_MS_MAX and locked_at_ms >= broker.epoch_since_ms
        ):  # else a clock was set, or a store fell, while it was on its way
            self._held[key] = (now + left_ms, life, client)

    def _lost_locks(self, holder: AmqpClient | None) -> bool:
        """Its connection is over at the broker's end, where locks go with broken connections. (No client here closes one.)"""
        line: object = holder.transport if holder is not None else None
        return self.host not in LOCKS_OUTLIVE_ON and isinstance(line, SimConnection) and line.peer is not None and line.peer.closing

    def released(self, key: str, checker: Checker | None = None) -> None:
        """Given back, or its link is gone: somebody else may have it."""
        self._held.pop((checker or self.checker).name + key, None)

    def settle(self, receiver: AmqpReceiver, incoming: Incoming, key: str, checker: Checker | None = None) -> asyncio.Future[None]:
        book = checker or self.checker
        book.settling(key)
        self.released(key, book)
        answer = receiver.settle(incoming)

        def heard(future: asyncio.Future[None]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                book.settled(key)
            elif isinstance(error, PeerRefused):
                self.judge(error, f"settling {key} was refused")

        answer.add_done_callback(heard)
        return answer

    def give_back(self, receiver: AmqpReceiver, incoming: Incoming, key: str) -> None:
        self.released(key)
        receiver.settle(incoming, ABANDONED).add_done_callback(_look)

    # -- requests ------------------------------------------------------------------------------

    async def ask(self, client: AmqpClient, address: str, operation: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return await until(client.request(address, operation, body), PATIENCE)

    async def is_empty(self, client: AmqpClient) -> bool:
        for address in self.addresses():
            if await self.peek(client, address):
                return False
        return True

    async def peek(self, client: AmqpClient, address: str) -> list[DecodedMessage]:
        body = {"from-sequence-number": 1, "message-count": amqp.Int(200)}
        status, answer = await self.ask(client, address, "com.microsoft:peek-message", body)
        return [] if status == 204 else [amqp.decode_message(entry["message"]) for entry in answer["messages"]]


def _look(future: asyncio.Future[None]) -> None:
    """Nobody minds how it ended; an exception nobody looked at would be reported."""
    future.exception()


@functools.lru_cache(1_024)
def body_of(key: str) -> bytes:
    """Some bytes that can only belong to this message."""
    spread = sum(ord(char) * (place + 1) for place, char in enumerate(key))
    return (key.encode() + b"|") * (1 + spread % 60)


def message(
    key: str,
    *,
    session: str | None = None,
    annotations: dict[object, object] | None = None,
    properties: dict[object, object] | None = None,
) -> bytes:
    fields: dict[str, object] = {"message-id": key}
    if session is not None:
        fields["group-id"] = session
    return amqp.encode_message(
        properties=fields, message_annotations=annotations, application_properties=properties or {}, body=[body_of(key)]
    )
