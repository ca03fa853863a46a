"""Partitioned entities: fragments in several stores that look like one, and go on when one of the stores is down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from tandem.broker.entities.joined import (
    FRAGMENT_SHIFT,
    AllOf,
    Fragments,
    JoinedBrowsing,
    JoinedLeases,
    JoinedSessions,
    fragment_of_key,
    key_of,
)
from tandem.broker.entities.rerouting import Rerouting
from tandem.broker.entities.topic import Subscription, Topic, queue_of_topic
from tandem.broker.ports import Effect
from tandem.broker.queue.entity import Entity, MovablePlacement, Placement
from tandem.broker.queue.intake import check_terms
from tandem.broker.queue.queue import Queue
from tandem.broker.queue.rows import StateCounts
from tandem.broker.queue.selective import add_seeker
from tandem.broker.queue.terms import Terms
from tandem.model.errors import BusError, StoreFull, StoreUnavailable

if TYPE_CHECKING:
    from tandem.broker.ports import Consumer
    from tandem.broker.queue.locks import Lock
    from tandem.broker.recovery.stores import Stores
    from tandem.model.entity import QueueDescription, TopicDescription
    from tandem.model.message import Message

PARTITIONED: Final = -1
"""Stands for the store of an entity whose fragments are in several."""


def _takes_messages(part: Queue) -> bool:
    return not part.terms.out_of_service and not part.rows.backing.short_of_room


class PartitionedQueue(Entity):
    """A front for fragments. It holds no messages of its own; what concerns one message goes to its fragment."""

    def __init__(self, namespace: Stores, fragments: list[Queue], terms: Terms) -> None:
        super().__init__(namespace.turn, terms)
        self.fragments: Fragments = Fragments(terms.path, fragments)
        self.rerouting: Rerouting = Rerouting(self, namespace)
        self._sessions: JoinedSessions = JoinedSessions(self.fragments)
        self._leases: JoinedLeases = JoinedLeases(self.fragments)
        self._browsing: JoinedBrowsing = JoinedBrowsing(self.fragments)
        self._next: int = 0
        self._sticky: int = 0
        self._sticky_turn: int = 0
        self._join()

    @property
    def sessions(self) -> JoinedSessions:
        return self._sessions

    @property
    def leases(self) -> JoinedLeases:
        return self._leases

    @property
    def browsing(self) -> JoinedBrowsing:
        return self._browsing

    def _join(self) -> None:
        queues = self.fragments.queues
        self.receivers.draw_from([queue.delivery for queue in queues])
        for queue in queues:
            queue.join(self.receivers)

    def configure(self, description: QueueDescription) -> None:
        self.terms.configure(description)
        for part in self.fragments.queues:
            part.configure(description)

    def replace(self, number: int, fragment: Queue) -> None:
        """A store came back with its fragment replayed."""
        self.fragments.queues[number] = fragment
        self._join()
        fragment.configure(self.description)  # it may have changed meanwhile
        self.slot.touch()

    def part_of(self, seq: int) -> Queue:
        return self.fragments.of_seq(seq)

    def parts(self) -> list[Queue]:
        return self.fragments.queues

    # -- sending -------------------------------------------------------------------------------

    def fragment_of(self, message: Message) -> int:
        """The number of the fragment that its key leads to; -1: it has none, and may go anywhere."""
        key = key_of(message, self.terms.detects_duplicates)
        return -1 if key is None else fragment_of_key(key, len(self.fragments.queues))

    def takes_here(self) -> bool:
        """Is there a fragment in service here that takes messages?"""
        queues = self.fragments.queues
        if _takes_messages(queues[self._sticky]):
            return True
        return any(_takes_messages(part) for part in queues)

    def destination(self, message: Message) -> Queue:
        """One without a key goes anywhere that works; all of a turn go the same way."""
        key = key_of(message, self.terms.detects_duplicates)
        if key is not None:
            chosen = self.fragments.of_key(key)
            if chosen.terms.out_of_service:
                raise StoreUnavailable(
                    f"The fragment of '{self.path}' that holds this message's key is in a store that is down. Try again, or without a key."
                )
            return chosen
        queues = self.fragments.queues
        if self._sticky_turn != self.turn.number or not _takes_messages(queues[self._sticky]):
            self._sticky_turn = self.turn.number
            self._advance()
        return queues[self._sticky]

    def _advance(self) -> None:
        """One whose store is suspended has to wait: only if there is no other."""
        queues = self.fragments.queues
        waiting = -1
        for _ in range(len(queues)):
            self._next = (self._next + 1) % len(queues)
            part = queues[self._next]
            if not _takes_messages(part):
                continue
            if not part.rows.backing.suspended:
                self._sticky = self._next
                return
            if waiting < 0:
                waiting = self._next
        if waiting >= 0:
            self._sticky = self._next = waiting
            return
        for part in self.fragments.some_usable():
            cause = part.rows.backing.short_of_room
            raise StoreFull(f"No store that holds '{self.path}' takes messages: {cause}. Receive messages, or try again later.")

    def check_send(self, message: Message, body_bytes: int) -> None:
        """The size limit holds for each fragment alike: a share of the whole."""
        check_terms(self.terms, message, body_bytes)

    def enqueue(self, message: Message, now: int) -> Placement:
        terms = self.terms
        size = message.size_bytes
        if not terms.may_send or terms.has_sessions or size > terms.message_bytes_max:
            check_terms(terms, message, size)
        while True:
            part = self.destination(message)
            try:
                number = part.intake.enqueue(message, now)
            except StoreFull:
                raise  # it holds the message's key: those that do not matter were not chosen
            except StoreUnavailable:
                part.terms.leave_service(False)  # found out before whoever watches the stores did
                if key_of(message, self.terms.detects_duplicates) is not None:
                    raise
                continue
            if not part.intake.names_rows:
                return MovablePlacement(part, number, now, message, None)
            rows = part.intake.rows_of(number, now)
            return Placement(part, number) if rows is None else MovablePlacement(part, number, now, message, rows)

    def when_durable(self, effect: Effect) -> None:
        """Whatever any fragment appended so far."""
        usable = self.fragments.usable()
        if not usable:
            effect.done(StoreUnavailable(f"All stores that hold '{self.path}' are down. Try again."))
            return
        stores = {part.rows.backing: part for part in usable if part.rows.backing.journal.pending_bytes}
        waited = list(stores.values()) or usable[:1]
        joint = AllOf(effect, len(waited))
        for part in waited:
            part.when_durable(joint)

    # -- receiving -----------------------------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        self.receivers.add(consumer)
        if consumer.selector is not None:
            add_seeker(self.receivers, consumer)

    def line_of(self, consumer: Consumer) -> Entity:
        """Who holds a session stands in the line of that session's fragment."""
        return self if consumer.session is None else self.fragments.of_key(consumer.session.id)

    def remove_consumer(self, consumer: Consumer) -> None:
        line = self.line_of(consumer)
        if line is not self:
            line.receivers.remove(consumer)
        self.receivers.remove(consumer)

    def consumer_ready(self, consumer: Consumer) -> None:
        line = self.line_of(consumer)
        if not line.terms.out_of_service:  # else it has lost its session, and hears of it
            line.receivers.ready(consumer)

    def tell_all(self, error: BusError) -> None:
        self.receivers.tell_all(error)

    def pump(self, now: int) -> None:
        if self.receivers.has_more:
            self.receivers.set_more(False)
        if self.terms.may_receive and not self.terms.deleted and not self.terms.has_sessions:
            for part in self.fragments.queues:
                if not part.rows.backing.suspended:
                    self.receivers.pump(now)
                    break
            if self.receivers.watchers:  # also where nothing is delivered: others may have a use for the credit
                self.receivers.tell_watchers()

    # -- one message ---------------------------------------------------------------------------

    def find_lock(self, token: bytes) -> Lock:
        number = int.from_bytes(token[8:16], "big") >> FRAGMENT_SHIFT
        queues = self.fragments.queues
        return queues[number if number < len(queues) else 0].find_lock(token)

    def complete_run(self, locks: list[Lock], at: int, now: int) -> int:
        """Those of one fragment that follow each other."""
        part = self.part_of(locks[at].seq)
        number = locks[at].seq >> FRAGMENT_SHIFT
        end = at + 1
        while end < len(locks) and locks[end].seq >> FRAGMENT_SHIFT == number:
            end += 1
        return part.complete_run(locks[at:end], 0, now)

    def lose_locks(self, error: BusError, now: int) -> None:
        for part in self.fragments.queues:
            part.lose_locks(error, now)

    # -- looking -------------------------------------------------------------------------------

    def counts(self) -> StateCounts:
        total = StateCounts(0, 0, 0, 0, 0, 0, 0)
        for part in self.fragments.queues:
            if part.terms.out_of_service:
                total.miss()
                continue
            total.add(part.counts())
        return total

    def metered(self, operation: int, outcome: int) -> None:
        for part in self.fragments.usable()[:1]:
            part.metered(operation, outcome)

    def is_in_use(self) -> bool:
        if self.receivers.consumers or self._sessions.is_awaited():
            return True
        return any(part.rows.scheduled for part in self.fragments.queues)

    def close(self) -> None:
        self.terms.leave_service(True)
        for part in self.fragments.queues:
            part.close()


class PartitionedTopic(PartitionedQueue):
    """A front for topics in several stores. A message goes to one of them, and there to all subscriptions in one durable write."""

    def __init__(self, namespace: Stores, id_: int, topics: list[Topic], description: TopicDescription) -> None:
        queues: list[Queue] = []
        queues.extend(topics)
        limit = topics[0].terms.message_bytes_max
        super().__init__(namespace, queues, Terms(description.name, description.name, False, queue_of_topic(description), limit))
        self.topics: list[Topic] = topics
        self.topic_description: TopicDescription = description
        self.subscriptions: dict[str, Subscription] = {}
        self.store: int = PARTITIONED
        self.id: int = id_

    def reconfigure(self, description: TopicDescription) -> None:
        self.topic_description = description
        self.configure(queue_of_topic(description))

    def add_subscription(self, subscription: Subscription, parts: list[Subscription]) -> None:
        """The whole, and its fragment in each fragment of the topic."""
        subscription.belong_to(self)
        self.subscriptions[subscription.description.name.casefold()] = subscription
        for topic, part in zip(self.topics, parts, strict=True):
            part.be_part_of(subscription)
            topic.add_subscription(part)

    def remove_subscription(self, name: str) -> Subscription:
        for topic in self.topics:
            topic.remove_subscription(name)
        return self.subscriptions.pop(name.casefold())

    def rules_changed(self) -> None:
        for topic in self.topics:
            for key, part in topic.subscriptions.items():
                part.follow(self.subscriptions[key])
            topic.rules_changed()

    def replace_topic(self, number: int, topic: Topic) -> None:
        """A store came back with its fragment replayed, and a fragment of each subscription there is now."""
        self.topics[number] = topic
        self.replace(number, topic)
        for key, part in topic.subscriptions.items():
            part.be_part_of(self.subscriptions[key])
        self.rules_changed()


AnyTopic: TypeAlias = Topic | PartitionedTopic
