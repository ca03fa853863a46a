"""Requests about a partitioned entity whose fragments several nodes have: each is asked about its own, the answers are put together."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any, Final, cast

from tandem.amqp.message import decode_message
from tandem.amqp.types import Array, Int, Symbol
from tandem.broker.entities.joined import FRAGMENT_SHIFT, fragment_of_key
from tandem.broker.entities.partitioned import PartitionedQueue
from tandem.gateway.amqp.carrying import CarriedReceiving
from tandem.gateway.amqp.connection import PeerConnection
from tandem.gateway.amqp.leases import LeaseOperations
from tandem.gateway.amqp.management import LONG, NO_CONTENT, TIMESTAMP, ManagementNode, Operation, many
from tandem.gateway.amqp.requests import NodeRequest, Reply, need
from tandem.gateway.amqp.sessions import ASSOCIATED_LINK, STRING
from tandem.gateway.amqp.spread_asking import Body, Continued, RefusedThere, SpreadAsking, places_of
from tandem.gateway.amqp.spread_leases import SpreadLeases
from tandem.gateway.fragment_owners import FragmentOwners
from tandem.gateway.translate import token_to_uuid
from tandem.model.address import Address
from tandem.model.errors import ArgumentRefused, BusError, StoreUnavailable

_SESSIONS_MAX: Final = 0x7FFFFFFF
_SEQUENCE: Final = "x-opt-sequence-number"


class SpreadManagement(ManagementNode):
    """Requests to one entity on one link, of which this node is the front."""

    def __init__(self, connection: PeerConnection, address: Address, owners: FragmentOwners, continued: Continued) -> None:
        super().__init__(connection, address, LeaseOperations(connection, address))
        self._fragments = owners
        self._asking = SpreadAsking(connection, address, owners, continued, self._front, dict(self._operations))
        own: dict[str, Operation] = {
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
            **SpreadLeases(connection, address, owners, self._asking).operations(),
        }
        for name, method in own.items():
            self._operations[name] = (self._operations[name][0], None, method)

    def _front(self) -> PartitionedQueue:
        queue = self._queue
        assert isinstance(queue, PartitionedQueue)
        return queue

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
            return self._asking.owner_of(fragment_of_key(wanted, len(self._front().fragments.queues)))
        name = body.get(ASSOCIATED_LINK)
        link = self.connection.engine.named.get((False, str(name)))
        handler = link.handler if link is not None else None
        return handler.carried.node if isinstance(handler, CarriedReceiving) else ""

    def _of_session(self, operation: str) -> Operation:
        async def answer(body: Body) -> Reply:
            return await self._asking.at(self._owner_of_session(body), operation, body)

        return answer

    def _is_of_one_session(self, body: Body) -> bool:
        named = isinstance(body.get("session-id"), str) or body.get(ASSOCIATED_LINK) is not None
        return named and self._queue.terms.has_sessions

    async def _list_sessions(self, body: Body) -> Reply:
        skip, top = max(need(body, "skip", int), 0), max(need(body, "top", int), 0)
        asked = {**body, "skip": 0, "top": min(skip + top, _SESSIONS_MAX)}
        ids: list[str] = []
        for _, (_, found) in await self._asking.everywhere("com.microsoft:get-message-sessions", asked):
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
            return await self._asking.at(self._owner_of_session(body), operation, body)
        start = max(need(body, "from-sequence-number", int), 0)
        most = min(need(body, "message-count", int), self.connection.context.limits.peek_messages_max)
        room = self._queue.terms.message_bytes_max
        waiting: dict[str, list[tuple[int, bytes]]] = {owner: [] for owner in self._asking.owners()}
        next_of = dict.fromkeys(waiting, start)
        found: list[object] = []

        async def refill(owner: str) -> None:
            asked = {**body, "from-sequence-number": next_of[owner], "message-count": most - len(found)}
            try:
                _, said = await self._asking.at(owner, operation, asked)
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
            return await self._asking.at(self._owner_of_session(body), operation, body)
        seqs = many(body, "sequence-numbers", int)
        owners = [self._asking.owner_of(seq >> FRAGMENT_SHIFT) for seq in seqs]
        if len(set(owners)) <= 1:
            return await self._asking.at(owners[0] if owners else "", operation, body)
        peek_lock = need(body, "receiver-settle-mode", int) == 1
        # Locked everywhere before anything is removed: one that is refused must not cost the others.
        locked: list[Any] = [None] * len(seqs)
        try:
            asked = {**body, "receiver-settle-mode": 1}
            for owner, places in places_of(owners).items():
                _, said = await self._asking.at(owner, operation, {**asked, "sequence-numbers": [seqs[place] for place in places]})
                for place, entry in zip(places, cast("list[Any]", said.get("messages")), strict=True):
                    locked[place] = entry
        except BusError:
            taken = [entry["lock-token"] for entry in locked if entry is not None]
            if taken:
                await self._settle_by_token({"disposition-status": "defered", "lock-tokens": taken})
            raise
        if not peek_lock:
            await self._settle_by_token({"disposition-status": "completed", "lock-tokens": [entry["lock-token"] for entry in locked]})
            return 200, {"messages": [{"message": entry["message"]} for entry in locked]}
        return 200, {"messages": locked}

    # -- locks and settlement ----------------------------------------------------------------

    def _owners_of_tokens(self, tokens: list[uuid.UUID]) -> list[str]:
        return [self._asking.owner_of(int.from_bytes(token_to_uuid(token.bytes)[8:16], "big") >> FRAGMENT_SHIFT) for token in tokens]

    async def _renew_locks(self, body: Body) -> Reply:
        tokens = list(dict.fromkeys(many(body, "lock-tokens", uuid.UUID)))
        until: list[object] = [None] * len(tokens)
        owners = self._owners_of_tokens(tokens)
        for places, (_, said) in await self._asking.by_owner("com.microsoft:renew-lock", body, "lock-tokens", owners, tokens):
            for place, instant in zip(places, _values(said.get("expirations")), strict=True):
                until[place] = instant
        return 200, {"expirations": Array(TIMESTAMP, until)}

    async def _settle_by_token(self, body: Body) -> Reply:
        tokens = many(body, "lock-tokens", uuid.UUID)
        await self._asking.by_owner("com.microsoft:update-disposition", body, "lock-tokens", self._owners_of_tokens(tokens), list(tokens))
        return 200, {}

    # -- scheduling --------------------------------------------------------------------------

    async def _schedule_all(self, body: Body) -> Reply:
        entries = body.get("messages")
        if not isinstance(entries, list) or not entries:
            raise ArgumentRefused("The request needs 'messages' as a list of maps.")
        queue = self.connection.context.namespace.resolve_sender(self.address)
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
            owners.append(home if fragment < 0 else self._asking.owner_of(fragment))
        numbers: list[Any] = [0] * len(entries)
        taken: list[int] = []
        try:
            for owner, places in places_of(owners).items():
                share = {**body, "messages": [entries[place] for place in places]}
                _, said = await self._asking.at(owner, "com.microsoft:schedule-message", share)
                for place, number in zip(places, _values(said.get("sequence-numbers")), strict=True):
                    numbers[place] = number
                taken += [numbers[place] for place in places]
        except BusError:
            if taken:
                await self._take_back(taken)
            raise
        return 200, {"sequence-numbers": Array(LONG, numbers)}

    async def _take_back(self, seqs: list[int]) -> None:
        """What some nodes have scheduled of a request that another one refuses. Its sender is told of the refusal, whatever comes of this:
        what was due at once is a message by now."""
        owners = [self._asking.owner_of(seq >> FRAGMENT_SHIFT) for seq in seqs]
        operation = "com.microsoft:cancel-scheduled-message"
        for owner, places in places_of(owners).items():
            with contextlib.suppress(BusError):
                await self._asking.at(owner, operation, {"sequence-numbers": [seqs[place] for place in places]})

    async def _cancel_all(self, body: Body) -> Reply:
        seqs = many(body, "sequence-numbers", int)
        owners = [self._asking.owner_of(seq >> FRAGMENT_SHIFT) for seq in seqs]
        await self._asking.by_owner("com.microsoft:cancel-scheduled-message", body, "sequence-numbers", owners, list(seqs))
        return 200, {}

    # -- all of it ---------------------------------------------------------------------------

    async def _delete_all(self, body: Body) -> Reply:
        operation = "com.microsoft:batch-delete-messages"
        if isinstance(body.get("session-id"), str):
            return await self._asking.at(self._owner_of_session(body), operation, body)
        most = need(body, "message-count", int)
        removed = 0
        for owner in self._asking.owners():
            if removed < most or most <= 0:  # what is no number of messages is refused there
                _, said = await self._asking.at(owner, operation, {**body, "message-count": most - removed})
                removed += int(cast(int, said.get("message-count") or 0))
        return (200, {"message-count": Int(removed)}) if removed else (NO_CONTENT, {"message-count": Int(0)})

    async def _count_all(self, body: Body) -> Reply:
        whole: dict[object, object] = {}
        for _, (_, said) in await self._asking.everywhere("com.tandem:message-counts", body):
            for name, value in said.items():
                whole[name] = value if name == "at" else cast(int, whole.get(name, 0)) + cast(int, value)
        return 200, whole


def _values(value: object) -> list[Any]:
    values = value.values if isinstance(value, Array) else value
    return list(values) if isinstance(values, (list, tuple)) else []


def _number_of(payload: bytes) -> int:
    annotations = decode_message(payload).message_annotations or {}
    for key, value in annotations.items():
        if str(key) == _SEQUENCE:
            return int(cast(int, value))
    raise StoreUnavailable("A node has shown a message without its sequence number.")
