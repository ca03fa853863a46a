"""What is in an entity at this moment: counted here, and by all nodes together where they share its stores."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

from tandem.broker.entities.partitioned import PARTITIONED
from tandem.model.address import SubQueue
from tandem.model.entity import CorrelationFilter
from tandem.model.errors import BusError
from tandem.server.administration_port import RuntimeProperties

if TYPE_CHECKING:
    from tandem.broker.entities.namespace import Namespace
    from tandem.broker.entities.queue_entity import QueueEntity
    from tandem.cluster.ownership import Ownership
    from tandem.server.far_stores import Ask


class RuntimeHere:
    """Implements `RuntimePort` for the stores that this node has."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    async def queue(self, name: str) -> RuntimeProperties:
        return _counted(self._namespace.queue(name))

    async def topic(self, name: str) -> RuntimeProperties:
        topic = self._namespace.topic(name)
        own = topic.counts()
        filters = [rule.filter for s in topic.subscriptions.values() for rule in s.description.rules]
        correlation = sum(isinstance(f, CorrelationFilter) for f in filters)
        return RuntimeProperties(
            scheduled=own.scheduled,
            size_bytes=own.size_bytes + sum(s.queue.counts().size_bytes for s in topic.subscriptions.values()),
            accessed_at_ms=topic.accessed_at,
            subscription_count=len(topic.subscriptions),
            sql_filter_count=len(filters) - correlation,
            correlation_filter_count=correlation,
        )

    async def subscription(self, topic: str, name: str) -> RuntimeProperties:
        found = self._namespace.subscription(topic, name)
        runtime = _counted(found.entity)
        # The service shows no date for a queue or topic that nobody used, and its creation for a subscription.
        return runtime if runtime.accessed_at_ms else dataclasses.replace(runtime, accessed_at_ms=found.description.created_at_ms)


class RuntimeOfAll:
    """Implements `RuntimePort`: whoever has the store of an entity is asked, of a partitioned one all are."""

    def __init__(self, namespace: Namespace, ownership: Ownership, ask: Ask) -> None:
        self._namespace = namespace
        self._here = RuntimeHere(namespace)
        self._ownership = ownership
        self._ask = ask

    async def queue(self, name: str) -> RuntimeProperties:
        return await self._joined(self._namespace.queue(name).store, {"queue": name})

    async def topic(self, name: str) -> RuntimeProperties:
        return await self._joined(self._namespace.topic(name).store, {"topic": name})

    async def subscription(self, topic: str, name: str) -> RuntimeProperties:
        return await self._joined(self._namespace.topic(topic).store, {"topic": topic, "subscription": name})

    async def _joined(self, store: int, what: dict[object, object]) -> RuntimeProperties:
        local = await self._counted_here(what)
        if store != PARTITIONED:
            owner = self._ownership.owner(store)
            if owner is None or self._ownership.here(store):
                return local
            return _told(await self._ask(owner, "runtime", what))
        stores = range(len(self._namespace.stores))
        owners = {self._ownership.owner(number) for number in stores if not self._ownership.here(number)}
        others = [self._ask(owner, "runtime", what) for owner in sorted(owner for owner in owners if owner is not None)]
        told = await asyncio.gather(*others, return_exceptions=True)
        found = _added_up([local, *(_told(one) for one in told if not isinstance(one, BaseException))])
        away = [one for one in told if isinstance(one, BaseException)]
        for error in away:
            if not isinstance(error, BusError):
                raise error
        return dataclasses.replace(found, available=False) if away else found

    async def answer(self, what: dict[object, object]) -> dict[object, object]:
        """Another node asks."""
        return dict(dataclasses.asdict(await self._counted_here(what)).items())

    async def _counted_here(self, what: dict[object, object]) -> RuntimeProperties:
        if "subscription" in what:
            return await self._here.subscription(str(what["topic"]), str(what["subscription"]))
        if "topic" in what:
            return await self._here.topic(str(what["topic"]))
        return await self._here.queue(str(what["queue"]))


def _counted(entity: QueueEntity) -> RuntimeProperties:
    main = entity.main.counts()
    dead = entity.dead_letters.counts()
    stranded = entity.queues[SubQueue.TRANSFER_DEAD_LETTER].counts()
    transfer = main.active if entity.main.terms.forwards else 0
    return RuntimeProperties(
        active=main.active + main.deferred + main.leased - transfer,
        dead_lettered=dead.total,
        scheduled=main.scheduled,
        transfer=transfer,
        transfer_dead_lettered=stranded.total,
        size_bytes=main.size_bytes + dead.size_bytes + stranded.size_bytes,
        accessed_at_ms=entity.main.accessed_at,
    )


def _told(answer: dict[object, object]) -> RuntimeProperties:
    return RuntimeProperties(**{field.name: answer.get(field.name, 0) for field in dataclasses.fields(RuntimeProperties)})  # type: ignore[arg-type]


def _added_up(parts: list[RuntimeProperties]) -> RuntimeProperties:
    """Of a partitioned entity whose fragments are on several nodes."""
    whole: dict[str, Any] = dataclasses.asdict(parts[0])
    for part in parts[1:]:
        for name in ("active", "dead_lettered", "scheduled", "transfer", "transfer_dead_lettered", "size_bytes"):
            whole[name] += getattr(part, name)
        whole["accessed_at_ms"] = max(whole["accessed_at_ms"], part.accessed_at_ms)
    return RuntimeProperties(**whole)
