"""The registry of a namespace: which entity a path names, and what is said when it names none."""

from __future__ import annotations

import pytest

from tandem.broker.entities.partitioned import PartitionedQueue
from tandem.model.address import SubQueue, parse
from tandem.model.entity import AuthorizationRule, QueueDescription, Right, SubscriptionDescription, TopicDescription
from tandem.model.errors import EntityNotFound, NotAllowed, StoreUnavailable
from tests.broker.desk import Desk, Hand

RULE = AuthorizationRule(key_name="k", primary_key="p", secondary_key="s", rights=frozenset({Right.SEND}))


@pytest.fixture
def desk() -> Desk:
    made = Desk(QueueDescription(name="Orders", authorization_rules=(RULE,)), QueueDescription(name="other"))
    made.namespace.add_topic(7, 0, TopicDescription(name="news"))
    made.namespace.add_subscription(8, SubscriptionDescription(topic="news", name="all"))
    made.run()
    return made


@pytest.mark.parametrize("path", ["Orders", "orders", "ORDERS"])
def test_names_are_the_same_in_any_case(desk: Desk, path: str) -> None:
    assert desk.namespace.resolve(parse(path)) is desk.queue("orders")
    assert desk.namespace.resolve_sender(parse(path)) is desk.queue("orders")


def test_sub_queues_and_subscriptions_have_paths_of_their_own(desk: Desk) -> None:
    namespace = desk.namespace
    assert namespace.resolve(parse("orders/$deadletterqueue")) is desk.queue("orders", SubQueue.DEAD_LETTER)
    subscription = namespace.resolve(parse("news/Subscriptions/ALL"))
    assert subscription is namespace.subscription("news", "all").entity.main
    assert namespace.resolve(parse("news/subscriptions/all/$DeadLetterQueue")) is not subscription


def test_what_does_not_exist_is_named(desk: Desk) -> None:
    for path in ("nothing", "nothing/$DeadLetterQueue", "news/Subscriptions/nothing", "orders/Subscriptions/all"):
        with pytest.raises(EntityNotFound) as refused:
            desk.namespace.resolve(parse(path))
        assert path.split("/")[0].casefold() in refused.value.description.casefold()
        with pytest.raises(EntityNotFound):
            desk.namespace.must_exist(parse(path))


def test_nobody_receives_from_a_topic_or_sends_to_a_subscription(desk: Desk) -> None:
    with pytest.raises(NotAllowed, match="subscriptions"):
        desk.namespace.resolve(parse("news"))
    with pytest.raises(NotAllowed, match="topic"):
        desk.namespace.resolve_sender(parse("news/Subscriptions/all"))
    assert desk.namespace.is_topic(parse("News")) and not desk.namespace.is_topic(parse("news/$management"))


def test_keys_belong_to_their_entity(desk: Desk) -> None:
    assert desk.namespace.entity_rule("orders", "k") == RULE
    assert desk.namespace.entity_rule("orders", "x") is None and desk.namespace.entity_rule("other", "k") is None


def test_a_removed_entity_is_gone_for_its_receivers_and_for_everybody_after(desk: Desk) -> None:
    hand = Hand(credit=1)
    desk.queue("orders").add_consumer(hand)
    desk.namespace.remove("ORDERS")
    assert isinstance(hand.lost_with, EntityNotFound)
    assert desk.namespace.find("orders") is None
    with pytest.raises(EntityNotFound):
        desk.namespace.resolve(parse("orders"))


def test_a_topic_goes_with_its_subscriptions_and_a_subscription_without_its_topic(desk: Desk) -> None:
    desk.namespace.remove_subscription(desk.namespace.topic("news"), "all")
    with pytest.raises(EntityNotFound):
        desk.namespace.subscription("news", "all")
    assert desk.namespace.topic("news") is desk.namespace.find("news")
    desk.namespace.remove("news")
    with pytest.raises(EntityNotFound):
        desk.namespace.topic("news")


def test_entities_of_a_store_that_is_down_say_so(desk: Desk) -> None:
    desk.store.fail("the disk is gone")
    desk.namespace.stores[0].take_out_of_service()
    for path in ("orders", "news/Subscriptions/all"):
        with pytest.raises(StoreUnavailable, match="the disk is gone"):
            desk.namespace.resolve(parse(path))
    with pytest.raises(EntityNotFound):
        desk.namespace.resolve(parse("nothing"))


def test_a_partitioned_queue_is_a_front_at_one_path() -> None:
    desk = Desk(QueueDescription(name="q", enable_partitioning=True, partition_count=2))
    front = desk.namespace.resolve(parse("q"))
    assert isinstance(front, PartitionedQueue) and len(front.parts()) == 2
    assert isinstance(desk.namespace.resolve(parse("q/$DeadLetterQueue")), PartitionedQueue)
