"""What a namespace consists of, changed by two nodes: nobody changes what he has not seen, ids are given once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tandem.model.clock import SystemClock
from tandem.model.entity import (
    AuthorizationRule,
    HybridConnectionDescription,
    QueueDescription,
    Right,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from tandem.model.errors import CatalogBehind, EntityNotFound
from tandem.stores.postgres_catalog import PostgresCatalog
from tandem.stores.postgres_connection import EngineConnection, Hosts
from tandem.stores.postgres_schema import Schema


def catalog(dsn: str) -> PostgresCatalog:
    connection = EngineConnection(Hosts(dsn), "test", SystemClock())
    Schema(dsn, connection).ensure_stores("tandem", 2)
    made = PostgresCatalog(connection, "tandem")
    made.load()
    return made


QUEUE = QueueDescription(name="Orders")
TOPIC = TopicDescription(name="events")
SUBSCRIPTION = SubscriptionDescription(name="all", topic="events", rules=(RuleDescription(name="$Default"),))


def test_what_one_node_writes_another_one_reads(cluster_dsn: str) -> None:
    one, two = catalog(cluster_dsn), catalog(cluster_dsn)
    queue = one.put_entity(QUEUE, store=1)
    topic = one.put_entity(TOPIC, store=0)
    subscription = one.put_entity(SUBSCRIPTION, store=0)
    rule = AuthorizationRule(key_name="k", primary_key="p", secondary_key="s", rights=frozenset({Right.SEND}))
    one.put_authorization_rule(rule)
    relay = HybridConnectionDescription(name="Relay")
    one.put_relay(relay)
    changes = two.changes()
    assert changes is not None
    assert changes.entities == (queue, topic, subscription)
    assert changes.authorization_rules == (rule,)
    assert changes.relays == (relay,)
    assert changes.highest_id == subscription.id
    two.applied(changes)
    assert two.changes() is None
    assert catalog(cluster_dsn).load().entities == changes.entities
    two.delete_entity(topic.id)
    two.delete_relay("relay")
    seen = one.changes()
    assert seen is not None
    assert set(seen.gone) == {topic.id, subscription.id}
    assert seen.relays_gone == ("relay",)
    for used in (one, two):
        used.close()


def test_who_has_not_seen_the_last_change_makes_none(cluster_dsn: str) -> None:
    one, two = catalog(cluster_dsn), catalog(cluster_dsn)
    one.put_entity(QUEUE, store=1)
    with pytest.raises(CatalogBehind):
        two.put_entity(QUEUE, store=0)
    changes = two.changes()
    assert changes is not None
    two.applied(changes)
    kept = two.put_entity(replace(QUEUE, lock_duration_ms=5_000), store=0)
    assert kept.store == 1, "the store of an entity never changes"
    assert kept.id == changes.entities[0].id
    one.close()
    two.close()


def test_an_id_is_never_given_twice_and_a_subscription_needs_its_topic(cluster_dsn: str) -> None:
    one = catalog(cluster_dsn)
    with pytest.raises(EntityNotFound):
        one.put_entity(SUBSCRIPTION, store=0)
    first = one.put_entity(QUEUE, store=0)
    one.delete_entity(first.id)
    with pytest.raises(EntityNotFound):
        one.delete_entity(first.id)
    assert one.put_entity(QUEUE, store=0).id > first.id
    one.close()
