"""Brings a node's registry up to what other nodes have changed in the catalog of a namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from tandem.broker.entities.queue_entity import QueueEntity
from tandem.broker.entities.topic import Subscription
from tandem.model.catalog import Changes, StoredEntity
from tandem.model.entity import QueueDescription, SubscriptionDescription, TopicDescription
from tandem.server.context import NamespaceContext


class SharedCatalog(Protocol):
    """A catalog that several nodes write. Calls block, but for `applied`."""

    revision: int
    """The last change that this node has seen."""

    def changes(self) -> Changes | None: ...

    def applied(self, changes: Changes) -> None: ...


class CatalogFollower:
    """One namespace. Changes are applied on the loop, one set after the other."""

    def __init__(self, context: NamespaceContext, catalog: SharedCatalog) -> None:
        self._context = context
        self._namespace = context.namespace
        self._catalog = catalog
        self._one_at_a_time = asyncio.Lock()

    @property
    def revision(self) -> int:
        return self._catalog.revision

    async def follow(self) -> bool:
        """Everything that was changed elsewhere until now is known here. True if something was."""
        async with self._one_at_a_time:
            changes = await asyncio.to_thread(self._catalog.changes)
            if changes is None:
                return False
            self._context.turn.begin()
            self._apply(changes)
            self._catalog.applied(changes)
            self._context.turn.schedule()
            return True

    def _apply(self, changes: Changes) -> None:
        namespace = self._namespace
        namespace.roll.highest_id = max(namespace.roll.highest_id, changes.highest_id)
        by_id: dict[int, Callable[[], None]] = {}
        for name, entity in namespace.entities.items():
            by_id[entity.id] = lambda name=name: namespace.remove(name)  # type: ignore[misc]
            if not isinstance(entity, QueueEntity):
                for key, subscription in entity.subscriptions.items():
                    by_id[subscription.entity.id] = lambda topic=entity, key=key: namespace.remove_subscription(topic, key)  # type: ignore[misc]
        for id_ in sorted(changes.gone, reverse=True):  # subscriptions before their topics
            if id_ in by_id:
                by_id[id_]()
        for stored in changes.entities:
            self._put(stored)
        for rule in changes.authorization_rules:
            namespace.authorization_rules[rule.key_name] = rule
        for relay in changes.relays:
            self._context.relays.put(relay)
        for name in changes.relays_gone:
            if self._context.relays.find(name) is not None:
                self._context.relays.remove(name)

    def _put(self, stored: StoredEntity) -> None:
        namespace, description = self._namespace, stored.description
        if isinstance(description, QueueDescription):
            queue = namespace.find(description.name)
            if isinstance(queue, QueueEntity):
                queue.configure(description)
                namespace.enter(queue.id, queue.store, description)
            else:
                namespace.add_queue(stored.id, stored.store, description)
        elif isinstance(description, TopicDescription):
            topic = namespace.find(description.name)
            if topic is not None and not isinstance(topic, QueueEntity):
                topic.reconfigure(description)
                namespace.enter(topic.id, topic.store, description)
            else:
                namespace.add_topic(stored.id, stored.store, description)
        else:
            self._put_subscription(stored.id, description)

    def _put_subscription(self, id_: int, description: SubscriptionDescription) -> None:
        topic = self._namespace.topic(description.topic)
        known: Subscription | None = topic.subscriptions.get(description.name.casefold())
        if known is None:
            self._namespace.add_subscription(id_, description)
        else:
            known.configure(description, self._context.limits)
            self._namespace.enter(known.entity.id, known.entity.store, description)
