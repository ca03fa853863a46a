"""What only the SQLite engine has to promise: its own damage, its own file, its own lock."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.broker.facts import ENQUEUED
from tandem.broker.ports import StoreState
from tandem.model.errors import Corrupt, StoreUnavailable
from tandem.stores import LogSettings
from tests.stores.harness import Fetched, Loop, ManualClock, Note, Shop, Sink
from tests.stores.sqlite_store import SqliteStore


class Room:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.loop = Loop()
        self.store = self.make()

    def make(self) -> SqliteStore:
        return SqliteStore(self.directory, self.loop.call, LogSettings(segment_bytes=8_192), ManualClock())

    def settle_down(self) -> None:
        log: list[tuple[str, BaseException | None]] = []
        self.store.when_durable(Note(log, "x"))
        self.store.flush()
        self.loop.run_until(lambda: bool(log))
        assert log == [("x", None)]

    def tamper(self, statement: str) -> None:
        self.store.close()
        with sqlite3.connect(self.directory / "journal.sqlite") as database:
            assert database.execute(statement).rowcount == 1
        database.close()
        self.store = self.make()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path / "store")
    made.store.replay(Sink())
    yield made
    made.store.close()


def test_a_changed_field_is_found_on_replay_and_a_changed_body_on_delivery(room: Room) -> None:
    location = room.store.append(ENQUEUED, 0, 4, 1, 0, 0, b"key", b"body")
    room.settle_down()
    room.tamper("UPDATE facts SET body = x'626f647a' WHERE seq = 1")
    room.store.replay(Sink())
    effect = Fetched()
    room.store.fetch([location], effect)
    room.loop.run_until(lambda: effect.arrived)
    assert isinstance(effect.error, Corrupt)
    assert room.store.health.state is StoreState.CORRUPT
    for field in ("seq = 2", "key = x'00'", "aux = 9", "flags = 1", "body = x''"):
        other = Room(room.directory.parent / field[:3])
        other.store.replay(Sink())
        other.store.append(ENQUEUED, 0, 4, 1, 0, 0, b"key", b"body")
        other.settle_down()
        other.tamper(f"UPDATE facts SET {field}")
        with pytest.raises(Corrupt, match="fails its checksum"):
            other.store.replay(Sink())
        assert other.store.health.state is StoreState.CORRUPT


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "journal.sqlite").write_bytes(b"this is no database at all" * 200)
    store = SqliteStore(tmp_path, Loop().call, LogSettings(), ManualClock())
    with pytest.raises(Corrupt):
        store.replay(Sink())
    store.close()


def test_a_database_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "journal.sqlite") as database:
        database.execute("PRAGMA application_id = 77")
        database.execute("CREATE TABLE precious (x)")
    database.close()
    store = SqliteStore(tmp_path, Loop().call, LogSettings(), ManualClock())
    with pytest.raises(Corrupt, match="somebody else"):
        store.replay(Sink())
    store.close()


def test_a_second_opener_is_told_so(room: Room) -> None:
    second = room.make()
    with pytest.raises(StoreUnavailable, match="open in another process"):
        second.replay(Sink())
    second.close()


def test_an_error_of_the_database_stops_the_store_and_reopening_brings_it_back(room: Room) -> None:
    room.store.append(ENQUEUED, 0, 4, 1, 0, 0, b"", b"kept")
    room.settle_down()
    blocker = sqlite3.connect(room.directory / "journal.sqlite", timeout=0)
    blocker.execute("DROP TABLE ends")
    blocker.commit()
    blocker.close()
    log: list[tuple[str, BaseException | None]] = []
    room.store.append(ENQUEUED, 0, 4, 2, 0, 0, b"", b"refused")
    room.store.when_durable(Note(log, "x"))
    room.store.flush()
    room.loop.run_until(lambda: bool(log))
    assert isinstance(log[0][1], StoreUnavailable)
    assert room.store.health.state is StoreState.DOWN
    with pytest.raises(StoreUnavailable):
        room.store.append(ENQUEUED, 0, 4, 3, 0, 0, b"", b"")
    sink = Sink()
    room.store.reopen(sink)
    assert [fact[3] for fact in sink.replayed_facts] == [1], "the whole group or nothing of it"
    room.store.append(ENQUEUED, 0, 4, 4, 0, 0, b"", b"")
    room.settle_down()


def test_compaction_shrinks_the_file(room: Room) -> None:
    shop = Shop()
    shop.journal = room.store
    room.store.close()
    room.store = room.make()
    shop.journal = room.store
    room.store.replay(shop)
    for _ in range(40):
        for seq in [shop.put(4, b"", b"x" * 500) for _ in range(20)]:
            shop.settle(4, seq)
        room.settle_down()
    count = room.store.segment_count
    assert room.store.step_compaction()
    room.loop.run_until(lambda: not room.store.step_compaction())
    assert room.store.segment_count <= 4 < count
    room.store.close()
    assert (room.directory / "journal.sqlite").stat().st_size < 200_000
