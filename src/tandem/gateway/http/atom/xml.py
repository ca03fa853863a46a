"""Entities as ATOM entries and feeds, byte for byte in the shape that the official administration clients read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tandem.gateway.http.atom.rules import write_rule
from tandem.gateway.http.xml_values import element, escaped, format_duration, format_instant
from tandem.model.entity import (
    AuthorizationRule,
    HybridConnectionDescription,
    QueueDescription,
    Right,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from tandem.server.administration_port import NamespaceInfo, RuntimeProperties

ATOM: Final = "http://www.w3.org/2005/Atom"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS: Final = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
XSI: Final = "http://www.w3.org/2001/XMLSchema-instance"

ENTRY_TYPE: Final = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE: Final = "application/atom+xml;type=feed;charset=utf-8"
ERROR_TYPE: Final = "application/xml; charset=utf-8"

SINCE_LARGE_MESSAGES: Final = "2021-05"
SINCE_FILTER_COUNTS: Final = "2024-05"


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """What a document depends on besides the entity: where it was asked for, and in which version of the API."""

    base: str
    """`https://host[:port]`, as the client wrote it."""
    host: str
    """`host[:port]`: forward targets are absolute in it."""
    api_version: str
    message_bytes_default: int
    now: int

    # --- documents

    def entry(self, path: str, title: str, content: str, created_at_ms: int, updated_at_ms: int, author: str) -> bytes:
        body = self._entry(path, title, content, created_at_ms, updated_at_ms, author, f' xmlns="{ATOM}"')
        return body.encode()

    def feed(self, path: str, title: str, entries: Iterable[str], next_query: str | None) -> bytes:
        """A second `link` tells every client that there is a next page, so there is one only then."""
        here = f"{self.base}/{path}"
        links = f'<link rel="self" href="{escaped(self._versioned(path))}"/>'
        if next_query is not None:
            links += f'<link rel="next" href="{escaped(f"{here}?{next_query}&api-version={self.api_version}")}"/>'
        return (
            f'<feed xmlns="{ATOM}">{element("id", self._versioned(path))}<title type="text">{escaped(title)}</title>'
            f"{element('updated', format_instant(self.now))}{links}{''.join(entries)}</feed>"
        ).encode()

    def feed_entry(self, path: str, title: str, content: str, created_at_ms: int, updated_at_ms: int, author: str) -> str:
        return self._entry(path, title, content, created_at_ms, updated_at_ms, author, "")

    def _entry(self, path: str, title: str, content: str, created_at_ms: int, updated_at_ms: int, author: str, xmlns: str) -> str:
        # JavaScript reads names out of the path of `id`, without decoding it; names need no encoding.
        return (
            f'<entry{xmlns}>{element("id", self._versioned(path))}<title type="text">{escaped(title)}</title>'
            f"{element('published', format_instant(created_at_ms))}{element('updated', format_instant(updated_at_ms))}"
            f"<author>{element('name', author)}</author>"
            f'<link rel="self" href="{escaped(self._versioned(path))}"/>'
            f'<content type="application/xml">{content}</content></entry>'
        )

    def _versioned(self, path: str) -> str:
        return f"{self.base}/{path}?api-version={self.api_version}"

    # --- contents, elements in the order the service writes them

    def queue(self, queue: QueueDescription, runtime: RuntimeProperties) -> str:
        return self._root(
            "QueueDescription",
            element("LockDuration", format_duration(queue.lock_duration_ms)),
            element("MaxSizeInMegabytes", queue.total_megabytes),
            element("RequiresDuplicateDetection", queue.requires_duplicate_detection),
            element("RequiresSession", queue.requires_session),
            element("DefaultMessageTimeToLive", format_duration(queue.default_message_time_to_live_ms)),
            element("DeadLetteringOnMessageExpiration", queue.dead_lettering_on_message_expiration),
            element("DuplicateDetectionHistoryTimeWindow", format_duration(queue.duplicate_detection_history_ms)),
            element("MaxDeliveryCount", queue.max_delivery_count),
            element("EnableBatchedOperations", queue.enable_batched_operations),
            element("SizeInBytes", runtime.size_bytes),
            element("MessageCount", runtime.total),
            element("IsAnonymousAccessible", False),
            _authorization_rules(queue.authorization_rules),
            element("Status", queue.status.value),
            self._forward("ForwardTo", queue.forward_to),
            self._instants(queue.created_at_ms, queue.updated_at_ms, runtime),
            element("SupportOrdering", True),
            _counts(runtime),
            element("AutoDeleteOnIdle", format_duration(queue.auto_delete_on_idle_ms)),
            element("EnablePartitioning", queue.enable_partitioning),
            element("UserMetadata", queue.user_metadata),
            self._forward("ForwardDeadLetteredMessagesTo", queue.forward_dead_lettered_messages_to),
            _availability(runtime),
            element("EnableExpress", queue.enable_express),
            self._message_size(queue.max_message_bytes),
        )

    def topic(self, topic: TopicDescription, runtime: RuntimeProperties) -> str:
        filter_counts = ""
        if self.api_version >= SINCE_FILTER_COUNTS:
            filter_counts = element("SqlFilterCount", runtime.sql_filter_count)
            filter_counts += element("CorrelationFilterCount", runtime.correlation_filter_count)
        return self._root(
            "TopicDescription",
            element("DefaultMessageTimeToLive", format_duration(topic.default_message_time_to_live_ms)),
            element("MaxSizeInMegabytes", topic.total_megabytes),
            element("RequiresDuplicateDetection", topic.requires_duplicate_detection),
            element("DuplicateDetectionHistoryTimeWindow", format_duration(topic.duplicate_detection_history_ms)),
            element("EnableBatchedOperations", topic.enable_batched_operations),
            element("SizeInBytes", runtime.size_bytes),
            element("FilteringMessagesBeforePublishing", topic.filtering_messages_before_publishing),
            element("IsAnonymousAccessible", False),
            _authorization_rules(topic.authorization_rules),
            element("Status", topic.status.value),
            self._instants(topic.created_at_ms, topic.updated_at_ms, runtime),
            element("SupportOrdering", topic.support_ordering),
            _counts(runtime),
            element("SubscriptionCount", runtime.subscription_count),
            filter_counts,
            element("AutoDeleteOnIdle", format_duration(topic.auto_delete_on_idle_ms)),
            element("EnablePartitioning", topic.enable_partitioning),
            element("UserMetadata", topic.user_metadata),
            _availability(runtime),
            element("EnableSubscriptionPartitioning", False),
            element("EnableExpress", topic.enable_express),
            self._message_size(topic.max_message_bytes),
        )

    def subscription(self, subscription: SubscriptionDescription, runtime: RuntimeProperties) -> str:
        return self._root(
            "SubscriptionDescription",
            element("LockDuration", format_duration(subscription.lock_duration_ms)),
            element("RequiresSession", subscription.requires_session),
            element("DefaultMessageTimeToLive", format_duration(subscription.default_message_time_to_live_ms)),
            element("DeadLetteringOnMessageExpiration", subscription.dead_lettering_on_message_expiration),
            element("DeadLetteringOnFilterEvaluationExceptions", subscription.dead_lettering_on_filter_evaluation_exceptions),
            element("MessageCount", runtime.total),
            element("MaxDeliveryCount", subscription.max_delivery_count),
            element("EnableBatchedOperations", subscription.enable_batched_operations),
            element("Status", subscription.status.value),
            self._forward("ForwardTo", subscription.forward_to),
            self._instants(subscription.created_at_ms, subscription.updated_at_ms, runtime),
            element("UserMetadata", subscription.user_metadata),
            _counts(runtime),
            self._forward("ForwardDeadLetteredMessagesTo", subscription.forward_dead_lettered_messages_to),
            element("AutoDeleteOnIdle", format_duration(subscription.auto_delete_on_idle_ms)),
            _availability(runtime),
        )

    def relay(self, relay: HybridConnectionDescription, listener_count: int) -> str:
        return self._root(
            "HybridConnectionDescription",
            element("Path", relay.name),
            element("RelayType", "HybridConnection"),
            element("CreatedAt", format_instant(relay.created_at_ms)),
            element("UpdatedAt", format_instant(relay.updated_at_ms)),
            element("ListenerCount", listener_count),
            element("RequiresClientAuthorization", relay.requires_client_authorization),
            _authorization_rules(relay.authorization_rules),
            element("UserMetadata", relay.user_metadata),
        )

    def rule(self, rule: RuleDescription) -> str:
        return self._root("RuleDescription", write_rule(rule))

    def namespace(self, info: NamespaceInfo) -> str:
        return self._root(
            "NamespaceInfo",
            element("Alias", info.alias or None),
            element("CreatedTime", format_instant(info.created_at_ms)),
            element("MessagingSKU", info.messaging_sku),
            # Only the premium tier has units; clients expect nothing elsewhere.
            element("MessagingUnits", info.messaging_units or None),
            element("ModifiedTime", format_instant(info.modified_at_ms)),
            element("Name", info.name),
            element("NamespaceType", "Messaging"),
        )

    def _root(self, name: str, *content: str) -> str:
        return f'<{name} xmlns="{SERVICE_BUS}" xmlns:i="{XSI}">{"".join(content)}</{name}>'

    def _forward(self, name: str, target: str | None) -> str:
        return "" if target is None else element(name, f"sb://{self.host}/{target}")

    def _instants(self, created_at_ms: int, updated_at_ms: int, runtime: RuntimeProperties) -> str:
        return (
            element("CreatedAt", format_instant(created_at_ms))
            + element("UpdatedAt", format_instant(updated_at_ms))
            + element("AccessedAt", format_instant(runtime.accessed_at_ms))
        )

    def _message_size(self, max_message_bytes: int | None) -> str:
        if self.api_version < SINCE_LARGE_MESSAGES:
            return ""
        return element("MaxMessageSizeInKilobytes", (max_message_bytes or self.message_bytes_default) // 1024)


def error_document(status: int, detail: str) -> bytes:
    return f"<Error>{element('Code', status)}{element('Detail', detail)}</Error>".encode()


def _counts(runtime: RuntimeProperties) -> str:
    # JavaScript insists on exactly one attribute here, the declaration of the prefix that the children use.
    return (
        f'<CountDetails xmlns:d2p1="{COUNTS}">'
        f"{element('d2p1:ActiveMessageCount', runtime.active)}"
        f"{element('d2p1:DeadLetterMessageCount', runtime.dead_lettered)}"
        f"{element('d2p1:ScheduledMessageCount', runtime.scheduled)}"
        f"{element('d2p1:TransferMessageCount', runtime.transfer)}"
        f"{element('d2p1:TransferDeadLetterMessageCount', runtime.transfer_dead_lettered)}"
        "</CountDetails>"
    )


def _availability(runtime: RuntimeProperties) -> str:
    return element("EntityAvailabilityStatus", "Available" if runtime.available else "Limited")


def _authorization_rules(rules: tuple[AuthorizationRule, ...]) -> str:
    if not rules:
        return "<AuthorizationRules/>"
    return f"<AuthorizationRules>{''.join(map(_authorization_rule, rules))}</AuthorizationRules>"


KEY_ELEMENT: Final = b"<PrimaryKey>"
"""Stands in every document that shows a key."""


def _authorization_rule(rule: AuthorizationRule) -> str:
    rights = "".join(element("AccessRights", right.value) for right in Right if right in rule.rights)
    return (
        '<AuthorizationRule i:type="SharedAccessAuthorizationRule">'
        "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
        f"<Rights>{rights}</Rights>"
        f"{element('CreatedTime', format_instant(rule.created_at_ms))}{element('ModifiedTime', format_instant(rule.modified_at_ms))}"
        f"{element('KeyName', rule.key_name)}{element('PrimaryKey', rule.primary_key)}{element('SecondaryKey', rule.secondary_key)}"
        "</AuthorizationRule>"
    )
