"""Sending and receiving for clients without links: what the REST data plane stands on."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Sequence

from tandem.amqp.message import DATA, encode_message
from tandem.amqp.types import EncodeError, Symbol, Timestamp
from tandem.broker.meters import EMPTY, RECEIVE, REFUSED, SEND
from tandem.broker.ports import Consumer
from tandem.broker.queue.entity import Entity
from tandem.broker.queue.locks import Lock
from tandem.gateway import verbs
from tandem.gateway.http.data_port import HttpMessage, PropertyValue, ReceivedMessage
from tandem.gateway.translate import token_to_uuid
from tandem.gateway.verbs import SettlementArguments
from tandem.gateway.views import annotations_of, as_text, body_as_far_as_possible, decoded_as_far_as_possible
from tandem.gateway.waiting import durable, messages_of
from tandem.model.address import Address
from tandem.model.entity import LATEST_MS, Right
from tandem.model.errors import ArgumentRefused, BusError, MessageNotFound, NotAllowed, Refused, Unavailable, shutting_down
from tandem.model.message import NO_TTL, Message
from tandem.server.administration import NamespaceAdmin
from tandem.server.context import NamespaceContext

_SCHEDULED = Symbol("x-opt-scheduled-enqueue-time")
_PARTITION_KEY = Symbol("x-opt-partition-key")
_VIA_PARTITION_KEY = Symbol("x-opt-via-partition-key")
_FIRST_NUMBER = Symbol("x-opt-enqueue-sequence-number")
_DEAD_LETTER_SOURCE = Symbol("x-opt-deadletter-source")
_TTL_MS_MAX = 0xFFFF_FFFF


class DataPlane:
    """Implements `DataPort` for one namespace."""

    def __init__(self, context: NamespaceContext, admin: NamespaceAdmin) -> None:
        self._context = context
        self._admin = admin

    async def authorize(self, token: str | None, path: str, right: Right, rest: str = "") -> None:
        await self._admin.authorize(token, path, right, rest)

    async def send(self, address: Address, messages: Sequence[HttpMessage]) -> None:
        now = self._begin()
        queue = self._context.namespace.resolve_sender(address)
        verbs.send_all(queue, [self._context.translator.message(encode_http(message, now)) for message in messages], now)
        await durable(queue)

    def count_refused_send(self, address: Address) -> None:
        try:
            self._context.namespace.resolve_sender(address).metered(SEND, REFUSED)
        except (Refused, Unavailable):
            return  # there is no such entity, or nowhere to write it down: the refusal itself says so

    async def receive(self, address: Address, *, lock: bool, wait_ms: int) -> ReceivedMessage | None:
        queue = self._context.namespace.resolve(address)
        self._begin()
        if queue.terms.has_sessions:
            raise NotAllowed(f"'{queue.path}' requires sessions, which this interface does not offer: use AMQP.")
        visitor = _OneMessage(lock)
        queue.terms.check_receiving()
        queue.terms.check_receiver()
        queue.add_consumer(visitor)
        queue.consumer_ready(visitor)
        queue.access(self._context.turn.now)
        try:
            async with asyncio.timeout(max(wait_ms, 1) / 1000):
                return await asyncio.shield(visitor.future)
        except TimeoutError:
            visitor.wanted = 0
            if visitor.reserved or visitor.future.done():
                return await visitor.future  # chosen already: it is leaving the queue and must reach somebody
            queue.metered(RECEIVE, EMPTY)
            return None
        except asyncio.CancelledError:
            visitor.wanted = 0
            self._give_back(queue, visitor)
            raise
        finally:
            self._context.turn.begin()
            queue.remove_consumer(visitor)

    def _begin(self) -> int:
        if self._context.draining:
            raise shutting_down()
        return self._context.turn.begin()

    def _give_back(self, queue: Entity, visitor: _OneMessage) -> None:
        """The client hung up: a lock taken for it is released, the delivery does not count."""
        if visitor.lock is not None and visitor.lock.held:
            queue.part_of(visitor.lock.seq).settlement.release(visitor.lock, self._context.turn.begin())

    async def _find(self, address: Address, message: str, lock_token: uuid.UUID) -> tuple[Entity, Lock]:
        """The token says which; of a number, be it that of the sequence or an id, it is seen that it is of the same message."""
        self._context.turn.begin()
        queue = self._context.namespace.resolve(address)
        lock = queue.find_lock(token_to_uuid(lock_token.bytes))
        if message.isdecimal() and message != str(lock.seq):
            (found,) = await messages_of(queue, [lock.seq])
            if found is None or message != decode_http(found).message_id:
                raise MessageNotFound(f"The lock token is of message {lock.seq} of '{queue.path}', not of {message[:40]}.")
        return queue, lock

    async def settle(self, address: Address, message: str, lock_token: uuid.UUID, how: SettlementArguments) -> None:
        queue, lock = await self._find(address, message, lock_token)
        for effect in verbs.settle_all(queue, how, [lock], self._context.turn.begin()):
            await effect.future

    async def renew(self, address: Address, message: str, lock_token: uuid.UUID) -> int:
        queue, lock = await self._find(address, message, lock_token)
        return verbs.renew(queue, [lock], self._context.turn.begin())[0]


class _OneMessage(Consumer):
    """Takes one message and is satisfied."""

    def __init__(self, peek_lock: bool) -> None:
        super().__init__(peek_lock)
        self.wanted = 1
        self.lock: Lock | None = None
        self.future: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()

    def room(self) -> int:
        return self.wanted

    def deliver(self, message: Message, seq: int, enqueued_at: int, count: int, expires_at: int, lock: Lock | None) -> None:
        self.wanted = 0
        self.lock = lock
        if self.future.done():
            return
        annotations = annotations_of(message)
        first = annotations.get(_FIRST_NUMBER)
        self.future.set_result(
            ReceivedMessage(
                message=decode_http(message),
                sequence_number=seq,
                delivery_count=count + 1,
                enqueued_at_ms=enqueued_at,
                enqueued_sequence_number=first if isinstance(first, int) else None,
                dead_letter_source=_text(annotations.get(_DEAD_LETTER_SOURCE)),
                expires_at_ms=expires_at or None,
                lock_token=uuid.UUID(bytes=token_to_uuid(lock.token)) if lock is not None else None,
                locked_until_ms=lock.locked_until if lock is not None else None,
            )
        )

    def lost(self, error: BusError) -> None:
        if not self.future.done():
            self.future.set_exception(error)


def encode_http(message: HttpMessage, now: int) -> bytes:
    """The AMQP form of a message that came over HTTP."""
    annotations: dict[object, object] = {}
    if message.scheduled_at_ms is not None:
        annotations[_SCHEDULED] = Timestamp(message.scheduled_at_ms)
    if message.partition_key is not None:
        annotations[_PARTITION_KEY] = message.partition_key
    if message.via_partition_key is not None:
        annotations[_VIA_PARTITION_KEY] = message.via_partition_key
    properties: dict[str, object] = {
        "message-id": message.message_id,
        "to": message.to,
        "subject": message.label,
        "reply-to": message.reply_to,
        "correlation-id": message.correlation_id,
        "content-type": message.content_type,
        "group-id": message.session_id,
        "reply-to-group-id": message.reply_to_session_id,
    }
    header: dict[str, object] = {}
    if message.time_to_live_ms is not None:
        write_lifetime(message.time_to_live_ms, now, header, properties)
    try:
        return encode_message(
            header=header,
            message_annotations=annotations,
            properties={name: value for name, value in properties.items() if value is not None},
            application_properties=dict(message.properties),
            body=[message.body],
            body_kind=DATA,
        )
    except EncodeError as error:
        raise ArgumentRefused(f"The message says what AMQP cannot: {error}.") from None


def write_lifetime(ttl_ms: int, now: int, header: dict[str, object], properties: dict[str, object]) -> None:
    """As clients write it: what is more than a header can say (49 days) is the time from creation to expiry."""
    header["ttl"] = min(ttl_ms, _TTL_MS_MAX)
    if ttl_ms > _TTL_MS_MAX:
        properties["creation-time"] = Timestamp(now)
        properties["absolute-expiry-time"] = Timestamp(min(now + ttl_ms, LATEST_MS))


def decode_http(message: Message) -> HttpMessage:
    """A stored message as HTTP carries it. Bodies that are not bytes are shown as their text."""
    decoded = decoded_as_far_as_possible(message.bare)
    properties = decoded.properties
    kind, body = body_as_far_as_possible(decoded)
    if kind == DATA and isinstance(body, list):
        content = b"".join(part for part in body if isinstance(part, bytes))
    else:
        content = b"" if body is None else str(body).encode()
    annotations = annotations_of(message)
    return HttpMessage(
        body=content,
        content_type=_text(properties.get("content-type")),
        message_id=_text(properties.get("message-id")),
        correlation_id=_text(properties.get("correlation-id")),
        session_id=message.session_id,
        reply_to_session_id=_text(properties.get("reply-to-group-id")),
        label=_text(properties.get("subject")),
        to=_text(properties.get("to")),
        reply_to=_text(properties.get("reply-to")),
        partition_key=_text(annotations.get(_PARTITION_KEY)),
        via_partition_key=_text(annotations.get(_VIA_PARTITION_KEY)),
        time_to_live_ms=None if message.ttl_ms == NO_TTL else message.ttl_ms,
        scheduled_at_ms=message.scheduled_at or None,
        properties=tuple((str(name), _plain(value)) for name, value in decoded.application_properties.items()),
    )


def _text(value: object) -> str | None:
    return None if value is None else str(as_text(value))


def _plain(value: object) -> PropertyValue:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no word for it
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)
