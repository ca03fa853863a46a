"""Leases of a partitioned entity whose fragments several nodes have: each lease is with one of them."""

from __future__ import annotations

import asyncio
from typing import cast

from tandem.amqp.types import Int
from tandem.broker.entities.joined import FRAGMENT_SHIFT
from tandem.gateway.amqp.connection import PeerConnection
from tandem.gateway.amqp.leases import numbers
from tandem.gateway.amqp.management import NO_CONTENT, Operation
from tandem.gateway.amqp.requests import Reply, need
from tandem.gateway.amqp.spread_asking import Body, SpreadAsking
from tandem.gateway.fragment_owners import FragmentOwners
from tandem.gateway.something_ready import first_with_something
from tandem.model.address import Address
from tandem.model.errors import ArgumentRefused, BusError, LeaseLost, StoreUnavailable


class SpreadLeases:
    """For one client and one entity."""

    def __init__(self, connection: PeerConnection, address: Address, owners: FragmentOwners, asking: SpreadAsking) -> None:
        self._connection = connection
        self._address = address
        self._fragments = owners
        self._asking = asking

    def operations(self) -> dict[str, Operation]:
        known = ("read-lease", "renew-lease", "settle-lease-part", "claim-lease", "complete-lease")
        return {
            "com.tandem:lease-batch": self._lease,
            "com.tandem:abandon-lease": self._abandon_lease,
            "com.tandem:claim-task": self._claim_task,
            "com.tandem:list-leases": self._list_leases,
        } | {f"com.tandem:{name}": self._of_lease(f"com.tandem:{name}") for name in known}

    async def _lease(self, body: Body) -> Reply:
        operation = "com.tandem:lease-batch"
        if "ranges" in body:
            seqs = numbers(body, "ranges", self._connection.context.limits)
            owners = list(dict.fromkeys(self._asking.owner_of(seq >> FRAGMENT_SHIFT) for seq in seqs))
            if len(owners) > 1:
                raise ArgumentRefused("These messages are of several nodes: lease those of each for themselves.")
            return await self._asking.at(owners[0] if owners else "", operation, body)
        lease_id = need(body, "lease-id", str)
        for owner, (_, said) in await self._asking.everywhere("com.tandem:list-leases", {}):
            leases = said.get("leases")
            if isinstance(leases, list) and any(isinstance(one, dict) and one.get("lease-id") == lease_id for one in leases):
                return await self._asking.at(owner, operation, body)
        wait_ms = body.get("wait-ms", 0)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (wait_ms / 1000 if isinstance(wait_ms, int) else 0)
        now = {**body, "wait-ms": 0} if isinstance(wait_ms, int) and wait_ms > 0 else body
        owners = self._asking.owners_for(lease_id)
        while True:
            for owner in owners:
                status, said = await self._asking.at(owner, operation, now)
                if status != NO_CONTENT:
                    return status, said
            left = deadline - loop.time()
            if left <= 0 or self._connection.gone:
                return NO_CONTENT, {}
            ready = await first_with_something(
                self._connection.context, self._address, self._asking.owners_for(lease_id), self._fragments.ask, left
            )
            owners = [ready] if ready is not None else []

    def _of_lease(self, operation: str) -> Operation:
        """Of whoever knows it."""

        async def answer(body: Body) -> Reply:
            lost: BusError | None = None
            for owner in self._asking.owners_for(need(body, "lease-id", str)):
                try:
                    return await self._asking.at(owner, operation, body)
                except BusError as error:
                    if error.condition != LeaseLost.condition and not isinstance(error, StoreUnavailable):
                        raise
                    lost = error if lost is None or isinstance(error, StoreUnavailable) else lost
            raise lost or LeaseLost("Nobody has this lease.")

        return answer

    async def _abandon_lease(self, body: Body) -> Reply:
        replies = await self._asking.everywhere("com.tandem:abandon-lease", body)
        return 200, {"message-count": Int(sum(int(cast(int, said.get("message-count") or 0)) for _, (_, said) in replies))}

    async def _claim_task(self, body: Body) -> Reply:
        return await self._asking.at(self._asking.owners_for(need(body, "task", str))[0], "com.tandem:claim-task", body)

    async def _list_leases(self, body: Body) -> Reply:
        found: list[object] = []
        for _, (_, said) in await self._asking.everywhere("com.tandem:list-leases", body):
            leases = said.get("leases")
            found += leases if isinstance(leases, list) else []
        return (200, {"leases": found}) if found else (NO_CONTENT, {})
