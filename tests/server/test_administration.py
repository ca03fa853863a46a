"""Administration of a living namespace: side by side where names differ, one after another where they do not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tandem.model.entity import QueueDescription, RuleDescription, SqlFilter, SubscriptionDescription, TopicDescription
from tandem.model.errors import BusError, EntityAlreadyExists, EntityNotFound
from tandem.server.administration_port import Page
from tandem.testing import Bus


def run(bus: Bus, *works: Any) -> list[Any]:
    """All at once on the broker's loop; exceptions come back as values."""

    async def all_at_once() -> list[Any]:
        return list(await asyncio.gather(*works, return_exceptions=True))

    return bus._call(all_at_once())


def names(bus: Bus) -> list[str]:
    [queues] = run(bus, bus._running().admins[0].list_queues(Page(top=1000)))
    return [queue.name for queue in queues]


def test_of_many_who_create_the_same_entity_one_succeeds(tmp_path: Path) -> None:
    with Bus(data_dir=tmp_path) as bus:
        admin = bus._running().admins[0]
        wishes = [admin.create_queue(QueueDescription(name=name)) for name in ("q", "Q") * 10]
        wishes += [admin.create_topic(TopicDescription(name="q")) for _ in range(5)]
        answers = run(bus, *wishes)
        assert sum(isinstance(answer, QueueDescription | TopicDescription) for answer in answers) == 1
        assert all(isinstance(answer, EntityAlreadyExists) for answer in answers if isinstance(answer, BaseException))
        bus.restart()
        assert [name.casefold() for name in names(bus)] == ["q"]


def test_creating_and_deleting_the_same_entity_at_once_leaves_it_whole_or_gone(tmp_path: Path) -> None:
    with Bus(data_dir=tmp_path) as bus:
        admin = bus._running().admins[0]
        works: list[Any] = []
        for _ in range(20):
            works += [admin.create_queue(QueueDescription(name="q")), admin.delete_entity("q")]
        answers = run(bus, *works)
        assert all(isinstance(answer, EntityAlreadyExists | EntityNotFound) for answer in answers if isinstance(answer, BaseException))
        there = names(bus)
        bus.restart()
        assert names(bus) == there
        assert len(bus._running().admins[0]._locks) == 0


def test_many_entities_created_at_once_are_all_there_after_a_restart(tmp_path: Path) -> None:
    wanted = sorted(f"group/queue-{n:03}" for n in range(200))
    with Bus(data_dir=tmp_path, store_count=3) as bus:
        admin = bus._running().admins[0]
        assert not [
            one for one in run(bus, *(admin.create_queue(QueueDescription(name=name)) for name in wanted)) if isinstance(one, BusError)
        ]
        assert names(bus) == wanted
        [page] = run(bus, admin.list_queues(Page(skip=50, top=10, prefix="GROUP/queue-1")))
        assert [queue.name for queue in page] == [f"group/queue-{n}" for n in range(150, 160)]
        bus.restart()
        assert names(bus) == wanted


def test_rules_added_to_one_subscription_at_once_are_all_kept() -> None:
    with Bus() as bus:
        bus.create_topic("t")
        bus.create_subscription("t", "s")
        admin = bus._running().admins[0]
        rules = [RuleDescription(name=f"r{n}", filter=SqlFilter(expression=f"n = {n}")) for n in range(30)]
        deletion = admin.delete_rule("t", "s", "$Default")
        assert not [one for one in run(bus, deletion, *(admin.create_rule("t", "s", rule) for rule in rules)) if isinstance(one, BusError)]
        [found] = run(bus, admin.list_rules("t", "s", Page(top=1000)))
        assert {rule.name for rule in found} == {f"r{n}" for n in range(30)}


def test_a_topic_deleted_while_subscriptions_are_created_leaves_none_behind(tmp_path: Path) -> None:
    with Bus(data_dir=tmp_path) as bus:
        bus.create_topic("t")
        admin = bus._running().admins[0]
        works: list[Any] = [admin.create_subscription(SubscriptionDescription(topic="t", name=f"s{n}")) for n in range(10)]
        works.insert(5, admin.delete_entity("t"))
        answers = run(bus, *works)
        assert all(isinstance(answer, EntityNotFound) for answer in answers if isinstance(answer, BaseException))
        bus.restart()
        [missing] = run(bus, bus._running().admins[0].list_subscriptions("t", Page()))
        assert isinstance(missing, EntityNotFound)
