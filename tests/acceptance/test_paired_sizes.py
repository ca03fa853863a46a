"""Whatever the primary takes can be diverted and comes home, and the error says so where that cannot be."""

from __future__ import annotations

import asyncio

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from tandem.client.sdk_codec import payload_from_message
from tests.acceptance.brokers import Broker
from tests.acceptance.conftest import administration, create_queue, drain
from tests.acceptance.test_paired import BACKLOG
from tests.acceptance.test_paired_outages import moved


def of_size(total: int, **fields: str) -> ServiceBusMessage:
    """A message that is exactly so many bytes long on the wire."""
    message = ServiceBusMessage(b"x" * (total - 1_000), **fields)
    return ServiceBusMessage(b"x" * (2 * total - 1_000 - len(payload_from_message(message))), **fields)


@pytest.mark.parametrize(("limit", "sizes"), [(None, (261_120, 261_121, 261_900, 262_144)), (8 * 1_024, (5_000_000, 8 * 1_048_576))])
async def test_what_the_primary_takes_passes_healthy_and_diverted(make_pair, west: Broker, east: Broker, limit: int | None, sizes):
    await create_queue(west, "orders", **({} if limit is None else {"max_message_size_in_kilobytes": limit}))
    pair = await make_pair(enable_syphon=True)
    async with administration(east) as client:
        assert (await client.get_queue(BACKLOG[0])).max_message_size_in_kilobytes == 102_400
    ids = []
    async with pair.get_queue_sender("orders") as sender:
        for weather in ("healthy", "diverted"):
            for size in sizes:
                message = of_size(size, message_id=f"{weather}-{size:07d}", session_id="s" * 100)
                assert len(payload_from_message(message)) == size
                await sender.send_messages(message)
                ids.append(message.message_id)
            await pair.fail_over("orders", hold=True)
        assert pair.counters.diverted == len(sizes)
        with pytest.raises(MessageSizeExceededError, match="the limit of orders"):
            await sender.send_messages(of_size(sizes[-1] + 1, message_id=f"{weather}-{size + 1}", session_id="s" * 100))
        await pair.mark_path_healthy("orders")
        await moved(pair, len(sizes))
    assert sorted(message.message_id for message in await drain(west, "orders")) == sorted(ids)


async def test_backlog_queues_that_have_no_room_for_the_envelope_are_named_in_any_weather(make_pair, west: Broker, east: Broker):
    """As on Azure's standard tier, where a queue cannot be given more than 256 KB."""
    await create_queue(west, "orders")
    await asyncio.gather(*(create_queue(east, name) for name in BACKLOG))
    pair = await make_pair()
    async with pair.get_queue_sender("orders") as sender:
        await sender.send_messages(of_size(261_120, message_id="fits"))
        for _ in range(2):
            with pytest.raises(MessageSizeExceededError, match=r"backlog queues of localhost.* take 262144, of which 1024 .*standard tier"):
                await sender.send_messages(of_size(261_121, message_id="large"))
            await pair.fail_over("orders", hold=True)
