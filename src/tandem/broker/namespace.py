"""The registry of a namespace: which entity a path names, which store keeps it, and how both come and go."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from tandem.broker.journal import Journal
from tandem.broker.queue import Queue
from tandem.broker.replay import StoreTenant
from tandem.broker.state import HotBudget, Rewriter
from tandem.broker.topic import Subscription, Topic, queue_of_subscription
from tandem.broker.turn import Turn
from tandem.model.address import Address, SubQueue
from tandem.model.entity import MAX_DURATION_MS, AuthorizationRule, QueueDescription, SubscriptionDescription, TopicDescription
from tandem.model.errors import BusError, EntityNotFound, NotAllowed
from tandem.model.limits import Limits

_NO_LIMIT: Final = 1 << 62
_MEGABYTES_UNLIMITED: Final = 1 << 40


class QueueEntity:
    """A queue with its sub-queues."""

    def __init__(self, id_: int, store: int, description: QueueDescription, queues: dict[SubQueue, Queue]) -> None:
        self.id = id_
        self.store = store
        self.description = description
        self.queues = queues

    @property
    def main(self) -> Queue:
        return self.queues[SubQueue.MAIN]

    @property
    def dead_letters(self) -> Queue:
        return self.queues[SubQueue.DEAD_LETTER]

    def configure(self, description: QueueDescription) -> None:
        self.description = description
        self.main.configure(description)
        for sub_queue in (SubQueue.DEAD_LETTER, SubQueue.TRANSFER_DEAD_LETTER):
            self.queues[sub_queue].configure(sub_queue_description(description, sub_queue))


def sub_queue_description(description: QueueDescription, sub_queue: SubQueue) -> QueueDescription:
    """A dead-letter queue keeps messages for ever, without sessions, whatever its parent says."""
    return dataclasses.replace(
        description,
        requires_session=False,
        requires_duplicate_detection=False,
        default_message_time_to_live_ms=MAX_DURATION_MS,
        dead_lettering_on_message_expiration=False,
        max_delivery_count=_NO_LIMIT,
        max_size_megabytes=_MEGABYTES_UNLIMITED,
        forward_to=None,
        forward_dead_lettered_messages_to=None,
    )


class Namespace:
    """Entities by path, without regard to case. Stores are attached before entities, replayed after them."""

    def __init__(self, name: str, turn: Turn, limits: Limits, rewriter: Rewriter, new_nonce: Callable[[], int]) -> None:
        self.name = name
        self.turn = turn
        self.limits = limits
        self.rewriter = rewriter
        self.authorization_rules: dict[str, AuthorizationRule] = {}
        self.stores: list[StoreTenant] = []
        self.entities: dict[str, QueueEntity | Topic] = {}
        self._budgets: list[HotBudget] = []
        self._new_nonce = new_nonce

    # -- stores ------------------------------------------------------------------------------

    def attach_store(self, journal: Journal) -> StoreTenant:
        tenant = StoreTenant(journal, self.turn.now)
        self.stores.append(tenant)
        self._budgets.append(HotBudget(self.limits.hot_bytes_max))
        self.turn.add_journal(journal)
        return tenant

    def replay(self) -> None:
        """Rebuild every queue from its store's facts."""
        for tenant in self.stores:
            tenant.journal.replay(tenant)
            tenant.finish()

    def choose_store(self) -> int:
        """Where a new entity will live: the store with the fewest queues."""
        sizes = [len(tenant.queues) for tenant in self.stores]
        return sizes.index(min(sizes))

    # -- entities ----------------------------------------------------------------------------

    def add_queue(self, id_: int, store: int, description: QueueDescription) -> QueueEntity:
        entity = self.build(id_, store, description.name, description)
        self.entities[description.name.casefold()] = entity
        return entity

    def build(self, id_: int, store: int, path: str, description: QueueDescription) -> QueueEntity:
        tenant = self.stores[store]
        queues: dict[SubQueue, Queue] = {}
        for sub_queue in SubQueue:
            wish = description if sub_queue is SubQueue.MAIN else sub_queue_description(description, sub_queue)
            address = Address(path, sub_queue)
            limit = description.max_message_bytes or self.limits.message_bytes_max
            queue = Queue(
                4 * id_ + sub_queue.value, address.path, wish, tenant.journal, self.turn, self._budgets[store], self._new_nonce(), limit
            )
            queue.rewriter = self.rewriter
            queue.is_dead_letter = sub_queue is not SubQueue.MAIN
            queues[sub_queue] = queue
            tenant.add(queue)
        queues[SubQueue.MAIN].dead_letters = queues[SubQueue.DEAD_LETTER]
        return QueueEntity(id_, store, description, queues)

    def add_topic(self, id_: int, store: int, description: TopicDescription) -> Topic:
        tenant = self.stores[store]
        limit = description.max_message_bytes or self.limits.message_bytes_max
        topic = Topic(4 * id_, description, tenant.journal, self.turn, self._budgets[store], self._new_nonce(), limit)
        topic.store = store
        topic.rewriter = self.rewriter
        tenant.add(topic)
        self.entities[description.name.casefold()] = topic
        return topic

    def add_subscription(self, id_: int, description: SubscriptionDescription) -> Subscription:
        """In the store of its topic, so that a message for all subscriptions is one write."""
        topic = self.topic(description.topic)
        wish = queue_of_subscription(description)
        entity = self.build(id_, topic.store, wish.name, wish)
        subscription = Subscription(description, entity, self.limits)
        topic.subscriptions[description.name.casefold()] = subscription
        return subscription

    def find(self, name: str) -> QueueEntity | Topic | None:
        return self.entities.get(name.casefold())

    def topic(self, name: str) -> Topic:
        topic = self.entities.get(name.casefold())
        if not isinstance(topic, Topic):
            raise self.not_found(name)
        return topic

    def subscription(self, topic: str, name: str) -> Subscription:
        found = self.topic(topic).subscriptions.get(name.casefold())
        if found is None:
            raise self.not_found(f"{topic}/Subscriptions/{name}")
        return found

    def remove(self, name: str) -> None:
        """Take a queue or topic out; its messages go with it, its receivers are told."""
        entity = self.entities.pop(name.casefold(), None)
        if entity is None:
            raise self.not_found(name)
        if isinstance(entity, Topic):
            for subscription in list(entity.subscriptions):
                self.remove_subscription(entity, subscription)
            self.stores[entity.store].discard(entity)
            entity.close()
        else:
            self.dismantle(entity)

    def remove_subscription(self, topic: Topic, name: str) -> None:
        self.dismantle(topic.subscriptions.pop(name.casefold()).entity)

    def dismantle(self, entity: QueueEntity) -> None:
        gone = EntityNotFound(f"The messaging entity '{entity.main.path}' has been deleted.")
        for queue in entity.queues.values():
            self.stores[entity.store].discard(queue)
            queue.close()
            queue.tell_all(gone)

    def resolve(self, address: Address) -> Queue:
        """What a receiver or a management node at this address works on."""
        parts = address.topic_and_subscription
        if parts is not None and address.key not in self.entities:
            return self.subscription(*parts).entity.queues[address.sub_queue]
        entity = self.entities.get(address.key)
        if entity is None:
            raise self.not_found(address.path)
        if isinstance(entity, Topic):
            if address.management:
                return entity
            raise NotAllowed(f"'{address.path}' is a topic: receive from one of its subscriptions.")
        return entity.queues[address.sub_queue]

    def resolve_sender(self, address: Address) -> Queue:
        """What a sender to this address sends to."""
        entity = self.entities.get(address.key)
        if entity is None:
            if address.topic_and_subscription is not None:
                raise NotAllowed(f"'{address.path}' is a subscription: send to its topic.")
            raise self.not_found(address.path)
        return entity if isinstance(entity, Topic) else entity.main

    def must_exist(self, address: Address) -> None:
        parts = address.topic_and_subscription
        if address.key in self.entities:
            return
        if parts is None:
            raise self.not_found(address.path)
        self.subscription(*parts)

    def entity_rule(self, path: str, key_name: str) -> AuthorizationRule | None:
        entity = self.entities.get(path)
        if entity is None:
            return None
        return next((rule for rule in entity.description.authorization_rules if rule.key_name == key_name), None)

    def not_found(self, path: str) -> BusError:
        return EntityNotFound(f"The messaging entity '{self.name}:{path}' could not be found. Create it, or check its name.")
