"""Stores that may be with other nodes, asked over `$peer`: to take what is forwarded, and what they have had."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, cast

from tandem.broker.entities.partitioned import PartitionedQueue
from tandem.broker.queue.entity import Entity
from tandem.broker.queue.queue import Queue
from tandem.broker.recovery.stores import FarAnswer, FarArrivals, FarStores, FarTransfer
from tandem.broker.recovery.tenant import StoreTenant
from tandem.cluster.ownership import Ownership
from tandem.gateway.waiting import Durable
from tandem.model.errors import BusError, EntityDisabled, MessageSizeExceeded, NotAllowed, QuotaExceeded, StoreUnavailable
from tandem.model.message import decode_body
from tandem.server.context import NamespaceContext

Ask = Callable[[str, str, dict[object, object]], Awaitable[dict[object, object]]]
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_OTHERS_SECONDS: Final = 2.0
"""So long those are waited for that hardly have anything to say: only a queue that forwarded elsewhere before may have left it there."""
_REQUEST_BYTES_MAX: Final = 4_194_304
"""Of several messages in one request; one that is larger goes alone."""
_MESSAGE_BYTES_MAX: Final = 16_000_000
_TOO_LARGE: Final = ("MessageSizeExceeded", f"A message of more than {_MESSAGE_BYTES_MAX} bytes is not forwarded between nodes.")
_REFUSALS: Final[dict[type[BusError], str]] = {
    EntityDisabled: "MessagingEntityDisabled",
    NotAllowed: "Session ID is null",
    MessageSizeExceeded: "MessageSizeExceeded",
    QuotaExceeded: "QuotaExceeded",
}
Body = dict[object, object]


class StoreEpochs(Protocol):
    """Under which epoch nodes have the stores of a namespace."""

    def epoch(self, store: int) -> int:
        """The newest one that is known here."""
        ...


class PeerStores(FarStores):
    """Of one namespace of one node: asks whoever has a store, and answers for its own."""

    def __init__(self, context: NamespaceContext, ownership: Ownership, ask: Ask, epochs: StoreEpochs | None = None) -> None:
        """`epochs`: None where each store stays with its node."""
        self._context = context
        self._namespace = context.namespace
        self._ownership = ownership
        self._ask = ask
        self._epochs = epochs
        self._asked_ns = 0
        self._askers: dict[int, bytes] = {}
        """By queue the name under which it asks, another one after each replay, and greater."""
        self._last_askers: dict[int, bytes] = {}
        """By queue who has asked last what arrived from it: what somebody before that has on the way comes too late."""
        self._operations: dict[str, Callable[[Body], Awaitable[Body]]] = {
            "transfer": self._take,
            "transfers-of": self._answer_transfers,
            "transfers-ended": self._end_transfers,
            "decided": self._answer_decided,
            "held": self._answer_held,
        }
        context.peer_operations.update(self._operations)

    def stores_move(self) -> bool:
        return self._epochs is not None

    # -- asking ------------------------------------------------------------------------------

    async def _asked(self, store: int, operation: str, body: Body) -> Body:
        """What whoever has this store now says. BusError: nobody has, or it cannot say."""
        if self._ownership.here(store):
            return await self._operations[operation]({**body, "store": store})
        owner = self._ownership.owner(store)
        if owner is None:
            raise StoreUnavailable(f"Store {store} is between two owners.")
        return await self._ask(owner, operation, {**body, "store": store})

    async def _until_answered(self, store: int, operation: str, body: Callable[[], Body], is_over: Callable[[], bool]) -> Body | None:
        pause = _FIRST_PAUSE
        while not is_over():
            try:
                return await self._asked(store, operation, body())
            except BusError:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        return None

    def transfer(self, transfer: FarTransfer) -> None:
        self._context.spawn(self._transfer(transfer))

    async def _transfer(self, transfer: FarTransfer) -> None:
        refused = {seq: _TOO_LARGE for seq, _, body in transfer.messages if len(body) > _MESSAGE_BYTES_MAX}
        for some in _pieces([one for one in transfer.messages if one[0] not in refused]):

            def body(some: list[tuple[int, int, bytes]] = some) -> Body:
                messages: list[object] = [list(one) for one in some]
                return {**self._from(transfer.source), "target": transfer.target, "messages": messages}

            said = await self._until_answered(transfer.store, "transfer", body, transfer.is_over)
            if said is None:
                self._context.turn.begin()
                transfer.dropped()
                self._context.turn.schedule()
                return
            for seq, reason, description in cast("list[list[object]]", said.get("refused") or []):
                refused[cast(int, seq)] = (str(reason), str(description))
        self._context.turn.begin()
        transfer.answered(refused)
        self._context.turn.schedule()

    def _from(self, source: int) -> Body:
        """Who asks, for this queue."""
        return {"source": source, "source-store": self._store_of(source), "asker": self._askers.get(source, b"")}

    def _store_of(self, source: int) -> int:
        return next((number for number, tenant in enumerate(self._namespace.stores) if source in tenant.queues), 0)

    def ended(self, store: int, source: int, seqs: list[int]) -> None:
        self._context.spawn(self._tell_ended(store, source, list(seqs)))

    async def _tell_ended(self, store: int, source: int, seqs: list[int]) -> None:
        try:
            await self._asked(store, "transfers-ended", {"source": source, "seqs": list[object](seqs)})
        except BusError:
            return  # it is asked what it remembers when the source is read again

    def learn(self, source: int, own: int, must: list[int], then: FarArrivals) -> None:
        self._context.spawn(self._learn(source, own, must, then))

    async def _learn(self, source: int, own: int, must: list[int], then: FarArrivals) -> None:
        epoch = self._epochs.epoch(own) if self._epochs is not None and own >= 0 else 0
        self._asked_ns = max(self._asked_ns + 1, self._context.connection_clock.steady_ms() * 1_000_000)
        self._askers[source] = struct.pack("!QQ", epoch, self._asked_ns)
        found: dict[int, list[int]] = {}

        async def ask(store: int) -> None:
            said = await self._until_answered(store, "transfers-of", lambda: self._from(source), then.is_over)
            if said is not None:
                found[store] = cast("list[int]", said.get("seqs") or [])

        asking = {store: asyncio.ensure_future(ask(store)) for store in range(len(self._namespace.stores)) if store != own}
        try:
            for store in must:
                await asking[store]
            if asking:
                await asyncio.wait(asking.values(), timeout=_OTHERS_SECONDS)
        finally:
            for task in asking.values():
                task.cancel()
        if then.is_over():
            return
        self._context.turn.begin()
        then.learned(found)
        self._context.turn.schedule()

    def decided(self, store: int, transaction: bytes, then: FarAnswer) -> None:
        self._context.spawn(self._ask_about(transaction, [store], "decided", then))

    def held(self, transaction: bytes, then: FarAnswer) -> None:
        self._context.spawn(self._ask_about(transaction, list(range(len(self._namespace.stores))), "held", then))

    async def _ask_about(self, transaction: bytes, stores: list[int], operation: str, then: FarAnswer) -> None:
        yes = False
        for store in stores:
            said = await self._until_answered(store, operation, lambda: {"transaction": transaction}, then.is_over)
            if said is None:
                return
            yes = yes or bool(said.get("yes"))
        self._context.turn.begin()
        then.said(yes)
        self._context.turn.schedule()

    # -- answering ---------------------------------------------------------------------------

    def _served(self, body: Body) -> StoreTenant:
        """The store that is asked, if it can say anything."""
        tenant = self._namespace.stores[cast(int, body["store"])]
        if not tenant.serves:
            raise StoreUnavailable("This node does not serve that store now. Try again.")
        return tenant

    def _must_be_newest(self, body: Body) -> None:
        """Whoever had the queue before may still have something on the way."""
        source, asker = cast(int, body["source"]), cast(bytes, body["asker"])
        newest = self._epochs.epoch(cast(int, body["source-store"])) if self._epochs is not None else 0
        if asker < self._last_askers.get(source, b"") or asker < struct.pack("!Q", newest):
            raise StoreUnavailable("The queue was read again since.")
        self._last_askers[source] = asker

    async def _take(self, body: Body) -> Body:
        """Each once: what is remembered was taken before."""
        tenant = self._served(body)
        target = self._namespace.forward_target(str(body["target"]))
        if target is None:
            raise StoreUnavailable(f"'{body['target']}' is not known here yet. Try again.")
        self._must_be_newest(body)
        source = cast(int, body["source"])
        now = self._context.turn.begin()
        refused: list[object] = []
        taken: list[tuple[int, int]] = []
        trouble: BusError | None = None
        for seq, fragment, payload in cast("list[tuple[int, int, bytes]]", body["messages"]):
            id_ = (source, seq)
            if id_ in tenant.transfers:
                taken.append(id_)
                continue
            try:
                self._admit(tenant, target, fragment, payload, id_, now)
            except (EntityDisabled, NotAllowed, MessageSizeExceeded, QuotaExceeded) as error:
                refused.append([seq, _REFUSALS[type(error)], error.description])
            except BusError as error:
                trouble = error  # what was taken until here is remembered; the rest is asked for again
                break
            else:
                taken.append(id_)
        self._context.turn.schedule()
        if taken:
            await _on_disk(tenant)
            tenant.transfers_arrived(taken)
        if trouble is not None:
            raise trouble
        return {"refused": refused}

    def _admit(self, tenant: StoreTenant, target: Entity, fragment: int, payload: bytes, id_: tuple[int, int], now: int) -> None:
        message = decode_body(payload)
        target.check_send(message, message.size_bytes)
        part: Queue = target.parts()[fragment] if fragment >= 0 and isinstance(target, PartitionedQueue) else target.destination(message)
        if tenant.queues.get(part.entity_id) is not part or not tenant.serves:
            raise StoreUnavailable(f"'{part.path}' is not in the store that was asked. Try again.")
        part.intake.admit(message, now)
        target.access(now)
        tenant.note_transfer(id_, part.entity_id, now)

    async def _answer_transfers(self, body: Body) -> Body:
        """What is on its way to the disk is waited for: what is told leaves its source for good."""
        tenant = self._served(body)
        self._must_be_newest(body)
        source = cast(int, body["source"])
        known = [(seq, arrived) for (queue, seq), arrived in tenant.transfers.items() if queue == source]
        if not all(arrived for _, arrived in known):
            self._context.turn.schedule()
            await _on_disk(tenant)
        return {"seqs": [seq for seq, _ in known]}

    async def _answer_decided(self, body: Body) -> Body:
        tenant = self._served(body)
        transaction = cast(bytes, body["transaction"])
        decided = tenant.committed.get(transaction)
        if decided is False:
            raise StoreUnavailable("It is not known yet.")
        if decided is None:
            tenant.deny(transaction)  # whoever asks drops its share
        return {"yes": decided is True}

    async def _answer_held(self, body: Body) -> Body:
        return {"yes": cast(bytes, body["transaction"]) in self._served(body).prepared}

    async def _end_transfers(self, body: Body) -> Body:
        tenant = self._served(body)
        source = cast(int, body["source"])
        self._context.turn.begin()
        own = [(source, seq) for seq in cast("list[int]", body["seqs"]) if (source, seq) in tenant.transfers]
        if own:
            tenant.end_transfers(own)
        self._context.turn.schedule()
        return {}


async def _on_disk(tenant: StoreTenant) -> None:
    on_disk = Durable()
    tenant.journal.when_durable(on_disk)
    await on_disk.future


def _pieces(messages: list[tuple[int, int, bytes]]) -> list[list[tuple[int, int, bytes]]]:
    pieces: list[list[tuple[int, int, bytes]]] = []
    room = 0
    for one in messages:
        room -= len(one[2])
        if room < 0:
            pieces.append([])
            room = _REQUEST_BYTES_MAX - len(one[2])
        pieces[-1].append(one)
    return pieces
