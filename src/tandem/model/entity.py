"""Descriptions of queues, topics, subscriptions, rules and authorization rules: what an operator may ask for."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

MAX_DURATION_MS = 922_337_203_685_477
"""TimeSpan.MaxValue in milliseconds: "for ever" in every duration of Service Bus."""
LATEST_MS = 253_402_300_799_999
"""The end of the year 9999: what would be later is never."""

MINUTE_MS = 60_000


class EntityStatus(enum.Enum):
    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"

    @property
    def may_send(self) -> bool:
        return self in (EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED)

    @property
    def may_receive(self) -> bool:
        return self in (EntityStatus.ACTIVE, EntityStatus.SEND_DISABLED)


class Right(enum.Enum):
    SEND = "Send"
    LISTEN = "Listen"
    MANAGE = "Manage"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRule:
    """A named pair of keys with rights, on a namespace or an entity. Manage implies Send and Listen."""

    key_name: str
    primary_key: str
    secondary_key: str
    rights: frozenset[Right]
    created_at_ms: int = 0
    modified_at_ms: int = 0

    def allows(self, right: Right) -> bool:
        return right in self.rights or Right.MANAGE in self.rights


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDescription:
    """A queue as asked for. Durations in milliseconds."""

    name: str
    lock_duration_ms: int = MINUTE_MS
    max_size_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_message_time_to_live_ms: int = MAX_DURATION_MS
    dead_lettering_on_message_expiration: bool = False
    duplicate_detection_history_ms: int = 10 * MINUTE_MS
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: EntityStatus = EntityStatus.ACTIVE
    auto_delete_on_idle_ms: int = MAX_DURATION_MS
    enable_partitioning: bool = False
    partition_count: int = 0
    """Fragments, fixed when the queue is created; 0 for a queue that is not partitioned."""
    enable_express: bool = False
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    user_metadata: str | None = None
    max_message_bytes: int | None = None
    """None: the broker's default. (`MaxMessageSizeInKilobytes` on the wire.)"""
    locks_outlive_connections: bool | None = None
    """Locks of a holder whose connection broke stay until their time is over; None: as the namespace says."""
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    created_at_ms: int = 0
    updated_at_ms: int = 0

    @property
    def total_megabytes(self) -> int:
        """What its fragments may hold together, `max_size_megabytes` each: what the service reports."""
        return self.max_size_megabytes * (self.partition_count or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic as asked for. Durations in milliseconds."""

    name: str
    default_message_time_to_live_ms: int = MAX_DURATION_MS
    max_size_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    duplicate_detection_history_ms: int = 10 * MINUTE_MS
    enable_batched_operations: bool = True
    filtering_messages_before_publishing: bool = False
    support_ordering: bool = True
    status: EntityStatus = EntityStatus.ACTIVE
    auto_delete_on_idle_ms: int = MAX_DURATION_MS
    enable_partitioning: bool = False
    partition_count: int = 0
    """Fragments of the topic and of each subscription, fixed when it is created; 0 if it is not partitioned."""
    enable_express: bool = False
    user_metadata: str | None = None
    max_message_bytes: int | None = None
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    created_at_ms: int = 0
    updated_at_ms: int = 0

    @property
    def total_megabytes(self) -> int:
        """What its fragments may hold together, `max_size_megabytes` each: what the service reports."""
        return self.max_size_megabytes * (self.partition_count or 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlFilter:
    expression: str
    parameters: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrueFilter:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseFilter:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrelationFilter:
    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: tuple[tuple[str, object], ...] = ()


Filter = SqlFilter | TrueFilter | FalseFilter | CorrelationFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlAction:
    expression: str
    parameters: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleDescription:
    name: str
    filter: Filter = field(default_factory=TrueFilter)
    action: SqlAction | None = None
    created_at_ms: int = 0


DEFAULT_RULE_NAME = "$Default"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionDescription:
    """A subscription as asked for. Durations in milliseconds."""

    topic: str
    name: str
    lock_duration_ms: int = MINUTE_MS
    requires_session: bool = False
    default_message_time_to_live_ms: int = MAX_DURATION_MS
    dead_lettering_on_message_expiration: bool = False
    dead_lettering_on_filter_evaluation_exceptions: bool = True
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: EntityStatus = EntityStatus.ACTIVE
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    auto_delete_on_idle_ms: int = MAX_DURATION_MS
    user_metadata: str | None = None
    locks_outlive_connections: bool | None = None
    rules: tuple[RuleDescription, ...] = ()
    created_at_ms: int = 0
    updated_at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridConnectionDescription:
    """A relay as asked for: where listeners and senders meet."""

    name: str
    requires_client_authorization: bool = True
    """False: senders need no token; listeners always do."""
    user_metadata: str | None = None
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    created_at_ms: int = 0
    updated_at_ms: int = 0
