"""Administration of one namespace: checks what is asked for, writes the catalog, then changes the living registry."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol, TypeVar

from tandem.broker.entities import administration
from tandem.broker.entities.queue_entity import QueueEntity
from tandem.broker.entities.topic import Subscription
from tandem.broker.rules.rules import compile_rule
from tandem.model.catalog import Snapshot, StoredEntity
from tandem.model.entity import (
    AuthorizationRule,
    HybridConnectionDescription,
    QueueDescription,
    Right,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from tandem.model.entity_json import EntityDescription
from tandem.model.errors import CatalogBehind, EntityAlreadyExists, EntityNotFound, NotAllowed
from tandem.model.limits import Limits
from tandem.server.administration_port import NamespaceInfo, Page, RuntimePort
from tandem.server.catalog_follower import CatalogFollower
from tandem.server.context import NamespaceContext
from tandem.server.name_locks import NameLocks
from tandem.server.relays import RelayAdministration
from tandem.server.runtime import RuntimeHere
from tandem.server.settings import NamespaceSettings

_T = TypeVar("_T")
_BEHIND_MAX: Final = 20


class Catalog(Protocol):
    """What a namespace consists of, on disk. Calls block: they run in a thread."""

    def load(self) -> Snapshot: ...

    def put_entity(self, description: EntityDescription, *, store: int) -> StoredEntity: ...

    def delete_entity(self, id_: int) -> None: ...

    def put_rule(self, subscription_id: int, rule: RuleDescription) -> None: ...

    def delete_rule(self, subscription_id: int, name: str) -> None: ...

    def put_authorization_rule(self, rule: AuthorizationRule) -> None: ...

    def put_relay(self, description: HybridConnectionDescription) -> None: ...

    def delete_relay(self, name: str) -> None: ...

    def close(self) -> None: ...


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _seeing_all(method: _Method) -> _Method:
    """A change that another node came before is looked at anew, in the light of what that one has done."""

    @functools.wraps(method)
    async def again(self: NamespaceAdmin, *arguments: object) -> object:
        for _ in range(_BEHIND_MAX):
            try:
                return await method(self, *arguments)
            except CatalogBehind:
                await self.follow()
        raise CatalogBehind("Other nodes change this namespace all the time. Try again.")

    return again  # type: ignore[return-value]


class NamespaceAdmin:
    """Implements `AdminPort`."""

    def __init__(self, context: NamespaceContext, catalog: Catalog, fragments: int = 16) -> None:
        self._fragments = fragments
        """Of a partitioned entity created from now on."""
        self._context = context
        self._namespace = context.namespace
        self._limits = context.limits
        self._catalog = catalog
        self._locks = NameLocks()
        """Changes to one entity come one after another, subscriptions and rules with their topic; those to others share a sync."""
        self.relays = RelayAdministration(
            context.relays, catalog, self._locks.hold, functools.partial(_must_be_new, context), context.limits, context.turn.begin
        )
        self.runtime: RuntimePort = RuntimeHere(context.namespace)
        self._opened_at = context.turn.now
        self.follower: CatalogFollower | None = None
        """None: nobody else changes the catalog."""
        self._coming: dict[str, QueueDescription | TopicDescription] = {}
        """What the configuration asks for, while it is being created: entities may name each other in any order."""

    async def load(self, wanted: NamespaceSettings) -> None:
        """What is stored, then what the configuration asks for and is not there yet."""
        snapshot = await asyncio.to_thread(self._catalog.load)
        self._namespace.roll.highest_id = snapshot.highest_id
        for stored in snapshot.entities:
            description = stored.description
            if isinstance(description, QueueDescription):
                self._namespace.add_queue(stored.id, stored.store, description)
            elif isinstance(description, TopicDescription):
                self._namespace.add_topic(stored.id, stored.store, description)
            else:
                self._namespace.add_subscription(stored.id, description)
        rules = {rule.key_name: rule for rule in snapshot.authorization_rules}
        rules.update({rule.key_name: rule for rule in wanted.authorization_rules})
        self._namespace.authorization_rules.update(rules)
        self._coming.update({queue.name.casefold(): queue for queue in wanted.queues})
        self._coming.update({topic.name.casefold(): topic for topic in wanted.topics})
        for queue in wanted.queues:
            found = self._namespace.find(queue.name)
            if found is None:
                await _created(self.follower is not None, self.create_queue(queue))
            elif not isinstance(found, QueueEntity):
                raise NotAllowed(other_kind(queue.name, "queue", "topic"))
        for topic in wanted.topics:
            found = self._namespace.find(topic.name)
            if found is None:
                await _created(self.follower is not None, self.create_topic(topic))
            elif isinstance(found, QueueEntity):
                raise NotAllowed(other_kind(topic.name, "topic", "queue"))
        for subscription in wanted.subscriptions:
            if subscription.name.casefold() not in self._namespace.topic(subscription.topic).subscriptions:
                await _created(self.follower is not None, self.create_subscription(subscription))
        self._coming.clear()
        for relay in snapshot.relays:
            self._context.relays.put(relay)
        for relay in wanted.relays:
            if self._context.relays.find(relay.name) is None:
                await self.relays.create(relay)

    def use_limits(self, limits: Limits) -> None:
        self._limits = self.relays.limits = limits

    async def follow(self) -> None:
        """Everything that other nodes have changed until now is known here."""
        if self.follower is not None:
            await self.follower.follow()

    def close(self) -> None:
        self._catalog.close()

    # -- claims ------------------------------------------------------------------------------

    async def authorize(self, token: str | None, path: str, right: Right, rest: str = "") -> None:
        await self.authorized_until(token, path, right, rest)

    async def authorized_until(self, token: str | None, path: str, right: Right, rest: str = "") -> int:
        """As `authorize`; and when the token expires, in ms UTC."""
        return await self._context.authority.authorized_until(token, path, right, rest)

    async def namespace_info(self) -> NamespaceInfo:
        return NamespaceInfo(name=self._namespace.name, created_at_ms=self._opened_at, modified_at_ms=self._opened_at)

    # -- queues and topics -------------------------------------------------------------------

    @asynccontextmanager
    async def _changing(self, name: str) -> AsyncIterator[None]:
        """Alone with this entity; whoever follows our metadata is told before the change is answered."""
        async with self._locks.hold(name):
            yield
            await self.announce()

    def _choose_store(self, description: QueueDescription | TopicDescription) -> int:
        return self._namespace.choose_store()

    def _fragments_of(self, description: QueueDescription | TopicDescription) -> int:
        """How many an entity gets that is created now, partitioned or not."""
        return self._fragments if description.enable_partitioning else 0

    async def announce(self) -> None:
        """Metadata has changed. There is nobody to be told."""

    def _lookup(self, name: str) -> QueueDescription | TopicDescription | None:
        entity = self._namespace.find(name)
        if entity is None:
            return self._coming.get(name.casefold())
        return entity.description if isinstance(entity, QueueEntity) else entity.topic_description

    async def get_entity(self, name: str) -> QueueDescription | TopicDescription:
        found = self._lookup(name)
        if found is None:
            await self.follow()
            found = self._lookup(name)
        if found is None:
            raise self._namespace.not_found(name)
        return found

    @_seeing_all
    async def delete_entity(self, name: str) -> None:
        async with self._changing(name):
            entity = self._namespace.find(name)
            if entity is None:
                raise self._namespace.not_found(name)
            id_ = entity.id
            await asyncio.to_thread(lambda: self._catalog.delete_entity(id_))
            self._context.turn.begin()
            self._namespace.remove(name)
            self._context.turn.schedule()

    @_seeing_all
    async def create_queue(self, description: QueueDescription) -> QueueDescription:
        async with self._changing(description.name):
            now = self._context.turn.begin()
            kept = administration.validate_queue(description, None, self._limits, now=now, find=self._lookup)
            _must_be_new(self._context, kept.name)
            kept = dataclasses.replace(kept, partition_count=self._fragments_of(kept))
            store = self._choose_store(kept)
            stored = await asyncio.to_thread(lambda: self._catalog.put_entity(kept, store=store))
            self._namespace.add_queue(stored.id, store, kept)
            return kept

    @_seeing_all
    async def update_queue(self, description: QueueDescription) -> QueueDescription:
        async with self._changing(description.name):
            entity = self._namespace.queue(description.name)
            now = self._context.turn.begin()
            wanted = dataclasses.replace(description, name=entity.description.name, partition_count=entity.description.partition_count)
            kept = administration.validate_queue(wanted, entity.description, self._limits, now=now, find=self._lookup)
            await asyncio.to_thread(lambda: self._catalog.put_entity(kept, store=entity.store))
            entity.configure(kept)
            self._namespace.enter(entity.id, entity.store, kept)
            return kept

    async def list_queues(self, page: Page) -> list[QueueDescription]:
        queues = {key: entity for key, entity in self._namespace.entities.items() if isinstance(entity, QueueEntity)}
        return [queue.description for queue in page.part_of(queues)]

    @_seeing_all
    async def create_topic(self, description: TopicDescription) -> TopicDescription:
        async with self._changing(description.name):
            now = self._context.turn.begin()
            kept = administration.validate_topic(description, None, self._limits, now=now)
            _must_be_new(self._context, kept.name)
            kept = dataclasses.replace(kept, partition_count=self._fragments_of(kept))
            store = self._choose_store(kept)
            stored = await asyncio.to_thread(lambda: self._catalog.put_entity(kept, store=store))
            self._namespace.add_topic(stored.id, store, kept)
            return kept

    @_seeing_all
    async def update_topic(self, description: TopicDescription) -> TopicDescription:
        async with self._changing(description.name):
            topic = self._namespace.topic(description.name)
            now = self._context.turn.begin()
            known = topic.topic_description
            wanted = dataclasses.replace(description, name=known.name, partition_count=known.partition_count)
            kept = administration.validate_topic(wanted, topic.topic_description, self._limits, now=now)
            await asyncio.to_thread(lambda: self._catalog.put_entity(kept, store=topic.store))
            topic.reconfigure(kept)
            self._namespace.enter(topic.id, topic.store, kept)
            return kept

    async def list_topics(self, page: Page) -> list[TopicDescription]:
        topics = {key: entity for key, entity in self._namespace.entities.items() if not isinstance(entity, QueueEntity)}
        return [topic.topic_description for topic in page.part_of(topics)]

    # -- subscriptions and rules -------------------------------------------------------------

    @_seeing_all
    async def create_subscription(self, description: SubscriptionDescription) -> SubscriptionDescription:
        async with self._changing(description.topic):
            now = self._context.turn.begin()
            topic = self._namespace.topic(description.topic)
            kept = administration.validate_subscription(
                description, None, self._limits, now=now, find=self._lookup, check_rule=_check_rule(self._limits)
            )
            if kept.name.casefold() in topic.subscriptions:
                raise EntityAlreadyExists(f"The subscription '{kept.topic}/Subscriptions/{kept.name}' already exists.")
            stored = await asyncio.to_thread(lambda: self._catalog.put_entity(kept, store=topic.store))
            self._namespace.add_subscription(stored.id, kept)
            return kept

    @_seeing_all
    async def update_subscription(self, description: SubscriptionDescription) -> SubscriptionDescription:
        async with self._changing(description.topic):
            now = self._context.turn.begin()
            subscription = self._namespace.subscription(description.topic, description.name)
            wanted = dataclasses.replace(description, name=subscription.description.name)
            kept = administration.validate_subscription(
                wanted, subscription.description, self._limits, now=now, find=self._lookup, check_rule=_check_rule(self._limits)
            )
            await self._keep(subscription, kept)
            return kept

    async def _keep(self, subscription: Subscription, kept: SubscriptionDescription) -> None:
        await asyncio.to_thread(lambda: self._catalog.put_entity(kept, store=subscription.entity.store))
        subscription.configure(kept, self._limits)
        self._namespace.enter(subscription.entity.id, subscription.entity.store, kept)

    async def get_subscription(self, topic: str, name: str) -> SubscriptionDescription:
        return self._namespace.subscription(topic, name).description

    @_seeing_all
    async def delete_subscription(self, topic: str, name: str) -> None:
        async with self._changing(topic):
            subscription = self._namespace.subscription(topic, name)
            await asyncio.to_thread(lambda: self._catalog.delete_entity(subscription.entity.id))
            self._context.turn.begin()
            self._namespace.remove_subscription(self._namespace.topic(topic), name)
            self._context.turn.schedule()

    async def list_subscriptions(self, topic: str, page: Page) -> list[SubscriptionDescription]:
        return [subscription.description for subscription in page.part_of(self._namespace.topic(topic).subscriptions)]

    @_seeing_all
    async def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        async with self._changing(topic):
            found = self._namespace.subscription(topic, subscription)
            rules = found.description.rules
            if administration.find_rule(rules, rule.name) is not None:
                raise EntityAlreadyExists(f"The rule '{rule.name}' already exists on '{topic}/Subscriptions/{subscription}'.")
            now = self._context.turn.begin()
            kept = administration.validate_rule(rule, None, len(rules), self._limits, now=now, check=_check_rule(self._limits))
            await self._keep(found, dataclasses.replace(found.description, rules=(*rules, kept)))
            return kept

    @_seeing_all
    async def update_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        async with self._changing(topic):
            found = self._namespace.subscription(topic, subscription)
            rules = found.description.rules
            old = _rule_of(found, rule.name)
            now = self._context.turn.begin()
            kept = administration.validate_rule(rule, old, len(rules) - 1, self._limits, now=now, check=_check_rule(self._limits))
            await self._keep(found, dataclasses.replace(found.description, rules=tuple(kept if r is old else r for r in rules)))
            return kept

    async def get_rule(self, topic: str, subscription: str, name: str) -> RuleDescription:
        return _rule_of(self._namespace.subscription(topic, subscription), name)

    @_seeing_all
    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        async with self._changing(topic):
            found = self._namespace.subscription(topic, subscription)
            old = _rule_of(found, name)
            left = tuple(rule for rule in found.description.rules if rule is not old)
            await self._keep(found, dataclasses.replace(found.description, rules=left))

    async def list_rules(self, topic: str, subscription: str, page: Page) -> list[RuleDescription]:
        rules = self._namespace.subscription(topic, subscription).description.rules
        return page.part_of({rule.name.casefold(): rule for rule in rules})


def other_kind(name: str, kind: str, other: str, when: str = "before it is one in the configuration") -> str:
    """Why an entity of the configuration cannot be: something else has its name. `when`: it is to be deleted."""
    return (
        f"{kind} {name}: there is a {other} of this name, and a {other} does not become a {kind}; "
        f"delete it, with its messages, {when}, or take another name"
    )


async def _created(shared: bool, creation: Coroutine[Any, Any, object]) -> None:
    """`shared`: another node may start with the same configuration at the same time."""
    try:
        await creation
    except EntityAlreadyExists:
        if not shared:
            raise


def _must_be_new(context: NamespaceContext, name: str) -> None:
    if context.namespace.find(name) is not None or context.relays.find(name) is not None:
        raise EntityAlreadyExists(f"The messaging entity '{context.namespace.name}:{name}' already exists.")


def _check_rule(limits: Limits) -> Callable[[RuleDescription], None]:
    def check(rule: RuleDescription) -> None:
        compile_rule(rule, limits)

    return check


def _rule_of(subscription: Subscription, name: str) -> RuleDescription:
    found = administration.find_rule(subscription.description.rules, name)
    if found is None:
        raise EntityNotFound(f"The rule '{name}' could not be found on '{subscription.queue.path}'.")
    return found
