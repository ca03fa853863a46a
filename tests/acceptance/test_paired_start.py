"""An application that starts while its secondary is down."""

from __future__ import annotations

import asyncio

import pytest
from azure.servicebus import ServiceBusMessage

from tandem.aio import PairedNamespaces
from tests.acceptance.brokers import Broker
from tests.acceptance.conftest import create_queue, drain
from tests.acceptance.test_paired import body
from tests.acceptance.test_paired_outages import moved


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_with_the_secondary_down_at_the_start_the_application_sends_and_is_protected_once_it_is_up(
    west: Broker, east: Broker, how: str
):
    await create_queue(west, "orders")
    east.kill() if how == "killed" else east.freeze()
    confirmed = asyncio.Event()
    pair = PairedNamespaces(
        west.connection_string, east.connection_string, primary_namespace="contoso", backlog_queue_count=2, failover_interval=0,
        ping_primary_interval=1, enable_syphon=True, sdk_options={"connection_verify": east.ca},
        on_event=lambda event: confirmed.set() if event.kind == "backlog-confirmed" else None,
    )  # fmt: skip
    async with asyncio.timeout(30):
        assert await pair.pair() == 2
    assert not pair.backlog_confirmed
    async with pair.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("while the secondary is down"))
        if how == "killed":
            await asyncio.to_thread(east.start)
        else:
            east.thaw()
        async with asyncio.timeout(45):
            await confirmed.wait()
        assert pair.backlog_confirmed and pair.backlog_queue_count == 2
        await pair.fail_over("orders", hold=True)
        await sender.send_messages(ServiceBusMessage("diverted"))
        await pair.mark_path_healthy("orders")
        await moved(pair, 1)
    await pair.close()
    assert [body(m) for m in await drain(west, "orders")] == ["while the secondary is down", "diverted"]
