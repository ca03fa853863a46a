"""Who of several nodes is asked about a partitioned entity, and how: each has some of its fragments."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

from tandem.amqp.errors import AmqpError
from tandem.amqp.link import Link, SenderLink
from tandem.amqp.terminus import Terminus
from tandem.amqp.types import Symbol
from tandem.broker.entities.partitioned import PartitionedQueue
from tandem.broker.meters import EMPTY, OK
from tandem.cluster.peers import RIGHTS_PROPERTY
from tandem.gateway.amqp.asking import Asker
from tandem.gateway.amqp.carrying import CarriedConnection
from tandem.gateway.amqp.connection import PeerConnection
from tandem.gateway.amqp.management import NO_CONTENT, Offered
from tandem.gateway.amqp.requests import Reply
from tandem.gateway.amqp.sessions import ASSOCIATED_LINK
from tandem.gateway.fragment_owners import FragmentOwners
from tandem.model.address import Address
from tandem.model.entity import Right
from tandem.model.errors import BusError, StoreUnavailable

Continued = Callable[[PeerConnection, str], Awaitable[CarriedConnection | None]]
"""A client's connection to another node; None: it cannot be had now."""
_CREDIT: Final = 100
_SECONDS: Final = 60.0

Body = dict[object, object]


def places_of(owners: list[str]) -> dict[str, list[int]]:
    """Of each owner, where in the list it stands."""
    places: dict[str, list[int]] = {}
    for place, owner in enumerate(owners):
        places.setdefault(owner, []).append(place)
    return places


class RefusedThere(BusError):
    """What another node answered, passed on as it is."""

    def __init__(self, properties: dict[object, object]) -> None:
        super().__init__(str(properties.get("statusDescription")))
        self.properties = properties
        self.status = int(cast(int, properties.get("statusCode") or 500))  # type: ignore[misc]
        self.condition = str(properties.get("errorCondition"))  # type: ignore[misc]


class FarManagement(Asker):
    """The management node of the entity on one other node, asked for one client."""

    def __init__(self, carried: CarriedConnection, address: Address, rights: frozenset[Right]) -> None:
        super().__init__("answers")
        self._carried = carried
        self._queued: list[bytes] = []
        self.over = False
        properties: dict[object, object] = {Symbol(RIGHTS_PROPERTY): [right.value for right in sorted(rights, key=str)]}
        session = carried.engine.begin()
        node = Terminus(address.path)
        answers = session.attach_receiver("answers", node, Terminus("answers"), self, 1, 0, dict(properties))
        answers.auto_credit = _CREDIT
        self._requests = session.attach_sender("requests", Terminus("answers"), node, self, 1, 0, dict(properties))
        carried.touch()

    async def ask(self, operation: str, body: Body) -> Reply:
        associated = body.pop(ASSOCIATED_LINK, None)
        said: dict[object, object] = {"operation": operation}
        if associated is not None:
            said[ASSOCIATED_LINK] = associated
        try:
            async with asyncio.timeout(_SECONDS):
                properties, found = await self.answer_to(said, body, self._send)
        except TimeoutError:
            raise StoreUnavailable(f"Node '{self._carried.node}' did not answer within {_SECONDS:g} s. Try again.") from None
        status = int(cast(int, properties.get("statusCode") or 500))
        if status not in (200, NO_CONTENT):
            raise RefusedThere(properties)
        return status, found if isinstance(found, dict) else {}

    def _send(self, payload: bytes) -> None:
        if self.over:
            self.lost(None)
        elif self._requests.attached:
            self._requests.send(payload, self.tag(), True, None)
            self._carried.touch()
        else:
            self._queued.append(payload)

    def on_attached(self, link: Link) -> None:
        if isinstance(link, SenderLink):
            queued, self._queued = self._queued, []
            for payload in queued:
                self._send(payload)

    def lost(self, error: AmqpError | None) -> None:
        self.over = True
        why = error.description if error is not None else "it hung up"
        self.give_up(StoreUnavailable(f"Node '{self._carried.node}', which has part of this entity, is away ({why}). Try again."))


class SpreadAsking:
    """For one client and one entity, of which this node is the front. `at_home` is how this node answers for its own fragments."""

    def __init__(
        self,
        connection: PeerConnection,
        address: Address,
        owners: FragmentOwners,
        continued: Continued,
        front: Callable[[], PartitionedQueue],
        at_home: dict[str, Offered],
    ) -> None:
        self._connection = connection
        self._address = address
        self._fragments = owners
        self._continued = continued
        self.front = front
        self._at_home = at_home
        self._far: dict[tuple[str, frozenset[Right]], FarManagement] = {}

    def owners(self) -> list[str]:
        """The empty name is this node."""
        return list(self._fragments.owners(self.front()))

    def owner_of(self, fragment: int) -> str:
        front = self.front()
        return self._fragments.owner_of(front, fragment if fragment < len(front.fragments.queues) else 0)

    async def at(self, owner: str, operation: str, body: Body) -> Reply:
        """Asked of one node; the empty name is this one."""
        if not owner:
            self._connection.turn.begin()
            _, meter, method = self._at_home[operation]
            reply = await method(dict(body))
            if meter is not None:
                self.front().metered(meter, EMPTY if reply[0] == NO_CONTENT else OK)
            return reply
        carried = await self._continued(self._connection, owner)
        self._connection.turn.begin()
        if carried is None:
            raise StoreUnavailable(f"Node '{owner}', which has part of '{self._address.path}', cannot be reached. Try again.")
        rights = self._connection.rights_on(self._address)
        key = (owner, rights)
        far = self._far.get(key)
        if far is None or far.over:
            far = self._far[key] = FarManagement(carried, self._address, rights)
        try:
            return await far.ask(operation, dict(body))
        finally:
            self._connection.turn.begin()

    async def everywhere(self, operation: str, body: Body) -> list[tuple[str, Reply]]:
        """All at once; whoever is away is passed over, as fragments in a store that is down are."""
        owners = self.owners()
        replies = await asyncio.gather(*(self.at(owner, operation, body) for owner in owners), return_exceptions=True)
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

    async def by_owner(self, operation: str, body: Body, name: str, owners: list[str], values: list[Any]) -> list[tuple[list[int], Reply]]:
        """Each owner is asked about its own of these values; with each answer, which places in the list it is about."""
        answers: list[tuple[list[int], Reply]] = []
        for owner, own in places_of(owners).items():
            answers.append((own, await self.at(owner, operation, {**body, name: [values[place] for place in own]})))
        return answers

    def owners_for(self, name: str) -> list[str]:
        """Always in the same order for the same name."""
        owners = self.owners()
        first = zlib.crc32(name.encode()) % len(owners) if owners else 0
        return owners[first:] + owners[:first]
