"""What entity administration needs of a namespace: the HTTP side talks to this, the registry implements it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

from tandem.model.entity import (
    HybridConnectionDescription,
    QueueDescription,
    Right,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from tandem.relay.entity import HybridConnection

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Part of a listing, ordered by name without regard to case."""

    skip: int = 0
    top: int = 100
    prefix: str = ""
    """Only names that start with this, without regard to case."""

    def part_of(self, items: dict[str, _T]) -> list[_T]:
        """`items` by folded name, which is their order too."""
        prefix = self.prefix.casefold()
        keys = sorted([key for key in items if key.startswith(prefix)])
        return [items[key] for key in keys[self.skip : self.skip + self.top]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeProperties:
    """Counts of one entity at this moment. A topic counts its own scheduled messages; the rest is in its subscriptions."""

    active: int = 0
    dead_lettered: int = 0
    scheduled: int = 0
    transfer: int = 0
    transfer_dead_lettered: int = 0
    size_bytes: int = 0
    accessed_at_ms: int = 0
    """Last send, receive or attach; 0 when there was none yet."""
    subscription_count: int = 0
    sql_filter_count: int = 0
    correlation_filter_count: int = 0
    available: bool = True
    """False while the store that holds the entity is down."""

    @property
    def total(self) -> int:
        return self.active + self.dead_lettered + self.scheduled + self.transfer + self.transfer_dead_lettered


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceInfo:
    name: str
    created_at_ms: int
    modified_at_ms: int
    messaging_sku: str = "Standard"
    messaging_units: int = 0
    alias: str = ""


class RuntimePort(Protocol):
    """What is in the entities of a namespace."""

    async def queue(self, name: str) -> RuntimeProperties: ...

    async def topic(self, name: str) -> RuntimeProperties: ...

    async def subscription(self, topic: str, name: str) -> RuntimeProperties: ...


class AdminPort(Protocol):
    """One namespace. Names are compared without regard to case and come back as they were first written.

    Every change is all or nothing, durable when the call returns, and validated by `broker/entities/administration.py` against
    what exists at that moment. Descriptions returned carry `created_at_ms` and `updated_at_ms`. Raised are
    `EntityNotFound`, `EntityAlreadyExists`, `ArgumentRefused`, `ArgumentOutOfRange`, `NotAllowed`, `QuotaExceeded`.
    """

    async def authorize(self, token: str | None, path: str, right: Right, rest: str = "") -> None:
        """`token` is the value of an Authorization header. Raises AuthenticationFailed or Unauthorized.

        `path` is the entity's path, `""` for the namespace; it need not exist, so that a stranger learns nothing.
        `rest` is how the request's path goes on: a token made for all of it will do.
        """

    async def namespace_info(self) -> NamespaceInfo: ...

    @property
    def runtime(self) -> RuntimePort: ...

    # Queues and topics share one space of names.

    async def get_entity(self, name: str) -> QueueDescription | TopicDescription: ...

    async def delete_entity(self, name: str) -> None:
        """A topic goes with its subscriptions, every entity with its messages."""

    async def create_queue(self, description: QueueDescription) -> QueueDescription: ...

    async def update_queue(self, description: QueueDescription) -> QueueDescription: ...

    async def list_queues(self, page: Page) -> list[QueueDescription]: ...

    async def create_topic(self, description: TopicDescription) -> TopicDescription: ...

    async def update_topic(self, description: TopicDescription) -> TopicDescription: ...

    async def list_topics(self, page: Page) -> list[TopicDescription]: ...

    # Subscriptions. `rules` of the description: on create the first rules (none: `$Default`, which matches
    # everything); on update ignored; always filled in when returned.

    async def create_subscription(self, description: SubscriptionDescription) -> SubscriptionDescription: ...

    async def update_subscription(self, description: SubscriptionDescription) -> SubscriptionDescription: ...

    async def get_subscription(self, topic: str, name: str) -> SubscriptionDescription: ...

    async def delete_subscription(self, topic: str, name: str) -> None: ...

    async def list_subscriptions(self, topic: str, page: Page) -> list[SubscriptionDescription]: ...

    async def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription: ...

    async def update_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription: ...

    async def get_rule(self, topic: str, subscription: str, name: str) -> RuleDescription: ...

    async def delete_rule(self, topic: str, subscription: str, name: str) -> None: ...

    async def list_rules(self, topic: str, subscription: str, page: Page) -> list[RuleDescription]: ...


class RelayPort(Protocol):
    """What the administration of relays needs of a namespace."""

    def find(self, name: str) -> HybridConnectionDescription | None: ...

    def get(self, name: str) -> HybridConnection: ...

    def list(self, page: Page) -> list[HybridConnection]: ...

    async def create(self, description: HybridConnectionDescription) -> HybridConnectionDescription: ...

    async def update(self, description: HybridConnectionDescription) -> HybridConnectionDescription: ...

    async def delete(self, name: str) -> None: ...
