"""Makes the entities of a namespace, whole or in fragments, for the stores that keep them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tandem.broker.entities.joined import FRAGMENT_SHIFT
from tandem.broker.entities.partitioned import PARTITIONED, PartitionedQueue, PartitionedTopic
from tandem.broker.entities.queue_entity import QueueEntity, sub_queue_description
from tandem.broker.entities.topic import Subscription, Topic, compile_rules, queue_of_subscription
from tandem.broker.facts import FRAGMENT_BITS
from tandem.broker.forwarding import Forwarders
from tandem.broker.ports import Journal, Rewriter
from tandem.broker.queue.queue import Queue
from tandem.broker.queue.terms import Terms
from tandem.broker.recovery.entity_facts import Roll
from tandem.broker.recovery.stores import Stores
from tandem.broker.recovery.tenant import StoreTenant
from tandem.model.address import Address, SubQueue
from tandem.model.entity import QueueDescription, SubscriptionDescription, TopicDescription
from tandem.model.limits import Limits


class EntityBuilder:
    """Of one namespace. What it makes is known to its store's tenant, so that it can be replayed, and to nobody else yet."""

    def __init__(self, namespace: Stores, limits: Limits, rewriter: Rewriter, new_nonce: Callable[[], int]) -> None:
        self.limits = limits
        self.rewriter = rewriter
        self._namespace = namespace
        self._forwarders = Forwarders(namespace)
        self._new_nonce = new_nonce

    def use_limits(self, limits: Limits) -> None:
        """For what is made from now on."""
        self.limits = limits

    def tenant(self, journal: Journal, roll: Roll, store: int) -> StoreTenant:
        return StoreTenant(journal, self.limits.hot_bytes_max, self._namespace.turn.now, roll, store)

    def queue(self, tenant: StoreTenant, id_: int, store: int, description: QueueDescription) -> QueueEntity:
        return QueueEntity(id_, store, description, self.queues(tenant, id_, description, 0))

    def queues(self, tenant: StoreTenant, id_: int, description: QueueDescription, fragment: int) -> dict[SubQueue, Queue]:
        """A queue with its sub-queues, or one fragment of each."""
        turn = self._namespace.turn
        queues: dict[SubQueue, Queue] = {}
        for sub_queue in SubQueue:
            number = fragment << FRAGMENT_BITS | 4 * id_ + sub_queue.value
            terms = self._terms(sub_queue, description)
            meter = tenant.meters.meter(number, terms.path, turn)
            base = fragment << FRAGMENT_SHIFT
            queue = Queue(number, terms, tenant.backing, meter, turn, self.rewriter, self._forwarders, self._new_nonce(), base)
            queues[sub_queue] = queue
            tenant.add(queue)
        transfers = queues[SubQueue.TRANSFER_DEAD_LETTER]
        queues[SubQueue.MAIN].set_aside_into(queues[SubQueue.DEAD_LETTER], transfers)
        queues[SubQueue.DEAD_LETTER].set_aside_into(None, transfers)
        return queues

    def _terms(self, sub_queue: SubQueue, description: QueueDescription) -> Terms:
        as_queue = description if sub_queue is SubQueue.MAIN else sub_queue_description(description, sub_queue)
        limit = description.max_message_bytes or self.limits.message_bytes_max
        path = description.name
        return Terms(Address(path, sub_queue).path, path, sub_queue is not SubQueue.MAIN, as_queue, limit)

    def partitioned_queue(self, id_: int, description: QueueDescription) -> QueueEntity:
        """Fragments over all stores, each with dead-letter fragments beside it in the same store."""
        stores = self._namespace.stores
        parts: dict[SubQueue, list[Queue]] = {sub_queue: [] for sub_queue in SubQueue}
        for number in range(description.partition_count):
            fragment = self.queues(stores[number % len(stores)], id_, description, number)
            for sub_queue, queue in fragment.items():
                parts[sub_queue].append(queue)
        fronts = {
            sub_queue: PartitionedQueue(self._namespace, parts[sub_queue], self._terms(sub_queue, description)) for sub_queue in SubQueue
        }
        return QueueEntity(id_, PARTITIONED, description, fronts)

    def topic(self, tenant: StoreTenant, id_: int, store: int, description: TopicDescription, fragment: int = 0) -> Topic:
        turn = self._namespace.turn
        limit = description.max_message_bytes or self.limits.message_bytes_max
        number = fragment << FRAGMENT_BITS | 4 * id_
        meter = tenant.meters.meter(number, description.name, turn)
        base = fragment << FRAGMENT_SHIFT
        topic = Topic(number, id_, store, description, tenant.backing, meter, turn, self.rewriter, self._new_nonce(), base, limit)
        tenant.add(topic)
        return topic

    def partitioned_topic(self, id_: int, description: TopicDescription) -> PartitionedTopic:
        stores = self._namespace.stores
        topics = [
            self.topic(stores[number % len(stores)], id_, PARTITIONED, description, number) for number in range(description.partition_count)
        ]
        return PartitionedTopic(self._namespace, id_, topics, description)

    def subscription(self, tenant: StoreTenant, topic: Topic, id_: int, description: SubscriptionDescription) -> Subscription:
        entity = self.queue(tenant, id_, topic.store, queue_of_subscription(description))
        subscription = Subscription(description, entity, compile_rules(description, self.limits))
        topic.add_subscription(subscription)
        return subscription

    def partitioned_subscription(self, topic: PartitionedTopic, id_: int, description: SubscriptionDescription) -> Subscription:
        as_queue = dataclasses.replace(queue_of_subscription(description), partition_count=len(topic.topics))
        entity = self.partitioned_queue(id_, as_queue)
        whole = Subscription(description, entity, compile_rules(description, self.limits))
        parts: list[Subscription] = []
        for number in range(len(topic.topics)):
            queues = {sub_queue: queue.parts()[number] for sub_queue, queue in entity.queues.items()}
            parts.append(Subscription(description, QueueEntity(id_, PARTITIONED, as_queue, queues), whole.rules))
        topic.add_subscription(whole, parts)
        return whole
