"""The registry of a namespace: which entity a path names, which store keeps it, and how both come and go."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from tandem.broker.entities.joined import FRAGMENT_SHIFT
from tandem.broker.entities.partitioned import PARTITIONED, AnyTopic, PartitionedQueue, PartitionedTopic
from tandem.broker.entities.queue_entity import QueueEntity, sub_queue_description
from tandem.broker.entities.topic import Subscription, Topic, compile_rules, queue_of_subscription
from tandem.broker.facts import FRAGMENT_BITS
from tandem.broker.forwarding import Forwarders
from tandem.broker.ports import Journal, Rewriter
from tandem.broker.queue.entity import Entity
from tandem.broker.queue.queue import Queue
from tandem.broker.queue.terms import Terms
from tandem.broker.recovery.entity_facts import Roll
from tandem.broker.recovery.stores import Stores
from tandem.broker.recovery.tenant import StoreTenant
from tandem.broker.recovery.transactions import resolve
from tandem.broker.recovery.transfers import settle_transfers, suspend_forwarding
from tandem.broker.turn import Turn
from tandem.model.address import Address, SubQueue
from tandem.model.entity import AuthorizationRule, QueueDescription, SubscriptionDescription, TopicDescription
from tandem.model.entity_json import EntityDescription
from tandem.model.errors import BusError, EntityNotFound, NotAllowed, StoreMissing, StoreUnavailable
from tandem.model.limits import Limits
from tandem.model.message import Message


class _Fresh:
    """Entities that were made for a store that is being read again, and are not in service yet."""

    def __init__(self, tenant: StoreTenant) -> None:
        self.tenant = tenant
        self.whole: dict[int, QueueEntity | Topic] = {}
        self.fragments: list[tuple[int, int, dict[SubQueue, Queue]]] = []
        """(entity id, fragment, its queues)."""
        self.topics: list[tuple[int, Topic]] = []
        """(fragment, topic)."""


def _same_shape(fresh: QueueEntity | Topic, entity: QueueEntity | AnyTopic) -> bool:
    if isinstance(fresh, Topic) and isinstance(entity, Topic):
        return fresh.subscriptions.keys() == entity.subscriptions.keys()
    return isinstance(fresh, QueueEntity) and isinstance(entity, QueueEntity)


class Namespace(Stores):
    """Entities by path, without regard to case. Stores are attached before entities, replayed after them."""

    def __init__(self, name: str, turn: Turn, limits: Limits, rewriter: Rewriter, new_nonce: Callable[[], int]) -> None:
        super().__init__(turn)
        self.name = name
        self.limits = limits
        self.rewriter = rewriter
        self.authorization_rules: dict[str, AuthorizationRule] = {}
        self.locks_outlive_connections: bool = False
        """For entities that do not say it themselves."""
        self.entities: dict[str, QueueEntity | AnyTopic] = {}
        self.roll = Roll()
        self._unread: set[int] = set()
        """Stores that nobody has been able to read since the start."""
        self._new_nonce = new_nonce
        self._fresh: dict[int, _Fresh] = {}
        self._forwarders = Forwarders(self)

    # -- stores ------------------------------------------------------------------------------

    def attach_store(self, journal: Journal) -> StoreTenant:
        tenant = StoreTenant(journal, self.limits.hot_bytes_max, self.turn.now, self.roll, len(self.stores))
        self.stores.append(tenant)
        self.turn.add_journal(journal)
        return tenant

    def replay(self) -> None:
        """Rebuild every queue from its store's facts. A store that cannot be read is down, the others serve.

        None at all is an error, unless it is just that they are not there: those are waited for.
        """
        trouble: BusError | None = None
        for number, tenant in enumerate(self.stores):
            try:
                tenant.journal.replay(tenant)
            except BusError as error:
                if not isinstance(error, StoreMissing):
                    trouble = error
                self._unread.add(number)
                tenant.take_out_of_service()
            else:
                tenant.finish()
                tenant.entities.tell_all(self.turn.now)
        for tenant in self.stores:
            if tenant.available:
                suspend_forwarding(self, tenant, self._unread)
        if trouble is not None and not any(tenant.available for tenant in self.stores):
            raise trouble
        self.settle_between()

    def settle_between(self) -> None:
        """What concerned several stores when one of them stopped, or went to another node, is brought to its end."""
        settle_transfers(self)
        resolve(self)

    def choose_store(self, among: Sequence[int] = ()) -> int:
        """Where a new entity will live: the store with the fewest queues, of those that are up; `among`: of these only."""
        stores = among or range(len(self.stores))

        def rank(store: int) -> tuple[bool, int]:
            tenant = self.stores[store]
            return not tenant.available and not tenant.elsewhere, len(tenant.queues)

        return min(stores, key=rank)

    def clock_jumped(self, by_ms: int) -> None:
        """The machine's clock was set, and the turn's instant with it."""
        for tenant in self.stores:
            tenant.clock_jumped(by_ms, self.turn.now)

    def blank_tenant(self, store: int) -> StoreTenant:
        """Empty queues for everything the store holds, to replay its journal into while the old ones are out of service."""
        tenant = StoreTenant(self.stores[store].journal, self.limits.hot_bytes_max, self.turn.now, self.roll, store)
        fresh = self._fresh[store] = _Fresh(tenant)
        for entity in self.entities.values():
            if entity.store == store:
                self._renew(fresh, entity)
            elif isinstance(entity, PartitionedTopic):
                for number in range(store, len(entity.topics), len(self.stores)):
                    self._renew_topic_fragment(fresh, entity, number)
            elif entity.store == PARTITIONED and isinstance(entity, QueueEntity):
                for number in range(store, entity.description.partition_count, len(self.stores)):
                    queues = self.build_queues(tenant, entity.id, entity.description.name, entity.description, number)
                    fresh.fragments.append((entity.id, number, queues))
        return tenant

    def _renew_topic_fragment(self, fresh: _Fresh, whole: PartitionedTopic, number: int) -> None:
        topic = self._build_topic(fresh.tenant, whole.id, PARTITIONED, whole.topic_description, number)
        for subscription in whole.subscriptions.values():
            self._add_part(fresh, topic, subscription, number)
        fresh.topics.append((number, topic))

    def _add_part(self, fresh: _Fresh, topic: Topic, subscription: Subscription, number: int) -> None:
        as_queue = subscription.entity.description
        queues = self.build_queues(fresh.tenant, subscription.entity.id, as_queue.name, as_queue, number)
        fresh.fragments.append((subscription.entity.id, number, queues))
        entity = QueueEntity(subscription.entity.id, PARTITIONED, as_queue, queues)
        topic.add_subscription(Subscription(subscription.description, entity, subscription.rules))

    def _renew(self, fresh: _Fresh, entity: QueueEntity | AnyTopic) -> None:
        tenant = fresh.tenant
        if isinstance(entity, QueueEntity):
            fresh.whole[entity.id] = self._build(tenant, entity.id, entity.store, entity.description.name, entity.description)
            return
        if isinstance(entity, PartitionedTopic):
            return
        topic = self._build_topic(tenant, entity.id, entity.store, entity.topic_description)
        fresh.whole[entity.id] = topic
        for subscription in entity.subscriptions.values():
            self._build_subscription(tenant, topic, subscription.entity.id, subscription.description)

    def swap(self, store: int, tenant: StoreTenant) -> None:
        """Put the replayed queues in service. What was administered meanwhile is caught up with."""
        made = self._fresh.pop(store)
        assert made.tenant is tenant, "made for another replay of the store"
        for key, entity in list(self.entities.items()):
            if entity.store != store:
                continue
            fresh = made.whole.pop(entity.id, None)
            if fresh is None or not _same_shape(fresh, entity):
                # created while the store was down, or subscriptions came and went: empty, or replayed with the next reopening
                self._renew(made, entity)
                fresh = made.whole.pop(entity.id)
            elif isinstance(fresh, QueueEntity) and isinstance(entity, QueueEntity):
                fresh.configure(entity.description)
            elif isinstance(fresh, Topic) and isinstance(entity, Topic):
                fresh.reconfigure(entity.topic_description)
            self.entities[key] = fresh
        for gone in made.whole.values():
            if isinstance(gone, QueueEntity):
                for queue in gone.queues.values():
                    for part in queue.parts():
                        tenant.discard(part)
                    queue.close()
        self._swap_fragments(made)
        missed_ms = self.stores[store].clock_missed_ms
        self.stores[store] = tenant
        if missed_ms:
            tenant.clock_jumped(missed_ms, self.turn.now)
        tenant.finish()
        tenant.entities.tell_all(self.turn.now)
        self._unread.discard(store)
        suspend_forwarding(self, tenant, self._unread)
        self.settle_between()

    def _swap_fragments(self, made: _Fresh) -> None:
        by_id: dict[int, QueueEntity | AnyTopic] = {entity.id: entity for entity in self.entities.values()}
        for entity in self.entities.values():
            if isinstance(entity, PartitionedTopic):
                by_id.update({one.entity.id: one.entity for one in entity.subscriptions.values()})
        for number, topic in made.topics:
            whole = by_id.get(topic.id)
            if isinstance(whole, PartitionedTopic):
                for key in [key for key in topic.subscriptions if key not in whole.subscriptions]:
                    topic.remove_subscription(key)
                for key, subscription in whole.subscriptions.items():
                    if key not in topic.subscriptions:  # made while the store was down
                        self._add_part(made, topic, subscription, number)
                whole.replace_topic(number, topic)
            else:
                made.tenant.discard(topic)
        for id_, number, queues in made.fragments:
            whole = by_id.get(id_)
            for sub_queue, queue in queues.items():
                front = whole.queues[sub_queue] if isinstance(whole, QueueEntity) else None
                if isinstance(front, PartitionedQueue):
                    front.replace(number, queue)
                else:
                    made.tenant.discard(queue)

    # -- entities ----------------------------------------------------------------------------

    def enter(self, id_: int, store: int, description: EntityDescription) -> None:
        """The metadata has this entity, or has it as it is now: its stores are told, before anything else they are told of it."""
        self.roll.enter(id_, store, description)
        self._tell(id_)

    def _tell(self, id_: int) -> None:
        for tenant in self.stores:
            if tenant.available:
                tenant.entities.tell(id_, self.turn.now)
        self.turn.schedule()

    def _leave(self, id_: int) -> None:
        self.roll.leave(id_)
        self._tell(id_)

    def add_queue(self, id_: int, store: int, description: QueueDescription) -> QueueEntity:
        if description.partition_count > 1:
            entity = self._build_partitioned(id_, description.name, description)
        else:
            entity = self._build(self.stores[store], id_, store, description.name, description)
        self.enter(id_, entity.store, description)
        self.entities[description.name.casefold()] = entity
        return entity

    def _build_partitioned(self, id_: int, path: str, description: QueueDescription) -> QueueEntity:
        """Fragments over all stores, each with dead-letter fragments beside it in the same store."""
        parts: dict[SubQueue, list[Queue]] = {sub_queue: [] for sub_queue in SubQueue}
        for number in range(description.partition_count):
            fragment = self.build_queues(self.stores[number % len(self.stores)], id_, path, description, number)
            for sub_queue, queue in fragment.items():
                parts[sub_queue].append(queue)
        queues = {
            sub_queue: PartitionedQueue(self, parts[sub_queue], _terms_of(path, sub_queue, description, self.limits))
            for sub_queue in SubQueue
        }
        return QueueEntity(id_, PARTITIONED, description, queues)

    def _build(self, tenant: StoreTenant, id_: int, store: int, path: str, description: QueueDescription) -> QueueEntity:
        return QueueEntity(id_, store, description, self.build_queues(tenant, id_, path, description, 0))

    def build_queues(self, tenant: StoreTenant, id_: int, path: str, description: QueueDescription, fragment: int) -> dict[SubQueue, Queue]:
        """A queue with its sub-queues, or one fragment of each."""
        queues: dict[SubQueue, Queue] = {}
        for sub_queue in SubQueue:
            number = fragment << FRAGMENT_BITS | 4 * id_ + sub_queue.value
            terms = _terms_of(path, sub_queue, description, self.limits)
            meter = tenant.meters.meter(number, terms.path, self.turn)
            base = fragment << FRAGMENT_SHIFT
            queue = Queue(number, terms, tenant.backing, meter, self.turn, self.rewriter, self._forwarders, self._new_nonce(), base)
            queues[sub_queue] = queue
            tenant.add(queue)
        transfers = queues[SubQueue.TRANSFER_DEAD_LETTER]
        queues[SubQueue.MAIN].set_aside_into(queues[SubQueue.DEAD_LETTER], transfers)
        queues[SubQueue.DEAD_LETTER].set_aside_into(None, transfers)
        return queues

    def add_topic(self, id_: int, store: int, description: TopicDescription) -> AnyTopic:
        topic: AnyTopic
        if description.partition_count > 1:
            stores = self.stores
            topics = [
                self._build_topic(stores[number % len(stores)], id_, PARTITIONED, description, number)
                for number in range(description.partition_count)
            ]
            topic = PartitionedTopic(self, id_, topics, description)
        else:
            topic = self._build_topic(self.stores[store], id_, store, description)
        self.enter(id_, topic.store, description)
        self.entities[description.name.casefold()] = topic
        return topic

    def _build_topic(self, tenant: StoreTenant, id_: int, store: int, description: TopicDescription, fragment: int = 0) -> Topic:
        limit = description.max_message_bytes or self.limits.message_bytes_max
        number = fragment << FRAGMENT_BITS | 4 * id_
        meter = tenant.meters.meter(number, description.name, self.turn)
        base = fragment << FRAGMENT_SHIFT
        topic = Topic(number, id_, store, description, tenant.backing, meter, self.turn, self.rewriter, self._new_nonce(), base, limit)
        tenant.add(topic)
        return topic

    def add_subscription(self, id_: int, description: SubscriptionDescription) -> Subscription:
        """In the store of its topic, so that a message for all subscriptions is one write; fragments likewise."""
        topic = self.topic(description.topic)
        self.enter(id_, topic.store, description)
        if isinstance(topic, Topic):
            return self._build_subscription(self.stores[topic.store], topic, id_, description)
        as_queue = dataclasses.replace(queue_of_subscription(description), partition_count=len(topic.topics))
        entity = self._build_partitioned(id_, as_queue.name, as_queue)
        whole = Subscription(description, entity, compile_rules(description, self.limits))
        parts: list[Subscription] = []
        for number in range(len(topic.topics)):
            queues = {sub_queue: queue.parts()[number] for sub_queue, queue in entity.queues.items()}
            parts.append(Subscription(description, QueueEntity(id_, PARTITIONED, as_queue, queues), whole.rules))
        topic.add_subscription(whole, parts)
        return whole

    def _build_subscription(self, tenant: StoreTenant, topic: Topic, id_: int, description: SubscriptionDescription) -> Subscription:
        as_queue = queue_of_subscription(description)
        entity = self._build(tenant, id_, topic.store, as_queue.name, as_queue)
        subscription = Subscription(description, entity, compile_rules(description, self.limits))
        topic.add_subscription(subscription)
        return subscription

    def forward_target(self, name: str) -> Entity | None:
        """The queue or topic that takes what is forwarded to this name."""
        entity = self.entities.get(name.casefold())
        return entity.main if isinstance(entity, QueueEntity) else entity

    def place_of(self, target: Entity, message: Message) -> tuple[int, int]:
        if self.far is None:
            return -1, -1
        if not isinstance(target, PartitionedQueue):
            return next((number for number, one in enumerate(self.stores) if one.elsewhere and target in one.queues.values()), -1), -1
        fragment = target.fragment_of(message)
        if fragment < 0 and target.takes_here():
            return -1, -1
        among = range(len(target.fragments.queues)) if fragment < 0 else [fragment]
        for number in among:
            store = number % len(self.stores)
            if self.stores[store].elsewhere:
                return store, number
        return -1, -1

    def find(self, name: str) -> QueueEntity | AnyTopic | None:
        return self.entities.get(name.casefold())

    def topic(self, name: str) -> AnyTopic:
        topic = self.entities.get(name.casefold())
        if topic is None or isinstance(topic, QueueEntity):
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
        if isinstance(entity, QueueEntity):
            self.dismantle(entity)
            return
        for subscription in list(entity.subscriptions):
            self.remove_subscription(entity, subscription)
        self._leave(entity.id)
        for part in entity.parts():
            for tenant in self.stores:
                tenant.discard(part)
        entity.close()

    def remove_subscription(self, topic: AnyTopic, name: str) -> None:
        self.dismantle(topic.remove_subscription(name).entity)

    def dismantle(self, entity: QueueEntity) -> None:
        self._leave(entity.id)
        gone = EntityNotFound(f"The messaging entity '{entity.main.path}' has been deleted.")
        for queue in entity.queues.values():
            for tenant in self.stores:
                for part in queue.parts():
                    tenant.discard(part)
            queue.close()
            queue.tell_all(gone)

    def resolve(self, address: Address) -> Entity:
        """What a receiver or a management node at this address works on."""
        parts = address.topic_and_subscription
        if parts is not None and address.key not in self.entities:
            found = self.subscription(*parts).entity
            _must_be_available(self.stores, found.store)
            return found.queues[address.sub_queue]
        entity = self.entities.get(address.key)
        if entity is None:
            raise self.not_found(address.path)
        _must_be_available(self.stores, entity.store)
        if isinstance(entity, QueueEntity):
            return entity.queues[address.sub_queue]
        if address.management:
            return entity
        raise NotAllowed(f"'{address.path}' is a topic: receive from one of its subscriptions.")

    def store_of(self, address: Address) -> int | None:
        """The store that holds what this address names, `PARTITIONED` if several do; None: there is no such thing."""
        entity = self.entities.get(address.key)
        if entity is not None:
            return entity.store
        parts = address.topic_and_subscription
        topic = self.entities.get(parts[0].casefold()) if parts is not None else None
        return topic.store if topic is not None else None

    def front(self, address: Address) -> PartitionedQueue | None:
        """The partitioned queue or topic, or sub-queue of it, that this address names; None: it is none."""
        parts = address.topic_and_subscription
        entity: QueueEntity | AnyTopic | None = self.entities.get(address.key)
        if entity is None and parts is not None:
            topic = self.entities.get(parts[0].casefold())
            found = topic.subscriptions.get(parts[1].casefold()) if topic is not None and not isinstance(topic, QueueEntity) else None
            entity = found.entity if found is not None else None
        if isinstance(entity, QueueEntity):
            queue = entity.queues[address.sub_queue]
            return queue if isinstance(queue, PartitionedQueue) else None
        return entity if isinstance(entity, PartitionedTopic) else None

    def is_elsewhere(self, store: int) -> bool:
        """Does another node serve it; of a partitioned entity, any part?"""
        return any(tenant.elsewhere for tenant in self.stores) if store == PARTITIONED else self.stores[store].elsewhere

    def is_topic(self, address: Address) -> bool:
        """The topic itself, not one of its subscriptions."""
        entity = self.entities.get(address.key)
        return entity is not None and not isinstance(entity, QueueEntity) and not address.management

    def resolve_sender(self, address: Address) -> Entity:
        """What a sender to this address sends to."""
        entity = self.entities.get(address.key)
        if entity is None:
            if address.topic_and_subscription is not None:
                raise NotAllowed(f"'{address.path}' is a subscription: send to its topic.")
            raise self.not_found(address.path)
        _must_be_available(self.stores, entity.store)
        return entity.main if isinstance(entity, QueueEntity) else entity

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


def _terms_of(path: str, sub_queue: SubQueue, description: QueueDescription, limits: Limits) -> Terms:
    as_queue = description if sub_queue is SubQueue.MAIN else sub_queue_description(description, sub_queue)
    limit = description.max_message_bytes or limits.message_bytes_max
    return Terms(Address(path, sub_queue).path, path, sub_queue is not SubQueue.MAIN, as_queue, limit)


def _must_be_available(stores: list[StoreTenant], store: int) -> None:
    if store == PARTITIONED:
        return
    tenant = stores[store]
    if not tenant.available:
        raise StoreUnavailable(tenant.journal.health.refusal())
