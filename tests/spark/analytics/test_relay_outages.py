"""Outages of relays stand beside those of queues: `tandem availability` and `tandem report` read what a pair of relays wrote down."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tandem.aio.relay import BothRelaysUnavailableError
from tandem.client.event_log import EventLog
from tandem.model.clock import SystemClock
from tandem.testing import Bus
from tests.relay.test_pair import Houses, two_houses

pytestmark = pytest.mark.spark


async def an_outage(events: Path) -> Houses:
    """Of the preferred relay, seen by a client and by the service; then of both; and the end of it."""
    client, service = EventLog(events / "client-events.jsonl", "client-1"), EventLog(events / "service-events.jsonl", "service-1")
    async with (
        two_houses() as both,
        both.pair(on_event=service).listen() as listener,
        both.pair(prefer="primary", failback_after=0.0, on_event=client) as pair,
    ):
        listener.handle_http(both.handle)
        await asyncio.gather(*(one.wait_online(20) for one in listener.listeners))
        await pair.request("GET")
        both.cut("myPrimaryService")
        while listener.listeners[0].online:
            await asyncio.sleep(0.01)
        await pair.request("GET")
        await listener.listeners[0].wait_online(30)
        await pair.request("GET")
        for one in listener.listeners:
            await one.close()
        with pytest.raises(BothRelaysUnavailableError):
            await pair.request("GET")
        client.count(pair.counters, SystemClock().now_ms)
    client.close()
    service.close()
    return both


async def test_availability_and_the_report_show_an_outage_of_a_relay_as_client_and_service_saw_it(tmp_path: Path, spark: Any) -> None:
    from tandem.cli.analytics import show_availability
    from tandem.spark.analytics.availability import availability
    from tandem.spark.analytics.page import render
    from tandem.spark.analytics.report import tell

    (tmp_path / "events").mkdir()
    both = await an_outage(tmp_path / "events")
    primary = str(both.endpoints[0])
    result = availability(spark, events=[str(tmp_path / "events")], target=0.9)
    seen = [(one.who, one.path, one.healed_ms is not None) for one in result.outages]
    assert seen.count(("client-1", primary, True)) == 1
    assert seen.count(("client-1", primary, False)) == 1, "the second one lasts"
    assert ("service-1", primary, True) in seen
    [path] = result.paths
    assert (path.path, path.attempted, path.diverted, path.failed, path.met) == ("myprimaryservice", 4, 1, 1, False)
    console = Console(record=True, width=200)
    show_availability(result, console)
    shown = console.export_text()
    assert primary in shown and "4 attempted, 1 diverted, 1 failed: 75.0000% accepted" in shown

    with Bus(data_dir=tmp_path / "data") as bus:
        bus.create_queue("orders")
    story = tell(spark, journals=[str(tmp_path / "data")], now_ms=SystemClock().now_ms(), events=[str(tmp_path / "events")])
    assert primary in render(story)
