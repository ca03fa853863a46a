"""What every log does alike for the store that holds it."""

from __future__ import annotations

from tandem.broker.ports import StoreHealth, StoreState
from tandem.simulator.disk import SimDisk
from tandem.stores import InlineWorker, LogSettings
from tandem.stores.block_log import Continuation, Replayed
from tandem.stores.file_log import FileLog
from tests.stores.harness import ManualClock, Sink
from tests.stores.log_bench import LogBench


def test_a_log_that_knows_nothing_more_says_what_the_store_says() -> None:
    seen = StoreHealth(StoreState.DEGRADED, "slow")
    assert FileLog("store", LogSettings(), ManualClock()).health(seen) is seen


def test_what_is_found_comes_with_threads_that_look_after_it_and_a_place_for_the_next_block() -> None:
    log = FileLog("store", LogSettings(segment_bytes=32_768), ManualClock(), SimDisk(), InlineWorker)
    bench = LogBench(log)
    found = log.replay(Sink(), bench.stats, 0, 0)
    assert isinstance(found, Replayed) and found.told == () and found.report.blocks == 0
    assert found.upkeep.healthy.state is StoreState.UP
    following = log.begin_writing()
    assert isinstance(following, Continuation) and (following.segment, following.number) == (1, 1)
    found.upkeep.report("room", "none")
    assert bench.room_changes == 1
    found.upkeep.report("damage", "rotten")
    assert [str(error) for error in bench.stopped] == ["rotten"]
    log.release()
