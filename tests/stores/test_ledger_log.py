"""Blocks in a ledger: ours under an epoch, in doubt until the engine confirms."""

from __future__ import annotations

import pytest

from tandem.broker.ports import StoreHealth, StoreState
from tandem.stores import InlineWorker, LogSettings
from tandem.stores.ledger import NotOurs
from tandem.stores.ledger_log import LedgerLog
from tests.stores.harness import ManualClock
from tests.stores.log_bench import LogBench
from tests.stores.test_ledger_store import ScriptedLedger, lost, told_nobody

UP = StoreHealth(StoreState.UP)
DOWN = StoreHealth(StoreState.DOWN, "closed")


class Owned:
    def __init__(self) -> None:
        self.ledger = ScriptedLedger()
        self.log = LedgerLog(self.ledger, LogSettings(), ManualClock(), InlineWorker, lambda seconds: None)
        self.bench = LogBench(self.log)


@pytest.fixture
def owned() -> Owned:
    return Owned()


def test_it_is_ours_under_an_epoch_that_grows_with_each_opening(owned: Owned) -> None:
    assert owned.log.epoch == 0
    owned.bench.open()
    assert owned.log.epoch == 1
    owned.bench.write(b"kept")
    owned.log.release()
    assert owned.log.epoch == 0
    assert owned.bench.open() == [b"kept"] and owned.log.epoch == 2


def test_a_store_that_was_taken_before_is_not_taken_twice(owned: Owned) -> None:
    taken = owned.log.take()
    owned.bench.open()
    assert owned.log.epoch == taken.epoch == 1


@pytest.mark.parametrize(("append", "became"), [(told_nobody, "landed"), (lost, "sent again")])
def test_a_block_in_doubt_is_confirmed_and_then_announced(owned: Owned, append, became: str) -> None:
    owned.bench.open()
    owned.bench.write(b"first")
    owned.ledger.appends.append(append)
    group = owned.bench.write(b"second")
    assert group.error is None and owned.log.doubts[became] == 1
    assert owned.bench.room_changes == 2, "deliveries stopped, and went on"
    owned.log.release()
    assert owned.bench.open() == [b"first", b"second"]


def test_health_says_why_nothing_is_delivered_and_who_serves_it(owned: Owned) -> None:
    owned.bench.open()
    assert owned.log.health(UP) is UP
    owned.log.hold("cut off from its peers")
    assert owned.log.health(UP).state is StoreState.SUSPENDED
    owned.log.hold("")
    assert owned.log.health(UP) is UP and owned.bench.room_changes == 2
    owned.log.lose("node b has taken the store over")
    assert owned.log.health(DOWN) == StoreHealth(StoreState.ELSEWHERE, "node b has taken the store over")
    owned.ledger.elsewhere = "b"
    with pytest.raises(NotOurs):
        owned.log.take()
    assert owned.log.health(DOWN).cause == "served by node b"
