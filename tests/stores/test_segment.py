"""The append log on real files and real threads: groups, laziness, errors of the disk, and the way back."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tandem.broker.facts import DELIVERED, ENQUEUED
from tandem.broker.ports import StoreState
from tandem.model.errors import Corrupt, StoreUnavailable
from tandem.stores import LocalDisk, LogSettings, SegmentStore, dump, verify
from tests.stores.harness import Fetched, Loop, ManualClock, Note, Shop, Sink

Log = list[tuple[str, BaseException | None]]


class TouchyDisk(LocalDisk):
    """The real disk, with a list of calls, a gate before each sync, and errors on order."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.syncing = threading.Event()
        self.fail: dict[str, OSError] = {}
        self.short = 0

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fail:
            raise self.fail[name]

    def pwritev(self, descriptor: int, buffers: list[bytes], offset: int) -> int:
        self._called("pwritev")
        if self.short:
            data = b"".join(buffers)[: self.short]
            return super().pwritev(descriptor, [data], offset)
        return super().pwritev(descriptor, buffers, offset)

    def fdatasync(self, descriptor: int) -> None:
        self.syncing.set()
        self.gate.wait(20)
        self._called("fdatasync")
        super().fdatasync(descriptor)

    def fallocate(self, descriptor: int, size: int) -> bool:
        self._called("fallocate")
        return super().fallocate(descriptor, size)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        self._called("pread")
        return super().pread(descriptor, size, offset)


class Room:
    def __init__(self, directory: Path, settings: LogSettings) -> None:
        self.directory = directory
        self.loop = Loop()
        self.clock = ManualClock()
        self.disk = TouchyDisk()
        self.settings = settings
        self.store = self.make()

    def make(self) -> SegmentStore:
        return SegmentStore(self.directory, self.loop.call, self.settings, self.clock, self.disk)

    def restart(self, tenant: Sink | Shop) -> SegmentStore:
        self.store.close()
        self.store = self.make()
        if isinstance(tenant, Shop):
            tenant.journal = self.store
        self.store.replay(tenant)
        return self.store

    def put(self, seq: int, body: bytes = b"body") -> int:
        return self.store.append(ENQUEUED, 0, 4, seq, 0, 0, b"key", body)

    def settle_down(self) -> None:
        log: Log = []
        self.store.when_durable(Note(log, "x"))
        self.store.flush()
        self.loop.run_until(lambda: bool(log))
        assert log == [("x", None)]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """For what the keeper does: ask the loop for turns until it is done."""
        nudge = threading.Event()
        for _ in range(2_000):
            self.loop.run_ready()
            if condition():
                return
            nudge.wait(0.01)
        raise AssertionError("it did not happen in time")


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path / "store", LogSettings(segment_bytes=32_768))
    made.store.replay(Sink())
    made.disk.calls.clear()
    yield made
    made.disk.gate.set()
    made.disk.fail.clear()
    made.store.close()


def test_a_group_is_whatever_arrived_during_the_last_sync(room: Room) -> None:
    log: Log = []
    room.disk.gate.clear()
    room.put(0)
    room.store.when_durable(Note(log, "first"))
    room.store.flush()
    assert room.disk.syncing.wait(20)
    for seq in range(1, 101):
        room.put(seq)
        room.store.when_durable(Note(log, str(seq)))
        room.store.flush()
    room.disk.gate.set()
    room.loop.run_until(lambda: len(log) == 101)
    assert [name for name, _ in log] == ["first", *map(str, range(1, 101))]
    assert room.store.sync_count == 2
    assert room.disk.calls.count("fdatasync") == 2
    assert room.loop.handed_over == 2, "the loop is called once per commit"


def test_nothing_is_announced_before_its_sync_returned(room: Room) -> None:
    log: Log = []
    room.disk.gate.clear()
    room.put(0)
    room.store.when_durable(Note(log, "x"))
    room.store.flush()
    assert room.disk.syncing.wait(20)
    room.loop.run_ready()
    assert log == []
    room.disk.gate.set()
    room.loop.run_until(lambda: bool(log))


def test_records_nobody_waits_for_ride_along(room: Room) -> None:
    for seq in range(50):
        room.store.append(DELIVERED, 0, 4, seq, 0, 0, b"", b"")
        room.store.flush()
    assert room.store.sync_count == 0
    room.settle_down()
    assert room.store.sync_count == 1
    sink = Sink()
    room.restart(sink)
    assert len(sink.replayed_facts) == 50


def test_records_nobody_waits_for_do_not_wait_for_ever(room: Room) -> None:
    room.store.append(DELIVERED, 0, 4, 1, 0, 0, b"", b"")
    room.store.flush()
    assert room.store.sync_count == 0
    room.clock.now += room.settings.lazy_ms_max
    room.store.flush()
    room.loop.run_until(lambda: room.store.pending_bytes == 0)
    assert room.store.sync_count == 1


def test_records_nobody_waits_for_do_not_gather_without_limit(tmp_path: Path) -> None:
    room = Room(tmp_path / "store", LogSettings(lazy_bytes_max=1_000))
    room.store.replay(Sink())
    for seq in range(100):
        room.store.append(DELIVERED, 0, 4, seq, 0, 0, b"x" * 58, b"")
        room.store.flush()
    room.loop.run_until(lambda: room.store.pending_bytes < 1_000)
    assert room.store.sync_count > 0
    room.store.close()


def test_what_is_appended_between_two_flushes_is_one_block_even_if_a_commit_ends_meanwhile(room: Room) -> None:
    log: Log = []
    room.put(0)
    room.store.when_durable(Note(log, "first"))
    room.store.flush()
    room.put(1)
    room.store.when_durable(Note(log, "second"))
    room.loop.run_until(lambda: bool(log))
    room.put(2)
    room.store.flush()
    room.loop.run_until(lambda: len(log) == 2)
    blocks = {row["seq"]: row["block"] for row in dump(room.directory)}
    assert blocks[0] != blocks[1]
    assert blocks[1] == blocks[2]


@pytest.mark.parametrize("call", ["fdatasync", "pwritev"])
def test_an_error_of_write_or_sync_stops_the_store_for_good(room: Room, call: str) -> None:
    room.put(1)
    room.settle_down()
    log: Log = []
    room.disk.fail[call] = OSError(errno.EIO, "the disk is on fire")
    room.disk.gate.clear()
    room.put(2)
    room.store.when_durable(Note(log, "in flight"))
    room.store.flush()
    room.put(3)
    room.store.when_durable(Note(log, "pending"))
    room.store.flush()
    room.disk.gate.set()
    room.loop.run_until(lambda: len(log) == 2)
    assert [name for name, _ in log] == ["in flight", "pending"]
    for _, error in log:
        assert isinstance(error, StoreUnavailable)
        assert "on fire" in str(error)
    health = room.store.health
    assert health.state is StoreState.DOWN
    assert "on fire" in health.cause
    with pytest.raises(StoreUnavailable, match="on fire"):
        room.put(4)
    with pytest.raises(StoreUnavailable, match="on fire"):
        room.store.when_durable(Note(log, "late"))
    room.store.flush()
    assert not room.store.step_compaction()
    del room.disk.fail[call]
    calls = list(room.disk.calls)
    room.store.flush()
    assert room.disk.calls == calls, "nothing is tried again"
    sink = Sink()
    room.store.reopen(sink)
    assert room.store.health.state is StoreState.UP
    assert [fact[3] for fact in sink.replayed_facts] == [1], "what was not acknowledged is gone, also where the file still shows it"
    room.put(5)
    room.settle_down()
    sink = Sink()
    room.restart(sink)
    assert [fact[3] for fact in sink.replayed_facts] == [1, 5]


def test_a_store_that_is_up_cannot_be_reopened_or_replayed_again(room: Room) -> None:
    with pytest.raises(StoreUnavailable):
        room.store.reopen(Sink())
    with pytest.raises(StoreUnavailable):
        room.store.replay(Sink())


def test_short_writes_are_continued(room: Room) -> None:
    room.disk.short = 100
    locations = [room.put(seq, bytes([seq]) * 500) for seq in range(20)]
    room.settle_down()
    room.disk.short = 0
    effect = Fetched()
    room.store.fetch(locations, effect)
    room.loop.run_until(lambda: effect.arrived)
    assert effect.bodies == [bytes([seq]) * 500 for seq in range(20)]
    assert verify(room.directory).problems == []


def test_a_full_disk_is_felt_early_and_the_store_goes_on_while_there_is_room(room: Room) -> None:
    room.disk.fail["fallocate"] = OSError(errno.ENOSPC, "no space left on device")
    for seq in range(60):
        room.put(seq, b"x" * 1_000)
        room.settle_down()
        if room.store.health.state is StoreState.DEGRADED:
            break
    else:
        raise AssertionError("never degraded")
    assert "no space left" in room.store.health.cause
    room.put(1_000)
    room.settle_down()
    room.disk.fail.clear()
    room.clock.now += 5_000
    room.store.step_compaction()
    room.wait_for(lambda: room.store.health.state is StoreState.UP)


def test_a_disk_that_is_full_when_the_next_segment_is_needed_degrades_the_store_which_goes_on_in_what_was_set_aside(room: Room) -> None:
    room.wait_for((room.directory / "spare").exists)
    room.disk.fail["fallocate"] = OSError(errno.ENOSPC, "no space left on device")
    for seq in range(150):
        room.put(seq, b"x" * 1_000)
        room.settle_down()
    assert room.store.segment_count >= 4
    assert room.store.health.state is StoreState.DEGRADED
    assert "no space left" in room.store.short_of_room
    assert (room.directory / "spare").stat().st_size == 0, "it is a segment now"
    sink = Sink()
    room.restart(sink)
    assert [fact[3] for fact in sink.replayed_facts] == list(range(150))
    room.put(1_000)
    room.settle_down()
    room.disk.fail.clear()
    room.clock.now += 5_000
    room.store.step_compaction()
    room.wait_for(lambda: room.store.health.state is StoreState.UP and (room.directory / "spare").exists())


def test_a_commit_that_takes_too_long_degrades_the_store_until_it_returns(room: Room) -> None:
    log: Log = []
    room.disk.gate.clear()
    room.put(1)
    room.store.when_durable(Note(log, "x"))
    room.store.flush()
    assert room.store.health.state is StoreState.UP
    room.clock.now += room.settings.stall_ms_max + 1
    assert room.store.health.state is StoreState.DEGRADED
    assert "has not answered" in room.store.health.cause
    room.disk.gate.set()
    room.loop.run_until(lambda: bool(log))
    assert room.store.health.state is StoreState.UP


def test_a_second_opener_is_told_so_and_harms_nobody(room: Room) -> None:
    room.put(1)
    room.settle_down()
    second = room.make()
    with pytest.raises(StoreUnavailable, match="open in another process, or twice in this one"):
        second.replay(Sink())
    assert second.health.state is StoreState.DOWN
    second.close()
    room.put(2)
    room.settle_down()
    sink = Sink()
    room.restart(sink)
    assert [fact[3] for fact in sink.replayed_facts] == [1, 2]


def test_a_read_error_reaches_who_asked_and_stops_the_store(room: Room) -> None:
    location = room.put(1)
    room.settle_down()
    room.disk.fail["pread"] = OSError(errno.EIO, "unreadable sector")
    effect = Fetched()
    room.store.fetch([location], effect)
    room.loop.run_until(lambda: effect.arrived)
    assert isinstance(effect.error, OSError)
    assert room.store.health.state is StoreState.DOWN
    after = Fetched()
    room.store.fetch([location], after)
    room.loop.run_until(lambda: after.arrived)
    assert isinstance(after.error, StoreUnavailable)


def test_a_location_that_holds_no_record_is_corruption(room: Room) -> None:
    location = room.put(1)
    effect = Fetched()
    room.store.fetch([location + 1], effect)
    room.loop.run_until(lambda: effect.arrived)
    assert isinstance(effect.error, Corrupt)
    assert room.store.health.state is StoreState.CORRUPT


def test_full_segments_are_replayed_from_their_indexes(room: Room) -> None:
    locations = []
    for seq in range(300):
        locations.append(room.put(seq, b"x" * 900))
        if seq % 7 == 0:
            room.settle_down()
    room.settle_down()
    sink = Sink()
    room.restart(sink)
    assert [fact[3] for fact in sink.replayed_facts] == list(range(300))
    assert [fact[7] for fact in sink.replayed_facts] == locations
    assert room.store.recovery.segments > 5
    assert room.store.recovery.segments_read_in_full == 1
    assert room.store.recovery.notes == []


def test_segments_are_only_as_big_as_what_they_hold_and_the_next_one_is_made_ahead(room: Room) -> None:
    for seq in range(100):
        room.put(seq, b"x" * 900)
        room.settle_down()
    room.wait_for(lambda: len(list(room.directory.glob("*.seg"))) == room.store.segment_count + 1)
    room.store.close()
    sizes = [path.stat().st_size for path in sorted(room.directory.glob("*.seg"))]
    assert all(32_768 <= size < 34_000 for size in sizes)
    assert len(sizes) == room.store.segment_count + 1


def test_a_block_larger_than_a_segment_is_one_block_all_the_same(room: Room) -> None:
    for seq in range(100):
        room.put(seq, b"x" * 1_000)
    room.settle_down()
    room.put(100)
    room.settle_down()
    rows = list(dump(room.directory))
    assert len({row["block"] for row in rows}) == 2
    assert {row["segment"] for row in rows if row["seq"] != 100} == {1}
    assert [row["segment"] for row in rows if row["seq"] == 100] == [2]


def test_dead_segments_are_kept_for_audit_until_their_time_has_come(tmp_path: Path) -> None:
    room = Room(tmp_path / "store", LogSettings(segment_bytes=8_192, audit_retention_ms=10_000))
    shop = Shop()
    shop.journal = room.store
    room.store.replay(shop)
    for _ in range(200):
        shop.settle(4, shop.put(4, b"key", b"x" * 300))
        room.settle_down()
    assert room.store.step_compaction()
    room.loop.run_until(lambda: not room.store.step_compaction())
    kept = sorted(room.directory.glob("audit/*.seg"))
    assert kept
    rows = list(dump(room.directory))
    assert [row["seq"] for row in rows if row["kind"] == "enqueued"] == list(range(1, 201)), "the trail is complete"
    assert verify(room.directory).problems == []
    assert verify(room.directory).audit_segments == len(kept)
    room.clock.now += 9_000
    room.store.step_compaction()
    room.settle_down()
    assert sorted(room.directory.glob("audit/*.seg")) == kept
    room.clock.now += 2_000
    room.store.step_compaction()
    room.wait_for(lambda: not list(room.directory.glob("audit/*.seg")))
    room.store.close()


@pytest.mark.slow
def test_a_body_asked_for_just_before_its_segment_goes_is_still_read(tmp_path: Path) -> None:
    room = Room(tmp_path / "store", LogSettings(segment_bytes=8_192))
    shop = Shop()
    shop.journal = room.store
    room.store.replay(shop)
    keep = shop.put(8, b"kept", b"the body that stays")
    for _ in range(200):
        shop.settle(4, shop.put(4, b"key", b"x" * 300))
        room.settle_down()
    old = shop.messages[8, keep][1]
    effects: list[Fetched] = []
    assert room.store.step_compaction()
    while room.store.step_compaction():
        location = shop.messages[8, keep][1]
        effects.append(Fetched())
        room.store.fetch([location], effects[-1])
        room.loop.run_until(lambda: effects[-1].arrived)
    assert shop.messages[8, keep][1] != old
    assert not (room.directory / "0000000001.seg").exists()
    assert {bytes(effect.bodies[0]) for effect in effects if effect.bodies} == {b"the body that stays"}
    assert all(effect.error is None for effect in effects)
    room.store.close()


def test_arguments_out_of_range_are_refused_and_leave_no_trace(room: Room) -> None:
    room.put(1)
    for bad in (
        (256, 0, 4, 1, 0, 0, b"", b""),
        (1, -1, 4, 1, 0, 0, b"", b""),
        (1, 0, 2**32, 1, 0, 0, b"", b""),
        (1, 0, 4, 2**64, 0, 0, b"", b""),
        (1, 0, 4, 1, -1, 0, b"", b""),
    ):
        with pytest.raises(Exception, match=r"format|argument|range|convert"):
            room.store.append(*bad)
    room.put(2)
    room.settle_down()
    sink = Sink()
    room.restart(sink)
    assert [fact[3] for fact in sink.replayed_facts] == [1, 2]


def test_live_bytes_count_what_was_not_forgotten_also_after_a_restart(tmp_path: Path) -> None:
    """Compaction is due by what is dead, so forgetting on replay must count as forgetting live does."""
    room = Room(tmp_path / "store", LogSettings(segment_bytes=8_192))
    shop = Shop()
    shop.journal = room.store
    room.store.replay(shop)
    for _ in range(150):
        shop.settle(4, shop.put(4, b"key", b"x" * 300))
        room.settle_down()
    again = Shop()
    room.restart(again)
    assert again.messages == {}
    assert room.store.step_compaction()
    room.loop.run_until(lambda: not room.store.step_compaction())
    assert room.store.segment_count <= 4
    room.store.close()


def test_settling_everything_leaves_a_small_store(room: Room) -> None:
    shop = Shop()
    room.restart(shop)
    for _ in range(20):
        for seq in [shop.put(4, b"key", b"x" * 400) for _ in range(50)]:
            shop.settle(4, seq)
        room.settle_down()
        room.store.step_compaction()
    room.loop.run_until(lambda: not room.store.step_compaction())
    room.store.close()
    assert sum(path.stat().st_size for path in room.directory.glob("*.seg")) <= 5 * 34_000


def test_who_waits_for_a_commit_in_flight_is_told_once_when_the_store_stops_for_another_reason(room: Room) -> None:
    location = room.put(1, b"x" * 100)
    room.settle_down()
    room.disk.fail["pread"] = OSError(errno.EIO, "input/output error")
    log: Log = []
    room.disk.gate.clear()
    room.disk.syncing.clear()
    room.put(2)
    room.store.when_durable(Note(log, "in flight"))
    room.store.flush()
    assert room.disk.syncing.wait(20)
    effect = Fetched()
    room.store.fetch([location], effect)
    room.loop.run_until(lambda: effect.arrived)
    assert isinstance(effect.error, OSError)
    room.disk.fail.clear()
    assert [(name, type(error)) for name, error in log] == [("in flight", StoreUnavailable)]
    with pytest.raises(StoreUnavailable, match="has not returned yet"):
        room.store.reopen(Sink())
    room.disk.gate.set()
    room.loop.run_until(lambda: room.store.pending_bytes == 0)
    assert len(log) == 1
    sink = Sink()
    room.store.reopen(sink)
    assert [fact[3] for fact in sink.replayed_facts] == [1], "nobody was told of the second, so it is not there"


def test_upkeep_goes_on_when_a_directory_returns_that_was_away_while_a_segment_was_sealed(room: Room) -> None:
    away = room.directory.with_name("away")
    room.directory.rename(away)
    room.directory.write_text("a file where the directory was")
    seq = 0
    while room.store.active_segment == 1:
        room.put(seq, bytes(4_000))
        room.settle_down()
        seq += 1
    room.wait_for(lambda: "Not a directory" in room.store.health.cause)
    room.directory.unlink()
    away.rename(room.directory)

    def looked_at_again() -> bool:
        room.clock.now += 2_000
        room.store.step_compaction()
        return room.store.health.state is StoreState.UP

    room.wait_for(looked_at_again)
    assert (room.directory / "spare").exists()
