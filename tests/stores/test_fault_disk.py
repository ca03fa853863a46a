"""A disk that fails on request: what fails, with which error, and what goes on working."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tandem.stores.disk import LocalDisk
from tandem.stores.fault_disk import FaultDisk


@pytest.fixture
def disk() -> FaultDisk:
    return FaultDisk(LocalDisk())


@pytest.fixture
def descriptor(disk: FaultDisk, tmp_path: Path):
    opened = disk.open(str(tmp_path / "file"), os.O_RDWR | os.O_CREAT)
    yield opened
    disk.close(opened)


def test_without_a_fault_it_is_the_disk_behind_it(disk: FaultDisk, descriptor: int) -> None:
    assert disk.pwritev(descriptor, [b"ab", b"cd"], 0) == 4
    disk.fdatasync(descriptor)
    assert disk.pread(descriptor, 10, 1) == b"bcd"
    assert disk.size(descriptor) == 4


def test_a_disk_that_is_down_neither_opens_nor_writes_nor_syncs(disk: FaultDisk, descriptor: int, tmp_path: Path) -> None:
    disk.down = True
    for call in (
        lambda: disk.open(str(tmp_path / "other"), os.O_RDWR | os.O_CREAT),
        lambda: disk.pwritev(descriptor, [b"a"], 0),
        lambda: disk.fdatasync(descriptor),
    ):
        with pytest.raises(OSError) as failed:
            call()
        assert failed.value.errno == errno.EIO
    disk.down = False
    assert disk.pwritev(descriptor, [b"a"], 0) == 1


def test_a_full_disk_takes_what_was_reserved_and_nothing_beyond(disk: FaultDisk, descriptor: int, tmp_path: Path) -> None:
    disk.pwritev(descriptor, [bytes(100)], 0)
    disk.full = True
    assert disk.free_bytes(str(tmp_path)) == 0
    assert disk.pwritev(descriptor, [b"x" * 100], 0) == 100
    with pytest.raises(OSError) as failed:
        disk.pwritev(descriptor, [b"x"], 100)
    assert failed.value.errno == errno.ENOSPC


def test_a_sync_fails_alone(disk: FaultDisk, descriptor: int) -> None:
    disk.failing = True
    assert disk.pwritev(descriptor, [b"a"], 0) == 1
    with pytest.raises(OSError) as failed:
        disk.fdatasync(descriptor)
    assert failed.value.errno == errno.EIO
