"""New settings for a running broker: what changed in the configuration is changed where that can be; what needs a restart is named."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tandem.model.entity import TopicDescription
from tandem.model.errors import BusError, EntityNotFound
from tandem.model.limits import Limits
from tandem.server.administration import other_kind
from tandem.server.settings import NamespaceSettings, ServerSettings

if TYPE_CHECKING:
    from tandem.model.entity import SubscriptionDescription
    from tandem.server.administration import NamespaceAdmin
    from tandem.server.context import NamespaceContext

_CHANGED_WHILE_IT_RUNS: Final = frozenset({"namespaces", "limits", "tls", "known_hosts", "drain_seconds"})
NEED_RESTART: Final = tuple(one.name for one in fields(ServerSettings) if one.name not in _CHANGED_WHILE_IT_RUNS)
LIMITS_NEED_RESTART: Final = frozenset(
    {"hot_bytes_max", "ingress_bytes_in_flight_max", "header_bytes_max", "message_bytes_max", "message_bytes_ceiling"}
    | {one.name for one in fields(Limits) if one.name.startswith("relay_")}
)
"""Copied where they are needed when a broker, an entity or a door is opened."""


class RefusedChanges:
    """What a reload refused is refused again, and told again, for as long as the configuration says the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Any, Any]] = {}

    def before(self, kind: str, name: str, was: Any, wanted: Any) -> Any:
        """What it was before it became what is wanted, in vain or not."""
        known = self._known.pop((kind, name.casefold()), None)
        return known[1] if known is not None and known[0] == wanted else was

    def note(self, kind: str, name: str, was: Any, wanted: Any) -> None:
        self._known[kind, name.casefold()] = (wanted, was)


@dataclass(slots=True)
class Reloaded:
    """What came of it."""

    changed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """With the reason; what it was stays as it is."""
    left: list[str] = field(default_factory=list)
    """Entities that are no longer in the configuration: nothing is deleted."""
    needs_restart: list[str] = field(default_factory=list)
    earlier: RefusedChanges = field(default_factory=RefusedChanges)

    @classmethod
    def after(cls, last: Reloaded | None) -> Reloaded:
        return cls(earlier=last.earlier) if last is not None else cls()

    def as_dict(self) -> dict[str, list[str]]:
        return {"changed": self.changed, "refused": self.refused, "left": self.left, "needs_restart": self.needs_restart}


def split_settings(old: ServerSettings, new: ServerSettings, told: Reloaded) -> ServerSettings:
    """The settings that are in force from now on: those that need a restart are as they were."""
    kept = {name: getattr(old, name) for name in NEED_RESTART}
    told.needs_restart.extend(name for name in NEED_RESTART if getattr(old, name) != getattr(new, name))
    limits = {one.name: getattr(old.limits, one.name) for one in fields(Limits) if one.name in LIMITS_NEED_RESTART}
    for one in fields(Limits):
        if getattr(old.limits, one.name) != getattr(new.limits, one.name):
            (told.needs_restart if one.name in LIMITS_NEED_RESTART else told.changed).append(f"limits.{one.name}")
    if old.drain_seconds != new.drain_seconds:
        told.changed.append("drain_seconds")
    names = [namespace.name for namespace in old.namespaces]
    if names != [namespace.name for namespace in new.namespaces]:
        told.needs_restart.append("namespaces")
        kept["namespaces"] = old.namespaces
    return replace(new, **kept, limits=replace(new.limits, **limits))


async def reload_namespace(
    context: NamespaceContext,
    admin: NamespaceAdmin,
    old: NamespaceSettings,
    new: NamespaceSettings,
    told: Reloaded,
    entities_too: bool = True,
) -> None:
    """Without entities: another process looks after those, and we are told."""
    namespace = context.namespace
    if old.locks_outlive_connections != new.locks_outlive_connections:
        namespace.locks_outlive_connections = new.locks_outlive_connections
        told.changed.append(f"{new.name}: locks_outlive_connections")
    if old.hosts != new.hosts:
        told.changed.append(f"{new.name}: hosts")
    wanted = {rule.key_name: rule for rule in new.authorization_rules}
    for gone in {rule.key_name for rule in old.authorization_rules} - set(wanted):
        namespace.authorization_rules.pop(gone, None)
        told.changed.append(f"{new.name}: authorization rule {gone} removed")
    for name, rule in wanted.items():
        if namespace.authorization_rules.get(name) != rule:
            namespace.authorization_rules[name] = rule
            told.changed.append(f"{new.name}: authorization rule {name}")
    if not entities_too:
        return
    await _entities(admin, old, new, told)
    await _subscriptions(admin, old.subscriptions, new.subscriptions, told)


async def _entities(admin: NamespaceAdmin, old: NamespaceSettings, new: NamespaceSettings, told: Reloaded) -> None:
    async def relay(name: str) -> Any:
        return admin.relays.get(name).description

    kinds: tuple[tuple[str, Any, Any, Any, Any, Any], ...] = (
        ("queue", old.queues, new.queues, admin.get_entity, admin.create_queue, admin.update_queue),
        ("topic", old.topics, new.topics, admin.get_entity, admin.create_topic, admin.update_topic),
        ("relay", old.relays, new.relays, relay, admin.relays.create, admin.relays.update),
    )
    for kind, before, after, get, create, update in kinds:
        known = {one.name.casefold(): one for one in before}
        for one in after:
            was = known.get(one.name.casefold())
            await _bring_about(kind, one.name, was, one, partial(get, one.name), create, update, told)
        told.left.extend(f"{kind} {one.name}" for one in _gone(before, after))


async def _subscriptions(
    admin: NamespaceAdmin, before: Iterable[SubscriptionDescription], after: Iterable[SubscriptionDescription], told: Reloaded
) -> None:
    def key(one: SubscriptionDescription) -> tuple[str, str]:
        return one.topic.casefold(), one.name.casefold()

    known = {key(one): one for one in before}
    for one in after:
        was = known.pop(key(one), None)
        name = f"{one.topic}/{one.name}"
        get = partial(admin.get_subscription, one.topic, one.name)
        if not await _bring_about(
            "subscription", name, was, one, get, admin.create_subscription, admin.update_subscription, told, ("rules",)
        ):
            continue
        rules_before = {rule.name.casefold(): rule for rule in was.rules} if was is not None else {}
        rules_after = {rule.name.casefold(): rule for rule in one.rules}
        for folded in {**rules_before, **rules_after}:
            rule = rules_after.get(folded)
            old_rule = told.earlier.before("rule", f"{name}/{folded}", rules_before.get(folded), rule)
            if old_rule == rule:
                continue
            told_name = f"rule {name}/{(rule or old_rule).name}"
            change: Callable[[], Awaitable[object]]
            if rule is None:
                change = partial(admin.delete_rule, one.topic, one.name, folded)
            else:
                put = admin.create_rule if old_rule is None else admin.update_rule
                change = partial(put, one.topic, one.name, rule)
            if not await _try(told, told_name, change):
                told.earlier.note("rule", f"{name}/{folded}", old_rule, rule)
    told.left.extend(f"subscription {one.topic}/{one.name}" for one in known.values())


async def _bring_about(
    kind: str,
    name: str,
    was: Any,
    wanted: Any,
    get: Callable[[], Awaitable[Any]],
    create: Callable[[Any], Awaitable[Any]],
    update: Callable[[Any], Awaitable[Any]],
    told: Reloaded,
    beside: tuple[str, ...] = (),
) -> bool:
    """Created when it is missing; else what is written otherwise than before is changed, and what was changed by hand since stays.

    `beside`: fields that are looked after elsewhere. False: it was just created, with all of them.
    """
    try:
        current = await get()
    except EntityNotFound:
        await _try(told, f"{kind} {name} created", lambda: create(wanted))
        return False
    if type(current) is not type(wanted):
        other = "topic" if isinstance(current, TopicDescription) else "queue"
        told.refused.append(other_kind(name, kind, other, when="and reload"))
        return True
    existed = was is not None
    was = told.earlier.before(kind, name, was, wanted)
    if was is None or was == wanted:
        return existed
    changes = {
        one.name: getattr(wanted, one.name)
        for one in fields(wanted)
        if one.name not in beside and getattr(wanted, one.name) not in (getattr(was, one.name), getattr(current, one.name))
    }
    if changes and not await _try(told, f"{kind} {name}: {', '.join(changes)}", lambda: update(replace(current, **changes))):
        told.earlier.note(kind, name, was, wanted)
    return True


async def _try(told: Reloaded, what: str, change: Callable[[], Awaitable[object]]) -> bool:
    try:
        await change()
    except BusError as error:
        told.refused.append(f"{what}: {error.description}")
        return False
    told.changed.append(what)
    return True


def _gone(before: Iterable[Any], after: Iterable[Any]) -> list[Any]:
    there = {one.name.casefold() for one in after}
    return [one for one in before if one.name.casefold() not in there]
