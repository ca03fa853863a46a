"""When the oldest segment is worth compacting, and what a store tells of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.broker.facts import ENQUEUED
from tandem.stores import InlineWorker, LogSettings, SegmentStore
from tandem.stores.maintenance import Maintenance
from tests.stores.harness import Loop, ManualClock, Note, Sink

LOOP = Loop()


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    loop = LOOP
    settings = LogSettings(segment_bytes=4_096)
    made = SegmentStore(tmp_path / "store", loop.call, settings, ManualClock(), new_worker=InlineWorker)
    made.replay(Sink())
    return made


def fill(store: SegmentStore, segments: int) -> list[int]:
    locations: list[int] = []
    while store.active_segment <= segments:
        locations.append(store.append(ENQUEUED, 0, 1, len(locations) + 1, 0, 0, b"", bytes(1_000)))
        store.when_durable(Note([], "x"))
        store.flush()
        LOOP.run_ready()
    return locations


def upkeep_of(store: SegmentStore) -> Maintenance:
    upkeep = store._maintenance
    assert isinstance(upkeep, Maintenance)
    return upkeep


def test_the_oldest_segment_is_due_once_more_is_dead_than_alive_plus_two_segments(store: SegmentStore) -> None:
    locations = fill(store, 6)
    upkeep = upkeep_of(store)
    assert upkeep.head_to_compact(store.active_segment) == (0, 0)
    for location in locations:
        store.forget(location)
    head, more = upkeep.head_to_compact(store.active_segment)
    assert head == 1
    assert more >= 3, "and it hurries with what has gathered"
    store.close()


def test_a_note_is_told_once_and_the_state_stays_up(store: SegmentStore) -> None:
    upkeep = upkeep_of(store)
    upkeep.tell(("a torn tail", "a torn tail", "an index"))
    upkeep.tell(("an index",))
    assert store.health.notes == ("a torn tail", "an index")
    store.close()
