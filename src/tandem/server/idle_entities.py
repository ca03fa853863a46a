"""Auto-delete-on-idle: entities that nobody has used for as long as their description allows are deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.broker.entities.partitioned import PARTITIONED
from tandem.broker.entities.queue_entity import QueueEntity
from tandem.model.entity import MAX_DURATION_MS
from tandem.model.errors import BusError, EntityNotFound

if TYPE_CHECKING:
    from tandem.broker.entities.partitioned import AnyTopic
    from tandem.broker.entities.topic import Subscription
    from tandem.broker.queue.entity import Entity
    from tandem.server.context import NamespaceContext

_LOOK_EVERY_MS: Final = 5_000


class IdleEntities:
    """One per namespace; `look_after` is called often and looks rarely."""

    def __init__(self, context: NamespaceContext) -> None:
        self._context = context
        self._opened_at = context.turn.now
        """Use is not remembered over a restart: idleness counts from here at the earliest."""
        self._looked_at = context.turn.now
        context.peer_operations["used"] = self._answer_used

    def look_after(self, now: int) -> None:
        if now - self._looked_at < _LOOK_EVERY_MS:
            return
        self._looked_at = now
        namespace = self._context.namespace
        for name, entity in list(namespace.entities.items()):
            if namespace.is_elsewhere(entity.store) and (entity.store != PARTITIONED or self._context.ask_others is None):
                continue  # whoever has it, or leads those who do, knows when it was used
            if not isinstance(entity, QueueEntity):
                self._look_at_topic(name, entity, now)
            elif self._is_over(entity.description.auto_delete_on_idle_ms, self.used_at(entity, now), now):
                self._context.spawn(self._delete(name, None, entity.description.auto_delete_on_idle_ms))

    def clock_jumped(self, by_ms: int) -> None:
        """Nobody knows how long ago the last use was: idleness counts from here."""
        self._opened_at = self._looked_at = self._context.turn.now

    def _look_at_topic(self, name: str, topic: AnyTopic, now: int) -> None:
        if self._is_over(topic.topic_description.auto_delete_on_idle_ms, self.topic_used_at(topic, now), now):
            self._context.spawn(self._delete(name, None, topic.topic_description.auto_delete_on_idle_ms))
            return
        for key, subscription in list(topic.subscriptions.items()):
            if self._is_over(subscription.description.auto_delete_on_idle_ms, self._subscription_used_at(subscription, now), now):
                self._context.spawn(self._delete(name, key, subscription.description.auto_delete_on_idle_ms))

    def _is_over(self, allowed_ms: int, used_at: int, now: int) -> bool:
        if used_at > now:
            used_at = self._opened_at  # from before the clock was set back
        return allowed_ms < MAX_DURATION_MS and now - used_at >= allowed_ms

    def used_at(self, entity: QueueEntity, now: int) -> int:
        """The last send, receive, peek or update; now while somebody is attached or a message waits for its time."""
        last = max(self._opened_at, entity.description.updated_at_ms)
        for queue in entity.queues.values():
            last = max(last, self._queue_used_at(queue, now))
        return last

    def _queue_used_at(self, queue: Entity, now: int) -> int:
        if queue.is_in_use():
            return now
        return queue.accessed_at

    def _subscription_used_at(self, subscription: Subscription, now: int) -> int:
        return max(self.used_at(subscription.entity, now), subscription.description.updated_at_ms)

    def topic_used_at(self, topic: AnyTopic, now: int) -> int:
        """Whatever happens to a subscription happens to its topic too."""
        last = max(self._opened_at, topic.topic_description.updated_at_ms, self._queue_used_at(topic, now))
        for subscription in topic.subscriptions.values():
            last = max(last, self._subscription_used_at(subscription, now))
        return last

    async def _answer_used(self, body: dict[object, object]) -> dict[object, object]:
        """When this node's part of an entity was used last, for the node that deletes."""
        now = self._context.turn.begin()
        entity = self._context.namespace.find(str(body.get("entity")))
        name = body.get("subscription")
        used = now
        if isinstance(entity, QueueEntity):
            used = self.used_at(entity, now)
        elif entity is not None and isinstance(name, str) and name in entity.subscriptions:
            used = self._subscription_used_at(entity.subscriptions[name], now)
        elif entity is not None:
            used = self.topic_used_at(entity, now)
        return {"idle-ms": now - used}

    async def _is_used_elsewhere(self, name: str, subscription: str | None, allowed_ms: int) -> bool:
        entity = self._context.namespace.find(name)
        ask_others = self._context.ask_others
        if entity is None or entity.store != PARTITIONED or ask_others is None:
            return False
        told = await ask_others("used", {"entity": name, "subscription": subscription})
        idle = [one.get("idle-ms") for one in told]
        return any(not isinstance(ms, int) or ms < allowed_ms for ms in idle)

    async def _delete(self, name: str, subscription: str | None, allowed_ms: int) -> None:
        admin = self._context.admin
        if admin is None or await self._is_used_elsewhere(name, subscription, allowed_ms):
            return
        what = name if subscription is None else f"{name}/Subscriptions/{subscription}"
        try:
            if subscription is None:
                await admin.delete_entity(name)
            else:
                await admin.delete_subscription(name, subscription)
        except EntityNotFound:
            return  # another node, which has a part of it too, was faster
        except BusError as error:
            self._context.warn(f"'{what}' was idle but could not be deleted: {error.description}")
            return
        self._context.log(f"'{what}' was not used for as long as its AutoDeleteOnIdle allows, and was deleted")
