from __future__ import annotations

import asyncio

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusQuotaExceededError

from tandem.client.errors import NamespaceClosedError
from tandem.client.pipelined import PipelinedSender, SendFailuresError
from tests.virtual_time import VirtualTimeLoop


class Far:
    """A sender whose answers take a while, and never come for some."""

    def __init__(self, delay: float = 0.0, refuse: set[int] = frozenset()) -> None:
        self.delay, self.refuse = delay, refuse
        self.now = self.peak = self.sent = 0

    async def send_messages(self, message: ServiceBusMessage, *, timeout: float) -> None:
        self.now += 1
        self.peak = max(self.peak, self.now)
        number = self.sent
        self.sent += 1
        await asyncio.sleep(self.delay)
        self.now -= 1
        if number in self.refuse:
            raise ServiceBusQuotaExceededError(message="full")


async def test_a_hundred_messages_over_seventy_milliseconds_take_well_under_a_second():
    far = Far(delay=0.07)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    started = loop.waited
    async with PipelinedSender(far, max_in_flight=100) as pipeline:
        report = await pipeline.send_all(ServiceBusMessage(str(i)) for i in range(100))
    assert report.accepted == 100
    assert loop.waited - started < 0.7  # ten round trips; one at a time would be seven seconds


async def test_never_more_than_allowed_are_in_flight():
    far = Far(delay=0.001)
    pipeline = PipelinedSender(far, max_in_flight=7)
    await pipeline.send_all(ServiceBusMessage("x") for _ in range(50))
    assert far.peak == 7 == pipeline.in_flight_peak
    assert pipeline.in_flight == 0


async def test_the_source_is_read_no_faster_than_slots_come_free():
    far, taken = Far(delay=10), 0
    pipeline = PipelinedSender(far, max_in_flight=5)

    async def source():
        nonlocal taken
        for _ in range(1_000):
            taken += 1
            yield ServiceBusMessage("x")

    sending = asyncio.ensure_future(pipeline.send_all(source()))
    await asyncio.sleep(0.02)
    assert taken == 6
    sending.cancel()


async def test_failures_are_reported_per_message():
    pipeline = PipelinedSender(Far(refuse={3, 7}), max_in_flight=4)
    messages = [ServiceBusMessage(str(i)) for i in range(10)]
    report = await pipeline.send_all(messages)
    assert report.accepted == 8
    assert [failure.message for failure in report.failures] == [messages[3], messages[7]]
    with pytest.raises(SendFailuresError, match="2 send"):
        report.raise_failures()


async def test_a_failure_nobody_looked_at_is_raised_at_the_end():
    with pytest.raises(SendFailuresError):
        async with PipelinedSender(Far(refuse={0})) as pipeline:
            await pipeline.send(ServiceBusMessage("x"))


async def test_an_error_of_the_block_itself_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        async with PipelinedSender(Far(refuse={0})) as pipeline:
            await pipeline.send(ServiceBusMessage("x"))
            raise ZeroDivisionError


async def test_each_outcome_can_be_awaited():
    async with PipelinedSender(Far()) as pipeline:
        assert await (await pipeline.send(ServiceBusMessage("x"))) is None


async def test_failures_kept_are_bounded():
    pipeline = PipelinedSender(Far(refuse=set(range(100))), max_in_flight=1, failures_max=3)
    with pytest.raises(SendFailuresError) as caught:
        for _ in range(100):
            await pipeline.send(ServiceBusMessage("x"))
            await asyncio.sleep(0.001)
    assert len(caught.value.failures) == 3


async def test_a_closed_pipeline_refuses_and_a_bad_bound_is_refused():
    pipeline = PipelinedSender(Far())
    await pipeline.close()
    with pytest.raises(NamespaceClosedError):
        await pipeline.send(ServiceBusMessage("x"))
    with pytest.raises(ValueError, match="max_in_flight"):
        PipelinedSender(Far(), max_in_flight=0)


async def test_it_goes_over_a_paired_sender_through_an_outage(make_pair, primary, secondary):
    pair = await make_pair()
    async with PipelinedSender(pair.get_queue_sender("q"), max_in_flight=20) as pipeline:
        for i in range(100):
            if i == 50:
                primary.down()
            await pipeline.send(ServiceBusMessage(str(i)))
        report = await pipeline.drain()
    assert report.accepted == 100
    assert pair.counters.sent_primary + pair.counters.diverted == 100
