"""The REST data plane of a partitioned entity whose fragments several nodes have: each request goes to who has what it is about."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Sequence
from typing import Any, Final, cast

from tandem.broker.entities.joined import FRAGMENT_SHIFT
from tandem.broker.entities.partitioned import PartitionedQueue
from tandem.gateway import verbs
from tandem.gateway.fragment_owners import FragmentOwners
from tandem.gateway.http.data import DataPlane, encode_http
from tandem.gateway.http.data_port import HttpMessage, ReceivedMessage
from tandem.gateway.something_ready import first_with_something
from tandem.gateway.translate import token_to_uuid
from tandem.gateway.verbs import SettlementArguments
from tandem.gateway.waiting import durable
from tandem.model import address as addresses
from tandem.model.address import Address
from tandem.model.errors import OperationTimeout, StoreUnavailable
from tandem.server.administration import NamespaceAdmin
from tandem.server.context import NamespaceContext

_TRY_MS: Final = 50
Body = dict[object, object]


class SpreadData(DataPlane):
    """What other nodes have is asked of them as this node is asked by HTTP."""

    def __init__(self, context: NamespaceContext, admin: NamespaceAdmin, owners: FragmentOwners) -> None:
        super().__init__(context, admin)
        self._owners = owners
        self._turns = 0
        context.peer_operations.update(
            {
                "data-send": self._answer_send,
                "data-receive": self._answer_receive,
                "data-settle": self._answer_settle,
                "data-renew": self._answer_renew,
            }
        )

    def _front(self, address: Address) -> PartitionedQueue | None:
        front = self._context.namespace.front(address)
        return front if front is not None and self._owners.others(front) else None

    def _owner_of_token(self, front: PartitionedQueue, lock_token: uuid.UUID) -> str:
        fragment = int.from_bytes(token_to_uuid(lock_token.bytes)[8:16], "big") >> FRAGMENT_SHIFT
        return self._owners.owner_of(front, fragment if fragment < len(front.fragments.queues) else 0)

    # -- send --------------------------------------------------------------------------------

    async def send(self, address: Address, messages: Sequence[HttpMessage]) -> None:
        front = self._front(address)
        if front is None:
            await super().send(address, messages)
            return
        now = self._begin()
        shares: dict[str, list[HttpMessage]] = {}
        for message in messages:
            read = self._context.translator.message(encode_http(message, now))
            front.check_send(read, read.size_bytes)
            fragment = front.fragment_of(read)
            if fragment >= 0:
                owner = self._owners.owner_of(front, fragment)
            else:
                owner = "" if front.takes_here() else next(iter(self._owners.others(front)))
            shares.setdefault(owner, []).append(message)
        for owner, some in shares.items():
            if owner:
                body: Body = {"entity": address.path, "messages": [encode_http(message, now) for message in some]}
                await self._owners.ask(owner, "data-send", body)
            else:
                await super().send(address, some)

    async def _answer_send(self, body: Body) -> Body:
        now = self._begin()
        queue = self._context.namespace.resolve_sender(addresses.parse(str(body["entity"])))
        payloads = cast("list[bytes]", body["messages"])
        verbs.send_all(queue, [self._context.translator.message(payload) for payload in payloads], now)
        await durable(queue)
        return {}

    # -- receive -----------------------------------------------------------------------------

    async def receive(self, address: Address, *, lock: bool, wait_ms: int) -> ReceivedMessage | None:
        front = self._front(address)
        if front is None or front.terms.has_sessions:
            return await super().receive(address, lock=lock, wait_ms=wait_ms)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        owners = self._in_turn(self._owners.owners(front))
        while True:
            for owner in owners:
                found = await (self._receive_there(owner, address, lock) if owner else super().receive(address, lock=lock, wait_ms=0))
                if found is not None:
                    return found
            left = deadline - loop.time()
            if left <= 0:
                return None
            ready = await first_with_something(self._context, address, self._owners.owners(front), self._owners.ask, left)
            owners = [ready] if ready is not None else []

    def _in_turn(self, owners: list[str]) -> list[str]:
        """Another one first each time: nobody's messages wait until others have none."""
        self._turns += 1
        first = self._turns % len(owners) if owners else 0
        return owners[first:] + owners[:first]

    async def _receive_there(self, owner: str, address: Address, lock: bool) -> ReceivedMessage | None:
        """Under a lock in any case: what gets lost on the way comes again."""
        try:
            said = await self._owners.ask(owner, "data-receive", {"entity": address.path})
        except (StoreUnavailable, OperationTimeout):
            return None  # the others go on
        if not said:
            return None
        found = _read(said)
        if lock or found.lock_token is None:
            return found
        await self.settle(address, str(found.sequence_number), found.lock_token, verbs.COMPLETED)
        return dataclasses.replace(found, lock_token=None, locked_until_ms=None)

    async def _answer_receive(self, body: Body) -> Body:
        address = addresses.parse(str(body["entity"]))
        wait_ms = _TRY_MS if self._context.namespace.resolve(address).receivers.ready_count() else 0
        found = await super().receive(address, lock=True, wait_ms=wait_ms)
        return {} if found is None else _written(found)

    # -- locks -------------------------------------------------------------------------------

    async def settle(self, address: Address, message: str, lock_token: uuid.UUID, how: SettlementArguments) -> None:
        front = self._front(address)
        owner = self._owner_of_token(front, lock_token) if front is not None else ""
        if not owner:
            await super().settle(address, message, lock_token, how)
            return
        said: Body = {"kind": how.kind, "properties": dict(how.properties), "reason": how.reason, "description": how.description}
        body: Body = {"entity": address.path, "message": message, "token": lock_token, "deliver-at": how.deliver_at, **said}
        await self._owners.ask(owner, "data-settle", body)

    async def _answer_settle(self, body: Body) -> Body:
        properties = {str(name): value for name, value in cast("Body", body["properties"]).items()}
        how = SettlementArguments(
            cast(int, body["kind"]), properties, str(body["reason"]), str(body["description"]), cast(int, body["deliver-at"])
        )
        await super().settle(addresses.parse(str(body["entity"])), str(body["message"]), cast(uuid.UUID, body["token"]), how)
        return {}

    async def renew(self, address: Address, message: str, lock_token: uuid.UUID) -> int:
        front = self._front(address)
        owner = self._owner_of_token(front, lock_token) if front is not None else ""
        if not owner:
            return await super().renew(address, message, lock_token)
        said = await self._owners.ask(owner, "data-renew", {"entity": address.path, "message": message, "token": lock_token})
        return cast(int, said["until"])

    async def _answer_renew(self, body: Body) -> Body:
        entity = addresses.parse(str(body["entity"]))
        return {"until": await super().renew(entity, str(body["message"]), cast(uuid.UUID, body["token"]))}


def _written(found: ReceivedMessage) -> Body:
    told: dict[str, Any] = dataclasses.asdict(found)
    told["message"]["properties"] = [list(pair) for pair in found.message.properties]
    return dict(told.items())


def _read(said: Body) -> ReceivedMessage:
    told: dict[str, Any] = {str(name): value for name, value in said.items()}
    message = {str(name): value for name, value in told.pop("message").items()}
    message["properties"] = tuple((str(name), value) for name, value in message["properties"])
    return ReceivedMessage(message=HttpMessage(**message), **told)
