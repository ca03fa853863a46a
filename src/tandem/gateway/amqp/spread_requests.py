"""Requests about a partitioned entity whose fragments several nodes have: each is asked about its own, the answers are put together."""

from __future__ import annotations

import asyncio
import uuid
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from tandem.amqp.errors import AmqpError, DecodeError
from tandem.amqp.handlers import LinkHandler
from tandem.amqp.link import Link, ReceiverLink, SenderLink
from tandem.amqp.message import VALUE, decode_message, encode_message
from tandem.amqp.terminus import Terminus
from tandem.amqp.types import Array, Int, Symbol
from tandem.broker.entities.joined import FRAGMENT_SHIFT, fragment_of_key
from tandem.broker.entities.partitioned import PartitionedQueue
from tandem.broker.meters import EMPTY, OK
from tandem.cluster.peers import RIGHTS_PROPERTY
from tandem.gateway.amqp.carrying import CarriedConnection, CarriedReceiving
from tandem.gateway.amqp.connection import PeerConnection
from tandem.gateway.amqp.leases import LeaseOperations
from tandem.gateway.amqp.management import LONG, NO_CONTENT, TIMESTAMP, ManagementNode, Operation, many
from tandem.gateway.amqp.requests import NodeRequest, Reply, need
from tandem.gateway.amqp.sessions import ASSOCIATED_LINK, STRING
from tandem.gateway.fragment_owners import FragmentOwners
from tandem.gateway.something_ready import first_with_something
from tandem.gateway.translate import token_to_uuid
from tandem.model.address import Address
from tandem.model.entity import Right
from tandem.model.errors import ArgumentRefused, BusError, LeaseLost, StoreUnavailable
from tandem.model.ranges import unpack_ranges

Continued = Callable[[PeerConnection, str], Awaitable[CarriedConnection | None]]
"""A client's connection to another node; None: it cannot be had now."""
_BYTES_MAX: Final = 67_108_864
_CREDIT: Final = 100
_SESSIONS_MAX: Final = 0x7FFFFFFF
_SECONDS: Final = 60.0
_SEQUENCE: Final = "x-opt-sequence-number"

Body = dict[object, object]


class RefusedThere(BusError):
    """What another node answered, passed on as it is."""

    def __init__(self, properties: dict[object, object]) -> None:
        super().__init__(str(properties.get("statusDescription")))
        self.properties = properties
        self.status = int(cast(int, properties.get("statusCode") or 500))  # type: ignore[misc]
        self.condition = str(properties.get("errorCondition"))  # type: ignore[misc]


class FarManagement(LinkHandler):
    """The management node of the entity on one other node, asked for one client."""

    def __init__(self, carried: CarriedConnection, address: Address, rights: frozenset[Right]) -> None:
        self._carried = carried
        self._pending: dict[int, asyncio.Future[tuple[dict[object, object], object]]] = {}
        self._number = 0
        self._queued: list[bytes] = []
        self.over = False
        properties: dict[object, object] = {Symbol(RIGHTS_PROPERTY): [right.value for right in sorted(rights, key=str)]}
        session = carried.engine.begin()
        node = Terminus(address.path)
        answers = session.attach_receiver("answers", node, Terminus("answers"), self, 1, 0, dict(properties), _BYTES_MAX)
        answers.auto_credit = _CREDIT
        self._requests = session.attach_sender("requests", Terminus("answers"), node, self, 1, 0, dict(properties))
        carried.touch()

    async def ask(self, operation: str, body: Body) -> Reply:
        self._number += 1
        number = self._number
        associated = body.pop(ASSOCIATED_LINK, None)
        said: dict[object, object] = {"operation": operation}
        if associated is not None:
            said[ASSOCIATED_LINK] = associated
        payload = encode_message(
            properties={"message-id": number, "reply-to": "answers"}, application_properties=said, body=body, body_kind=VALUE
        )
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        if self.over:
            self._lost(None)
        elif self._requests.attached:
            self._send(payload)
        else:
            self._queued.append(payload)
        try:
            async with asyncio.timeout(_SECONDS):
                properties, found = await answer
        except TimeoutError:
            raise StoreUnavailable(f"Node '{self._carried.node}' did not answer within {_SECONDS:g} s. Try again.") from None
        finally:
            self._pending.pop(number, None)
        status = int(cast(int, properties.get("statusCode") or 500))
        if status not in (200, NO_CONTENT):
            raise RefusedThere(properties)
        return status, found if isinstance(found, dict) else {}

    def _send(self, payload: bytes) -> None:
        self._requests.send(payload, self._number.to_bytes(8, "big"), True, None)
        self._carried.touch()

    def on_attached(self, link: Link) -> None:
        if isinstance(link, SenderLink):
            queued, self._queued = self._queued, []
            for payload in queued:
                self._send(payload)

    def on_transfer(
        self, link: ReceiverLink, delivery_id: int, tag: bytes, payload: bytes, settled: bool, message_format: int, state: bytes | None
    ) -> None:
        try:
            message = decode_message(payload)
            body = message.body
        except DecodeError as error:
            self._lost(AmqpError("amqp:decode-error", error.description))
            return
        answer = self._pending.get(cast(int, message.properties.get("correlation-id")))
        if answer is not None and not answer.done():
            answer.set_result((message.application_properties, body))

    def on_detach(self, link: Link, error: AmqpError | None) -> None:
        self._lost(error)

    def _lost(self, error: AmqpError | None) -> None:
        self.over = True
        why = error.description if error is not None else "it hung up"
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(
                    StoreUnavailable(f"Node '{self._carried.node}', which has part of this entity, is away ({why}). Try again.")
                )
                answer.exception()


class SpreadManagement(ManagementNode):
    """Requests to one entity on one link, of which this node is the front."""

    def __init__(self, connection: PeerConnection, address: Address, owners: FragmentOwners, continued: Continued) -> None:
        super().__init__(connection, address, LeaseOperations(connection, address))
        self._fragments = owners
        self._continued = continued
        self._far: dict[tuple[str, frozenset[Right]], FarManagement] = {}
        self._at_home = dict(self._operations)
        own = {
            "com.microsoft:peek-message": self._peek_all,
            "com.microsoft:renew-lock": self._renew_locks,
            "com.microsoft:receive-by-sequence-number": self._receive_by_number,
            "com.microsoft:update-disposition": self._settle_by_token,
            "com.microsoft:schedule-message": self._schedule_all,
            "com.microsoft:cancel-scheduled-message": self._cancel_all,
            "com.microsoft:renew-session-lock": self._of_session("com.microsoft:renew-session-lock"),
            "com.microsoft:set-session-state": self._of_session("com.microsoft:set-session-state"),
            "com.microsoft:get-session-state": self._of_session("com.microsoft:get-session-state"),
            "com.microsoft:get-message-sessions": self._list_sessions,
            "com.microsoft:batch-delete-messages": self._delete_all,
            "com.tandem:message-counts": self._count_all,
            "com.tandem:lease-batch": self._lease,
            "com.tandem:read-lease": self._of_lease("com.tandem:read-lease"),
            "com.tandem:renew-lease": self._of_lease("com.tandem:renew-lease"),
            "com.tandem:settle-lease-part": self._of_lease("com.tandem:settle-lease-part"),
            "com.tandem:claim-lease": self._of_lease("com.tandem:claim-lease"),
            "com.tandem:complete-lease": self._of_lease("com.tandem:complete-lease"),
            "com.tandem:abandon-lease": self._abandon_lease,
            "com.tandem:claim-task": self._claim_task,
            "com.tandem:list-leases": self._list_leases,
        }
        for name, method in own.items():
            self._operations[name] = (self._operations[name][0], None, method)

    # -- who is asked ------------------------------------------------------------------------

    @property
    def _front(self) -> PartitionedQueue:
        queue = self._queue
        assert isinstance(queue, PartitionedQueue)
        return queue

    def _owner_of(self, fragment: int) -> str:
        front = self._front
        return self._fragments.owner_of(front, fragment if fragment < len(front.fragments.queues) else 0)

    async def _at(self, owner: str, operation: str, body: Body) -> Reply:
        """Asked of one node; the empty name is this one."""
        if not owner:
            self.connection.turn.begin()
            _, meter, method = self._at_home[operation]
            reply = await method(dict(body))
            if meter is not None:
                self._queue.metered(meter, EMPTY if reply[0] == NO_CONTENT else OK)
            return reply
        carried = await self._continued(self.connection, owner)
        self.connection.turn.begin()
        if carried is None:
            raise StoreUnavailable(f"Node '{owner}', which has part of '{self._address.path}', cannot be reached. Try again.")
        rights = self.connection.rights_on(self._address)
        key = (owner, rights)
        far = self._far.get(key)
        if far is None or far.over:
            far = self._far[key] = FarManagement(carried, self._address, rights)
        try:
            return await far.ask(operation, dict(body))
        finally:
            self.connection.turn.begin()

    async def _everywhere(self, operation: str, body: Body) -> list[tuple[str, Reply]]:
        """All at once; whoever is away is passed over, as fragments in a store that is down are."""
        owners = self._fragments.owners(self._front)
        replies = await asyncio.gather(*(self._at(owner, operation, body) for owner in owners), return_exceptions=True)
        found: list[tuple[str, Reply]] = []
        trouble: BaseException | None = None
        for owner, reply in zip(owners, replies, strict=True):
            if not isinstance(reply, BaseException):
                found.append((owner, reply))
            elif isinstance(reply, StoreUnavailable):
                trouble = reply
            else:
                raise reply
        if not found and trouble is not None:
            raise trouble
        return found

    async def _by_owner(self, operation: str, body: Body, name: str, owners: list[str], values: list[Any]) -> list[tuple[list[int], Reply]]:
        """Each owner is asked about its own of these values; with each answer, which places in the list it is about."""
        places: dict[str, list[int]] = {}
        for place, owner in enumerate(owners):
            places.setdefault(owner, []).append(place)
        answers: list[tuple[list[int], Reply]] = []
        for owner, own in places.items():
            answers.append((own, await self._at(owner, operation, {**body, name: [values[place] for place in own]})))
        return answers

    def _answer_error(self, request: NodeRequest, error: BusError) -> None:
        if isinstance(error, RefusedThere):
            told = dict(error.properties)
            told["statusCode"] = Int(error.status)
            if error.condition:
                told["errorCondition"] = Symbol(error.condition)
            self.reply(request, told, {})
        else:
            super()._answer_error(request, error)

    # -- sessions ----------------------------------------------------------------------------

    def _owner_of_session(self, body: Body) -> str:
        """By the id that is named, or by the link that holds it."""
        wanted = body.get("session-id")
        if isinstance(wanted, str):
            return self._owner_of(fragment_of_key(wanted, len(self._front.fragments.queues)))
        name = body.get(ASSOCIATED_LINK)
        link = self.connection.engine.named.get((False, str(name)))
        handler = link.handler if link is not None else None
        return handler.carried.node if isinstance(handler, CarriedReceiving) else ""

    def _of_session(self, operation: str) -> Operation:
        async def answer(body: Body) -> Reply:
            return await self._at(self._owner_of_session(body), operation, body)

        return answer

    def _is_of_one_session(self, body: Body) -> bool:
        named = isinstance(body.get("session-id"), str) or body.get(ASSOCIATED_LINK) is not None
        return named and self._queue.terms.has_sessions

    async def _list_sessions(self, body: Body) -> Reply:
        skip, top = max(need(body, "skip", int), 0), max(need(body, "top", int), 0)
        asked = {**body, "skip": 0, "top": min(skip + top, _SESSIONS_MAX)}
        ids: list[str] = []
        for _, (_, found) in await self._everywhere("com.microsoft:get-message-sessions", asked):
            ids += _values(found.get("sessions-ids"))
        ids = sorted(ids)[skip : skip + top]
        if not ids:
            return NO_CONTENT, {}
        return 200, {"skip": Int(skip + len(ids)), "sessions-ids": Array(STRING, list[object](ids))}

    # -- browsing ----------------------------------------------------------------------------

    async def _peek_all(self, body: Body) -> Reply:
        """In the order of sequence numbers: the lowest of what each has next."""
        operation = "com.microsoft:peek-message"
        if self._is_of_one_session(body):
            return await self._at(self._owner_of_session(body), operation, body)
        start = max(need(body, "from-sequence-number", int), 0)
        most = min(need(body, "message-count", int), self.connection.context.limits.peek_messages_max)
        room = self._queue.terms.message_bytes_max
        waiting: dict[str, list[tuple[int, bytes]]] = {owner: [] for owner in self._fragments.owners(self._front)}
        next_of = dict.fromkeys(waiting, start)
        found: list[object] = []

        async def refill(owner: str) -> None:
            asked = {**body, "from-sequence-number": next_of[owner], "message-count": most - len(found)}
            try:
                _, said = await self._at(owner, operation, asked)
            except StoreUnavailable:
                said = {}
            entries = said.get("messages")
            payloads = [entry["message"] for entry in entries] if isinstance(entries, list) else []
            waiting[owner] = [(_number_of(payload), payload) for payload in payloads]
            if not payloads:
                del waiting[owner]
            else:
                next_of[owner] = waiting[owner][-1][0] + 1

        while len(found) < most and room > 0:
            await asyncio.gather(*(refill(owner) for owner, left in list(waiting.items()) if not left))
            if not waiting:
                break
            owner = min(waiting, key=lambda one: waiting[one][0][0])
            _, payload = waiting[owner].pop(0)
            found.append({"message": payload})
            room -= len(payload)
        return (200, {"messages": found}) if found else (NO_CONTENT, {})

    async def _receive_by_number(self, body: Body) -> Reply:
        operation = "com.microsoft:receive-by-sequence-number"
        if self._is_of_one_session(body):
            return await self._at(self._owner_of_session(body), operation, body)
        seqs = many(body, "sequence-numbers", int)
        owners = [self._owner_of(seq >> FRAGMENT_SHIFT) for seq in seqs]
        if len(set(owners)) <= 1:
            return await self._at(owners[0] if owners else "", operation, body)
        peek_lock = need(body, "receiver-settle-mode", int) == 1
        # Locked everywhere before anything is removed: one that is refused must not cost the others.
        locked: list[Any] = [None] * len(seqs)
        try:
            asked = {**body, "receiver-settle-mode": 1}
            for places, (_, said) in await self._by_owner(operation, asked, "sequence-numbers", owners, list(seqs)):
                for place, entry in zip(places, cast("list[Any]", said.get("messages")), strict=True):
                    locked[place] = entry
        except BusError:
            taken = [entry["lock-token"] for entry in locked if entry is not None]
            if taken:
                await self._settle_by_token({"disposition-status": "abandoned", "lock-tokens": taken})
            raise
        if not peek_lock:
            await self._settle_by_token({"disposition-status": "completed", "lock-tokens": [entry["lock-token"] for entry in locked]})
            return 200, {"messages": [{"message": entry["message"]} for entry in locked]}
        return 200, {"messages": locked}

    # -- locks and settlement ----------------------------------------------------------------

    def _owners_of_tokens(self, tokens: list[uuid.UUID]) -> list[str]:
        return [self._owner_of(int.from_bytes(token_to_uuid(token.bytes)[8:16], "big") >> FRAGMENT_SHIFT) for token in tokens]

    async def _renew_locks(self, body: Body) -> Reply:
        tokens = list(dict.fromkeys(many(body, "lock-tokens", uuid.UUID)))
        until: list[object] = [None] * len(tokens)
        owners = self._owners_of_tokens(tokens)
        for places, (_, said) in await self._by_owner("com.microsoft:renew-lock", body, "lock-tokens", owners, tokens):
            for place, instant in zip(places, _values(said.get("expirations")), strict=True):
                until[place] = instant
        return 200, {"expirations": Array(TIMESTAMP, until)}

    async def _settle_by_token(self, body: Body) -> Reply:
        tokens = many(body, "lock-tokens", uuid.UUID)
        await self._by_owner("com.microsoft:update-disposition", body, "lock-tokens", self._owners_of_tokens(tokens), list(tokens))
        return 200, {}

    # -- scheduling --------------------------------------------------------------------------

    async def _schedule_all(self, body: Body) -> Reply:
        entries = body.get("messages")
        if not isinstance(entries, list) or not entries:
            raise ArgumentRefused("The request needs 'messages' as a list of maps.")
        queue = self.connection.context.namespace.resolve_sender(self._address)
        assert isinstance(queue, PartitionedQueue)
        owners: list[str] = []
        home = "" if queue.takes_here() else next(iter(self._fragments.others(queue)), "")
        for entry in entries:
            raw = entry.get("message") if isinstance(entry, dict) else None
            if not isinstance(raw, bytes):
                raise ArgumentRefused("Each entry of 'messages' needs 'message' as binary.")
            message = self.connection.translator.message(raw)
            queue.check_send(message, message.size_bytes)
            fragment = queue.fragment_of(message)
            owners.append(home if fragment < 0 else self._owner_of(fragment))
        numbers: list[object] = [0] * len(entries)
        for places, (_, said) in await self._by_owner("com.microsoft:schedule-message", body, "messages", owners, entries):
            for place, number in zip(places, _values(said.get("sequence-numbers")), strict=True):
                numbers[place] = number
        return 200, {"sequence-numbers": Array(LONG, numbers)}

    async def _cancel_all(self, body: Body) -> Reply:
        seqs = many(body, "sequence-numbers", int)
        owners = [self._owner_of(seq >> FRAGMENT_SHIFT) for seq in seqs]
        await self._by_owner("com.microsoft:cancel-scheduled-message", body, "sequence-numbers", owners, list(seqs))
        return 200, {}

    # -- all of it ---------------------------------------------------------------------------

    async def _delete_all(self, body: Body) -> Reply:
        operation = "com.microsoft:batch-delete-messages"
        if isinstance(body.get("session-id"), str):
            return await self._at(self._owner_of_session(body), operation, body)
        most = need(body, "message-count", int)
        removed = 0
        for owner in self._fragments.owners(self._front):
            if removed < most or not most:
                _, said = await self._at(owner, operation, {**body, "message-count": most - removed})
                removed += int(cast(int, said.get("message-count") or 0))
        return (200, {"message-count": Int(removed)}) if removed else (NO_CONTENT, {"message-count": Int(0)})

    async def _count_all(self, body: Body) -> Reply:
        whole: dict[object, object] = {}
        for _, (_, said) in await self._everywhere("com.tandem:message-counts", body):
            for name, value in said.items():
                whole[name] = value if name == "at" else cast(int, whole.get(name, 0)) + cast(int, value)
        return 200, whole

    # -- leases: each is with one owner ------------------------------------------------------

    def _owners_for(self, name: str) -> list[str]:
        """Always in the same order for the same name."""
        owners = self._fragments.owners(self._front)
        first = zlib.crc32(name.encode()) % len(owners) if owners else 0
        return owners[first:] + owners[:first]

    async def _lease(self, body: Body) -> Reply:
        operation = "com.tandem:lease-batch"
        if "ranges" in body:
            ranges = body["ranges"]
            seqs = unpack_ranges(ranges) if isinstance(ranges, str) else _values(ranges)
            owners = list(dict.fromkeys(self._owner_of(seq >> FRAGMENT_SHIFT) for seq in seqs))
            if len(owners) > 1:
                raise ArgumentRefused("These messages are of several nodes: lease those of each for themselves.")
            return await self._at(owners[0] if owners else "", operation, body)
        lease_id = need(body, "lease-id", str)
        for owner, (_, said) in await self._everywhere("com.tandem:list-leases", {}):
            leases = said.get("leases")
            if isinstance(leases, list) and any(isinstance(one, dict) and one.get("lease-id") == lease_id for one in leases):
                return await self._at(owner, operation, body)
        wait_ms = body.get("wait-ms", 0)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (wait_ms / 1000 if isinstance(wait_ms, int) else 0)
        now = {**body, "wait-ms": 0} if isinstance(wait_ms, int) and wait_ms > 0 else body
        owners = self._owners_for(lease_id)
        while True:
            for owner in owners:
                status, said = await self._at(owner, operation, now)
                if status != NO_CONTENT:
                    return status, said
            left = deadline - loop.time()
            if left <= 0 or self.connection.gone:
                return NO_CONTENT, {}
            ready = await first_with_something(
                self.connection.context, self._address, self._owners_for(lease_id), self._fragments.ask, left
            )
            owners = [ready] if ready is not None else []

    def _of_lease(self, operation: str) -> Operation:
        """Of whoever knows it."""

        async def answer(body: Body) -> Reply:
            lost: BusError | None = None
            for owner in self._owners_for(need(body, "lease-id", str)):
                try:
                    return await self._at(owner, operation, body)
                except BusError as error:
                    if error.condition != LeaseLost.condition and not isinstance(error, StoreUnavailable):
                        raise
                    lost = error if lost is None or isinstance(error, StoreUnavailable) else lost
            raise lost or LeaseLost("Nobody has this lease.")

        return answer

    async def _abandon_lease(self, body: Body) -> Reply:
        replies = await self._everywhere("com.tandem:abandon-lease", body)
        return 200, {"message-count": Int(sum(int(cast(int, said.get("message-count") or 0)) for _, (_, said) in replies))}

    async def _claim_task(self, body: Body) -> Reply:
        return await self._at(self._owners_for(need(body, "task", str))[0], "com.tandem:claim-task", body)

    async def _list_leases(self, body: Body) -> Reply:
        found: list[object] = []
        for _, (_, said) in await self._everywhere("com.tandem:list-leases", body):
            leases = said.get("leases")
            found += leases if isinstance(leases, list) else []
        return (200, {"leases": found}) if found else (NO_CONTENT, {})


def _values(value: object) -> list[Any]:
    values = value.values if isinstance(value, Array) else value
    return list(values) if isinstance(values, (list, tuple)) else []


def _number_of(payload: bytes) -> int:
    annotations = decode_message(payload).message_annotations or {}
    for key, value in annotations.items():
        if str(key) == _SEQUENCE:
            return int(cast(int, value))
    raise StoreUnavailable("A node has shown a message without its sequence number.")
