"""The outage story: paired sends go on while the primary is away, and everything comes home once."""

from __future__ import annotations

import asyncio
from random import Random

from azure.servicebus import ServiceBusMessage

from tandem.client.pairing import PairedNamespaces, PairingOptions
from tandem.model.entity import QueueDescription
from tandem.simulator.amqp_client import AmqpClient
from tandem.simulator.checker import Checker
from tandem.simulator.story import Actor, Story, body_of
from tandem.simulator.transport import SimNamespace
from tandem.simulator.world import Entities, World

BACKLOGS = 3
_TIMEOUT = 30.0
_CALM = 90.0
"""Seconds without any fault after which a namespace has nothing to excuse itself with."""


async def pair_up(world: World, dice: Random, *, enable_syphon: bool, keep_session_order: bool = False) -> PairedNamespaces:
    """What a process does when it begins."""
    options = PairingOptions(
        backlog_queue_count=BACKLOGS,
        failover_interval=dice.choice((0.0, 5.0, 15.0)),
        enable_syphon=enable_syphon,
        ping_primary_interval=dice.uniform(2.0, 20.0),
        ping_timeout=20.0,
        primary_namespace="primary",
        creation_attempts=100,
        creation_pause=5.0,
        keep_session_order=keep_session_order,
    )
    ids = Random(dice.random())
    pair = PairedNamespaces(
        SimNamespace("primary", world.clock.now_ms),
        SimNamespace("secondary", world.clock.now_ms),
        options=options,
        now_ms=world.clock.now_ms,
        choose=dice.randrange,
        new_id=lambda: ids.randbytes(16).hex(),
    )
    while True:
        try:
            await pair.pair()
        except Exception as error:  # noqa: BLE001 - the secondary is away: a deployment tries again
            world.trace.happened(f"pairing failed: {error!r}"[:200])
            await asyncio.sleep(5.0)
        else:
            return pair


class Paired(Story):
    """Senders of a pair, a syphon beside them, and a consumer at the primary. Duplicates of an unsure send are the primary's to drop."""

    queue = "orders"
    gap_seconds = 2.5

    def __init__(self, world: World, host: str, dice: Random) -> None:
        super().__init__(world, host, dice)
        self.pair: PairedNamespaces | None = None
        self.failed_sends = 0
        self.diverted = 0
        self._sending = False

    def entities(self) -> Entities:
        queue = QueueDescription(
            name=self.queue,
            lock_duration_ms=self.lock_ms,
            max_delivery_count=1_000_000,
            requires_duplicate_detection=True,
            duplicate_detection_history_ms=3_600_000 * 24,
        )
        return Entities(queues=(queue,))

    def backlog(self) -> Entities:
        names = [f"primary/x-servicebus-transfer/{number}" for number in range(BACKLOGS)]
        return Entities(queues=tuple(QueueDescription(name=name, lock_duration_ms=60_000, max_delivery_count=1_000_000) for name in names))

    def backlog_addresses(self) -> list[str]:
        names = [queue.name for queue in self.backlog().queues]
        return [*names, *(f"{name}/$DeadLetterQueue" for name in names)]

    def actors(self) -> list[Actor]:
        return [self.consume]

    def start(self) -> None:
        super().start()
        self.tasks.append(asyncio.ensure_future(self._send()))

    async def _pair(self) -> PairedNamespaces:
        return await pair_up(self.world, self.dice, enable_syphon=True)

    async def _send(self) -> None:
        self.pair = pair = await self._pair()
        pair.subscribe(lambda event: self.world.trace.happened(f"pair: {event.kind} {event.path}"))
        sender = pair.get_queue_sender(self.queue)
        while await self.pace():
            key = self.next_key()
            self.checker.sending(key)
            self._sending = True
            began = self.world.loop.time()
            diverting = pair.state(self.queue).state.value == "failed over"
            try:
                await sender.send_messages(ServiceBusMessage(body_of(key), message_id=key), timeout=_TIMEOUT)
            except Exception as error:  # noqa: BLE001 - judged here: both namespaces may be away
                self.failed_sends += 1
                self._judge_failure(key, error, began, diverting)
            else:
                self.checker.accepted(key)
                self.diverted += diverting
            self._sending = False
            if self.world.loop.time() - began > _TIMEOUT + 1.0:
                self.wrong(f"the send of {key} took {self.world.loop.time() - began:.1f} s, {_TIMEOUT} were allowed")

    async def is_empty(self, client: AmqpClient) -> bool:
        """A send that is still on its way may yet end up in the secondary."""
        return not self._sending and await super().is_empty(client)

    def _judge_failure(self, key: str, error: Exception, began: float, diverting: bool) -> None:
        secondary = self.world.brokers["secondary"]
        if diverting and secondary.ready and secondary.disturbed_at < began - _CALM:
            self.wrong(f"{key} could not be sent while the secondary was well: {error!r}")

    async def consume(self, client: AmqpClient) -> None:
        receiver = await self.receiver(client, self.queue, credit=10)
        while True:
            incoming, key, _ = await self.get(receiver)
            self.settle(receiver, incoming, key)

    def checkers(self) -> list[Checker]:
        return [self.checker]


class Backlog(Story):
    """The other side of the same story: at the end nothing is left in the secondary."""

    queue = "backlog"

    def __init__(self, world: World, host: str, dice: Random, paired: Paired) -> None:
        super().__init__(world, host, dice)
        self._paired = paired

    def entities(self) -> Entities:
        return self._paired.backlog()

    def actors(self) -> list[Actor]:
        return []

    def checkers(self) -> list[Checker]:
        return []

    def addresses(self) -> list[str]:
        return self._paired.backlog_addresses()

    async def is_empty(self, client: AmqpClient) -> bool:
        """But for what rot has cost: that was told, and stays among the dead letters."""
        for address in self.addresses():
            for found in await self.peek(client, address):
                if found.application_properties.get("DeadLetterReason") != "MessageDamaged":
                    return False
        return True
