"""The registry on disk: survives restarts and crashes whole, and notices damage."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tandem.model.catalog import Snapshot
from tandem.model.entity import (
    AuthorizationRule,
    QueueDescription,
    Right,
    RuleDescription,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from tandem.model.errors import ConfigurationError, Corrupt, EntityAlreadyExists, EntityNotFound, StoreUnavailable
from tandem.stores.metadata import MIGRATIONS, Metadata

KEY = AuthorizationRule(key_name="Root", primary_key="p", secondary_key="s", rights=frozenset(Right))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metadata.db"


def fill(metadata: Metadata) -> Snapshot:
    metadata.put_entity(QueueDescription(name="Orders", requires_session=True), store=2)
    metadata.put_entity(TopicDescription(name="news"), store=0)
    rules = (RuleDescription(name="$Default"), RuleDescription(name="big", filter=SqlFilter(expression="size > 5")))
    metadata.put_entity(SubscriptionDescription(topic="news", name="All", rules=rules), store=1)
    metadata.put_authorization_rule(KEY)
    return metadata.load()


def test_everything_comes_back_after_reopening(path: Path) -> None:
    metadata = Metadata(path)
    before = fill(metadata)
    metadata.close()
    assert [e.description.name for e in before.entities] == ["Orders", "news", "All"]
    assert [e.store for e in before.entities] == [2, 0, 1]
    assert before.authorization_rules == (KEY,)
    again = Metadata(path)
    assert again.load() == before
    again.close()


def test_file_with_keys_is_readable_by_its_owner_only(path: Path) -> None:
    metadata = Metadata(path)
    fill(metadata)
    for file in path.parent.iterdir():
        assert file.stat().st_mode & 0o077 == 0, file
    metadata.close()


def test_ids_are_never_reused(path: Path) -> None:
    metadata = Metadata(path)
    first = metadata.put_entity(QueueDescription(name="a"), store=0)
    metadata.delete_entity(first.id)
    second = metadata.put_entity(QueueDescription(name="a"), store=0)
    metadata.delete_entity(second.id)
    metadata.close()
    metadata = Metadata(path)
    third = metadata.put_entity(QueueDescription(name="a"), store=0)
    assert first.id < second.id < third.id
    metadata.close()


def test_putting_again_replaces_the_description_and_keeps_id_and_store() -> None:
    metadata = Metadata(None)
    old = metadata.put_entity(QueueDescription(name="Q"), store=3)
    new = metadata.put_entity(QueueDescription(name="Q", max_delivery_count=3), store=0)
    assert (new.id, new.store) == (old.id, 3)
    assert metadata.load().entities == (new,)


def test_names_are_one_space_without_regard_to_case() -> None:
    metadata = Metadata(None)
    metadata.put_entity(QueueDescription(name="Orders"), store=0)
    with pytest.raises(EntityAlreadyExists, match="queue already"):
        metadata.put_entity(TopicDescription(name="orders"), store=0)


def test_deleting_a_topic_takes_subscriptions_and_rules_with_it() -> None:
    metadata = Metadata(None)
    fill(metadata)
    topic = metadata.load().entities[1]
    metadata.delete_entity(topic.id)
    assert [e.description.name for e in metadata.load().entities] == ["Orders"]
    metadata.put_entity(topic.description, store=0)
    metadata.put_entity(SubscriptionDescription(topic="news", name="All"), store=0)
    subscription = metadata.load().entities[-1].description
    assert isinstance(subscription, SubscriptionDescription)
    assert subscription.rules == ()


def test_rules_are_added_replaced_and_removed_one_by_one() -> None:
    metadata = Metadata(None)
    fill(metadata)
    owner = metadata.load().entities[2].id
    metadata.put_rule(owner, RuleDescription(name="BIG", filter=SqlFilter(expression="size > 6")))
    metadata.delete_rule(owner, "$default")
    subscription = metadata.load().entities[2].description
    assert isinstance(subscription, SubscriptionDescription)
    assert [(r.name, r.filter) for r in subscription.rules] == [("BIG", SqlFilter(expression="size > 6"))]


def test_a_subscription_that_changes_one_of_many_rules_writes_that_one_and_keeps_their_order(path: Path) -> None:
    def rule(name: str, size: int = 1) -> RuleDescription:
        return RuleDescription(name=name, filter=SqlFilter(expression=f"size > {size}"))

    metadata = Metadata(path)
    many = tuple(rule(f"r{i}") for i in range(200))
    metadata.put_entities([(TopicDescription(name="t"), 0), (SubscriptionDescription(topic="t", name="s", rules=many), 0)])
    for rules, rows_max in (
        ((*many, rule("one-more")), 2),
        ((*many[:7], rule("r7", 9), *many[8:], rule("one-more")), 2),
        ((*many[:7], *many[8:], rule("one-more")), 2),
        (tuple(reversed(many)), 500),
        ((rule("first"), *reversed(many)), 500),
    ):
        before = metadata._db.total_changes
        metadata.put_entity(SubscriptionDescription(topic="t", name="s", rules=rules), store=0)
        assert metadata._db.total_changes - before <= rows_max
        kept = metadata.load().entities[1].description
        assert isinstance(kept, SubscriptionDescription) and kept.rules == rules
    metadata.close()


def test_what_is_not_there_cannot_be_changed() -> None:
    metadata = Metadata(None)
    fill(metadata)
    queue = metadata.load().entities[0]
    for change in (
        lambda: metadata.delete_entity(99),
        lambda: metadata.put_rule(99, RuleDescription(name="r")),
        lambda: metadata.put_rule(queue.id, RuleDescription(name="r")),
        lambda: metadata.delete_rule(queue.id, "r"),
        lambda: metadata.delete_authorization_rule("nobody"),
        lambda: metadata.put_entity(SubscriptionDescription(topic="orders", name="s"), store=0),
    ):
        before = metadata.load()
        with pytest.raises(EntityNotFound):
            change()
        assert metadata.load() == before


def test_many_are_put_together_or_not_at_all() -> None:
    metadata = Metadata(None)
    good = [(QueueDescription(name=f"q{i}"), 0) for i in range(5)]
    with pytest.raises(EntityNotFound):
        metadata.put_entities([*good, (SubscriptionDescription(topic="none", name="s"), 0)])
    assert metadata.load().entities == ()
    assert len(metadata.put_entities(good)) == 5


def test_threads_may_share_it(path: Path) -> None:
    metadata = Metadata(path)

    def create(worker: int) -> None:
        for i in range(20):
            metadata.put_entity(QueueDescription(name=f"{worker}/{i}"), store=worker)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = metadata.load().entities
    assert len({e.id for e in stored}) == 80
    assert all(e.description.name.startswith(f"{e.store}/") for e in stored)
    metadata.close()


def test_changes_that_wait_together_share_one_commit_and_fail_alone(path: Path) -> None:
    metadata = Metadata(path)
    statements: list[str] = []
    metadata._db.set_trace_callback(statements.append)
    outcomes: dict[int, str] = {}

    def create(number: int) -> None:
        try:
            if number % 4 == 0:
                metadata.put_entities([(QueueDescription(name=f"half/{number}"), 0), (SubscriptionDescription(topic="no", name="s"), 0)])
            else:
                metadata.put_entity(QueueDescription(name=f"q/{number}"), store=number)
            outcomes[number] = "kept"
        except EntityNotFound:
            outcomes[number] = "refused"

    threads = [threading.Thread(target=create, args=(n,)) for n in range(12)]
    with metadata._lock:  # as though a commit were under way
        for thread in threads:
            thread.start()
        while len(metadata._waiting) < len(threads):
            pass
    for thread in threads:
        thread.join()
    assert statements.count("COMMIT") == 1
    assert outcomes == {n: "refused" if n % 4 == 0 else "kept" for n in range(12)}
    metadata.close()
    metadata = Metadata(path)
    assert sorted(e.store for e in metadata.load().entities) == [n for n in range(12) if n % 4]
    metadata.close()


def test_group_that_cannot_be_committed_fails_for_everybody_in_it(path: Path) -> None:
    metadata = Metadata(path)
    before = fill(metadata)
    metadata._db.execute(f"PRAGMA max_page_count = {metadata._db.execute('PRAGMA page_count').fetchone()[0]}")
    refusals: list[str] = []

    def create(number: int) -> None:
        try:
            metadata.put_entity(QueueDescription(name=f"q/{number}", user_metadata="x" * (100_000 if number == 2 else 1)), store=0)
        except StoreUnavailable as error:
            refusals.append(error.description)

    threads = [threading.Thread(target=create, args=(n,)) for n in range(4)]
    with metadata._lock:
        for thread in threads:
            thread.start()
        while len(metadata._waiting) < len(threads):
            pass
    for thread in threads:
        thread.join()
    stored = {e.description.name for e in metadata.load().entities} - {e.description.name for e in before.entities}
    assert len(refusals) + len(stored) == 4
    assert "q/2" not in stored
    assert metadata._db.in_transaction is False
    metadata.close()


@pytest.mark.parametrize("how", ["removed", "replaced"])
def test_a_file_that_is_gone_or_another_one_takes_no_changes(path: Path, how: str) -> None:
    metadata = Metadata(path)
    fill(metadata)
    aside = path.rename(path.with_name("aside"))
    if how == "replaced":
        path.touch()
    with pytest.raises(StoreUnavailable, match="is not the file that was opened; nothing was changed"):
        metadata.put_entity(QueueDescription(name="nowhere"), store=0)
    aside.rename(path)
    metadata.put_entity(QueueDescription(name="here"), store=0)
    metadata.close()
    kept = {stored.description.name for stored in Metadata(path).load().entities}
    assert "here" in kept and "nowhere" not in kept


def test_a_file_that_another_one_is_copied_over_takes_no_changes(path: Path) -> None:
    other = path.with_name("other")
    for one in (other, path):
        with closing(Metadata(one)) as written:
            fill(written)
    theirs, ours = other.read_bytes(), path.read_bytes()
    metadata = Metadata(path)
    metadata.put_entity(QueueDescription(name="before"), store=0)
    path.write_bytes(theirs)
    with pytest.raises(StoreUnavailable, match="was overwritten with something else; nothing was changed"):
        metadata.put_entity(QueueDescription(name="nowhere"), store=0)
    assert path.read_bytes() == theirs
    path.write_bytes(ours)
    metadata.put_entity(QueueDescription(name="here"), store=0)
    metadata.close()
    kept = {stored.description.name for stored in Metadata(path).load().entities}
    assert {"before", "here"} <= kept and "nowhere" not in kept


def test_own_writing_checkpoints_copies_and_compaction_are_no_overwriting(path: Path) -> None:
    metadata = Metadata(path)
    for i in range(300):
        metadata.put_entity(QueueDescription(name=f"q{i}"), store=0)
        if i % 50 == 0:
            metadata._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            with closing(sqlite3.connect(path)) as reader, closing(sqlite3.connect(path.with_name(f"copy{i}"))) as copy:
                reader.backup(copy)
            with closing(sqlite3.connect(path)) as somebody:
                somebody.execute("VACUUM")
    assert len(metadata.load().entities) == 300
    metadata.close()


CREATE_UNTIL_KILLED = """
import sys
from pathlib import Path
from tandem.model.entity import RuleDescription, SubscriptionDescription, TopicDescription
from tandem.stores.metadata import Metadata
metadata = Metadata(Path(sys.argv[1]))
rules = tuple(RuleDescription(name=f"r{i}") for i in range(10))
for i in range(100_000):
    metadata.put_entities([(TopicDescription(name=f"t{i}"), 0), (SubscriptionDescription(topic=f"t{i}", name="s", rules=rules), 0)])
    sys.stdout.write(f"{i}\\n")
    sys.stdout.flush()
"""


def test_killed_process_leaves_what_it_acknowledged_and_nothing_half_done(path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    process = subprocess.Popen([sys.executable, "-c", CREATE_UNTIL_KILLED, str(path)], stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 20:
            process.send_signal(signal.SIGKILL)
            break
    acknowledged = max([20, *(int(line) for line in process.stdout.read().splitlines())])
    process.wait()
    metadata = Metadata(path)
    entities = [e.description for e in metadata.load().entities]
    topics = [d for d in entities if isinstance(d, TopicDescription)]
    subscriptions = [d for d in entities if isinstance(d, SubscriptionDescription)]
    assert len(topics) >= acknowledged + 1
    assert [t.name for t in topics] == [s.topic for s in subscriptions]
    assert all(len(s.rules) == 10 for s in subscriptions)
    metadata.close()


def test_flipped_bit_inside_a_text_is_noticed(path: Path) -> None:
    metadata = Metadata(path)
    fill(metadata)
    metadata.close()
    data = bytearray(path.read_bytes())
    data[data.index(b'"max_delivery_count":10') + len('"max_delivery_count":')] ^= 0x02  # 10 becomes 30: still perfect JSON
    path.write_bytes(data)
    damaged = Metadata(path)
    with pytest.raises(Corrupt, match="does not match its checksum"):
        damaged.load()
    damaged.close()


def test_one_rotten_byte_anywhere_is_harmless_or_refused_with_what_to_do(path: Path) -> None:
    """Also one that makes a text no text, or renames a column: SQLite finds nothing wrong with the file then."""
    metadata = Metadata(path)
    before = fill(metadata)
    metadata.close()
    whole = path.read_bytes()
    refused: list[str] = []
    for at in random.Random(7).sample([place for place, byte in enumerate(whole) if byte], 400):
        for flipped in (whole[at] ^ 1, whole[at] ^ 0x80):
            path.write_bytes(whole[:at] + bytes((flipped,)) + whole[at + 1 :])
            try:
                with closing(Metadata(path)) as found:
                    found.known_store(0)
                    snapshot = found.load()
            except (Corrupt, ConfigurationError) as error:
                refused.append(str(error))
                continue
            assert (snapshot.entities, snapshot.authorization_rules) == (before.entities, before.authorization_rules)
    assert any("decode" in text and "recover-metadata" in text for text in refused)
    assert not any('"rights"' in text or '"name"' in text for text in refused), "a description, which may have keys, is in what is told"
    assert any("no such column" in text and "recover-metadata" in text for text in refused)


@pytest.mark.parametrize("damage", ["cut", "scribbled", "not a database"])
def test_damaged_file_is_refused_on_opening_or_loading(path: Path, damage: str) -> None:
    metadata = Metadata(path)
    for i in range(200):
        metadata.put_entity(QueueDescription(name=f"queue-number-{i}", user_metadata="x" * 200), store=0)
    metadata.close()
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "scribbled":
        data[8192 : 8192 + 4096] = b"\xff" * 4096
    else:
        data[:16] = b"something else!!"
    path.write_bytes(data)
    with pytest.raises(Corrupt, match=str(path)):
        Metadata(path).load()


def test_database_of_somebody_else_is_left_alone(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE precious (x)")
    db.commit()
    db.close()
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="not one of ours"):
        Metadata(path)
    assert path.read_bytes() == before


def test_newer_schema_is_refused_and_older_one_is_migrated_at_once(path: Path) -> None:
    Metadata(path).close()
    added = "ALTER TABLE entities ADD COLUMN note TEXT;\nCREATE TABLE extra (x);"
    newer = Metadata(path, migrations=(*MIGRATIONS, added))
    newer.close()
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 1,)
    assert db.execute("SELECT count(*) FROM extra").fetchone() == (0,)
    db.close()
    with pytest.raises(ConfigurationError, match="newer version"):
        Metadata(path)


def test_failing_migration_leaves_the_old_schema_untouched(path: Path) -> None:
    metadata = Metadata(path)
    before = fill(metadata)
    metadata.close()
    with pytest.raises(Corrupt, match="already exists"):
        Metadata(path, migrations=(*MIGRATIONS, "CREATE TABLE extra (x);\nCREATE TABLE rules (x);"))
    metadata = Metadata(path)
    assert metadata.load() == before
    metadata.close()


def test_full_disk_refuses_the_change_and_keeps_what_was_there(path: Path) -> None:
    metadata = Metadata(path)
    before = fill(metadata)
    metadata._db.execute(f"PRAGMA max_page_count = {metadata._db.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(StoreUnavailable, match="full"):
        metadata.put_entity(QueueDescription(name="big", user_metadata="x" * 100_000), store=0)
    assert metadata.load() == before
    metadata.close()


def test_description_that_cannot_be_written_changes_nothing() -> None:
    metadata = Metadata(None)
    before = fill(metadata)
    subscription = before.entities[2].description
    assert isinstance(subscription, SubscriptionDescription)
    bad = RuleDescription(name="bad", filter=SqlFilter(expression="x", parameters=(("p", object()),)))
    with pytest.raises(ValueError, match="cannot be kept"):
        metadata.put_entity(replace(subscription, rules=(*subscription.rules, bad)), store=0)
    assert metadata.load() == before
