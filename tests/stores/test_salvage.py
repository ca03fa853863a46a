"""A walk through a segment that is given up: its file is closed there and then, and after a power cut nobody stumbles over it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tandem.simulator.disk import SimDisk
from tandem.stores.blocks import seed_of
from tandem.stores.maintenance_jobs import MaintenanceJobs
from tandem.stores.segment_files import SegmentFiles
from tandem.stores.segment_reader import read_manifest
from tests.stores.harness import ManualClock
from tests.stores.story import DIRECTORY, SETTINGS, Story


def begun() -> tuple[SimDisk, MaintenanceJobs]:
    """A compaction that has read the first block of a segment."""
    story = Story(5)
    story.open()
    story.run(20)
    story.store.close()
    files = SegmentFiles(DIRECTORY, story.disk, ManualClock(), SETTINGS.segment_bytes)
    files.manifest = read_manifest(story.disk, DIRECTORY)
    files.seed = seed_of(files.manifest.store_id)
    jobs = MaintenanceJobs(files, lambda kind, text: None)
    assert len(jobs.read_blocks(files.manifest.first, 0, 1, True)) == 1
    return story.disk, jobs


def test_a_walk_that_is_given_up_has_closed_its_file() -> None:
    disk, jobs = begun()
    jobs.end_walk()
    assert disk.calls[-1][0] == "close"


def test_a_walk_under_way_when_the_power_goes_is_cleared_away_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    disk, jobs = begun()
    disk.dead = True
    del jobs
    assert ignored == []
