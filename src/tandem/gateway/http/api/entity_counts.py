"""How many messages of which kind entities hold: in this process, and in all workers of a broker together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from tandem.broker.entities.queue_entity import QueueEntity
from tandem.broker.entities.topic import Subscription
from tandem.model.address import SubQueue
from tandem.model.entity import Right
from tandem.model.errors import EntityNotFound

if TYPE_CHECKING:
    from tandem.broker.entities.partitioned import AnyTopic
    from tandem.broker.queue.entity import Entity
    from tandem.gateway.http.api.calls import ApiCall

_PATHS_MAX: Final = 500
_HOLDING_MAX: Final = 20_000
"""Paths that a worker names as having messages."""
MESSAGES: Final = "messages"
DEAD_LETTERS: Final = "dead-letters"
_ADDED: Final = (
    "active",
    "locked",
    "scheduled",
    "deferred",
    "leased",
    "dead_letters",
    "transfer_dead_letters",
    "size_bytes",
    "consumers",
)


def counts_of(entity: QueueEntity | Subscription | AnyTopic) -> dict[str, Any]:
    """As this process sees them."""
    if isinstance(entity, Subscription):
        entity = entity.entity
    if not isinstance(entity, QueueEntity):
        own = entity.counts()
        return {"scheduled": own.scheduled, "size_bytes": own.size_bytes}
    main = entity.main.counts()
    dead = entity.queues[SubQueue.DEAD_LETTER].counts()
    stranded = entity.queues[SubQueue.TRANSFER_DEAD_LETTER].counts()
    return {
        "active": main.active,
        "locked": main.locked,
        "scheduled": main.scheduled,
        "deferred": main.deferred,
        "leased": main.leased,
        "dead_letters": dead.total,
        "transfer_dead_letters": stranded.total,
        "size_bytes": main.size_bytes + dead.size_bytes + stranded.size_bytes,
        "incomplete": main.incomplete,
    }


def consumers_of(entity: QueueEntity | Subscription | AnyTopic) -> int:
    queue = entity.main if isinstance(entity, QueueEntity) else entity.queue if isinstance(entity, Subscription) else None
    return len(queue.receivers.consumers) if queue is not None else 0


def holds(entity: QueueEntity | AnyTopic, kind: str) -> bool:
    """Has this process messages of this kind in it?"""
    if not isinstance(entity, QueueEntity):
        return entity.counts().total > 0
    parts = (SubQueue.DEAD_LETTER, SubQueue.TRANSFER_DEAD_LETTER) if kind == DEAD_LETTERS else (SubQueue.MAIN,)
    return any(entity.queues[part].counts().total > 0 for part in parts)


# --- asked by another worker


async def counts(call: ApiCall) -> object:
    """{paths} -> {counts: by path, missing: by path the fragments that are not served here}. What is gone is left out."""
    found: dict[str, Any] = {}
    missing: dict[str, list[int]] = {}
    for path in call.argument("paths", list)[:_PATHS_MAX]:
        call.caller.need(str(path), Right.LISTEN)
        try:
            entity = entity_at(call, str(path))
        except EntityNotFound:
            continue
        found[path] = counts_of(entity) | {"consumers": consumers_of(entity)}
        missing[path] = _missing(entity)
    return {"counts": found, "missing": missing}


def entity_at(call: ApiCall, path: str) -> QueueEntity | Subscription | AnyTopic:
    namespace = call.context.namespace
    found = namespace.find(path)
    if found is not None:
        return found
    cut = path.casefold().rfind("/subscriptions/")
    if cut > 0:
        return namespace.subscription(path[:cut], path[cut + 15 :])
    raise EntityNotFound(f"The messaging entity '{namespace.name}:{path}' could not be found. It may have been deleted meanwhile.")


def _missing(entity: QueueEntity | Subscription | AnyTopic) -> list[int]:
    if isinstance(entity, Subscription):
        entity = entity.entity
    main: Entity = entity.main if isinstance(entity, QueueEntity) else entity
    return [number for number, part in enumerate(main.parts()) if part.terms.out_of_service]


async def holding(call: ApiCall) -> object:
    """{show} -> {paths}, in lower case, of what has such messages here."""
    call.caller.need("", Right.LISTEN)
    found: list[str] = []
    for path, entity in _all(call):
        if len(found) < _HOLDING_MAX and holds(entity, call.argument("show", str)):
            found.append(path)
    return {"paths": found}


def _all(call: ApiCall) -> Iterator[tuple[str, QueueEntity | AnyTopic]]:
    for name, entity in call.context.namespace.entities.items():
        yield name, entity
        if not isinstance(entity, QueueEntity):
            for key, one in entity.subscriptions.items():
                yield f"{name}/subscriptions/{key}", one.entity


# --- asked of the others


async def held_by_others(call: ApiCall, kind: str) -> frozenset[str]:
    """What has messages of this kind with another worker."""
    if kind not in (MESSAGES, DEAD_LETTERS) or not call.caller.may("", Right.LISTEN):
        return frozenset()
    said = await call.others_say("POST entities/holding", {"show": kind})
    return frozenset(path for told in said.values() for path in told["paths"])


async def add_others(call: ApiCall, rows: list[dict[str, Any]]) -> None:
    """To the counts of these rows of the tree what other workers have."""
    asked = {str(row["path"]): row for row in rows if row["kind"] in ("queue", "topic", "subscription")}
    if not asked or not call.others:
        return
    missing = {path: _missing(entity_at(call, path)) for path in asked}
    said = await call.others_say("POST entities/counts", {"paths": list(asked)})
    for path, row in asked.items():
        theirs = [told for told in said.values() if path in told["counts"]]
        lacking = set(missing[path]).intersection(*(told["missing"][path] for told in theirs))
        for told in theirs:
            for name, value in told["counts"][path].items():
                if name in _ADDED and name in row["counts"]:
                    row["counts"][name] += value
            if "consumers" in row:
                row["consumers"] += told["counts"][path]["consumers"]
        row["counts"]["incomplete"] = bool(lacking)
