"""Administration of a namespace's relays: checked, written to the catalog, then changed where they run."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from tandem.broker.entities.administration import check_authorization_rules, check_metadata, validate_name
from tandem.model.entity import HybridConnectionDescription
from tandem.model.errors import EntityNotFound, QuotaExceeded
from tandem.model.limits import Limits
from tandem.relay.entity import HybridConnection, Relays
from tandem.server.administration_port import Page


class RelayCatalog(Protocol):
    """Calls block: they run in a thread."""

    def put_relay(self, description: HybridConnectionDescription) -> None: ...

    def delete_relay(self, name: str) -> None: ...


class RelayAdministration:
    """Hybrid connections share one space of names with queues and topics."""

    def __init__(
        self,
        relays: Relays,
        catalog: RelayCatalog,
        changing: Callable[[str], AbstractAsyncContextManager[None]],
        must_be_new: Callable[[str], None],
        limits: Limits,
        now: Callable[[], int],
    ) -> None:
        self._relays = relays
        self._catalog = catalog
        self._changing = changing
        self._must_be_new = must_be_new
        self.limits = limits
        self._now = now

    def find(self, name: str) -> HybridConnectionDescription | None:
        found = self._relays.find(name)
        return found.description if found is not None else None

    def get(self, name: str) -> HybridConnection:
        found = self._relays.find(name)
        if found is None:
            raise EntityNotFound(f"There is no hybrid connection '{name[:100]}'.")
        return found

    def list(self, page: Page) -> list[HybridConnection]:
        return page.part_of(self._relays.entities)

    async def create(self, description: HybridConnectionDescription) -> HybridConnectionDescription:
        async with self._changing(description.name):
            validate_name(description.name, "relay", self.limits)
            self._check(description)
            self._must_be_new(description.name)
            if len(self._relays.entities) >= self.limits.relays_max:
                raise QuotaExceeded(f"The namespace has {self.limits.relays_max} hybrid connections, which is all it may.")
            now = self._now()
            kept = dataclasses.replace(description, created_at_ms=now, updated_at_ms=now)
            await asyncio.to_thread(self._catalog.put_relay, kept)
            self._relays.put(kept)
            return kept

    async def update(self, description: HybridConnectionDescription) -> HybridConnectionDescription:
        async with self._changing(description.name):
            known = self.get(description.name).description
            self._check(description)
            kept = dataclasses.replace(description, name=known.name, created_at_ms=known.created_at_ms, updated_at_ms=self._now())
            await asyncio.to_thread(self._catalog.put_relay, kept)
            self._relays.put(kept)
            return kept

    async def delete(self, name: str) -> None:
        """Listeners and senders are told (1001) and cut off."""
        async with self._changing(name):
            known = self.get(name)
            await asyncio.to_thread(self._catalog.delete_relay, known.name)
            self._relays.remove(known.name)

    def _check(self, description: HybridConnectionDescription) -> None:
        check_metadata(description.user_metadata)
        check_authorization_rules(description.authorization_rules)
