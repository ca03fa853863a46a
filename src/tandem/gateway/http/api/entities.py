"""Queues, topics, subscriptions, rules and relays as a tree, window by window; made, changed and deleted as the administration API does."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from tandem.broker.entities.queue_entity import QueueEntity
from tandem.broker.entities.topic import Subscription
from tandem.gateway.http.api.entity_counts import (
    DEAD_LETTERS,
    MESSAGES,
    add_others,
    consumers_of,
    counts_of,
    entity_at,
    held_by_others,
    holds,
)
from tandem.gateway.http.relay_pages import described as described_relay
from tandem.model.entity import (
    HybridConnectionDescription,
    QueueDescription,
    Right,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from tandem.model.entity_json import EntityDescription, EntityKind, NotADescription, dump_entity, load_entity
from tandem.model.errors import ArgumentRefused
from tandem.relay.entity import HybridConnection

if TYPE_CHECKING:
    from tandem.broker.entities.partitioned import AnyTopic
    from tandem.gateway.http.api.calls import ApiCall

_ROWS_MAX: Final = 500
_OPEN_MAX: Final = 1_000
_SEARCH_CHARS_MAX: Final = 260
_KEPT_BY_BROKER: Final = frozenset({"name", "topic", "created_at_ms", "updated_at_ms", "partition_count", "authorization_rules"})
"""Not changed by a form: what names an entity, what the broker knows better, and keys."""
_SHOWN: Final = ("all", "queues", "topics", "relays", MESSAGES, DEAD_LETTERS)

_Node = tuple[int, str, Any]
"""Level, path, and what stands there."""


async def rows(call: ApiCall) -> object:
    """A window of the tree as it stands open now: {skip, top, open: [paths], search, show} -> {total, rows}."""
    skip, top = call.number_of("skip", 0, 10_000_000, 0), call.number_of("top", 1, _ROWS_MAX, 100)
    search = call.argument("search", str, "").casefold()[:_SEARCH_CHARS_MAX]
    shown = call.argument("show", str, "all")
    if shown not in _SHOWN:
        raise ArgumentRefused(f"'show' must be one of {', '.join(_SHOWN)}")
    opened = frozenset(str(path).casefold() for path in call.argument("open", list, [])[:_OPEN_MAX])
    elsewhere = await held_by_others(call, shown)
    total, found = 0, []
    for node in _nodes(call, search, _ShownEntities(shown, elsewhere), opened):
        if skip <= total < skip + top:
            found.append(_row(node, opened))
        total += 1
    await add_others(call, found)
    return {"total": total, "rows": found, "now_ms": call.context.connection_clock.now_ms()}


@dataclasses.dataclass(frozen=True, slots=True)
class _ShownEntities:
    """Which part of the tree somebody wants to see."""

    kind: str
    elsewhere: frozenset[str]
    """Paths of what has messages of this kind with another worker."""

    @property
    def by_count(self) -> bool:
        return self.kind in (MESSAGES, DEAD_LETTERS)

    def wants(self, path: str, entity: QueueEntity | AnyTopic) -> bool:
        return not self.by_count or path in self.elsewhere or holds(entity, self.kind)


def _nodes(call: ApiCall, search: str, shown: _ShownEntities, opened: frozenset[str]) -> Iterator[_Node]:
    entities: dict[str, Any] = dict(call.context.namespace.entities)
    entities.update({name: relay for name, relay in call.context.relays.entities.items() if name not in entities})
    everywhere = call.caller.may("", Right.LISTEN)
    for name in sorted(entities):
        entity = entities[name]
        if not everywhere and not _reaches(call, name):
            continue
        if isinstance(entity, QueueEntity):
            if shown.kind not in ("topics", "relays") and search in name and shown.wants(name, entity):
                yield 0, entity.description.name, entity
        elif hasattr(entity, "subscriptions"):
            if shown.kind not in ("queues", "relays"):
                yield from _topic_nodes(entity, name, search, shown, opened)
        elif shown.kind in ("all", "relays") and search in name:
            yield 0, entity.name, entity


def _reaches(call: ApiCall, name: str) -> bool:
    """The caller may look at it, or at something beneath it."""
    if call.caller.may(name, Right.LISTEN):
        return True
    return any(grant.allows(Right.LISTEN) and grant.scope.startswith(name + "/") for grant in call.caller.grants)


def _topic_nodes(topic: AnyTopic, name: str, search: str, shown: _ShownEntities, opened: frozenset[str]) -> Iterator[_Node]:
    subscriptions = [
        (f"{name}/subscriptions/{key}", one)
        for key, one in sorted(topic.subscriptions.items())
        if (search in name or search in f"{name}/subscriptions/{key}") and shown.wants(f"{name}/subscriptions/{key}", one.entity)
    ]
    if not subscriptions and (search not in name or not shown.wants(name, topic)):
        return
    path = topic.topic_description.name
    yield 0, path, topic
    if name not in opened and not shown.by_count and (not search or search in name):
        return
    for folded, one in subscriptions:
        yield 1, f"{path}/Subscriptions/{one.description.name}", one
        if folded in opened:
            for rule in one.description.rules:
                yield 2, f"{path}/Subscriptions/{one.description.name}/Rules/{rule.name}", rule


def _row(node: _Node, opened: frozenset[str]) -> dict[str, Any]:
    level, path, entity = node
    row: dict[str, Any] = {"level": level, "path": path, "open": path.casefold() in opened}
    if isinstance(entity, QueueEntity):
        return row | {"kind": "queue", "name": path, "status": entity.description.status.value, "counts": counts_of(entity)}
    if isinstance(entity, Subscription):
        kept = entity.description
        status, rules = kept.status.value, len(kept.rules)
        return row | {"kind": "subscription", "name": kept.name, "status": status, "children": rules, "counts": counts_of(entity)}
    if isinstance(entity, RuleDescription):
        return row | {"kind": "rule", "name": entity.name}
    if hasattr(entity, "subscriptions"):
        status, children = entity.topic_description.status.value, len(entity.subscriptions)
        return row | {"kind": "topic", "name": path, "status": status, "children": children, "counts": counts_of(entity)}
    listeners, connections = len(entity.listeners), len(entity.connections)
    return row | {"kind": "relay", "name": path, "status": "Active", "counts": {"listeners": listeners, "connections": connections}}


# --- one of them


def _found(call: ApiCall, path: str) -> QueueEntity | AnyTopic | Subscription | HybridConnection:
    relay = call.context.relays.find(path)
    return relay if relay is not None and call.context.namespace.find(path) is None else entity_at(call, path)


def _description(entity: QueueEntity | AnyTopic | Subscription) -> EntityDescription:
    if isinstance(entity, QueueEntity | Subscription):
        return entity.description
    return entity.topic_description


def _fields(description: EntityDescription) -> dict[str, Any]:
    """All of it that is no key."""
    if not isinstance(description, SubscriptionDescription):
        description = dataclasses.replace(description, authorization_rules=())
    found: dict[str, Any] = json.loads(dump_entity(description))
    found.pop("authorization_rules", None)
    return found


async def show(call: ApiCall) -> object:
    """{path} -> its kind, its description and its counts."""
    path = call.argument("path", str).strip("/")
    call.caller.need(path, Right.LISTEN)
    entity = _found(call, path)
    row = _row((0, path, entity), frozenset())
    if isinstance(entity, HybridConnection):
        return row | {"description": described_relay(entity) | {"name": path}}
    description = _fields(_description(entity))
    parts = entity.main.parts() if isinstance(entity, QueueEntity) else []
    row |= {"description": description, "fragments": len(parts), "consumers": consumers_of(entity)}
    await add_others(call, [row])
    return row


async def put(call: ApiCall) -> object:
    """{kind, path, description, create} -> as `show`. What stands in the description is set, the rest stays, or is as by default."""
    path = call.argument("path", str).strip("/")
    call.caller.need(path, Right.MANAGE)
    kind, fields = call.argument("kind", str), call.argument("description", dict, {})
    if kind == "relay":
        await _put_relay(call, path, fields)
    else:
        await _put_entity(call, kind, path, fields)
    return await show(call)


async def _put_entity(call: ApiCall, kind: str, path: str, fields: dict[str, Any]) -> None:
    admin = call.admin
    try:
        wanted_kind = EntityKind(kind)
    except ValueError:
        raise ArgumentRefused(f"'kind' must be queue, topic, subscription or relay, found {kind[:40]!r}") from None
    refused = sorted(set(fields) & _KEPT_BY_BROKER - {"name", "topic"})
    if refused:
        raise ArgumentRefused(f"{', '.join(refused)} cannot be set here")
    create = call.argument("create", bool, False)
    known: dict[str, Any] = {} if create else _fields(_description(_entity(call, path)))
    name: dict[str, Any] = {"name": path}
    if wanted_kind is EntityKind.SUBSCRIPTION:
        topic, _, last = path.rpartition("/")
        name = {"topic": topic.rpartition("/")[0], "name": last}
    try:
        described = load_entity(wanted_kind, json.dumps(known | fields | name))
    except NotADescription as error:
        raise ArgumentRefused(str(error)) from None
    if isinstance(described, SubscriptionDescription):
        await (admin.create_subscription(described) if create else admin.update_subscription(described))
    elif isinstance(described, QueueDescription):
        kept = () if create else _keys(call, path)
        described = dataclasses.replace(described, authorization_rules=kept)
        await (admin.create_queue(described) if create else admin.update_queue(described))
    else:
        assert isinstance(described, TopicDescription)
        described = dataclasses.replace(described, authorization_rules=() if create else _keys(call, path))
        await (admin.create_topic(described) if create else admin.update_topic(described))


def _entity(call: ApiCall, path: str) -> QueueEntity | AnyTopic | Subscription:
    entity = _found(call, path)
    if isinstance(entity, HybridConnection):
        raise ArgumentRefused(f"'{path}' is a relay")
    return entity


def _keys(call: ApiCall, path: str) -> tuple[Any, ...]:
    description = _description(_entity(call, path))
    return () if isinstance(description, SubscriptionDescription) else description.authorization_rules


async def _put_relay(call: ApiCall, path: str, fields: dict[str, Any]) -> None:
    relays = call.admin.relays
    allowed = {"requires_client_authorization": bool, "user_metadata": str}
    for name, value in fields.items():
        if name not in allowed or not isinstance(value, allowed[name]):
            raise ArgumentRefused(f"'{name}' cannot be {value!r}; a relay has {', '.join(allowed)}")
    known = relays.find(path)
    if known is None or call.argument("create", bool, False):
        await relays.create(HybridConnectionDescription(name=path, **fields))
    else:
        await relays.update(dataclasses.replace(known, **fields))


async def delete(call: ApiCall) -> object:
    """{path}: with its messages."""
    path = call.argument("path", str).strip("/")
    call.caller.need(path, Right.MANAGE)
    entity = _found(call, path)
    if isinstance(entity, Subscription):
        await call.admin.delete_subscription(entity.description.topic, entity.description.name)
    elif isinstance(entity, HybridConnection):
        await call.admin.relays.delete(path)
    else:
        await call.admin.delete_entity(path)
    return {"deleted": path}
