"""Outages are found from what clients and stores wrote down, and the goal is judged by it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tandem.client.event_log import EventLog
from tandem.client.events import Counters, EventHub
from tests.spark.ledger_lines import NOON, write_lines

pytestmark = pytest.mark.spark


def test_outages_have_a_beginning_a_failover_and_an_end(tmp_path: Path, spark: Any) -> None:
    from tandem.spark.analytics.availability import availability

    now = [NOON]
    log = EventLog(tmp_path / "client-events.jsonl", "web-1")
    hub = EventHub(lambda: now[0])
    hub.subscribe(log)
    for seconds, kind in ((0, "path-suspect"), (3, "path-failed-over"), (4, "ping-failed"), (5, "ping-failed"), (30, "path-healthy")):
        now[0] = NOON + seconds * 1000
        hub.tell(kind, "orders")
    now[0] = NOON + 90_000
    hub.tell("path-suspect", "orders")
    counters = Counters()
    path = counters.path("orders")
    path.sent_primary, path.diverted, path.failed = 970, 28, 2
    log.count(counters, lambda: NOON + 100_000)
    log.close()
    result = availability(spark, events=[str(tmp_path)], target=0.999)
    first, second = result.outages
    assert (first.seconds_to_failover, first.seconds_to_heal, first.pings_failed) == (3.0, 30.0, 2)
    assert (second.failed_over_ms, second.healed_ms) == (None, None)
    [orders] = result.paths
    assert (orders.attempted, orders.achieved, orders.primary_only, orders.met) == (1000, 0.998, 0.97, False)
    assert not result.met


def test_a_process_that_is_started_again_under_its_name_counts_on(tmp_path: Path, spark: Any) -> None:
    from tandem.spark.analytics.availability import availability

    for run, failed in enumerate((4, 3)):
        log = EventLog(tmp_path / "web-1.events.jsonl", "web-1")
        counters = Counters()
        path = counters.path("orders")
        for sent in (50, 96):
            path.sent_primary, path.failed = sent, failed
            log.count(counters, partial(int, NOON + run))
        log.close()
    old = [{"at_ms": NOON, "source": "client", "who": "web-2", "kind": "counters", "path": "Orders", "attempted": 5, "failed": 1}]
    write_lines(tmp_path / "web-2.events.jsonl", old)
    [orders] = availability(spark, events=[str(tmp_path)]).paths
    assert (orders.attempted, orders.failed) == (100 + 99 + 5, 4 + 3 + 1)


def test_stores_that_were_down_are_listed(tmp_path: Path, spark: Any) -> None:
    from tandem.spark.analytics.availability import availability

    events = [
        {"at_ms": NOON, "source": "broker", "who": "G0", "kind": "broker-started", "path": "broker", "detail": ""},
        {"at_ms": NOON + 1_000, "source": "broker", "who": "G0", "kind": "store-down", "path": "store-1", "detail": "disk"},
        {"at_ms": NOON + 9_000, "source": "broker", "who": "G0", "kind": "store-up", "path": "store-1", "detail": ""},
    ]
    result = availability(spark, events=[write_lines(tmp_path / "events.jsonl", events)])
    assert [(one.path, one.seconds_to_heal) for one in result.stores] == [("store-1", 8.0)]
    assert result.outages == ()
