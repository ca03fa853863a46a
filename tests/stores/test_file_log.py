"""Blocks in files: what was announced is found again, what nobody was told of is not."""

from __future__ import annotations

import pytest

from tandem.model.errors import Corrupt, StoreUnavailable
from tandem.simulator.disk import SimDisk
from tandem.stores import InlineWorker, LogSettings
from tandem.stores.file_log import FileLog
from tests.stores.harness import ManualClock
from tests.stores.log_bench import LogBench

SETTINGS = LogSettings(segment_bytes=32_768)


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk()


def bench_on(disk: SimDisk, store_id: bytes = b"0123456789abcdef") -> LogBench:
    return LogBench(FileLog("store", SETTINGS, ManualClock(), disk, InlineWorker, lambda: store_id))


def test_a_block_is_announced_when_it_is_durable_and_found_by_whoever_opens_the_log_next(disk: SimDisk) -> None:
    first = bench_on(disk)
    assert first.open() == []
    group = first.write(b"kept")
    assert group.finished and group.error is None and first.announced == 1
    first.log.release()
    assert bench_on(disk).open() == [b"kept"]


def test_two_cannot_have_it_open(disk: SimDisk) -> None:
    bench_on(disk).open()
    with pytest.raises(StoreUnavailable, match="open in another process"):
        bench_on(disk).open()


def test_a_block_that_came_through_too_late_is_cut_off_when_the_same_log_is_opened_again(disk: SimDisk) -> None:
    bench = bench_on(disk)
    bench.open()
    bench.write(b"told")
    trusted, number = bench.next.segment << 32 | bench.next.offset, bench.next.number - 1
    bench.write(b"given up")
    bench.log.release()
    assert bench.open(trusted, number) == [b"told"]


def test_another_log_in_its_place_is_refused(disk: SimDisk) -> None:
    lost = bench_on(disk)
    lost.open()
    lost.write(b"lost")
    lost.log.release()
    for path in list(disk.paths()):
        disk.unlink(path)
    anew = bench_on(disk, b"fedcba9876543210")
    anew.open()
    anew.log.release()
    with pytest.raises(Corrupt, match="holds store"):
        lost.open()
