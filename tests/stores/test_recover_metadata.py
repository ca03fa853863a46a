"""What the journals know of the entities in them: all of it, but the keys; through changes, compaction and restarts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tandem.broker.facts import ENDED, ENTITY, RULE
from tandem.broker.recovery import entity_facts
from tandem.broker.recovery.entity_facts import EntityFacts, Roll
from tandem.model.catalog import Snapshot
from tandem.model.entity import (
    AuthorizationRule,
    CorrelationFilter,
    HybridConnectionDescription,
    QueueDescription,
    Right,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from tandem.model.errors import ConfigurationError, Corrupt, StoreUnavailable
from tandem.server.administration import NamespaceAdmin
from tandem.stores.metadata import Metadata
from tandem.stores.recover_metadata import recover_metadata
from tandem.testing import Bus

KEY = AuthorizationRule(key_name="reader", primary_key="top secret", secondary_key="also secret", rights=frozenset({Right.LISTEN}))


def administer(bus: Bus, work: Callable[[NamespaceAdmin], Coroutine[Any, Any, None]]) -> None:
    """On the broker's loop."""
    bus._call(work(bus.inside(lambda server: server.admins[0])))


def snapshot(directory: Path) -> Snapshot:
    metadata = Metadata(directory / "metadata.sqlite")
    try:
        return metadata.load()
    finally:
        metadata.close()


def without_keys(found: Snapshot) -> dict[int, object]:
    return {
        stored.id: dataclasses.replace(stored.description, authorization_rules=())
        if not isinstance(stored.description, SubscriptionDescription)
        else dataclasses.replace(stored.description, rules=frozenset(stored.description.rules))  # type: ignore[arg-type]
        for stored in found.entities
    }


async def a_busy_day(admin: NamespaceAdmin) -> None:
    await admin.create_queue(QueueDescription(name="Orders", max_delivery_count=3, user_metadata="ä", authorization_rules=(KEY,)))
    await admin.create_queue(QueueDescription(name="gone"))
    await admin.create_queue(QueueDescription(name="spread", enable_partitioning=True))
    await admin.create_topic(TopicDescription(name="news"))
    await admin.create_topic(TopicDescription(name="old-news"))
    for topic in ("news", "old-news"):
        await admin.create_subscription(SubscriptionDescription(topic=topic, name="all", lock_duration_ms=7_000))
    await admin.create_rule(
        "news",
        "all",
        RuleDescription(name="By-Price", filter=SqlFilter(expression="price > 5"), action=SqlAction(expression="SET seen = 1")),
    )
    await admin.create_rule("news", "all", RuleDescription(name="who", filter=CorrelationFilter(properties=(("who", 5), ("b", None)))))
    await admin.delete_rule("news", "all", "$Default")
    await admin.update_rule("news", "all", RuleDescription(name="by-price", filter=SqlFilter(expression="price > 6")))
    await admin.update_queue(QueueDescription(name="orders", max_delivery_count=9, forward_to="spread", authorization_rules=(KEY,)))
    await admin.delete_entity("gone")
    await admin.delete_entity("old-news")


@pytest.mark.slow
def test_all_but_keys_is_rebuilt_under_the_same_numbers_and_no_number_is_given_twice(tmp_path: Path) -> None:
    home = tmp_path / "tandem"
    with Bus(data_dir=tmp_path, store_count=3) as bus:
        administer(bus, a_busy_day)
        bus.stop()
        before = snapshot(home)
        (home / "metadata.sqlite").unlink()
        journals = b"".join(path.read_bytes() for path in home.glob("store-*/*.seg"))
        assert b"By-Price" in journals
        assert b"secret" not in journals
        found = recover_metadata(home)
        after = snapshot(home)
        assert without_keys(after) == without_keys(before)
        assert {stored.id: stored.store for stored in after.entities} == {
            stored.id: stored.store if stored.description.name != "spread" else 0 for stored in before.entities
        }
        assert after.highest_id == before.highest_id
        assert "'Orders': its authorization rules reader; make them anew" in found.unknown
        bus.start()  # the stores know their metadata again


def test_relays_are_rebuilt_from_the_copy_beside_the_metadata(tmp_path: Path) -> None:
    home = tmp_path / "tandem"

    async def relays(admin: NamespaceAdmin) -> None:
        for name in ("Web", "gone", "plants/berlin"):
            await admin.relays.create(HybridConnectionDescription(name=name, authorization_rules=(KEY,)))
        await admin.relays.update(HybridConnectionDescription(name="web", requires_client_authorization=False, user_metadata="ä"))
        await admin.relays.delete("gone")

    with Bus(data_dir=tmp_path) as bus:
        bus.create_queue("orders")
        administer(bus, relays)
        bus.restart()
        bus.stop()
        before = snapshot(home).relays
        (home / "metadata.sqlite").unlink()
        with (home / "relays.jsonl").open("ab") as copy:
            copy.write(b'\n{"relay": {"na')  # the power went in the middle of a line
        assert b"secret" not in (home / "relays.jsonl").read_bytes()
        found = recover_metadata(home)
        assert snapshot(home).relays == tuple(dataclasses.replace(relay, authorization_rules=()) for relay in before)
        assert [relay.name for relay in before] == ["plants/berlin", "Web"]
        assert "relay 'plants/berlin': its authorization rules reader; make them anew" in found.unknown
        assert any("lines in relays.jsonl are damaged" in line for line in found.unknown)
        bus.start()
        assert not (home / "relays.jsonl").read_bytes().endswith(b'{"na'), "a start writes it anew"


def test_a_second_reading_after_restarts_finds_the_same(tmp_path: Path) -> None:
    home = tmp_path / "tandem"
    with Bus(data_dir=tmp_path, store_count=2) as bus:
        administer(bus, a_busy_day)
        for _ in range(3):
            bus.restart()
        bus.stop()
        before = snapshot(home)
        (home / "metadata.sqlite").unlink()
        recover_metadata(home)
        assert without_keys(snapshot(home)) == without_keys(before)
        rows = [path.read_bytes().count(b'"kind":"queue"') for path in sorted(home.glob("store-*/0000000001.seg"))]
        assert sum(rows) <= 8, "a restart tells a journal nothing that it knows"


def test_nothing_is_written_while_a_broker_runs_or_where_a_journal_is_damaged(tmp_path: Path) -> None:
    home = tmp_path / "tandem"
    with Bus(data_dir=tmp_path) as bus:
        bus.create_queue("orders")
        bus.stop()
        (home / "metadata.sqlite").rename(home / "aside")
        (segment,) = home.glob("store-0/0000000001.seg")
        whole = segment.read_bytes()
        at = whole.index(b'"kind":"queue"')
        segment.write_bytes(whole[:at] + b"X" + whole[at + 1 :])
        with pytest.raises((Corrupt, ConfigurationError)):
            recover_metadata(home)
        assert not (home / "metadata.sqlite").exists()
        segment.write_bytes(whole)
        (home / "aside").rename(home / "metadata.sqlite")
        bus.start()
        (home / "metadata.sqlite").rename(home / "aside")
        with pytest.raises(ConfigurationError, match="stop it first"):
            recover_metadata(home)


class Lines:
    """A journal that is a list."""

    def __init__(self) -> None:
        self.facts: list[tuple[int, int, int, int, bytes]] = []
        self.down = False

    def append(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes) -> int:
        if self.down:
            raise StoreUnavailable("down")
        self.facts.append((kind, flags, entity, seq, key))
        return len(self.facts) - 1

    def replay(self, to: EntityFacts, start: int = 0) -> None:
        for location, (kind, flags, entity, _, key) in enumerate(self.facts[start:], start):
            to.replayed(kind, flags, entity, key, location)

    def compact(self, book: EntityFacts, end: int, start: int = 0) -> None:
        """The facts before `end` leave: what matters is appended again."""
        for location in range(start, end):
            kind, flags, entity, seq, key = self.facts[location]
            book.relocate(kind, flags, entity, seq, 0, key, location)


def subscription(*rules: str) -> SubscriptionDescription:
    return SubscriptionDescription(topic="t", name="s", rules=tuple(RuleDescription(name=name) for name in rules))


def book(lines: Lines, roll: Roll) -> EntityFacts:
    return EntityFacts(lines, roll, 0)  # type: ignore[arg-type]


def test_compaction_carries_the_last_word_along_and_no_other() -> None:
    lines, roll = Lines(), Roll()
    one = book(lines, roll)
    one.tell_all(0)
    roll.enter(1, 0, QueueDescription(name="q"))
    one.tell(1, 0)
    roll.enter(1, 0, QueueDescription(name="q", max_delivery_count=3))
    one.tell(1, 0)
    roll.enter(2, 0, subscription("a", "b"))
    one.tell(2, 0)
    roll.enter(2, 0, subscription("b"))
    one.tell(2, 0)
    roll.enter(3, 0, QueueDescription(name="gone"))
    one.tell(3, 0)
    roll.leave(3)
    one.tell(3, 0)
    end = len(lines.facts)
    lines.compact(one, end)
    again = lines.facts[end:]
    assert [(kind, entity) for kind, _, entity, _, _ in again] == [(ENTITY, 4), (ENTITY, 8), (RULE, 8)]
    lines.compact(one, len(lines.facts) - 1, end)  # and once more, and a crash before the old ones left
    reopened = book(lines, roll)
    lines.replay(reopened)
    before = len(lines.facts)
    reopened.tell_all(0)
    assert len(lines.facts) == before, "it knows everything already"
    lines.compact(reopened, before)
    assert len(lines.facts) == before + 3, "one of each, however often it stands there"


def test_what_was_administered_while_the_store_was_down_is_told_when_it_is_back() -> None:
    lines, roll = Lines(), Roll()
    one = book(lines, roll)
    roll.enter(1, 0, QueueDescription(name="before"))
    roll.enter(2, 1, QueueDescription(name="elsewhere"))
    roll.enter(3, -1, QueueDescription(name="everywhere", partition_count=4))
    one.tell(1, 0)
    assert lines.facts == [], "nothing is written before the journal was read"
    one.tell_all(0)
    assert [entity for _, _, entity, _, _ in lines.facts] == [4, 12]
    lines.down = True
    roll.leave(1)
    one.tell(1, 0)
    roll.enter(5, 0, QueueDescription(name="meanwhile"))
    one.tell(5, 0)
    roll.leave(5)
    one.tell(5, 0)  # several changes at once that cannot be told harm nobody
    lines.down = False
    roll.enter(4, 0, QueueDescription(name="after"))
    one.tell(4, 0)
    assert [(flags, entity) for _, flags, entity, _, _ in lines.facts[2:]] == [(ENDED, 4), (0, 16)]
    back = book(lines, roll)
    lines.replay(back)
    back.tell_all(0)
    assert len(lines.facts) == 4


def test_a_journal_refuses_metadata_in_which_its_numbers_mean_something_else() -> None:
    lines, roll = Lines(), Roll()
    roll.enter(5, 0, QueueDescription(name="Orders"))
    book(lines, roll).tell_all(0)
    lines.facts.append((ENTITY, 0, 20, 0, roll.entries[5].key))
    other = Roll()
    other.highest_id = 5
    lines.replay(book(lines, other))  # it was deleted
    other.enter(5, 0, QueueDescription(name="orders", max_delivery_count=2))
    lines.replay(book(lines, other))  # it was changed
    other.enter(5, 0, TopicDescription(name="orders"))
    with pytest.raises(StoreUnavailable, match="queue 'Orders' as number 5, but in the metadata that is the topic 'orders'"):
        lines.replay(book(lines, other))
    other.leave(5)
    other.highest_id = 4
    with pytest.raises(StoreUnavailable, match="older than the journal"):
        lines.replay(book(lines, other))


def test_of_many_rules_only_those_that_changed_are_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, roll = Lines(), Roll()
    one = book(lines, roll)
    one.tell_all(0)
    many = subscription(*(f"rule-{number}" for number in range(50)))
    roll.enter(1, 0, many)
    one.tell(1, 0)
    written: list[str] = []
    whole = entity_facts.dump_rule

    def dump_rule(rule: RuleDescription) -> str:
        written.append(rule.name)
        return whole(rule)

    monkeypatch.setattr(entity_facts, "dump_rule", dump_rule)
    changed = RuleDescription(name="rule-7", filter=SqlFilter(expression="a = 1"))
    before = len(lines.facts)
    roll.enter(1, 0, dataclasses.replace(many, rules=(*many.rules[:7], changed, *many.rules[8:], RuleDescription(name="one more"))))
    one.tell(1, 0)
    assert written == ["rule-7", "one more"]
    assert [kind for kind, *_ in lines.facts[before:]] == [RULE, RULE]
