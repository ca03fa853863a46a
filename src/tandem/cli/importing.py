"""`tandem import`: reads the entities of a living namespace over its administration API and writes a tandem.toml that makes the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from tandem.cli.configuration.settings import Flags, load
from tandem.cli.configuration.topology_file import plain, write_topology
from tandem.cli.operations.broker_pages import call
from tandem.cli.operations.target import OperationTarget
from tandem.model.entity import (
    MAX_DURATION_MS,
    AuthorizationRule,
    CorrelationFilter,
    EntityStatus,
    FalseFilter,
    Filter,
    HybridConnectionDescription,
    QueueDescription,
    Right,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
    TrueFilter,
)
from tandem.model.errors import ConfigurationError
from tandem.model.limits import Limits
from tandem.server.settings import NamespaceSettings

_PARTITIONS: Final = 16
"""Of a partitioned entity: its size is reported for all of them together, and asked for one."""
_KILOBYTE: Final = 1024
_FOREVER_DAYS: Final = 10_675_199
_CORRELATED: Final = ("correlation_id", "message_id", "to", "reply_to", "label", "session_id", "reply_to_session_id", "content_type")

_SAME: Final = (
    "requires_duplicate_detection",
    "requires_session",
    "dead_lettering_on_message_expiration",
    "dead_lettering_on_filter_evaluation_exceptions",
    "max_delivery_count",
    "enable_batched_operations",
    "enable_partitioning",
    "enable_express",
    "filtering_messages_before_publishing",
    "support_ordering",
    "user_metadata",
)
"""Properties that have the same name and form on both sides."""
_DURATIONS: Final = {
    "lock_duration": "lock_duration_ms",
    "default_message_time_to_live": "default_message_time_to_live_ms",
    "duplicate_detection_history_time_window": "duplicate_detection_history_ms",
    "auto_delete_on_idle": "auto_delete_on_idle_ms",
}


def import_topology(
    source: Annotated[
        str, typer.Option("--from", envvar="TANDEM_IMPORT_FROM", help="Connection string with Manage rights.", metavar="STRING")
    ],
    to: Annotated[Path, typer.Option(help="File to write; - for standard output.", metavar="FILE")] = Path("tandem.toml"),
    ca_file: Annotated[Path | None, typer.Option(help="CA file to trust, if the certificate is a generated one.", metavar="FILE")] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Write the keys of entities' authorization rules into the file, too.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Read queues, topics, subscriptions and rules of a namespace and write a tandem.toml that makes the same.

    Messages stay where they are.

    Example: tandem import --from "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=…;SharedAccessKey=…"
    """
    shown = str(to) == "-"
    if not shown and to.exists() and not force:
        raise ConfigurationError(f"{to} exists; name another file with --to, or replace it with --force")
    found, warnings = read_topology(source, ca_file)
    text = "# Written by tandem import.\n" + write_topology(found, keys)
    if shown:
        print(text, end="")
    else:
        _write(to, text)
        load(Flags(config=to, memory=True), {}, Path.cwd())  # a file that the broker would refuse is said now
    for warning in warnings:
        typer.echo(f"tandem: {warning}", err=True)
    if not shown:
        counts = (
            f"{len(found.queues)} queues, {len(found.topics)} topics, {len(found.subscriptions)} subscriptions, {len(found.relays)} relays"
        )
        print(f"{to}: {counts}; start with: tandem serve --config {to}")


def _write(to: Path, text: str) -> None:
    """Readable by the owner only: there may be keys in it. All of it, or the old one stays."""
    aside = to.with_name(to.name + ".part")
    try:
        with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        aside.replace(to)
    except OSError as error:
        raise ConfigurationError(f"{to} cannot be written: {error.strerror}") from error


def read_topology(connection_string: str, ca_file: Path | None) -> tuple[NamespaceSettings, list[str]]:
    """Everything the administration API tells, and what of it a file cannot say."""
    from azure.core.exceptions import AzureError

    target = OperationTarget(connection_string, str(ca_file) if ca_file else None)
    try:
        with target.administration() as client:
            found, warnings = _NamespaceReader(client).read()
            return replace(found, relays=_read_relays(target)), warnings
    except ValueError as error:
        raise ConfigurationError(f"--from: {error}") from error
    except AzureError as error:
        raise ConfigurationError(f"the namespace could not be read: {error.message.splitlines()[0] if error.message else error}") from error


def _read_relays(target: OperationTarget) -> tuple[HybridConnectionDescription, ...]:
    """Of a broker of ours: elsewhere relays live in namespaces of their own."""
    try:
        found = call(target, "GET", "relays?keys=true")["relays"]
    except (ConfigurationError, ValueError):
        return ()
    return tuple(
        HybridConnectionDescription(
            name=one["name"],
            requires_client_authorization=one["requires_client_authorization"],
            user_metadata=one["user_metadata"],
            authorization_rules=tuple(
                AuthorizationRule(
                    key_name=rule["name"],
                    primary_key=rule["primary_key"],
                    secondary_key=rule["secondary_key"],
                    rights=frozenset(Right(right) for right in rule["rights"]),
                )
                for rule in one["authorization_rules"]
            ),
        )
        for one in found
    )


class _NamespaceReader:
    def __init__(self, client: Any) -> None:
        self._client = client
        self._warnings: list[str] = []

    def read(self) -> tuple[NamespaceSettings, list[str]]:
        queues = tuple(self._queue(one) for one in self._client.list_queues())
        topics: list[TopicDescription] = []
        subscriptions: list[SubscriptionDescription] = []
        for topic in self._client.list_topics():
            topics.append(self._topic(topic))
            subscriptions += [self._subscription(topic.name, one) for one in self._client.list_subscriptions(topic.name)]
        return NamespaceSettings(queues=queues, topics=tuple(topics), subscriptions=tuple(subscriptions)), self._warnings

    def _queue(self, found: Any) -> QueueDescription:
        fields = self._carrier(found, QueueDescription) | self._forwards(found)
        return QueueDescription(name=found.name, **fields)

    def _topic(self, found: Any) -> TopicDescription:
        return TopicDescription(name=found.name, **self._carrier(found, TopicDescription))

    def _subscription(self, topic: str, found: Any) -> SubscriptionDescription:
        fields = _properties(found, SubscriptionDescription) | self._forwards(found)
        rules = tuple(self._rule(f"{topic}/{found.name}", one) for one in self._client.list_rules(topic, found.name))
        return SubscriptionDescription(topic=topic, name=found.name, rules=rules, **fields)

    def _carrier(self, found: Any, description: Callable[..., Any]) -> dict[str, Any]:
        fields = _properties(found, description)
        if found.max_size_in_megabytes is not None:
            fields["max_size_megabytes"] = found.max_size_in_megabytes // (_PARTITIONS if found.enable_partitioning else 1)
        kilobytes = found.max_message_size_in_kilobytes
        if kilobytes is not None and kilobytes * _KILOBYTE != Limits().message_bytes_max:
            fields["max_message_bytes"] = kilobytes * _KILOBYTE
        fields["authorization_rules"] = tuple(_authorization_rule(rule) for rule in found.authorization_rules or ())
        return fields

    def _forwards(self, found: Any) -> dict[str, Any]:
        targets = {name: getattr(found, name) for name in ("forward_to", "forward_dead_lettered_messages_to")}
        return {name: _path(target) for name, target in targets.items() if target}

    def _rule(self, where: str, found: Any) -> RuleDescription:
        action = getattr(found.action, "sql_expression", None)
        if action and getattr(found.action, "parameters", None):
            self._warnings.append(f"{where}: the action of rule '{found.name}' has parameters; a file cannot hold them, write them into it")
        return RuleDescription(
            name=found.name,
            filter=self._filter(f"{where}: rule '{found.name}'", found.filter),
            action=SqlAction(expression=action) if action else None,
        )

    def _filter(self, where: str, found: Any) -> Filter:
        kind = type(found).__name__
        if kind == "TrueRuleFilter":
            return TrueFilter()
        if kind == "FalseRuleFilter":
            return FalseFilter()
        if kind == "SqlRuleFilter":
            return SqlFilter(expression=found.sql_expression, parameters=self._values(where, found.parameters))
        texts = {name: getattr(found, name) for name in _CORRELATED if getattr(found, name) is not None}
        return CorrelationFilter(**texts, properties=self._values(where, found.properties))

    def _values(self, where: str, found: dict[str, Any] | None) -> tuple[tuple[str, object], ...]:
        pairs: list[tuple[str, object]] = []
        for name, value in (found or {}).items():
            if not isinstance(value, str | int | float | bool):
                self._warnings.append(f"{where}: '{name}' is of a kind that a file cannot hold ({type(value).__name__}); written as text")
                value = plain(value)
            pairs.append((name, value))
        return tuple(pairs)


def _properties(found: Any, description: Callable[..., Any]) -> dict[str, Any]:
    known: Iterable[str] = getattr(description, "__dataclass_fields__", ())
    fields: dict[str, Any] = {}
    for name in _SAME:
        value = getattr(found, name, None)
        if name in known and value is not None:
            fields[name] = value
    for name, field in _DURATIONS.items():
        value = getattr(found, name, None)
        if field in known and value is not None:
            fields[field] = _milliseconds(value)
    status = getattr(found.status, "value", found.status)
    fields["status"] = next((one for one in EntityStatus if one.value == status), EntityStatus.ACTIVE)
    return fields


def _milliseconds(value: timedelta | str) -> int:
    if isinstance(value, str):
        from tandem.cli.configuration.setting_types import Duration

        return int(Duration(0, MAX_DURATION_MS).read(value))
    return MAX_DURATION_MS if value.days >= _FOREVER_DAYS else round(value / timedelta(milliseconds=1))


def _path(target: str) -> str:
    """The name behind an absolute forward address."""
    return urlsplit(target).path.strip("/") if "://" in target else target


def _authorization_rule(rule: Any) -> AuthorizationRule:
    rights = frozenset(Right(getattr(one, "value", one)) for one in rule.rights)
    created = rule.created_at_utc
    return AuthorizationRule(
        key_name=rule.key_name,
        primary_key=rule.primary_key or "",
        secondary_key=rule.secondary_key or "",
        rights=frozenset(Right) if Right.MANAGE in rights else rights,
        created_at_ms=int(created.timestamp() * 1000) if isinstance(created, datetime) else 0,
    )
