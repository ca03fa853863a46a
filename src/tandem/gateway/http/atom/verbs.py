"""Entity administration over HTTP: the ATOM API of the service, verb by verb."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from tandem.gateway.http.atom.entry import WantedEntity, read_entry
from tandem.gateway.http.atom.relays import handle_relay, is_for_relay
from tandem.gateway.http.atom.target import AtomTarget, Kind, read_page, read_target
from tandem.gateway.http.atom.xml import ENTRY_TYPE, FEED_TYPE, SINCE_LARGE_MESSAGES, Writer
from tandem.gateway.http.types import HttpNamespace, Reply, Request, check_if_match
from tandem.model.clock import Clock
from tandem.model.entity import (
    DEFAULT_RULE_NAME,
    AuthorizationRule,
    QueueDescription,
    Right,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from tandem.model.entity_json import dump_entity, dump_rule
from tandem.model.errors import ArgumentRefused, EntityNotFound, Retry, Unauthorized, Unavailable
from tandem.model.limits import Limits
from tandem.server.administration_port import AdminPort, Page, RelayPort, RuntimeProperties
from tandem.server.name_locks import NameLocks
from tandem.server.tracking import Entropy

_NEWEST: Final = "2024-05"
_CLEARED: Final[dict[str, Any]] = {"forward_to": None, "forward_dead_lettered_messages_to": None, "user_metadata": None}
"""Absent from an update, these are cleared; clients have no other way to say so."""
_CLAIMS: Final = {
    "GET": "Manage,EntityRead claims required for this operation.",
    "PUT": "Authorization failed for specified action: Manage,EntityWrite.",
    "DELETE": "Authorization failed for specified action: Manage,EntityDelete.",
}
"""Missing ones, in the service's words, which programs look for."""
_FORWARD_HEADERS: Final = (
    ("forward_to", "ForwardTo", "ServiceBusSupplementaryAuthorization"),
    ("forward_dead_lettered_messages_to", "ForwardDeadLetteredMessagesTo", "ServiceBusDlqSupplementaryAuthorization"),
)


class Atom:
    """Stateless but for the locks that put changes of one name in a row."""

    def __init__(self, limits: Limits, clock: Clock, entropy: Entropy) -> None:
        self._limits = limits
        self._clock = clock
        self._entropy = entropy
        self._locks = NameLocks()

    async def handle(self, namespace: HttpNamespace, request: Request) -> Reply:
        """Raises BusError for every refusal; nothing is half done then."""
        await self._authorize(namespace, request)
        target = read_target(request.segments, request.query)
        relays = namespace.relays if namespace.relays is not None and is_for_relay(namespace.relays, request, target) else None
        call = _AtomCall(self, namespace, request, target)
        if request.method in ("GET", "HEAD"):
            return await (call.read() if relays is None else self._relay(relays, request, target))
        if request.method not in ("PUT", "DELETE"):
            return Reply(status=405, headers={"Allow": "GET, HEAD, PUT, DELETE"})
        return await self._change(call, target, relays)

    async def _authorize(self, namespace: HttpNamespace, request: Request) -> None:
        """Some clients make a token for exactly the address they ask for, so that is what it must cover. Asked first: a stranger does
        not even learn which addresses mean something. Whoever may send or receive there does, as at `$cbs`: to those the service says
        of a queue or topic that it is not there, not that they may not know it."""
        path = "/".join(request.segments).strip("/")
        try:
            await namespace.admin.authorize(request.token, path, Right.MANAGE)
        except Unauthorized as refusal:
            if request.method in ("GET", "HEAD") and await self._may_use(namespace.admin, request.token, path):
                target = read_target(request.segments, request.query)
                if target.kind is Kind.ENTITY and not (namespace.relays and is_for_relay(namespace.relays, request, target)):
                    await namespace.admin.get_entity(_named(target.entity))
            raise Unauthorized(f"{_CLAIMS.get(request.method, '')} {refusal}".strip()) from None

    async def _may_use(self, admin: AdminPort, token: str | None, path: str) -> bool:
        for right in (Right.LISTEN, Right.SEND):
            try:
                await admin.authorize(token, path, right)
            except Unauthorized:
                continue
            return True
        return False

    async def _relay(self, relays: RelayPort, request: Request, target: AtomTarget) -> Reply:
        return await handle_relay(relays, request, target, self.writer(request), self.with_keys)

    async def _change(self, call: _AtomCall, target: AtomTarget, relays: RelayPort | None) -> Reply:
        async with self._locks.hold(target.entity):
            if relays is not None:
                return await self._relay(relays, call.request, target)
            return await (call.delete() if call.request.method == "DELETE" else call.put())

    def writer(self, request: Request) -> Writer:
        return Writer(
            base=f"{request.scheme}://{request.host}",
            host=request.host,
            api_version=request.query.get("api-version", "") or _NEWEST,
            message_bytes_default=self._limits.message_bytes_max,
            now=self._clock.now_ms(),
        )

    def with_keys(self, rules: tuple[AuthorizationRule, ...], existing: tuple[AuthorizationRule, ...]) -> tuple[AuthorizationRule, ...]:
        """Keys that the client left out are made here; a rule that did not change keeps its instants."""
        now = self._clock.now_ms()
        known = {rule.key_name: rule for rule in existing}
        kept: list[AuthorizationRule] = []
        for rule in rules:
            rule = replace(rule, primary_key=rule.primary_key or self._new_key(), secondary_key=rule.secondary_key or self._new_key())
            old = known.get(rule.key_name)
            same = old is not None and replace(rule, created_at_ms=old.created_at_ms, modified_at_ms=old.modified_at_ms) == old
            created = old.created_at_ms if old is not None else now
            kept.append(replace(rule, created_at_ms=created, modified_at_ms=old.modified_at_ms if same and old is not None else now))
        return tuple(kept)

    def _new_key(self) -> str:
        return base64.b64encode(self._entropy(32)).decode()

    def default_message_bytes(self) -> int:
        return self._limits.message_bytes_max


@dataclass(frozen=True, slots=True)
class _AtomCall:
    """One request on its way."""

    atom: Atom
    namespace: HttpNamespace
    request: Request
    target: AtomTarget

    @property
    def admin(self) -> AdminPort:
        return self.namespace.admin

    # --- reading

    async def read(self) -> Reply:
        target, admin = self.target, self.admin
        match target.kind:
            case Kind.NAMESPACE:
                info = await admin.namespace_info()
                content = self._writer.namespace(info)
                body = self._writer.entry("$namespaceinfo", info.name, content, info.created_at_ms, info.modified_at_ms, info.name)
                return Reply(status=200, body=body, content_type=ENTRY_TYPE)
            case Kind.ENTITY:
                return await self._entity_reply(200, await admin.get_entity(_named(target.entity)))
            case Kind.SUBSCRIPTION:
                return await self._subscription_reply(200, await admin.get_subscription(target.entity, _named(target.subscription)))
            case Kind.RULE:
                rule = await admin.get_rule(target.entity, target.subscription, _named(target.rule))
                return self._rule_reply(200, rule)
            case _:
                return await self._list()

    async def _list(self) -> Reply:
        target, admin, writer = self.target, self.admin, self._writer
        match target.kind:
            case Kind.QUEUES:
                return await self._feed("$Resources/queues", "Queues", admin.list_queues, self._queue_parts)
            case Kind.TOPICS:
                return await self._feed("$Resources/topics", "Topics", admin.list_topics, self._topic_parts)
            case Kind.SUBSCRIPTIONS:

                async def subscriptions(page: Page) -> list[SubscriptionDescription]:
                    return await admin.list_subscriptions(target.entity, page)

                return await self._feed(f"{target.entity}/Subscriptions", "Subscriptions", subscriptions, self._subscription_parts)
            case _:

                async def rules(page: Page) -> list[RuleDescription]:
                    return await admin.list_rules(target.entity, target.subscription, page)

                async def parts(rule: RuleDescription) -> tuple[str, str, str, int, int]:
                    return self._rule_path(rule), rule.name, writer.rule(rule), rule.created_at_ms, rule.created_at_ms

                return await self._feed(f"{target.scope}/Rules", "Rules", rules, parts)

    async def _feed(
        self,
        path: str,
        title: str,
        fetch: Callable[[Page], Awaitable[list[Any]]],
        parts: Callable[[Any], Awaitable[tuple[str, str, str, int, int]]],
    ) -> Reply:
        if not self.request.segments[-1]:
            path += "/"  # as it was asked for: a client of Node.js (azure-sb) takes another address for another list
        page = read_page(self.request.query)
        found = await fetch(replace(page, top=page.top + 1))  # one more than asked for tells whether there is a next page
        writer = self._writer
        author = self.request.host.partition(":")[0].partition(".")[0]
        entries: list[str] = []
        for item in found[: page.top]:
            try:
                entries.append(writer.feed_entry(*await parts(item), author))
            except EntityNotFound:
                continue  # deleted since the listing was taken: it is not there any more
        more = len(found) > page.top
        next_query = _next_query(self.request, page) if more else None
        return Reply(status=200, body=writer.feed(path, title, entries, next_query), content_type=FEED_TYPE)

    # --- changing

    async def delete(self) -> Reply:
        target, admin = self.target, self.admin
        match target.kind:
            case Kind.ENTITY:
                entity = await admin.get_entity(_named(target.entity))
                check_if_match(self._if_match, _etag(dump_entity(entity)))
                await admin.delete_entity(target.entity)
            case Kind.SUBSCRIPTION:
                subscription = await admin.get_subscription(target.entity, _named(target.subscription))
                check_if_match(self._if_match, _etag(dump_entity(subscription)))
                await admin.delete_subscription(target.entity, target.subscription)
            case Kind.RULE:
                rule = await admin.get_rule(target.entity, target.subscription, _named(target.rule))
                check_if_match(self._if_match, _etag(dump_rule(rule)))
                await admin.delete_rule(target.entity, target.subscription, target.rule)
            case _:
                raise ArgumentRefused(f"{target.kind.value} cannot be deleted as a whole; name one of them")
        return Reply(status=200)

    async def put(self) -> Reply:
        wanted = read_entry(self.request.body, self.target.rule)
        expected = {Kind.SUBSCRIPTION: "SubscriptionDescription", Kind.RULE: "RuleDescription"}.get(self.target.kind)
        if self.target.kind is Kind.ENTITY and wanted.kind == "QueueDescription":
            return await self._put_queue(wanted)
        if self.target.kind is Kind.ENTITY and wanted.kind == "TopicDescription":
            return await self._put_topic(wanted)
        if wanted.kind == expected == "SubscriptionDescription":
            return await self._put_subscription(wanted)
        if wanted.kind == expected == "RuleDescription" and wanted.rule is not None:
            return await self._put_rule(wanted.rule)
        raise ArgumentRefused(f"a {wanted.kind} cannot be put at the address of a {self.target.kind.value}")

    async def _put_queue(self, wanted: WantedEntity) -> Reply:
        name, admin = self.target.entity, self.admin
        if self._if_match is None:
            description = QueueDescription(name=name, **self._carrier_fields(wanted, None))
            await self._authorize_forwards(description)
            return await self._entity_reply(201, await admin.create_queue(description))
        existing = await admin.get_entity(_named(name))
        if not isinstance(existing, QueueDescription):
            raise EntityNotFound(f"there is no queue '{name}'; a topic has that name")
        check_if_match(self._if_match, _etag(dump_entity(existing)))
        description = replace(existing, **(_CLEARED | self._carrier_fields(wanted, existing)))
        await self._authorize_forwards(description)
        return await self._entity_reply(200, await admin.update_queue(description))

    async def _put_topic(self, wanted: WantedEntity) -> Reply:
        name, admin = self.target.entity, self.admin
        if self._if_match is None:
            description = TopicDescription(name=name, **self._carrier_fields(wanted, None))
            return await self._entity_reply(201, await admin.create_topic(description))
        existing = await admin.get_entity(_named(name))
        if not isinstance(existing, TopicDescription):
            raise EntityNotFound(f"there is no topic '{name}'; a queue has that name")
        check_if_match(self._if_match, _etag(dump_entity(existing)))
        description = replace(existing, **({"user_metadata": None} | self._carrier_fields(wanted, existing)))
        return await self._entity_reply(200, await admin.update_topic(description))

    async def _put_subscription(self, wanted: WantedEntity) -> Reply:
        topic, name, admin = self.target.entity, self.target.subscription, self.admin
        fields = self._forwards_local(wanted.fields)
        if self._if_match is None:
            rules: tuple[RuleDescription, ...] = ()
            if wanted.default_rule is not None:
                rules = (replace(wanted.default_rule, name=wanted.default_rule.name or DEFAULT_RULE_NAME),)
            description = SubscriptionDescription(topic=topic, name=name, rules=rules, **fields)
            await self._authorize_forwards(description)
            return await self._subscription_reply(201, await admin.create_subscription(description))
        existing = await admin.get_subscription(topic, _named(name))
        check_if_match(self._if_match, _etag(dump_entity(existing)))
        description = replace(existing, **(_CLEARED | fields))
        await self._authorize_forwards(description)
        return await self._subscription_reply(200, await admin.update_subscription(description))

    async def _put_rule(self, rule: RuleDescription) -> Reply:
        topic, subscription, admin = self.target.entity, self.target.subscription, self.admin
        rule = replace(rule, name=self.target.rule)
        if self._if_match is None:
            return self._rule_reply(201, await admin.create_rule(topic, subscription, rule))
        existing = await admin.get_rule(topic, subscription, _named(rule.name))
        check_if_match(self._if_match, _etag(dump_rule(existing)))
        return self._rule_reply(200, await admin.update_rule(topic, subscription, rule))

    # --- what a request means for the model

    def _carrier_fields(self, wanted: WantedEntity, existing: QueueDescription | TopicDescription | None) -> dict[str, Any]:
        """Fields of a queue or topic."""
        fields = self._forwards_local(wanted.fields)
        if "authorization_rules" in fields:
            old = existing.authorization_rules if existing is not None else ()
            fields["authorization_rules"] = self.atom.with_keys(fields["authorization_rules"], old)
        if existing is not None and fields.get("max_size_megabytes") == existing.total_megabytes:
            del fields["max_size_megabytes"]  # clients send back what they read
        if wanted.max_message_kilobytes is not None:
            fields["max_message_bytes"] = self._message_bytes(wanted.max_message_kilobytes, existing)
        return fields

    def _message_bytes(self, kilobytes: int, existing: QueueDescription | TopicDescription | None) -> int | None:
        current = existing.max_message_bytes if existing is not None else None
        if kilobytes * 1024 == (current or self.atom.default_message_bytes()):
            return current  # clients send back what they read
        version = self._writer.api_version
        if version < SINCE_LARGE_MESSAGES:
            raise ArgumentRefused(
                f"MaxMessageSizeInKilobytes needs api-version {SINCE_LARGE_MESSAGES} or newer; the request says {version}"
            )
        return kilobytes * 1024

    def _forwards_local(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Forward targets come as absolute addresses in this namespace; the model keeps names."""
        result = dict(fields)
        for field, prop, _ in _FORWARD_HEADERS:
            if result.get(field) is not None:
                result[field] = self._local_name(prop, result[field])
        return result

    def _local_name(self, prop: str, address: str) -> str:
        name = address
        while "://" in name:  # twice where Java's client sends back what it read: it puts https://host/ in front of sb://host/name
            scheme, _, rest = name.partition("://")
            host, _, name = rest.partition("/")
            if scheme.casefold() not in ("sb", "amqp", "amqps", "http", "https") or _host_name(host) != _host_name(self.request.host):
                raise ArgumentRefused(f"{prop} is '{address[:200]}'; a queue or topic of this namespace ({self.request.host}) is needed")
        return name.strip("/")

    async def _authorize_forwards(self, description: QueueDescription | SubscriptionDescription) -> None:
        """Whoever forwards must be allowed to send there; the header for it may name another key than the request's own."""
        for field, _, header in _FORWARD_HEADERS:
            target = getattr(description, field)
            if target is not None:
                await self.admin.authorize(self.request.headers.get(header) or self.request.token, target, Right.SEND)

    # --- replies

    @property
    def _if_match(self) -> str | None:
        return self.request.headers.get("If-Match")

    @property
    def _writer(self) -> Writer:
        return self.atom.writer(self.request)

    @property
    def _author(self) -> str:
        return self.request.host.partition(":")[0].partition(".")[0]

    async def _entity_reply(self, status: int, entity: QueueDescription | TopicDescription) -> Reply:
        parts = await (self._queue_parts(entity) if isinstance(entity, QueueDescription) else self._topic_parts(entity))
        return self._entry_reply(status, parts, dump_entity(entity))

    async def _subscription_reply(self, status: int, subscription: SubscriptionDescription) -> Reply:
        return self._entry_reply(status, await self._subscription_parts(subscription), dump_entity(subscription))

    def _rule_reply(self, status: int, rule: RuleDescription) -> Reply:
        parts = (self._rule_path(rule), rule.name, self._writer.rule(rule), rule.created_at_ms, rule.created_at_ms)
        return self._entry_reply(status, parts, dump_rule(rule))

    def _entry_reply(self, status: int, parts: tuple[str, str, str, int, int], tagged: str) -> Reply:
        body = self._writer.entry(*parts, self._author)
        return Reply(status=status, body=body, content_type=ENTRY_TYPE, headers={"ETag": _etag(tagged)})

    async def _runtime(self, asked: Awaitable[RuntimeProperties]) -> RuntimeProperties:
        """A change that is done is not refused because whoever has the entity cannot say just now what is in it."""
        try:
            return await asked
        except (Retry, Unavailable):
            if self.request.method == "GET":
                raise
            return RuntimeProperties(available=False)

    async def _queue_parts(self, queue: QueueDescription) -> tuple[str, str, str, int, int]:
        content = self._writer.queue(queue, await self._runtime(self.admin.runtime.queue(queue.name)))
        return queue.name, queue.name, content, queue.created_at_ms, queue.updated_at_ms

    async def _topic_parts(self, topic: TopicDescription) -> tuple[str, str, str, int, int]:
        content = self._writer.topic(topic, await self._runtime(self.admin.runtime.topic(topic.name)))
        return topic.name, topic.name, content, topic.created_at_ms, topic.updated_at_ms

    async def _subscription_parts(self, subscription: SubscriptionDescription) -> tuple[str, str, str, int, int]:
        runtime = await self._runtime(self.admin.runtime.subscription(subscription.topic, subscription.name))
        content = self._writer.subscription(subscription, runtime)
        path = f"{subscription.topic}/Subscriptions/{subscription.name}"
        return path, subscription.name, content, subscription.created_at_ms, subscription.updated_at_ms

    def _rule_path(self, rule: RuleDescription) -> str:
        return f"{self.target.scope}/Rules/{rule.name}"


def _next_query(request: Request, page: Page) -> str:
    """What the next page is asked for with; a filter stays with its listing."""
    filtered = request.query.get("$filter", "")
    return f"$skip={page.skip + page.top}&$top={page.top}" + (f"&$filter={quote(filtered)}" if filtered else "")


def _named(name: str) -> str:
    if not name:
        raise EntityNotFound("the address ends where a name should stand")
    return name


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].casefold()
    return host.partition(":")[0].rstrip(".").casefold()


def _etag(text: str) -> str:
    return f'"{zlib.crc32(text.encode()):08x}"'
