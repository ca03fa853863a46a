"""Looking into a store from outside: whole stores, damaged ones, and live ones at full speed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tandem.broker.facts import DEAD_LETTERED, ENQUEUED, HAS_SESSION, SETTLED, pack_key
from tandem.model.errors import ConfigurationError, Corrupt
from tandem.stores import LogSettings, SegmentStore, backup, dump, dump_segment, verify
from tandem.stores.backup import backup_together
from tandem.stores.disk import LocalDisk
from tandem.stores.segment_files import MANIFEST
from tests.stores.harness import Fetched, Loop, ManualClock, Note, Shop, Sink

SETTINGS = LogSettings(segment_bytes=8_192, compaction_records_per_step=64)


class Live:
    """A store with traffic, turn by turn."""

    def __init__(self, directory: Path, settings: LogSettings = SETTINGS) -> None:
        self.loop = Loop()
        self.shop = Shop()
        self.store = SegmentStore(directory, self.loop.call, settings, ManualClock())
        self.shop.journal = self.store
        self.store.replay(self.shop)
        self.log: list[tuple[str, BaseException | None]] = []
        self.turns = 0

    def turn(self) -> None:
        self.turns += 1
        for i in range(10):
            seq = self.shop.put(4, b"key", b"%d " % self.turns * 40)
            if i:
                self.shop.settle(4, seq)
        if len(self.shop.messages) > 40:
            self.shop.settle(*min(self.shop.messages))
        self.store.when_durable(Note(self.log, "x"))
        self.store.flush()
        self.loop.run_until(lambda: len(self.log) == self.turns)
        self.store.step_compaction()


def test_dump_says_every_fact_in_words_and_numbers_that_json_can_carry(tmp_path: Path) -> None:
    loop = Loop()
    store = SegmentStore(tmp_path / "store", loop.call, SETTINGS, ManualClock())
    store.replay(Sink())
    key = pack_key(b"\xa1\x05hello", "the session", 3, 0)
    store.append(ENQUEUED, HAS_SESSION, 4 * 7 + 1, 11, 1_000, 2_000, key, b"body")
    store.append(SETTLED, DEAD_LETTERED, 4 * 7, 11, 3_000, 0, b"", b"")
    store.append(99, 0, 4, 1, 0, 0, b"from the future", b"")
    store.append(ENQUEUED, 0, 4, 1, 0, 0, b"no key", b"")
    store.close()
    rows = list(dump(tmp_path / "store", bodies=True))
    assert json.loads(json.dumps(rows)) == rows
    assert rows[0] == {
        "kind": "enqueued",
        "flags": HAS_SESSION,
        "entity": 7,
        "sub_queue": 1,
        "seq": 11,
        "at": 1_000,
        "aux": 2_000,
        "key": key.hex(),
        "body_bytes": 4,
        "message_id": "hello",
        "session_id": "the session",
        "delivery_count": 3,
        "segment": 1,
        "block": 1,
        "offset": 96,
        "body": b"body".hex(),
    }
    assert rows[1]["reason"] == "dead-lettered"
    assert rows[2]["kind"] == "99"
    assert "message_id" not in rows[3]


def test_one_segment_can_be_read_on_its_own(tmp_path: Path) -> None:
    live = Live(tmp_path / "store")
    for _ in range(20):
        live.turn()
    live.store.close()
    whole = list(dump(tmp_path / "store"))
    parts = [row for path in sorted((tmp_path / "store").glob("*.seg")) for row in dump_segment(path)]
    assert parts == whole


def test_what_is_not_a_store_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not a store"):
        verify(tmp_path)
    with pytest.raises(ConfigurationError, match="not a store"):
        list(dump(tmp_path))
    (tmp_path / "something.seg").write_bytes(b"hello")
    with pytest.raises(Corrupt, match="too short"):
        list(dump_segment(tmp_path / "something.seg"))


def test_a_backup_opens_and_holds_what_the_store_holds(tmp_path: Path) -> None:
    live = Live(tmp_path / "store")
    for _ in range(60):
        live.turn()
    report = backup(tmp_path / "store", tmp_path / "copy")
    assert report.problems == []
    expected = {place: key for place, (key, _) in live.shop.messages.items()}
    live.store.close()
    copy = Live(tmp_path / "copy")
    # Where each body is, is the copy's own: what compaction has just moved may not have been on disk yet, and stands where it was.
    assert {place: key for place, (key, _) in copy.shop.messages.items()} == expected
    effect = Fetched()
    copy.store.fetch([location for _, location in copy.shop.messages.values()], effect)
    copy.loop.run_until(lambda: effect.arrived)
    assert effect.error is None
    copy.turn()
    copy.store.close()


class BusyDisk(LocalDisk):
    """Both stores are written to whenever one looks which segments there are."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = write

    def open(self, path: str, flags: int) -> int:
        if path.endswith(MANIFEST) and "copy" not in path:
            self._write()
        return super().open(path, flags)


def test_stores_of_a_broker_that_leaves_short_pauses_only_are_copied_as_they_were_at_one_instant(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=1_048_576)
    one, other = (Live(tmp_path / name, settings) for name in ("one", "other"))

    def write() -> None:
        one.turn()
        other.turn()

    write()
    places = [(tmp_path / name, tmp_path / f"copy-{name}") for name in ("one", "other")]
    assert [report.problems for report in backup_together(places, BusyDisk(write))] == [[], []]
    copied = [Live(target, settings) for _, target in places]
    assert copied[0].shop.messages == copied[1].shop.messages, "each turn is in both copies, or in neither"
    assert 0 < len(copied[0].shop.messages) < len(one.shop.messages)
    for store in (one, other, *copied):
        store.store.close()


def test_a_backup_needs_an_empty_place(tmp_path: Path) -> None:
    live = Live(tmp_path / "store")
    live.store.close()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "precious").write_text("do not touch")
    with pytest.raises(ConfigurationError, match="not empty"):
        backup(tmp_path / "store", tmp_path / "copy")


def test_a_damaged_store_is_not_copied_as_if_it_were_whole(tmp_path: Path) -> None:
    live = Live(tmp_path / "store")
    for _ in range(30):
        live.turn()
    live.store.close()
    first = min((tmp_path / "store").glob("*.seg"))
    raw = bytearray(first.read_bytes())
    raw[200] ^= 1
    first.write_bytes(raw)
    assert verify(tmp_path / "store").problems
    with pytest.raises(Corrupt):
        backup(tmp_path / "store", tmp_path / "copy")


@pytest.mark.slow
def test_a_live_store_is_verified_dumped_and_copied_while_it_writes_and_compacts(tmp_path: Path) -> None:
    live = Live(tmp_path / "store")
    live.turn()
    looking = threading.Event()
    trouble: list[str] = []

    def look() -> None:
        try:
            for i in range(15):
                trouble.extend(verify(tmp_path / "store").problems)
                blocks = [row["block"] for row in dump(tmp_path / "store")]
                if blocks != sorted(blocks):
                    trouble.append("facts out of order")
                trouble.extend(backup(tmp_path / "store", tmp_path / f"copy-{i}").problems)
        except BaseException as error:
            trouble.append(repr(error))
            raise
        finally:
            looking.set()

    watcher = threading.Thread(target=look)
    watcher.start()
    durable: list[set[tuple[int, int]]] = [set(live.shop.messages)]
    while not looking.is_set():
        live.turn()
        durable.append(set(live.shop.messages))
    watcher.join()
    assert trouble == []
    live.store.close()
    for i in range(15):
        copy = Live(tmp_path / f"copy-{i}")
        assert any(set(copy.shop.messages) == then for then in durable), f"copy {i} is no state the store was ever in"
        copy.store.close()
