"""Batch leases over a management node: take, read, extend, settle in part or whole, give back."""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import TYPE_CHECKING, Final

from tandem.amqp.types import Array, Int, Timestamp
from tandem.broker.ports import LeaseWaiter
from tandem.broker.queue.lease import Lease
from tandem.gateway.amqp.requests import Reply, is_of, need
from tandem.gateway.waiting import Durable, durable, messages_of
from tandem.model.errors import ArgumentRefused, LeaseLost
from tandem.model.ranges import pack_ranges, unpack_ranges
from tandem.server.lease_claims import CLAIM_MS_MAX

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.gateway.amqp.connection import PeerConnection
    from tandem.model.address import Address
    from tandem.model.limits import Limits
    from tandem.model.message import Message

_LONG: Final = 0x81
_STAMP: Final = Struct(">qqqII")
"""Per message of a packed page: sequence number, enqueued at, expires at (0 = never), delivery count, bytes of its payload."""
_SLICE_SECONDS: Final = 30.0
"""A long poll looks up its queue again this often: a store that went and came back brought a new one."""
_WORDS_CHARS_MAX: Final = 4_096


def numbers(body: dict[object, object], name: str, limits: Limits) -> list[int]:
    """Sequence numbers as ranges ("1-5,9"), as an array or a list, and no more than a lease holds; absent is none."""
    value = body.get(name)
    if value is None:
        return []
    if isinstance(value, str):
        try:
            return unpack_ranges(value, limits.lease_messages_max)
        except ValueError as error:
            raise ArgumentRefused(f"'{name}': {error}.") from None
    values = value.values if isinstance(value, Array) else value
    if not isinstance(values, (list, tuple)) or not all(is_of(v, int) for v in values):
        raise ArgumentRefused(f"The request needs '{name}' as ranges or an array of sequence numbers.")
    if len(values) > limits.lease_messages_max:
        raise ArgumentRefused(f"'{name}': a lease holds at most {limits.lease_messages_max} messages.")
    return list(values)


def _claim_ms(body: dict[object, object]) -> int:
    duration_ms = need(body, "duration-ms", int)
    if not 0 <= duration_ms <= CLAIM_MS_MAX:
        raise ArgumentRefused(f"A claim lasts up to {CLAIM_MS_MAX} milliseconds, asked for {duration_ms}.")
    return duration_ms


def _enqueued_by(body: dict[object, object]) -> int:
    """An instant, 0 when none is asked for."""
    return int(need(body, "enqueued-by", int)) if "enqueued-by" in body else 0


def _last_came(queue: Entity, lease: Lease) -> int:
    """When the last message of the lease was enqueued; 0 when all of them are settled."""
    last = 0
    for seq in filter(None, lease.seqs):
        index = queue.part_of(seq).rows.index
        if index.state(seq):
            last = max(last, index.enqueued_at(seq))
    return last


def _owner(queue: Entity, seq: int) -> tuple[int, int]:
    """(fragment, session) a message belongs to."""
    part = queue.part_of(seq)
    return part.entity_id, part.index.owner(seq) if seq and part.index.state(seq) else 0


class _Wake(LeaseWaiter):
    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ready(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


class LeaseOperations:
    """What one management node does about leases. Whatever changes is on disk before it is answered, except a renewal."""

    def __init__(self, connection: PeerConnection, address: Address) -> None:
        self._connection = connection
        self._address = address

    @property
    def _queue(self) -> Entity:
        return self._connection.context.namespace.resolve(self._address)

    # -- taking ------------------------------------------------------------------------------

    async def lease(self, body: dict[object, object]) -> Reply:
        """{lease-id, max-messages, max-bytes, duration-ms, wait-ms?, enqueued-by?, ranges?, entity-created-at?}
        -> {lease-id, message-count, remaining, size-bytes, ranges, sessions?, enqueued-by, entity-created-at, expires-at}.

        With `wait-ms` it waits for a first message. With `enqueued-by` (an instant) it takes none that came later.
        With `ranges` it takes exactly these messages, or none; with `entity-created-at` none of an entity that was made at another
        instant, as one of the same name in another namespace: its numbers mean other messages.
        `sessions` says how many consecutive messages belong to each session, the answer's `enqueued-by` when the last of them came.
        """
        limits = self._connection.context.limits
        duration_ms = need(body, "duration-ms", int)
        self._must_last(duration_ms, limits.lease_ms_max)
        lease_id = need(body, "lease-id", str)
        if not 0 < len(lease_id) <= limits.session_id_chars_max:
            raise ArgumentRefused(f"A lease id has 1 to {limits.session_id_chars_max} characters.")
        if "ranges" in body:
            seqs = numbers(body, "ranges", limits)
            before = _enqueued_by(body)
            self._must_be_of(body)
            lease: Lease | None = self._queue.leases.lease_again(lease_id, seqs, duration_ms, self._connection.turn.now, before)
        else:
            lease = await self._next(lease_id, body, duration_ms)
        if lease is None or not lease.seqs:
            return 204, {}
        queue = self._queue
        self._connection.context.claims.granted(queue.path, lease_id)
        await durable(queue)
        return 200, self._describe(queue, lease)

    def _must_be_of(self, body: dict[object, object]) -> None:
        made = self._queue.terms.description.created_at_ms
        if "entity-created-at" in body and int(need(body, "entity-created-at", int)) != made:
            raise LeaseLost(f"Messaging entity '{self._address.entity}' is not the one that was leased from: it was made at another time.")

    def _must_last(self, duration_ms: int, most: int) -> None:
        if not 1_000 <= duration_ms <= most:
            raise ArgumentRefused(f"A lease lasts 1000 to {most} milliseconds, asked for {duration_ms}.")

    async def _next(self, lease_id: str, body: dict[object, object], duration_ms: int) -> Lease | None:
        limits = self._connection.context.limits
        messages_max = min(need(body, "max-messages", int), limits.lease_messages_max)
        bytes_max = min(need(body, "max-bytes", int), limits.lease_bytes_max)
        if messages_max < 1 or bytes_max < 1:
            raise ArgumentRefused("A lease needs max-messages and max-bytes of 1 or more.")
        wait_ms = body.get("wait-ms", 0)
        if not isinstance(wait_ms, int) or not 0 <= wait_ms <= limits.lease_wait_ms_max:
            raise ArgumentRefused(f"wait-ms is 0 to {limits.lease_wait_ms_max}.")
        before = _enqueued_by(body)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        while not self._connection.gone:
            queue = self._queue
            lease = queue.leases.lease(lease_id, messages_max, bytes_max, duration_ms, self._connection.turn.begin(), before)
            left = deadline - loop.time()
            if lease.seqs or left <= 0:
                return lease
            await self._wait(queue, min(left, _SLICE_SECONDS))
        return None

    async def _wait(self, queue: Entity, seconds: float) -> None:
        waiter = _Wake()
        queue.leases.await_ready(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter.future
        except TimeoutError:
            queue.leases.forget_waiter(waiter)

    def _describe(self, queue: Entity, lease: Lease) -> dict[object, object]:
        answer: dict[object, object] = {
            "lease-id": lease.id,
            "message-count": Int(len(lease.seqs)),
            "remaining": Int(lease.remaining()),
            "size-bytes": lease.size_bytes,
            "ranges": pack_ranges(lease.seqs),
            "enqueued-by": Timestamp(_last_came(queue, lease)),
            "entity-created-at": Timestamp(queue.terms.description.created_at_ms),
            "expires-at": Timestamp(lease.expires_at),
        }
        if queue.sessions is not None:
            runs: list[int] = []
            owner = (-1, -1)
            for seq in lease.seqs:
                found = _owner(queue, seq)
                if found != owner:
                    runs.append(0)
                    owner = found
                runs[-1] += 1
            answer["sessions"] = Array(_LONG, list[object](runs))
        return answer

    # -- reading -----------------------------------------------------------------------------

    async def read(self, body: dict[object, object]) -> Reply:
        """{lease-id, skip, top, remaining?, packed?} -> {messages: [binary, …], next} or {stamps, payloads, next}.

        The same messages in the same order, as often as asked; `next` is the place to go on from. A message that has been settled
        or returned out of the lease makes it lost, unless only what is `remaining` is asked for. `packed` is for machines: one
        binary of payloads without the annotations a delivery would carry, and one of what they would say (see `_STAMP`).
        """
        queue = self._queue
        lease = queue.leases.find(need(body, "lease-id", str), self._connection.turn.now)
        skip = max(need(body, "skip", int), 0)
        end = min(skip + max(need(body, "top", int), 0), len(lease.seqs))
        seqs, end = self._page(queue, lease, skip, end, bool(body.get("remaining")))
        messages = await messages_of(queue, seqs)
        if any(message is None for message in messages):
            raise LeaseLost(f"The lease '{lease.id}' of '{queue.path}' ended while it was being read.")
        if end <= skip:
            return 204, {}
        answer: dict[object, object] = {"next": Int(end)}
        found = [(seq, message) for seq, message in zip(seqs, messages, strict=True) if message is not None]
        self._was_read(queue, found)
        if body.get("packed"):
            answer["stamps"], answer["payloads"] = self._packed(queue, found)
        else:
            answer["messages"] = [self._payload(queue, seq, message) for seq, message in found]
        return 200, answer

    def _was_read(self, queue: Entity, found: list[tuple[int, Message]]) -> None:
        """For those who trace."""

    def _page(self, queue: Entity, lease: Lease, skip: int, end: int, remaining: bool) -> tuple[list[int], int]:
        """(sequence numbers, place behind them): as many as one reply may carry, at least one."""
        room = self._connection.context.limits.lease_read_bytes_max
        seqs: list[int] = []
        for at in range(skip, end):
            seq = lease.seqs[at]
            index = queue.part_of(seq).index
            if not seq or not index.state(seq):
                if not remaining:
                    raise LeaseLost(f"Part of the lease '{lease.id}' of '{queue.path}' was settled or returned: it cannot be read whole.")
                continue
            room -= index.size(seq)
            if room < 0 and seqs:
                return seqs, at
            seqs.append(seq)
        return seqs, end

    def _payload(self, queue: Entity, seq: int, message: Message) -> bytes:
        index = queue.part_of(seq).index
        return self._connection.translator.delivery(message, seq, index.enqueued_at(seq), index.count(seq), index.expires_at(seq), None, 0)

    def _packed(self, queue: Entity, found: list[tuple[int, Message]]) -> tuple[bytes, bytes]:
        undressed = self._connection.translator.undressed
        stamps: list[bytes] = []
        payloads: list[bytes] = []
        for seq, message in found:
            payload = undressed(message)
            index = queue.part_of(seq).index
            stamps.append(_STAMP.pack(seq, index.enqueued_at(seq), index.expires_at(seq), index.count(seq), len(payload)))
            payloads.append(payload)
        return b"".join(stamps), b"".join(payloads)

    # -- the rest of its life ----------------------------------------------------------------

    async def renew(self, body: dict[object, object]) -> Reply:
        most = self._connection.context.limits.lease_ms_max
        duration_ms = min(need(body, "duration-ms", int), most)
        self._must_last(duration_ms, most)
        lease = self._queue.leases.renew(need(body, "lease-id", str), duration_ms, self._connection.turn.now)
        return 200, {"expires-at": Timestamp(lease.expires_at), "remaining": Int(lease.remaining())}

    async def claim(self, body: dict[object, object]) -> Reply:
        """{lease-id, attempt, duration-ms, held?} -> {attempt, expires-at}: who may work on this lease now, the asker or another.

        A duration of 0 gives the claim back. `held`: the attempt has had it before, which decides after a restart of the broker.
        """
        queue = self._queue
        now = self._connection.turn.now
        lease = queue.leases.find(need(body, "lease-id", str), now)
        attempt, duration_ms = self._claim_name(body, "attempt"), _claim_ms(body)
        holder, until = self._connection.context.claims.claim(queue.path, lease.id, attempt, duration_ms, bool(body.get("held")), now)
        return 200, {"attempt": holder, "expires-at": Timestamp(until)}

    async def claim_task(self, body: dict[object, object]) -> Reply:
        """{task, attempt, duration-ms} -> {attempt, expires-at}: who may send what this task has to send now, the asker or another."""
        task, attempt, duration_ms = self._claim_name(body, "task"), self._claim_name(body, "attempt"), _claim_ms(body)
        context = self._connection.context
        holder, until = context.claims.claim_task(self._queue.path, task, attempt, duration_ms, self._connection.turn.now)
        return 200, {"attempt": holder, "expires-at": Timestamp(until)}

    def _claim_name(self, body: dict[object, object], name: str) -> str:
        value = need(body, name, str)
        chars_max = self._connection.context.limits.session_id_chars_max
        if not 0 < len(value) <= chars_max:
            raise ArgumentRefused(f"'{name}' has 1 to {chars_max} characters.")
        return value

    async def settle_part(self, body: dict[object, object]) -> Reply:
        """{lease-id, completed?, returned?: ranges or array, dead-lettered?: [{sequence-number, reason, description}]}
        -> {completed, returned, dead-lettered, remaining}.

        One block of the journal. What is no longer in the lease is passed over, so the same request may come again.
        """
        queue = self._queue
        now = self._connection.turn.now
        lease_id = need(body, "lease-id", str)
        dead = self._dead_letters(body)
        limits = self._connection.context.limits
        done, back = numbers(body, "completed", limits), numbers(body, "returned", limits)
        completed = queue.leases.complete_part(lease_id, done, now)
        returned = queue.leases.return_part(lease_id, back, now)
        moves: list[Durable] = []
        for seq, reason, description in dead:
            effect = Durable()
            if queue.leases.dead_letter_part(lease_id, seq, reason, description, now, effect):
                moves.append(effect)
        await durable(queue)
        for effect in moves:
            await effect.future
        left = queue.leases.find(lease_id, now).remaining()
        counts = {"completed": completed, "returned": returned, "dead-lettered": len(moves), "remaining": left}
        return 200, {name: Int(count) for name, count in counts.items()}

    def _dead_letters(self, body: dict[object, object]) -> list[tuple[int, str, str]]:
        entries = body.get("dead-lettered")
        if entries is None:
            return []
        if not isinstance(entries, list):
            raise ArgumentRefused("'dead-lettered' is a list of maps.")
        found: list[tuple[int, str, str]] = []
        for entry in entries:
            if not isinstance(entry, dict):
                raise ArgumentRefused("'dead-lettered' is a list of maps.")
            said: dict[object, object] = {str(key): value for key, value in entry.items()}
            reason, description = need(said, "reason", str), need(said, "description", str)
            found.append((need(said, "sequence-number", int), reason[:_WORDS_CHARS_MAX], description[:_WORDS_CHARS_MAX]))
        return found

    async def complete(self, body: dict[object, object]) -> Reply:
        queue = self._queue
        lease_id = need(body, "lease-id", str)
        removed = queue.leases.complete(lease_id, self._connection.turn.now)
        self._connection.context.claims.ended(queue.path, lease_id)
        await durable(queue)
        return 200, {"message-count": Int(removed)}

    async def abandon(self, body: dict[object, object]) -> Reply:
        queue = self._queue
        lease_id = need(body, "lease-id", str)
        returned = queue.leases.abandon(lease_id, self._connection.turn.now)
        self._connection.context.claims.ended(queue.path, lease_id)
        await durable(queue)
        return 200, {"message-count": Int(returned)}

    async def list(self, body: dict[object, object]) -> Reply:
        found: list[object] = [
            {
                "lease-id": lease.id,
                "message-count": Int(len(lease.seqs)),
                "remaining": Int(lease.remaining()),
                "expires-at": Timestamp(lease.expires_at),
            }
            for lease in self._queue.leases.all_leases()
        ]
        return (200, {"leases": found}) if found else (204, {})
