"""A namespace for tests of the HTTP side: administration and messages in dictionaries, real validation, real keys."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tandem.broker.entities.administration import find_rule, validate_queue, validate_rule, validate_subscription, validate_topic
from tandem.gateway import verbs
from tandem.gateway.http.data_port import HttpMessage, ReceivedMessage
from tandem.gateway.http.types import HttpNamespace
from tandem.model.address import Address
from tandem.model.clock import Clock
from tandem.model.entity import (
    AuthorizationRule,
    CorrelationFilter,
    QueueDescription,
    Right,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from tandem.model.errors import (
    AuthenticationFailed,
    EntityAlreadyExists,
    EntityNotFound,
    MessageLockLost,
    MessageNotFound,
    Unauthorized,
)
from tandem.model.limits import Limits
from tandem.server import sas
from tandem.server.administration_port import NamespaceInfo, Page, RuntimeProperties
from tandem.server.tracking import Entropy, Tracker

_T = TypeVar("_T")


class MemoryRuntime:
    """Implements `RuntimePort`."""

    def __init__(self, namespace: MemoryNamespace) -> None:
        self.namespace = namespace

    async def queue(self, name: str) -> RuntimeProperties:
        await self.namespace.get_entity(name)
        return self.namespace.runtimes.get(name.casefold(), RuntimeProperties())

    async def topic(self, name: str) -> RuntimeProperties:
        await self.namespace.get_entity(name)
        own = [s for (topic, _), s in self.namespace.subscriptions.items() if topic == name.casefold()]
        rules = [rule for subscription in own for rule in subscription.rules]
        correlated = sum(isinstance(rule.filter, CorrelationFilter) for rule in rules)
        runtime = self.namespace.runtimes.get(name.casefold(), RuntimeProperties())
        sql_count = len(rules) - correlated
        return replace(runtime, subscription_count=len(own), sql_filter_count=sql_count, correlation_filter_count=correlated)

    async def subscription(self, topic: str, name: str) -> RuntimeProperties:
        await self.namespace.get_subscription(topic, name)
        return self.namespace.runtimes.get(f"{topic}/subscriptions/{name}".casefold(), RuntimeProperties())


class MemoryNamespace:
    """Both ports. Changes give way to the loop between looking and doing, so that races show."""

    def __init__(self, root: AuthorizationRule, clock: Clock, limits: Limits | None = None, sku: str = "Standard") -> None:
        self.root = root
        self.clock = clock
        self.limits = limits if limits is not None else Limits()
        self.sku = sku
        self.born_at_ms = clock.now_ms()
        self.entities: dict[str, QueueDescription | TopicDescription] = {}
        self.subscriptions: dict[tuple[str, str], SubscriptionDescription] = {}
        self.runtimes: dict[str, RuntimeProperties] = {}
        self.runtime = MemoryRuntime(self)
        self.messages: dict[str, list[ReceivedMessage]] = {}
        self.arrived = asyncio.Event()
        self.lock_ms = 60_000
        self._next_sequence = 1
        self.refused_sends = 0

    def site(self, entropy: Entropy) -> HttpNamespace:
        return HttpNamespace(admin=self, data=self, tracker=Tracker("memory", "G0", entropy))

    # --- authorization

    async def authorize(self, token: str | None, path: str, right: Right, rest: str = "") -> None:
        if not token:
            raise AuthenticationFailed("MissingToken: the Authorization header is needed")
        grant = sas.verify(token, path, self._rule, self.clock.now_ms(), rest=rest)
        if not grant.allows(right):
            raise Unauthorized(f"'{right.value}' claim(s) are required to perform this operation on '{path}'")

    def _rule(self, path: str, key_name: str) -> AuthorizationRule | None:
        rules: tuple[AuthorizationRule, ...] = (self.root,)
        if path:
            entity = self.entities.get(path)
            rules = entity.authorization_rules if entity is not None else ()
        return next((rule for rule in rules if rule.key_name == key_name), None)

    # --- administration

    async def namespace_info(self) -> NamespaceInfo:
        return NamespaceInfo(name="memory", created_at_ms=self.born_at_ms, modified_at_ms=self.born_at_ms, messaging_sku=self.sku)

    def _find(self, name: str) -> QueueDescription | TopicDescription | None:
        return self.entities.get(name.casefold())

    def _free(self, name: str) -> None:
        if name.casefold() in self.entities:
            raise EntityAlreadyExists(f"'{name}' exists already")

    async def get_entity(self, name: str) -> QueueDescription | TopicDescription:
        found = self._find(name)
        if found is None:
            raise EntityNotFound(f"The messaging entity '{name}' could not be found.")
        return found

    async def delete_entity(self, name: str) -> None:
        await self.get_entity(name)
        await asyncio.sleep(0)
        del self.entities[name.casefold()]
        for key in [key for key in self.subscriptions if key[0] == name.casefold()]:
            del self.subscriptions[key]

    async def create_queue(self, description: QueueDescription) -> QueueDescription:
        queue = validate_queue(description, None, self.limits, now=self.clock.now_ms(), find=self._find)
        self._free(queue.name)
        await asyncio.sleep(0)
        self.entities[queue.name.casefold()] = queue
        return queue

    async def update_queue(self, description: QueueDescription) -> QueueDescription:
        existing = await self.get_entity(description.name)
        assert isinstance(existing, QueueDescription)
        queue = validate_queue(description, existing, self.limits, now=self.clock.now_ms(), find=self._find)
        self.entities[queue.name.casefold()] = queue
        return queue

    async def create_topic(self, description: TopicDescription) -> TopicDescription:
        topic = validate_topic(description, None, self.limits, now=self.clock.now_ms())
        self._free(topic.name)
        await asyncio.sleep(0)
        self.entities[topic.name.casefold()] = topic
        return topic

    async def update_topic(self, description: TopicDescription) -> TopicDescription:
        existing = await self.get_entity(description.name)
        assert isinstance(existing, TopicDescription)
        topic = validate_topic(description, existing, self.limits, now=self.clock.now_ms())
        self.entities[topic.name.casefold()] = topic
        return topic

    async def list_queues(self, page: Page) -> list[QueueDescription]:
        return _paged([e for e in self.entities.values() if isinstance(e, QueueDescription)], page, lambda e: e.name)

    async def list_topics(self, page: Page) -> list[TopicDescription]:
        return _paged([e for e in self.entities.values() if isinstance(e, TopicDescription)], page, lambda e: e.name)

    async def create_subscription(self, description: SubscriptionDescription) -> SubscriptionDescription:
        now = self.clock.now_ms()
        subscription = validate_subscription(description, None, self.limits, now=now, find=self._find)
        key = (subscription.topic.casefold(), subscription.name.casefold())
        if key in self.subscriptions:
            raise EntityAlreadyExists(f"subscription '{subscription.name}' exists already")
        await asyncio.sleep(0)
        self.subscriptions[key] = subscription
        return subscription

    async def update_subscription(self, description: SubscriptionDescription) -> SubscriptionDescription:
        existing = await self.get_subscription(description.topic, description.name)
        subscription = validate_subscription(description, existing, self.limits, now=self.clock.now_ms(), find=self._find)
        self._keep(subscription)
        return subscription

    def _keep(self, subscription: SubscriptionDescription) -> None:
        self.subscriptions[subscription.topic.casefold(), subscription.name.casefold()] = subscription

    async def get_subscription(self, topic: str, name: str) -> SubscriptionDescription:
        found = self.subscriptions.get((topic.casefold(), name.casefold()))
        if found is None:
            raise EntityNotFound(f"The messaging entity '{topic}/Subscriptions/{name}' could not be found.")
        return found

    async def delete_subscription(self, topic: str, name: str) -> None:
        await self.get_subscription(topic, name)
        del self.subscriptions[topic.casefold(), name.casefold()]

    async def list_subscriptions(self, topic: str, page: Page) -> list[SubscriptionDescription]:
        if not isinstance(self._find(topic), TopicDescription):
            raise EntityNotFound(f"The messaging entity '{topic}' could not be found.")
        return _paged([s for (owner, _), s in self.subscriptions.items() if owner == topic.casefold()], page, lambda s: s.name)

    async def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        owner = await self.get_subscription(topic, subscription)
        kept = validate_rule(rule, None, len(owner.rules), self.limits, now=self.clock.now_ms())
        if find_rule(owner.rules, rule.name) is not None:
            raise EntityAlreadyExists(f"rule '{rule.name}' exists already")
        self._keep(replace(owner, rules=(*owner.rules, kept)))
        return kept

    async def update_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        owner = await self.get_subscription(topic, subscription)
        existing = await self.get_rule(topic, subscription, rule.name)
        kept = validate_rule(rule, existing, len(owner.rules), self.limits, now=self.clock.now_ms())
        self._keep(replace(owner, rules=tuple(kept if r is existing else r for r in owner.rules)))
        return kept

    async def get_rule(self, topic: str, subscription: str, name: str) -> RuleDescription:
        owner = await self.get_subscription(topic, subscription)
        found = find_rule(owner.rules, name)
        if found is None:
            raise EntityNotFound(f"The messaging entity '{topic}/Subscriptions/{subscription}/Rules/{name}' could not be found.")
        return found

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        gone = await self.get_rule(topic, subscription, name)
        owner = await self.get_subscription(topic, subscription)
        self._keep(replace(owner, rules=tuple(rule for rule in owner.rules if rule is not gone)))

    async def list_rules(self, topic: str, subscription: str, page: Page) -> list[RuleDescription]:
        return _paged(list((await self.get_subscription(topic, subscription)).rules), page, lambda rule: rule.name)

    # --- messages

    async def send(self, address: Address, messages: Sequence[HttpMessage]) -> None:
        await self.get_entity(address.entity)
        for message in messages:
            received = ReceivedMessage(
                message=message, sequence_number=self._next_sequence, delivery_count=0, enqueued_at_ms=self.clock.now_ms()
            )
            self._next_sequence += 1
            self.messages.setdefault(address.path.casefold(), []).append(received)
        self.arrived.set()

    def count_refused_send(self, address: Address) -> None:
        self.refused_sends += 1

    async def receive(self, address: Address, *, lock: bool, wait_ms: int) -> ReceivedMessage | None:
        await self.get_entity(address.entity)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while True:
                    taken = self._take(address, lock)
                    if taken is not None:
                        return taken
                    self.arrived.clear()
                    await self.arrived.wait()
        except TimeoutError:
            return None

    def _take(self, address: Address, lock: bool) -> ReceivedMessage | None:
        waiting = self.messages.get(address.path.casefold(), [])
        for at, message in enumerate(waiting):
            if message.lock_token is None:
                taken = replace(message, delivery_count=message.delivery_count + 1)
                if not lock:
                    return waiting.pop(at)
                waiting[at] = replace(taken, lock_token=uuid.uuid4(), locked_until_ms=self.clock.now_ms() + self.lock_ms)
                return waiting[at]
        return None

    def _locked(self, address: Address, message: str, lock_token: uuid.UUID) -> tuple[list[ReceivedMessage], int]:
        waiting = self.messages.get(address.path.casefold(), [])
        for at, candidate in enumerate(waiting):
            if message in (str(candidate.sequence_number), candidate.message.message_id):
                if candidate.lock_token != lock_token:
                    raise MessageLockLost("The lock supplied is invalid.")
                return waiting, at
        raise MessageNotFound(f"no message '{message}'")

    async def settle(self, address: Address, message: str, lock_token: uuid.UUID, how: verbs.SettlementArguments) -> None:
        await self.get_entity(address.entity)
        waiting, at = self._locked(address, message, lock_token)
        if how is verbs.COMPLETED:
            del waiting[at]
        else:
            waiting[at] = replace(waiting[at], lock_token=None, locked_until_ms=None)
            self.arrived.set()

    async def renew(self, address: Address, message: str, lock_token: uuid.UUID) -> int:
        await self.get_entity(address.entity)
        waiting, at = self._locked(address, message, lock_token)
        until = self.clock.now_ms() + self.lock_ms
        waiting[at] = replace(waiting[at], locked_until_ms=until)
        return until


def _paged(items: list[_T], page: Page, name: Callable[[_T], str]) -> list[_T]:
    found = sorted((item for item in items if name(item).casefold().startswith(page.prefix.casefold())), key=lambda i: name(i).casefold())
    return found[page.skip : page.skip + page.top]
