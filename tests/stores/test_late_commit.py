"""A commit that comes through after its store was taken down: nobody heard of it, so it goes, and the store opens without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.broker.facts import ENQUEUED
from tandem.broker.ports import StoreState
from tandem.model.errors import StoreUnavailable
from tandem.simulator.disk import SimDisk
from tandem.stores.segment import SegmentStore
from tandem.stores.settings import LogSettings
from tandem.stores.worker import InlineWorker, Job, Worker
from tests.stores.harness import Loop, ManualClock, Note, Sink

SEGMENT_BYTES = 4_096


class Stalling:
    """A committer whose disk answers when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.stalled = False

    def submit(self, job: Job) -> None:
        if self.stalled:
            self.jobs.append(job)
        else:
            job()

    def answer(self) -> None:
        self.stalled = False
        while self.jobs:
            self.jobs.pop(0)()

    def stop(self, timeout_seconds: float) -> bool:
        return not self.jobs


@pytest.mark.parametrize("body_bytes", [100, SEGMENT_BYTES], ids=["within its segment", "filling its segment"])
def test_a_store_opens_again_after_a_commit_that_came_through_too_late(body_bytes: int) -> None:
    loop, committer = Loop(), Stalling()

    def worker(name: str) -> Worker:
        return committer if name == "tandem-committer" else InlineWorker(name)

    settings = LogSettings(segment_bytes=SEGMENT_BYTES)
    store = SegmentStore(Path("store"), loop.call, settings, ManualClock(), SimDisk(), worker, lambda: b"0123456789abcdef")
    store.replay(Sink())
    heard: list[tuple[str, BaseException | None]] = []
    store.append(ENQUEUED, 0, 4, 1, 10, 20, b"kept", b"x" * 100)
    store.when_durable(Note(heard, "kept"))
    store.flush()
    loop.run_ready()
    committer.stalled = True
    store.append(ENQUEUED, 0, 4, 2, 10, 20, b"late", b"y" * body_bytes)
    store.when_durable(Note(heard, "late"))
    store.flush()
    store.fail("the disk has not answered")
    committer.answer()
    loop.run_ready()
    assert [(name, type(error)) for name, error in heard] == [("kept", type(None)), ("late", StoreUnavailable)]
    for life in range(2):
        sink = Sink()
        store.reopen(sink)
        assert store.health.state is StoreState.UP
        assert [fact[6] for fact in sink.replayed_facts] == [b"kept"], f"life {life}"
        store.fail("once more")
        loop.run_ready()
