"""Stores of other nodes, asked over `$peer`: to take what is forwarded, and what they have had."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Final, cast

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


class PeerStores(FarStores):
    """Of one namespace of one node: asks the others, and answers them."""

    def __init__(self, context: NamespaceContext, ownership: Ownership, others: tuple[str, ...], ask: Ask) -> None:
        self._context = context
        self._namespace = context.namespace
        self._ownership = ownership
        self._others = others
        self._ask = ask
        self._askers: dict[int, bytes] = {}
        """By queue the name under which it asks, another one after each replay."""
        self._last_askers: dict[int, bytes] = {}
        """By queue of another node who has asked last what arrived from it: what somebody before that has on the way comes too late."""
        context.peer_operations.update(
            {
                "transfer": self._take,
                "transfers-of": self._answer_transfers,
                "transfers-ended": self._end_transfers,
                "decided": self._answer_decided,
                "held": self._answer_held,
            }
        )

    def node_of(self, store: int) -> str:
        return self._ownership.owner(store) or ""

    # -- asking ------------------------------------------------------------------------------

    def transfer(self, transfer: FarTransfer) -> None:
        self._context.spawn(self._transfer(transfer))

    async def _transfer(self, transfer: FarTransfer) -> None:
        asker = self._askers.get(transfer.source, b"")
        refused = {seq: _TOO_LARGE for seq, _, body in transfer.messages if len(body) > _MESSAGE_BYTES_MAX}
        for some in _pieces([one for one in transfer.messages if one[0] not in refused]):
            body: Body = {"target": transfer.target, "source": transfer.source, "asker": asker, "messages": [list(one) for one in some]}
            said = await self._until_answered(transfer.node, "transfer", body, transfer.is_over)
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

    async def _until_answered(self, node: str, operation: str, body: Body, is_over: Callable[[], bool]) -> Body | None:
        pause = _FIRST_PAUSE
        while not is_over():
            try:
                return await self._ask(node, operation, body)
            except BusError:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        return None

    def ended(self, node: str, source: int, seqs: list[int]) -> None:
        self._context.spawn(self._tell_ended(node, source, list(seqs)))

    async def _tell_ended(self, node: str, source: int, seqs: list[int]) -> None:
        try:
            await self._ask(node, "transfers-ended", {"source": source, "seqs": list[object](seqs)})
        except BusError:
            return  # it is asked what it remembers when this node starts again

    def learn(self, source: int, then: FarArrivals) -> None:
        self._context.spawn(self._learn(source, then))

    async def _learn(self, source: int, then: FarArrivals) -> None:
        found: dict[str, list[int]] = {}
        asker = self._askers[source] = uuid.uuid4().bytes
        for node in self._others:
            said = await self._until_answered(node, "transfers-of", {"source": source, "asker": asker}, lambda: False)
            found[node] = cast("list[int]", (said or {}).get("seqs") or [])
        self._context.turn.begin()
        then.learned(found)
        self._context.turn.schedule()

    def decided(self, store: int, transaction: bytes, then: FarAnswer) -> None:
        self._context.spawn(self._ask_about(transaction, [self.node_of(store)], "decided", {"store": store}, then))

    def held(self, transaction: bytes, then: FarAnswer) -> None:
        self._context.spawn(self._ask_about(transaction, list(self._others), "held", {}, then))

    async def _ask_about(self, transaction: bytes, nodes: list[str], operation: str, what: Body, then: FarAnswer) -> None:
        yes = False
        for node in nodes:
            said = await self._until_answered(node, operation, {**what, "transaction": transaction}, lambda: False)
            yes = yes or bool((said or {}).get("yes"))
        self._context.turn.begin()
        then.said(yes)
        self._context.turn.schedule()

    # -- answering ---------------------------------------------------------------------------

    async def _take(self, body: Body) -> Body:
        """Each once: what is remembered was taken before."""
        target = self._namespace.forward_target(str(body["target"]))
        if target is None:
            raise StoreUnavailable(f"'{body['target']}' is not known here yet. Try again.")
        source = cast(int, body["source"])
        if self._last_askers.setdefault(source, cast(bytes, body["asker"])) != body["asker"]:
            raise StoreUnavailable("The queue was read again since.")
        now = self._context.turn.begin()
        refused: list[object] = []
        taken: dict[StoreTenant, list[tuple[int, int]]] = {}
        trouble: BusError | None = None
        for seq, fragment, payload in cast("list[tuple[int, int, bytes]]", body["messages"]):
            id_ = (source, seq)
            known = next((tenant for tenant in self._namespace.stores if tenant.available and id_ in tenant.transfers), None)
            if known is not None:
                taken.setdefault(known, []).append(id_)
                continue
            try:
                tenant = self._admit(target, fragment, payload, id_, now)
            except (EntityDisabled, NotAllowed, MessageSizeExceeded, QuotaExceeded) as error:
                refused.append([seq, _REFUSALS[type(error)], error.description])
            except BusError as error:
                trouble = error  # what was taken until here is remembered; the rest is asked for again
                break
            else:
                taken.setdefault(tenant, []).append(id_)
        self._context.turn.schedule()
        for tenant, ids in taken.items():
            on_disk = Durable()
            tenant.journal.when_durable(on_disk)
            await on_disk.future
            tenant.transfers_arrived(ids)
        if trouble is not None:
            raise trouble
        return {"refused": refused}

    def _admit(self, target: Entity, fragment: int, payload: bytes, id_: tuple[int, int], now: int) -> StoreTenant:
        message = decode_body(payload)
        target.check_send(message, message.size_bytes)
        part: Queue = target.parts()[fragment] if fragment >= 0 and isinstance(target, PartitionedQueue) else target.destination(message)
        tenant = self._namespace.tenant_of(part)
        if tenant is None or not tenant.serves:
            raise StoreUnavailable(f"The store of '{part.path}' is down. Try again.")
        part.intake.admit(message, now)
        target.access(now)
        tenant.note_transfer(id_, part.entity_id, now)
        return tenant

    async def _answer_transfers(self, body: Body) -> Body:
        source = cast(int, body["source"])
        if not all(tenant.serves for tenant in self._namespace.stores if not tenant.elsewhere):
            raise StoreUnavailable("A store of this node is down: what it has had is not known yet.")
        self._last_askers[source] = cast(bytes, body["asker"])
        return {"seqs": [seq for tenant in self._namespace.stores for queue, seq in tenant.transfers if queue == source]}

    async def _answer_decided(self, body: Body) -> Body:
        tenant = self._namespace.stores[cast(int, body["store"])]
        decided = tenant.committed.get(cast(bytes, body["transaction"]))
        if not tenant.serves or decided is False:
            raise StoreUnavailable("It is not known yet.")
        return {"yes": decided is True}

    async def _answer_held(self, body: Body) -> Body:
        own = [tenant for tenant in self._namespace.stores if not tenant.elsewhere]
        if not all(tenant.serves for tenant in own):
            raise StoreUnavailable("A store of this node is down: what it has is not known yet.")
        return {"yes": any(cast(bytes, body["transaction"]) in tenant.prepared for tenant in own)}

    async def _end_transfers(self, body: Body) -> Body:
        source = cast(int, body["source"])
        self._context.turn.begin()
        for tenant in self._namespace.stores:
            own = [(source, seq) for seq in cast("list[int]", body["seqs"]) if (source, seq) in tenant.transfers]
            if own and tenant.serves:
                tenant.end_transfers(own)
        self._context.turn.schedule()
        return {}


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
