"""The way back of a store that was down: its journal is read into blank entities, which then take the place of the old ones."""

from __future__ import annotations

from tandem.broker.entities.namespace import Namespace
from tandem.broker.entities.partitioned import PARTITIONED, AnyTopic, PartitionedQueue, PartitionedTopic
from tandem.broker.entities.queue_entity import QueueEntity
from tandem.broker.entities.topic import Subscription, Topic
from tandem.broker.queue.queue import Queue
from tandem.broker.recovery.tenant import StoreTenant
from tandem.model.address import SubQueue


class Reopening:
    """Of one store, once: blank entities for everything it holds, which are not in service before they are swapped in."""

    def __init__(self, namespace: Namespace, store: int) -> None:
        self._namespace = namespace
        self._builder = namespace.builder
        self._store = store
        self.tenant: StoreTenant = namespace.builder.tenant(namespace.stores[store].journal, namespace.roll, store)
        """What the journal is to be replayed into."""
        self._whole: dict[int, QueueEntity | Topic] = {}
        self._fragments: list[tuple[int, int, dict[SubQueue, Queue]]] = []
        """(entity id, fragment, its queues)."""
        self._topics: list[tuple[int, Topic]] = []
        """(fragment, topic)."""
        for entity in namespace.entities.values():
            if entity.store == PARTITIONED:
                self._renew_fragments(entity)
            elif entity.store == store and not isinstance(entity, PartitionedTopic):
                self._whole[entity.id] = self._renewed(entity)

    def _renewed(self, entity: QueueEntity | Topic) -> QueueEntity | Topic:
        if isinstance(entity, QueueEntity):
            return self._builder.queue(self.tenant, entity.id, entity.store, entity.description)
        topic = self._builder.topic(self.tenant, entity.id, entity.store, entity.topic_description)
        for subscription in entity.subscriptions.values():
            self._builder.subscription(self.tenant, topic, subscription.entity.id, subscription.description)
        return topic

    def _renew_fragments(self, whole: QueueEntity | AnyTopic) -> None:
        stores = len(self._namespace.stores)
        if isinstance(whole, PartitionedTopic):
            for number in range(self._store, len(whole.topics), stores):
                topic = self._builder.topic(self.tenant, whole.id, PARTITIONED, whole.topic_description, number)
                for subscription in whole.subscriptions.values():
                    self._add_part(topic, subscription, number)
                self._topics.append((number, topic))
        elif isinstance(whole, QueueEntity):
            for number in range(self._store, whole.description.partition_count, stores):
                queues = self._builder.queues(self.tenant, whole.id, whole.description, number)
                self._fragments.append((whole.id, number, queues))

    def _add_part(self, topic: Topic, subscription: Subscription, number: int) -> None:
        id_, as_queue = subscription.entity.id, subscription.entity.description
        queues = self._builder.queues(self.tenant, id_, as_queue, number)
        self._fragments.append((id_, number, queues))
        topic.add_subscription(Subscription(subscription.description, QueueEntity(id_, PARTITIONED, as_queue, queues), subscription.rules))

    # -- replayed ----------------------------------------------------------------------------

    def swap(self) -> None:
        """Put the replayed entities in service. What was administered meanwhile is caught up with."""
        renewed = {key: self._caught_up(entity) for key, entity in self._namespace.entities.items() if entity.store == self._store}
        for gone in self._whole.values():
            if isinstance(gone, QueueEntity):
                for queue in gone.queues.values():
                    for part in queue.parts():
                        self.tenant.discard(part)
                    queue.close()
        self._swap_fragments()
        self._namespace.return_to_service(self._store, self.tenant, renewed)

    def _caught_up(self, entity: QueueEntity | AnyTopic) -> QueueEntity | AnyTopic:
        fresh = self._whole.pop(entity.id, None)
        if isinstance(fresh, QueueEntity) and isinstance(entity, QueueEntity):
            fresh.configure(entity.description)
            return fresh
        if isinstance(fresh, Topic) and isinstance(entity, Topic) and fresh.subscriptions.keys() == entity.subscriptions.keys():
            fresh.reconfigure(entity.topic_description)
            return fresh
        # created while the store was down, or subscriptions came and went: empty, or replayed with the next reopening
        return entity if isinstance(entity, PartitionedTopic) else self._renewed(entity)

    def _swap_fragments(self) -> None:
        entities = self._namespace.entities.values()
        by_id: dict[int, QueueEntity | AnyTopic] = {entity.id: entity for entity in entities}
        for entity in entities:
            if isinstance(entity, PartitionedTopic):
                by_id.update({one.entity.id: one.entity for one in entity.subscriptions.values()})
        for number, topic in self._topics:
            whole = by_id.get(topic.id)
            if isinstance(whole, PartitionedTopic):
                for key in [key for key in topic.subscriptions if key not in whole.subscriptions]:
                    topic.remove_subscription(key)
                for key, subscription in whole.subscriptions.items():
                    if key not in topic.subscriptions:  # made while the store was down
                        self._add_part(topic, subscription, number)
                whole.replace_topic(number, topic)
            else:
                self.tenant.discard(topic)
        for id_, number, queues in self._fragments:
            whole = by_id.get(id_)
            for sub_queue, queue in queues.items():
                front = whole.queues[sub_queue] if isinstance(whole, QueueEntity) else None
                if isinstance(front, PartitionedQueue):
                    front.replace(number, queue)
                else:
                    self.tenant.discard(queue)
