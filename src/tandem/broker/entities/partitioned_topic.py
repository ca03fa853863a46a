"""Partitioned topics: each fragment of the topic, with its fragments of all subscriptions, is a topic in one store."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from tandem.broker.entities.partitioned import PARTITIONED, PartitionedQueue
from tandem.broker.entities.topic import Subscription, Topic, queue_of_topic
from tandem.broker.queue.queue import Queue

if TYPE_CHECKING:
    from tandem.model.entity import TopicDescription


class PartitionedTopic(PartitionedQueue):
    """A front for topics in several stores. A message goes to one of them, and there to all subscriptions in one durable write."""

    def __init__(self, id_: int, topics: list[Topic], description: TopicDescription, nonce: int, message_bytes_max: int) -> None:
        fragments: list[Queue] = []
        fragments.extend(topics)
        super().__init__(fragments, queue_of_topic(description), nonce, message_bytes_max)
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
        subscription.topic = self
        self.subscriptions[subscription.description.name.casefold()] = subscription
        for topic, part in zip(self.topics, parts, strict=True):
            part.whole = subscription
            topic.add_subscription(part)

    def remove_subscription(self, name: str) -> Subscription:
        for topic in self.topics:
            topic.remove_subscription(name)
        return self.subscriptions.pop(name.casefold())

    def rules_changed(self) -> None:
        for topic in self.topics:
            for key, part in topic.subscriptions.items():
                whole = self.subscriptions[key]
                part.description = whole.description
                part.rules = whole.rules
            topic.rules_changed()

    def replace_topic(self, number: int, topic: Topic) -> None:
        """A store came back with its fragment replayed, and a fragment of each subscription there is now."""
        self.topics[number] = topic
        self.replace(number, topic)
        for key, part in topic.subscriptions.items():
            part.whole = self.subscriptions[key]
        self.rules_changed()


AnyTopic: TypeAlias = Topic | PartitionedTopic
