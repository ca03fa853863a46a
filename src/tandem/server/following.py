"""Metadata that one node changes and the others follow: who is told of a change, and what a follower makes of it."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Final

from tandem.model.catalog import Changes
from tandem.model.entity import RuleDescription
from tandem.model.entity_json import dump_rule, load_rule
from tandem.model.errors import BusError, NotAllowed
from tandem.server.administration import Catalog, NamespaceAdmin
from tandem.server.catalog_follower import CatalogFollower
from tandem.server.far_stores import Ask, PeerStores, StoreEpochs
from tandem.server.runtime import RuntimeOfAll

if TYPE_CHECKING:
    from tandem.cluster.node import NamespaceOwnership
    from tandem.cluster.ownership import Ownership
    from tandem.cluster.peers import ClusterNode
    from tandem.model.catalog import Snapshot, StoredEntity
    from tandem.server.context import NamespaceContext
    from tandem.server.settings import NamespaceSettings

_TELL_SECONDS: Final = 2.0
"""A follower that does not hear of a change within this reads it when it does, or when it is started again."""


class SharedAdmin(NamespaceAdmin):
    """Of a node that has some of the stores."""

    def __init__(
        self,
        context: NamespaceContext,
        catalog: Catalog,
        fragments: int,
        cluster: ClusterNode,
        ownership: Ownership,
        ask: Ask,
        epochs: StoreEpochs | None = None,
    ) -> None:
        super().__init__(context, catalog, fragments)
        self._cluster = cluster
        self._ask = ask
        self.runtime = runtime = RuntimeOfAll(context.namespace, ownership, ask)
        context.peer_operations["runtime"] = runtime.answer
        context.namespace.reach(PeerStores(context, ownership, ask, epochs))

    async def _followed(self, body: dict[object, object]) -> dict[object, object]:
        """Another node has changed something, and answers when it is known here."""
        await self.follow()
        return {}


class TellingAdmin(SharedAdmin):
    """Changes metadata, and answers when the others have followed."""

    def __init__(
        self,
        context: NamespaceContext,
        catalog: Catalog,
        fragments: int,
        cluster: ClusterNode,
        ownership: Ownership,
        ask: Ask,
        epochs: StoreEpochs | None = None,
    ) -> None:
        super().__init__(context, catalog, fragments, cluster, ownership, ask, epochs)
        context.ask_others = self._ask_others
        self._loaded = False

    async def load(self, wanted: NamespaceSettings) -> None:
        """The others begin to read when this has come to its end."""
        await super().load(wanted)
        self._loaded = True

    def others(self) -> tuple[str, ...]:
        return self._cluster.others

    async def announce(self) -> None:
        if self._loaded:
            for node, said in (await self._others_say("follow", {}, _TELL_SECONDS)).items():
                if isinstance(said, BaseException):
                    self._context.log(f"node '{node}' was not told of a change: {said}; it reads it when it is back")

    async def _ask_others(self, operation: str, body: dict[object, object]) -> list[dict[object, object]]:
        return [{} if isinstance(said, BaseException) else said for said in (await self._others_say(operation, body)).values()]

    async def _others_say(
        self, operation: str, body: dict[object, object], seconds: float | None = None
    ) -> dict[str, dict[object, object] | BusError | TimeoutError]:
        """Each of them, all asked at once: its answer, or why there is none."""

        async def ask(node: str) -> dict[object, object] | BusError | TimeoutError:
            try:
                async with asyncio.timeout(seconds):
                    return await self._ask(node, operation, body)
            except (BusError, TimeoutError) as error:
                return error

        nodes = self.others()
        return dict(zip(nodes, await asyncio.gather(*(ask(node) for node in nodes)), strict=True))


class NodeAdmin(TellingAdmin):
    """Of a node of a cluster: any of them changes metadata, in the engine, which puts the changes into one order."""

    def __init__(
        self, context: NamespaceContext, catalog: Catalog, fragments: int, cluster: ClusterNode, ownership: NamespaceOwnership, ask: Ask
    ) -> None:
        super().__init__(context, catalog, fragments, cluster, ownership, ask, ownership)
        self._nodes = ownership
        context.peer_operations["follow"] = self._followed

    def others(self) -> tuple[str, ...]:
        return self._nodes.others()


class LeadingAdmin(TellingAdmin):
    """The only one that changes metadata."""

    def __init__(
        self, context: NamespaceContext, catalog: Catalog, fragments: int, cluster: ClusterNode, ownership: Ownership, ask: Ask
    ) -> None:
        super().__init__(context, catalog, fragments, cluster, ownership, ask)
        context.peer_operations["administer"] = self._administer

    async def _administer(self, body: dict[object, object]) -> dict[object, object]:
        """What a client of a follower asked for over its management link, or what was idle there for too long."""
        operation, topic, subscription = str(body.get("operation")), str(body.get("topic")), str(body.get("subscription"))
        if operation == "create-rule":
            await self.create_rule(topic, subscription, load_rule(str(body.get("rule"))))
        elif operation == "delete-rule":
            await self.delete_rule(topic, subscription, str(body.get("name")))
        elif operation == "delete-entity":
            await self.delete_entity(str(body.get("name")))
        elif operation == "delete-subscription":
            await self.delete_subscription(topic, subscription)
        else:
            raise NotAllowed(f"Administration does not know {operation!r}.")
        return {}


class ReadCatalog:
    """A catalog that another node writes: what has changed is what is different from the last time it was read."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._known: dict[int, StoredEntity] = {}
        self._read: Snapshot | None = None
        self.revision = 0

    def changes(self) -> Changes | None:
        snapshot = self._read = self._catalog.load()
        ids = {stored.id for stored in snapshot.entities}
        return Changes(
            revision=self.revision + 1,
            entities=tuple(stored for stored in snapshot.entities if self._known.get(stored.id) != stored),
            gone=tuple(id_ for id_ in self._known if id_ not in ids),
            authorization_rules=snapshot.authorization_rules,
            relays=(),  # they are met at the node that answers HTTP
            relays_gone=(),
            highest_id=snapshot.highest_id,
        )

    def applied(self, changes: Changes) -> None:
        assert self._read is not None
        self._known = {stored.id: stored for stored in self._read.entities}
        self.revision = changes.revision


class FollowingAdmin(SharedAdmin):
    """Reads metadata that another node changes, and asks that node to change it."""

    def __init__(
        self, context: NamespaceContext, catalog: Catalog, fragments: int, cluster: ClusterNode, ownership: Ownership, ask: Ask
    ) -> None:
        super().__init__(context, catalog, fragments, cluster, ownership, ask)
        self.follower = CatalogFollower(context, ReadCatalog(catalog))
        context.peer_operations["follow"] = self._followed

    async def load(self, wanted: NamespaceSettings) -> None:
        """What is there: what the configuration asks for beyond it was made by the node that may."""
        await super().load(dataclasses.replace(wanted, queues=(), topics=(), subscriptions=(), relays=()))
        await self.follow()

    async def _administer(self, operation: str, **arguments: str) -> None:
        body: dict[object, object] = {"operation": operation}
        body.update(arguments)
        await self._ask(self._cluster.administrator, "administer", body)

    async def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        await self._administer("create-rule", topic=topic, subscription=subscription, rule=dump_rule(rule))
        return await self.get_rule(topic, subscription, rule.name)

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        await self._administer("delete-rule", topic=topic, subscription=subscription, name=name)

    async def delete_entity(self, name: str) -> None:
        await self._administer("delete-entity", name=name)

    async def delete_subscription(self, topic: str, name: str) -> None:
        await self._administer("delete-subscription", topic=topic, subscription=name)
