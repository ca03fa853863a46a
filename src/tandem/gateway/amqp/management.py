"""The management node of an entity: everything a client asks that is neither a send nor a receive."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from tandem.amqp.types import Array, Int, Symbol, Timestamp
from tandem.broker.meters import CANCEL, EMPTY, LEASE, OK, PEEK, PURGE, RULE, SESSION
from tandem.broker.queue.entity import Entity
from tandem.broker.queue.locks import Lock
from tandem.gateway import verbs
from tandem.gateway.amqp.connection import PeerConnection
from tandem.gateway.amqp.leases import LeaseOperations
from tandem.gateway.amqp.requests import NodeRequest, Reply, Requests, is_of, need
from tandem.gateway.amqp.rules import RuleOperations
from tandem.gateway.amqp.sessions import ASSOCIATED_LINK, SessionOperations
from tandem.gateway.translate import refusal, token_to_uuid
from tandem.gateway.verbs import SettlementArguments
from tandem.gateway.waiting import durable
from tandem.model.address import Address
from tandem.model.entity import Right
from tandem.model.errors import ArgumentRefused, BusError, NotImplementedByBroker, ServerBusy
from tandem.server.audit import PURGED

LONG: Final = 0x81
TIMESTAMP: Final = 0x83
NO_CONTENT: Final = 204

Operation = Callable[[dict[object, object]], Awaitable[Reply]]
Offered = tuple[Right, int | None, Operation]
"""What it takes to be allowed to ask, as what it is metered, and who answers."""

_LARGE_ANSWERS: Final = frozenset(("com.microsoft:peek-message", "com.microsoft:receive-by-sequence-number", "com.tandem:read-lease"))
"""They carry messages: a client that asks and does not read must not have many of them kept for it."""

DISPOSITIONS: Final = {
    "completed": verbs.COMPLETE,
    "abandoned": verbs.ABANDON,
    "defered": verbs.DEFER,
    "suspended": verbs.DEAD_LETTER,
}

_T = TypeVar("_T")


def many(body: dict[object, object], name: str, kind: type[_T]) -> list[_T]:
    value = body.get(name)
    values = value.values if isinstance(value, Array) else value
    if not isinstance(values, (list, tuple)) or not all(is_of(v, kind) for v in values):
        raise ArgumentRefused(f"The request needs '{name}' as an array of {kind.__name__}.")
    return list(values)


class ManagementNode(Requests):
    """Requests to one entity on one link."""

    def __init__(self, connection: PeerConnection, address: Address, leases: LeaseOperations) -> None:
        super().__init__(connection, address.path.casefold())
        self.address = address
        self._in_flight = 0
        self._sessions = SessionOperations(connection, address)
        rules = RuleOperations(connection, address)
        # What is None here is counted with the messages it is about, or not at all.
        self._operations: dict[str, Offered] = {
            "com.microsoft:peek-message": (Right.LISTEN, PEEK, self._peek),
            "com.microsoft:renew-lock": (Right.LISTEN, None, self._renew_lock),
            "com.microsoft:receive-by-sequence-number": (Right.LISTEN, None, self._receive_deferred),
            "com.microsoft:update-disposition": (Right.LISTEN, None, self._update_disposition),
            "com.microsoft:schedule-message": (Right.SEND, None, self._schedule),
            "com.microsoft:cancel-scheduled-message": (Right.SEND, CANCEL, self._cancel_scheduled),
            "com.microsoft:renew-session-lock": (Right.LISTEN, SESSION, self._sessions.renew),
            "com.microsoft:set-session-state": (Right.LISTEN, SESSION, self._sessions.set_state),
            "com.microsoft:get-session-state": (Right.LISTEN, SESSION, self._sessions.get_state),
            "com.microsoft:get-message-sessions": (Right.LISTEN, SESSION, self._sessions.list),
            "com.microsoft:batch-delete-messages": (Right.LISTEN, PURGE, self._batch_delete),
            "com.microsoft:add-rule": (Right.MANAGE, RULE, rules.add),
            "com.microsoft:remove-rule": (Right.MANAGE, RULE, rules.remove),
            "com.microsoft:enumerate-rules": (Right.LISTEN, RULE, rules.enumerate),
            "com.tandem:explain-rules": (Right.LISTEN, None, rules.explain),
            "com.tandem:message-counts": (Right.LISTEN, None, self._message_counts),
            "com.tandem:lease-batch": (Right.LISTEN, LEASE, leases.lease),
            "com.tandem:read-lease": (Right.LISTEN, None, leases.read),
            "com.tandem:renew-lease": (Right.LISTEN, LEASE, leases.renew),
            "com.tandem:settle-lease-part": (Right.LISTEN, LEASE, leases.settle_part),
            "com.tandem:claim-lease": (Right.LISTEN, LEASE, leases.claim),
            "com.tandem:claim-task": (Right.SEND, None, leases.claim_task),
            "com.tandem:complete-lease": (Right.LISTEN, LEASE, leases.complete),
            "com.tandem:abandon-lease": (Right.LISTEN, LEASE, leases.abandon),
            "com.tandem:list-leases": (Right.LISTEN, None, leases.list),
        }

    @property
    def _queue(self) -> Entity:
        """Looked up for each request: a store that came back brings new queues."""
        return self.connection.context.namespace.resolve(self.address)

    def handle(self, request: NodeRequest) -> None:
        if self._in_flight >= self.connection.context.limits.management_requests_in_flight_max:
            busy = ServerBusy("Too many requests of this link are still being answered. Wait for replies before sending more.")
            self._answer_error(request, busy)
            return
        self._in_flight += 1
        self.connection.context.spawn(self._answer(request))

    async def _answer(self, request: NodeRequest) -> None:
        try:
            self.connection.turn.begin()
            operation = request.properties.get("operation")
            known = self._operations.get(str(operation))
            if known is None:
                raise NotImplementedByBroker(f"The management operation {operation!r} is not known.")
            right, meter, method = known
            self.connection.require(self.address, right)
            body = request.body
            if not isinstance(body, dict):
                raise ArgumentRefused("The request needs a map as its body.")
            self._queue.access(self.connection.turn.now)
            said: dict[object, object] = {str(key): value for key, value in body.items()}
            said[ASSOCIATED_LINK] = request.properties.get(ASSOCIATED_LINK)
            status, answer = await (self._in_turn(method, said) if operation in _LARGE_ANSWERS else method(said))
        except BusError as error:
            self._answer_error(request, error)
        except OSError as error:
            self._answer_error(request, refusal(error))
        else:
            text = "OK" if status == 200 else "No content"
            if meter is not None:
                self._count(meter, status)
            self.reply(request, {"statusCode": Int(status), "statusDescription": text}, answer)
        finally:
            self._in_flight -= 1
            self.connection.touch()

    def _count(self, meter: int, status: int) -> None:
        try:
            self._queue.metered(meter, EMPTY if status == NO_CONTENT else OK)
        except BusError:
            return  # the entity went while it was being asked: there is nothing to count it on

    async def _in_turn(self, method: Operation, said: dict[object, object]) -> Reply:
        gate = self.connection.gate
        await gate.enter()
        try:
            return await method(said)
        finally:
            gate.leave()

    def _answer_error(self, request: NodeRequest, error: BusError) -> None:
        context = self.connection.context
        tracking_id = context.tracker.new_id()
        text = context.tracker.describe(error, self.address.path, self.connection.turn.now, tracking_id)
        self.reply(
            request,
            {
                "statusCode": Int(error.status),
                "statusDescription": text,
                "errorCondition": Symbol(error.condition),
                "com.microsoft:tracking-id": tracking_id,
            },
            {},
        )

    # -- browsing ----------------------------------------------------------------------------

    async def _peek(self, body: dict[object, object]) -> Reply:
        start = max(need(body, "from-sequence-number", int), 0)
        most = min(need(body, "message-count", int), self.connection.context.limits.peek_messages_max)
        session = self._sessions.looked_at(body)
        found: list[object] = [{"message": one} for one in await verbs.peek(self.connection.context, self.address, start, most, session)]
        return (200, {"messages": found}) if found else (204, {})

    async def _receive_deferred(self, body: dict[object, object]) -> Reply:
        queue = self._queue
        seqs = many(body, "sequence-numbers", int)
        peek_lock = need(body, "receiver-settle-mode", int) == 1
        in_session = queue.terms.has_sessions and self._sessions.looked_at(body) is not None
        session = self._sessions.held_by(body) if in_session else None
        received = await verbs.receive_deferred(self.connection.context, queue, seqs, session, peek_lock)
        if not peek_lock:
            return 200, {"messages": [{"message": payload} for _, payload in received]}
        self.connection.locks_without_delivery.add(queue, [lock for lock, _ in received])
        return 200, {
            "messages": [{"message": payload, "lock-token": uuid.UUID(bytes=token_to_uuid(lock.token))} for lock, payload in received]
        }

    # -- locks and settlement ----------------------------------------------------------------

    def _locks(self, body: dict[object, object]) -> list[Lock]:
        tokens = many(body, "lock-tokens", uuid.UUID)
        return [self._queue.find_lock(token_to_uuid(token.bytes)) for token in dict.fromkeys(tokens)]

    async def _renew_lock(self, body: dict[object, object]) -> Reply:
        until = verbs.renew(self._queue, self._locks(body), self.connection.turn.now)
        return 200, {"expirations": Array(TIMESTAMP, [Timestamp(instant) for instant in until])}

    async def _update_disposition(self, body: dict[object, object]) -> Reply:
        status = need(body, "disposition-status", str)
        kind = DISPOSITIONS.get(status)
        if kind is None:
            raise ArgumentRefused(f"disposition-status is one of {', '.join(DISPOSITIONS)}; found {status!r}.")
        properties = body.get("properties-to-modify")
        changes = {str(k): v for k, v in properties.items()} if isinstance(properties, dict) else {}
        reason, description = str(body.get("deadletter-reason") or ""), str(body.get("deadletter-description") or "")
        settlement = SettlementArguments(kind, changes, reason, description)
        for effect in verbs.settle_all(self._queue, settlement, self._locks(body), self.connection.turn.now):
            await effect.future
        return 200, {}

    # -- scheduling --------------------------------------------------------------------------

    async def _schedule(self, body: dict[object, object]) -> Reply:
        entries = body.get("messages")
        if not isinstance(entries, list) or not entries:
            raise ArgumentRefused("The request needs 'messages' as a list of maps.")
        messages = []
        for entry in entries:
            raw = entry.get("message") if isinstance(entry, dict) else None
            if not isinstance(raw, bytes):
                raise ArgumentRefused("Each entry of 'messages' needs 'message' as binary.")
            messages.append(self.connection.translator.message(raw))
        queue = self.connection.context.namespace.resolve_sender(self.address)
        placed = verbs.send_all(queue, messages, self.connection.turn.now)
        await durable(queue)
        return 200, {"sequence-numbers": Array(LONG, [one.seq for one in placed])}

    async def _cancel_scheduled(self, body: dict[object, object]) -> Reply:
        queue = self.connection.context.namespace.resolve_sender(self.address)
        queue.browsing.cancel_scheduled(many(body, "sequence-numbers", int), self.connection.turn.now)
        await durable(queue)
        return 200, {}

    # -- purge -------------------------------------------------------------------------------

    async def _batch_delete(self, body: dict[object, object]) -> Reply:
        most = need(body, "message-count", int)
        before = body.get("enqueued-time-utc")
        session_id = body.get("session-id")
        limit = self.connection.context.limits.batch_delete_messages_max
        if not 0 < most <= limit:
            raise ArgumentRefused(f"message-count must be between 1 and {limit}, found {most}.")
        now = self.connection.turn.now
        session = session_id if isinstance(session_id, str) else None
        removed = self._queue.browsing.purge(before if isinstance(before, int) else now, most, now, session)
        if not removed:
            return 204, {"message-count": Int(0)}
        await durable(self._queue)
        connection = self.connection
        connection.context.audited(PURGED, connection.holder(self.address), connection.peer, self._queue.path, f"{removed} messages")
        return 200, {"message-count": Int(removed)}

    async def _message_counts(self, body: dict[object, object]) -> Reply:
        """What is where: active holds locked too; leased, deferred and scheduled stand beside it."""
        counts = self._queue.counts()
        return 200, {
            "active": counts.active,
            "locked": counts.locked,
            "deferred": counts.deferred,
            "scheduled": counts.scheduled,
            "leased": counts.leased,
            "total": counts.total,
            "size-bytes": counts.size_bytes,
            "at": Timestamp(self.connection.turn.now),
        }
