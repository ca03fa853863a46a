"""The registry of a namespace: which entity a path names, which store keeps it, and how both come and go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tandem.broker.entities.builder import EntityBuilder
from tandem.broker.entities.partitioned import PARTITIONED, AnyTopic, PartitionedQueue, PartitionedTopic
from tandem.broker.entities.queue_entity import QueueEntity
from tandem.broker.entities.topic import Subscription, Topic
from tandem.broker.ports import Journal, Rewriter
from tandem.broker.queue.entity import Entity
from tandem.broker.recovery.entity_facts import Roll
from tandem.broker.recovery.stores import Stores
from tandem.broker.recovery.tenant import StoreTenant
from tandem.broker.recovery.transactions import resolve
from tandem.broker.recovery.transfers import settle_transfers, suspend_forwarding
from tandem.broker.turn import Turn
from tandem.model.address import Address, SubQueue
from tandem.model.entity import AuthorizationRule, QueueDescription, SubscriptionDescription, TopicDescription
from tandem.model.entity_json import EntityDescription
from tandem.model.errors import BusError, EntityNotFound, NotAllowed, StoreMissing, StoresCountChanged, StoreUnavailable
from tandem.model.limits import Limits
from tandem.model.message import Message


class Namespace(Stores):
    """Entities by path, without regard to case. Stores are attached before entities, replayed after them."""

    def __init__(self, name: str, turn: Turn, limits: Limits, rewriter: Rewriter, new_nonce: Callable[[], int]) -> None:
        super().__init__(turn)
        self.name = name
        self.authorization_rules: dict[str, AuthorizationRule] = {}
        self.locks_outlive_connections: bool = False
        """For entities that do not say it themselves."""
        self.entities: dict[str, QueueEntity | AnyTopic] = {}
        self.roll = Roll()
        self._unread: set[int] = set()
        """Stores that nobody has been able to read since the start."""
        self.builder = EntityBuilder(self, limits, rewriter, new_nonce)

    # -- stores ------------------------------------------------------------------------------

    def attach_store(self, journal: Journal) -> StoreTenant:
        tenant = self.builder.tenant(journal, self.roll, len(self.stores))
        self.stores.append(tenant)
        self.turn.add_journal(journal)
        return tenant

    def replay(self) -> None:
        """Rebuild every queue from its store's facts. A store that cannot be read is down, the others serve.

        None at all is an error, unless it is just that they are not there: those are waited for. So is another number of stores than
        before: what is sent meanwhile would be in fragments that nobody finds when the number is put right.
        """
        trouble: BusError | None = None
        for number, tenant in enumerate(self.stores):
            try:
                tenant.journal.replay(tenant)
            except StoresCountChanged:
                raise
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

    def return_to_service(self, store: int, tenant: StoreTenant, renewed: dict[str, QueueEntity | AnyTopic]) -> None:
        """The store was read again into this tenant; `renewed`: the entities that it holds alone, by key."""
        self.entities.update(renewed)
        missed_ms = self.stores[store].clock_missed_ms
        self.stores[store] = tenant
        if missed_ms:
            tenant.clock_jumped(missed_ms, self.turn.now)
        tenant.finish()
        tenant.entities.tell_all(self.turn.now)
        self._unread.discard(store)
        suspend_forwarding(self, tenant, self._unread)
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
            entity = self.builder.partitioned_queue(id_, description)
        else:
            entity = self.builder.queue(self.stores[store], id_, store, description)
        self.enter(id_, entity.store, description)
        self.entities[description.name.casefold()] = entity
        return entity

    def add_topic(self, id_: int, store: int, description: TopicDescription) -> AnyTopic:
        topic: AnyTopic
        if description.partition_count > 1:
            topic = self.builder.partitioned_topic(id_, description)
        else:
            topic = self.builder.topic(self.stores[store], id_, store, description)
        self.enter(id_, topic.store, description)
        self.entities[description.name.casefold()] = topic
        return topic

    def add_subscription(self, id_: int, description: SubscriptionDescription) -> Subscription:
        """In the store of its topic, so that a message for all subscriptions is one write; fragments likewise."""
        topic = self.topic(description.topic)
        self.enter(id_, topic.store, description)
        if isinstance(topic, Topic):
            return self.builder.subscription(self.stores[topic.store], topic, id_, description)
        return self.builder.partitioned_subscription(topic, id_, description)

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

    def queue(self, name: str) -> QueueEntity:
        queue = self.entities.get(name.casefold())
        if not isinstance(queue, QueueEntity):
            raise self.not_found(name)
        return queue

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
        if address.sub_queue is not SubQueue.MAIN:
            raise NotAllowed(f"'{address.path}' is a sub-queue: messages are moved there, not sent.")
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


def _must_be_available(stores: list[StoreTenant], store: int) -> None:
    if store == PARTITIONED:
        return
    tenant = stores[store]
    if not tenant.available:
        raise StoreUnavailable(tenant.journal.health.refusal())
