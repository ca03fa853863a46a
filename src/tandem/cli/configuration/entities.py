"""Namespaces, queues, topics, subscriptions and rules as files describe them: tandem.toml, or the emulator's Config.json."""

from __future__ import annotations

from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from typing import Any, Final, TypeVar, cast

from tandem.broker.entities import administration
from tandem.cli.configuration.documents import Section
from tandem.cli.configuration.rule_sections import UniqueNames, read_emulator_rule, read_rule
from tandem.cli.configuration.setting_types import Choice, Duration, Flag, Integer, Many, Name, SettingType, Text
from tandem.model.entity import (
    AuthorizationRule,
    EntityStatus,
    HybridConnectionDescription,
    QueueDescription,
    Right,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from tandem.model.errors import BusError, ConfigurationError
from tandem.model.limits import Limits
from tandem.server.settings import NamespaceSettings


@dataclass(frozen=True, slots=True)
class EntityField:
    """One property of an entity under its three names: ours, the emulator's, and the field that keeps it."""

    key: str
    emulator_key: str
    field: str
    kind: SettingType
    emulator_kind: SettingType | None = None
    """Where the emulator counts in another unit."""


_TARGET: Final = Text(chars_max=512, empty=True, allowed="the name of a queue or topic")
_KILOBYTES: Final = Integer(low=1, high=102_400, scale=1024)

PROPERTIES: Final = (
    EntityField("lock_duration", "LockDuration", "lock_duration_ms", Duration(*administration.LOCK_MS)),
    EntityField("max_size_megabytes", "MaxSizeInMegabytes", "max_size_megabytes", Integer(*administration.SIZE_MEGABYTES)),
    EntityField("requires_duplicate_detection", "RequiresDuplicateDetection", "requires_duplicate_detection", Flag()),
    EntityField("requires_session", "RequiresSession", "requires_session", Flag()),
    EntityField(
        "default_message_time_to_live",
        "DefaultMessageTimeToLive",
        "default_message_time_to_live_ms",
        Duration(*administration.TIME_TO_LIVE_MS),
    ),
    EntityField("dead_lettering_on_message_expiration", "DeadLetteringOnMessageExpiration", "dead_lettering_on_message_expiration", Flag()),
    EntityField(
        "dead_lettering_on_filter_evaluation_exceptions",
        "DeadLetteringOnFilterEvaluationExceptions",
        "dead_lettering_on_filter_evaluation_exceptions",
        Flag(),
    ),
    EntityField(
        "duplicate_detection_history",
        "DuplicateDetectionHistoryTimeWindow",
        "duplicate_detection_history_ms",
        Duration(*administration.DUPLICATE_WINDOW_MS),
    ),
    EntityField("max_delivery_count", "MaxDeliveryCount", "max_delivery_count", Integer(*administration.DELIVERY_COUNT)),
    EntityField("enable_batched_operations", "EnableBatchedOperations", "enable_batched_operations", Flag()),
    EntityField("status", "Status", "status", Choice(tuple(status.value for status in EntityStatus), EntityStatus)),
    EntityField("auto_delete_on_idle", "AutoDeleteOnIdle", "auto_delete_on_idle_ms", Duration(*administration.AUTO_DELETE_MS)),
    EntityField("enable_partitioning", "EnablePartitioning", "enable_partitioning", Flag()),
    EntityField("enable_express", "EnableExpress", "enable_express", Flag()),
    EntityField(
        "filtering_messages_before_publishing", "FilteringMessagesBeforePublishing", "filtering_messages_before_publishing", Flag()
    ),
    EntityField("support_ordering", "SupportOrdering", "support_ordering", Flag()),
    EntityField("forward_to", "ForwardTo", "forward_to", _TARGET),
    EntityField("forward_dead_lettered_messages_to", "ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to", _TARGET),
    EntityField("locks_outlive_connections", "LocksOutliveConnections", "locks_outlive_connections", Flag()),
    EntityField("user_metadata", "UserMetadata", "user_metadata", Text(empty=True)),
    EntityField("max_message_bytes", "MaxMessageSizeInKilobytes", "max_message_bytes", Integer(low=1024, high=104_857_600), _KILOBYTES),
)

SUBSCRIPTION_NAME: Final = Name(chars_max=50)
NAMESPACE_NAME: Final = Name(chars_max=50, plain=True)
_RIGHTS: Final = Many(Choice(tuple(right.value for right in Right), Right), least=1)
_KEY: Final = Text(chars_max=256, allowed="a key of 1 to 256 characters")


def read_namespaces(root: Section, limits: Limits) -> tuple[NamespaceSettings, ...]:
    """`[[namespace]]` with all beneath it; or `[[queue]]` and `[[topic]]` alone, which mean the one default namespace."""
    found = root.tables("namespace")
    short = [key for key in ("queue", "topic", "relay", "authorization_rule") if root.has(key)]
    if found and short:
        raise ConfigurationError(f"{root.place(short[0])}: stands beside [[namespace]]; write it as [[namespace.{short[0]}]]")
    if not found:
        return (_namespace(root, NamespaceSettings().name, (), limits),)
    namespaces: list[NamespaceSettings] = []
    for section in found:
        name = cast(str, section.need("name", NAMESPACE_NAME))
        hosts = cast("tuple[str, ...]", section.get("hosts", Many(Text(chars_max=255, allowed="a host name"))) or ())
        namespace = _namespace(section, name, hosts, limits)
        section.finish()
        _once(section, "name", name, namespaces)
        for host in hosts:
            if any(host.casefold() in (other.casefold() for other in claimed.hosts) for claimed in namespaces):
                raise ConfigurationError(f"{section.place('hosts')}: the host '{host}' already leads to another namespace")
        namespaces.append(namespace)
    return tuple(namespaces)


def read_emulator(root: Section, limits: Limits) -> tuple[NamespaceSettings, ...]:
    """The emulator's Config.json, as it is."""
    user = root.table("UserConfig")
    if user is None:
        raise ConfigurationError(f"{root.place()}: UserConfig is missing; this is not a Config.json of the emulator")
    root.finish()
    user.has("Logging")  # the emulator's own; nothing here depends on it
    namespaces: list[NamespaceSettings] = []
    for section in user.tables("Namespaces"):
        name = cast(str, section.need("Name", NAMESPACE_NAME))
        entities = _Entities(limits, emulator=True)
        for item in section.tables("Queues"):
            entities.add_queue(item)
        for item in section.tables("Topics"):
            entities.add_topic(item)
        section.finish()
        _once(section, "Name", name, namespaces)
        namespaces.append(entities.finish(name, (), ()))
    user.finish()
    return tuple(namespaces) or (NamespaceSettings(name="sbemulatorns"),)


def _once(section: Section, key: str, name: str, others: list[NamespaceSettings]) -> None:
    if any(other.name.casefold() == name.casefold() for other in others):
        raise ConfigurationError(f"{section.place(key)}: there are two namespaces named '{name}'")


_Description = QueueDescription | TopicDescription | SubscriptionDescription


class _Entities:
    """What one namespace will contain, with the place of each so that a refusal can name it."""

    def __init__(self, limits: Limits, emulator: bool) -> None:
        self._limits = limits
        self._emulator = emulator
        self._names = UniqueNames()
        self._queues: list[QueueDescription] = []
        self._topics: list[TopicDescription] = []
        self._subscriptions: list[SubscriptionDescription] = []
        self._relays: list[HybridConnectionDescription] = []
        self._checks: list[tuple[Section, _Description]] = []

    def add_queue(self, section: Section) -> None:
        name = self._names.take(section, self._key("name"), Name())
        fields = _properties(section, QueueDescription, self._emulator)
        if not self._emulator:
            fields["authorization_rules"] = _authorization_rules(section)
        section.finish()
        queue = QueueDescription(name=name, **fields)
        self._queues.append(queue)
        self._checks.append((section, queue))

    def add_topic(self, section: Section) -> None:
        name = self._names.take(section, self._key("name"), Name())
        fields = _properties(section, TopicDescription, self._emulator)
        if not self._emulator:
            fields["authorization_rules"] = _authorization_rules(section)
        topic = TopicDescription(name=name, **fields)
        self._topics.append(topic)
        self._checks.append((section, topic))
        own = UniqueNames()
        for item in section.tables("Subscriptions" if self._emulator else "subscription"):
            self._add_subscription(item, name, own)
        section.finish()

    def add_relay(self, section: Section) -> None:
        name = self._names.take(section, "name", Name())
        required = section.get("requires_client_authorization", Flag())
        relay = HybridConnectionDescription(
            name=name,
            requires_client_authorization=True if required is None else cast(bool, required),
            user_metadata=cast("str | None", section.get("user_metadata", Text(empty=True))) or None,
            authorization_rules=_authorization_rules(section),
        )
        section.finish()
        self._relays.append(relay)

    def _add_subscription(self, section: Section, topic: str, names: UniqueNames) -> None:
        name = names.take(section, self._key("name"), SUBSCRIPTION_NAME)
        fields = _properties(section, SubscriptionDescription, self._emulator)
        own = UniqueNames()
        read_one = read_emulator_rule if self._emulator else read_rule
        rules = tuple(read_one(item, own) for item in section.tables("Rules" if self._emulator else "rule"))
        section.finish()
        subscription = SubscriptionDescription(topic=topic, name=name, rules=rules, **fields)
        self._subscriptions.append(subscription)
        self._checks.append((section, subscription))

    def finish(self, name: str, hosts: tuple[str, ...], rules: tuple[AuthorizationRule, ...]) -> NamespaceSettings:
        """The broker's own rules decide what may be asked for; here they are given a place to point at."""
        for section, entity in self._checks:
            try:
                self._check(entity)
            except BusError as error:
                raise ConfigurationError(f"{section.place()}: {error.description}") from error
        return NamespaceSettings(
            name=name,
            hosts=hosts,
            queues=tuple(self._queues),
            topics=tuple(self._topics),
            subscriptions=tuple(self._subscriptions),
            relays=tuple(self._relays),
            authorization_rules=rules,
        )

    def _check(self, entity: _Description) -> None:
        """Forward targets are taken on trust: they may have been created by a client and be in the data directory."""
        if isinstance(entity, QueueDescription):
            administration.validate_queue(_without_rules(entity), None, self._limits, now=0)
        elif isinstance(entity, TopicDescription):
            administration.validate_topic(_without_rules(entity), None, self._limits, now=0)
        else:
            administration.validate_subscription(entity, None, self._limits, now=0, check_rule=self._compile)

    def _compile(self, rule: RuleDescription) -> None:
        if isinstance(rule.filter, TrueFilter) and rule.action is None:
            return
        from tandem.broker.rules.rules import compile_rule

        compile_rule(rule, self._limits)

    def _key(self, key: str) -> str:
        return key.capitalize() if self._emulator else key


_Carrier = TypeVar("_Carrier", QueueDescription, TopicDescription)


def _without_rules(entity: _Carrier) -> _Carrier:
    """Keys that are not given are made later, so rules are not complete yet."""
    return replace(entity, authorization_rules=())


def _namespace(section: Section, name: str, hosts: tuple[str, ...], limits: Limits) -> NamespaceSettings:
    entities = _Entities(limits, emulator=False)
    for item in section.tables("queue"):
        entities.add_queue(item)
    for item in section.tables("topic"):
        entities.add_topic(item)
    for item in section.tables("relay"):
        entities.add_relay(item)
    namespace = entities.finish(name, hosts, _authorization_rules(section))
    outlive = cast(bool, section.get("locks_outlive_connections", Flag()) or False)
    return replace(namespace, locks_outlive_connections=outlive)


def _properties(section: Section, description: type[_Description], emulator: bool) -> dict[str, Any]:
    """The properties this kind of entity has; the emulator keeps them one level deeper."""
    known = {field.name for field in fields_of(description)}
    source = section.table("Properties") if emulator else section
    fields: dict[str, Any] = {}
    if source is None:
        return fields
    for item in PROPERTIES:
        if item.field not in known:
            continue
        kind = item.emulator_kind if emulator and item.emulator_kind else item.kind
        value = source.get(item.emulator_key if emulator else item.key, kind)
        if value is not None and value != "":  # the emulator writes "" for "no forward"
            fields[item.field] = value
    if emulator:
        source.finish()
    return fields


def _authorization_rules(section: Section) -> tuple[AuthorizationRule, ...]:
    """Keys that are not given stay empty here; they are generated and kept in the data directory when the broker starts."""
    rules: list[AuthorizationRule] = []
    names = UniqueNames()
    for item in section.tables("authorization_rule"):
        name = names.take(item, "name", Text(chars_max=256, allowed="a name of at most 256 characters"))
        rights = frozenset(cast("tuple[Right, ...]", item.need("rights", _RIGHTS)))
        if Right.MANAGE in rights:
            rights = frozenset(Right)
        primary = cast(str, item.get("primary_key", _KEY) or "")
        secondary = cast(str, item.get("secondary_key", _KEY) or "")
        item.finish()
        rules.append(AuthorizationRule(key_name=name, primary_key=primary, secondary_key=secondary, rights=rights))
    return tuple(rules)
