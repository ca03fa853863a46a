"""What recovery finds and does after a crash reaches whoever runs the broker; what had been synced is never taken for a torn tail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandem.stores.blocks import pack_block_header, seed_of
from tandem.stores.disk import LocalDisk
from tandem.stores.journal_dump import dump_segment
from tandem.stores.segment_reader import SegmentReader
from tests.acceptance.store_house import House, flip


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.stop()


def newest(store: Path) -> tuple[Path, SegmentReader, list[int]]:
    """The segment that was written last, read to its end, and where its blocks begin."""
    for path in sorted(store.glob("*.seg"), reverse=True):
        file = SegmentReader(LocalDisk(), str(path))
        blocks = [offset for offset, _, _, _, _ in file.blocks()]
        file.close()
        if blocks:
            return path, file, blocks
    raise AssertionError(f"no block in {store}")


def rot_that_meets_the_guard_too(path: Path, offset: int, block_end: int) -> None:
    """One rotten byte would be restored from the guard at the end of its block."""
    flip(path, offset)
    flip(path, block_end - 20)


def rot_in_the_last_block(path: Path, begin: int, end: int) -> None:
    rot_that_meets_the_guard_too(path, begin + 60, end)


def cut_before_the_last_block(path: Path, begin: int, end: int) -> None:
    os.truncate(path, begin)


def cut_inside_the_last_block(path: Path, begin: int, end: int) -> None:
    os.truncate(path, begin + 40)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("damage", [rot_in_the_last_block, cut_before_the_last_block, cut_inside_the_last_block])
def test_what_was_synced_before_a_crash_and_is_missing_after_it_makes_the_store_corrupt_and_is_told(
    house: House, damage: Callable[[Path, int, int], None]
) -> None:
    house.send("first", 5)
    house.send("second", 2)
    house.kill()
    path, file, blocks = newest(house.store("first"))
    damage(path, blocks[-1], file.end)
    house.start()
    house.await_states("corrupt", "up")
    house.await_cause(path.name)
    assert house.receive("second", 2) == 2
    assert "store-0 is corrupt: " in house.stop()


@pytest.mark.timeout(120)
def test_a_torn_tail_is_cut_off_and_told_in_the_log_as_an_event_as_a_metric_and_in_health(house: House) -> None:
    house.send("first", 5)
    house.kill()
    path, file, _ = newest(house.store("first"))
    payload = b"t" * 3_000
    torn = (pack_block_header(seed_of(file.header.store_id), file.header.segment, file.number, 1, payload) + payload)[:1_500]
    with path.open("r+b") as segment:
        segment.seek(file.end)
        segment.write(torn)
    house.start()
    (note,) = house.health()[0]["notes"]
    assert f"{path.name}: offset {file.end}: torn tail cut off" in note
    assert house.states() == ["up", "up"]
    assert house.health()[1]["notes"] == []
    events = json.loads(house.page("events"))["events"]
    assert [(event["subject"], event["cause"]) for event in events if event["state"] == "recovered"] == [("store-0", note)]
    metrics = house.page("metrics").splitlines()
    assert [line.rpartition(" ")[2] for line in metrics if line.startswith("tandem_store_notes{")] == ["1.0", "0.0"]
    assert house.receive("first", 5) == 5
    assert f"store-0 has found and put in order: {note}" in house.stop()
    house.start()
    assert house.health()[0]["notes"] == []


@pytest.mark.timeout(120)
def test_repair_makes_a_corrupt_store_open_and_lists_every_record_that_is_lost(house: House) -> None:
    house.send("first", 9)
    house.kill()
    store = house.store("first")
    path, file, blocks = newest(store)
    rows = [row for row in dump_segment(path) if row["kind"] == "enqueued"]
    offset = rows[4]["offset"]
    assert isinstance(offset, int)
    rot_that_meets_the_guard_too(path, offset + 8, min(end for end in (*blocks, file.end) if end > offset))
    house.start()
    house.await_states("corrupt", "up")
    house.await_cause("tandem store repair")
    house.stop()
    command = [sys.executable, "-m", "tandem", "store", "repair", str(house.directory / "data"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    first, second = json.loads(done.stdout)
    assert (second["rewritten"], second["losses"]) == ([], [])
    assert first["rewritten"] == [path.name]
    assert path.name in os.listdir(store / "damaged")
    lost = {loss["offset"] for loss in first["losses"]}
    assert offset in lost
    house.start()
    house.await_states("up", "up")
    gone = {str(row["message_id"]) for row in rows if row["offset"] in lost}
    assert house.receive("first", 9) == 9 - len(gone) < 9
    assert house.seen == {str(number) for number in range(9)} - gone
    again = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (again.returncode, "stop its broker" in again.stderr) == (2, True)
