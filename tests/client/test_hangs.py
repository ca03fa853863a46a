"""A primary that hangs, on virtual time: the defaults take a minute, the tests none."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError, ServiceBusConnectionError, ServiceBusError, ServiceBusServerBusyError

from tandem.client.errors import BothNamespacesUnavailableError
from tandem.client.health import PathState
from tandem.client.pairing import PairedNamespaces
from tandem.client.sender import primary_share
from tandem.simulator.loop import SimLoop
from tests.client.scripted import ScriptedAdministration, ScriptedNamespace, delaying, hanging, raising

KINDS = {
    "stopped process": hanging,
    "slow line": delaying(600),
    "store down": raising(lambda: ServiceBusError("the store is down", condition=b"amqp:internal-error")),
    "refused connection": raising(lambda: ServiceBusConnectionError(message="refused")),
}


class Story:
    """A pair of scripted namespaces on a loop that never waits."""

    def __init__(self, **options) -> None:
        self.primary = ScriptedNamespace("contoso.example:5671")
        self.secondary = ScriptedNamespace("backup.example:5671", strict=True)
        self.options = {"secondary_administration": ScriptedAdministration(self.secondary), "choose": lambda n: 0} | options
        self.loop = SimLoop()
        self.events: list[tuple[float, str]] = []

    def run(self, play: Callable[[PairedNamespaces], Awaitable[None]]) -> None:
        async def main() -> None:
            pair = PairedNamespaces(self.primary, self.secondary, **self.options)
            pair.subscribe(lambda event: self.events.append((self.loop.time(), event.kind)))
            await pair.pair()
            await play(pair)
            await pair.close()

        self.loop.run(main())
        assert self.loop.agenda.mishaps == []

    async def until_diverted(self, pair: PairedNamespaces, timeout: float | None = None, pause: float = 0.1) -> float:
        """Send one after the other, as an application does that tries again, until one was diverted; when that was."""
        sender = pair.get_queue_sender("orders")
        while True:
            try:
                await sender.send_messages(ServiceBusMessage("x"), timeout=timeout)
            except BothNamespacesUnavailableError:
                raise
            except ServiceBusError:
                assert pair.counters.diverted == 0
            if pair.counters.diverted:
                return self.loop.time()
            await asyncio.sleep(pause)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("senders", "timeout", "pause"), [(1, None, 0.1), (10, None, 0.5), (1, 3.0, 0.2), (1, None, 20.0), (3, 61.0, 0.1), (1, 180.0, 0.1)]
)
def test_with_the_defaults_the_first_diverted_send_comes_within_5_seconds_of_the_interval(kind: str, senders: int, timeout, pause: float):
    story = Story()

    async def play(pair: PairedNamespaces) -> None:
        await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("before"))
        story.primary.everywhere = KINDS[kind]
        hung = story.loop.time()
        first = min(await asyncio.gather(*(story.until_diverted(pair, timeout, pause) for _ in range(senders))))
        assert 60 <= first - hung <= 65 + pause

    story.run(play)


@pytest.mark.parametrize("interval", [0, 1, 2, 5, 10, 300])
def test_a_hang_costs_the_interval_and_5_seconds_whatever_the_interval_is(interval: float):
    story = Story(failover_interval=interval)

    async def play(pair: PairedNamespaces) -> None:
        story.primary.hang()
        assert interval <= await story.until_diverted(pair) <= interval + 5

    story.run(play)


def test_the_probe_goes_out_beside_the_send_and_an_answer_to_it_keeps_the_path():
    story = Story(failover_interval=10, operation_timeout=120)

    async def play(pair: PairedNamespaces) -> None:
        story.primary.behave("orders", hanging, times=1)  # one link went silent; the primary is well
        with pytest.raises(OperationTimeoutError):
            await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x"), timeout=60)
        assert pair.counters.failovers == 0 and pair.counters.pings_failed == 0

    story.run(play)
    assert [kind for at, kind in story.events if at < 10][-2:] == ["path-suspect", "path-healthy"]


def test_a_probe_that_is_answered_with_busy_is_an_answer():
    story = Story(failover_interval=4)

    async def play(pair: PairedNamespaces) -> None:
        story.primary.behave("orders", raising(lambda: ServiceBusConnectionError(message="blip")), times=1)
        story.primary.behave("orders", raising(lambda: ServiceBusServerBusyError(message="busy")))
        sender = pair.get_queue_sender("orders")
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("x"))
        await asyncio.sleep(30)
        assert sender.state is PathState.HEALTHY and pair.counters.failovers == 0

    story.run(play)


def test_slow_answers_that_come_are_no_hang():
    story = Story(failover_interval=10)

    async def play(pair: PairedNamespaces) -> None:
        story.primary.behave("orders", delaying(4))
        sender = pair.get_queue_sender("orders")
        for _ in range(20):
            await asyncio.gather(*(sender.send_messages(ServiceBusMessage("x")) for _ in range(3)))
        assert sender.state is PathState.HEALTHY and pair.counters.diverted == 0 and pair.counters.pings_sent == 0

    story.run(play)


@pytest.mark.parametrize("interval", [0, 1, 2, 2.5, 2.99, 3, 3.5, 7, 60])
def test_a_send_at_the_switch_is_diverted_or_hears_the_primary_but_never_that_time_ran_out(interval: float):
    story = Story(failover_interval=interval)

    async def play(pair: PairedNamespaces) -> None:
        story.primary.hang()
        sender = pair.get_queue_sender("orders")
        told = []

        async def send(at: float) -> None:
            await asyncio.sleep(at)
            began = story.loop.time()
            try:
                await sender.send_messages(ServiceBusMessage("x"), timeout=3)
            except Exception as error:
                told.append(error)
            assert story.loop.time() - began < 3.81

        await asyncio.gather(*(send(n * 0.05) for n in range(int((interval + 10) / 0.05))))
        assert {type(error) for error in told} <= {OperationTimeoutError}
        assert all("primary" in str(error) or "no answer" in str(error) for error in told)
        assert pair.counters.diverted + len(told) == int((interval + 10) / 0.05)

    story.run(play)


def test_the_time_of_a_send_is_divided_by_when_the_interval_is_over():
    assert primary_share(60, 0) == 30  # at once: half and half
    assert primary_share(60, 40) == 40  # the primary has its whole interval
    assert primary_share(3, 1) == 1.5
    assert primary_share(60, 57) == 60  # too late to be divided: the switch cuts it short
    assert primary_share(60, 600) == 60


def test_the_error_says_what_happened_and_to_whom():
    story = Story(failover_interval=0, backlog_queue_count=2)

    async def play(pair: PairedNamespaces) -> None:
        story.primary.hang()
        story.secondary.down()
        with pytest.raises(BothNamespacesUnavailableError) as caught:
            await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x"), timeout=8)
        text = str(caught.value)
        assert "orders is stored nowhere" in text
        assert "the primary contoso.example:5671 is failed over (OperationTimeoutError" in text
        assert "the secondary backup.example:5671 did not take it (contoso/x-servicebus-transfer/0: ServiceBusConnectionError" in text
        assert "contoso/x-servicebus-transfer/1: ServiceBusConnectionError" in text

    story.run(play)


# -- pings ---------------------------------------------------------------------------------------------------------------


def test_a_ping_without_an_answer_does_not_keep_the_next_one_from_healing_the_path():
    story = Story(failover_interval=0, ping_primary_interval=1)

    async def play(pair: PairedNamespaces) -> None:
        story.primary.hang()
        sender = pair.get_queue_sender("orders")
        await sender.send_messages(ServiceBusMessage("x"), timeout=4)
        await asyncio.sleep(8)
        story.primary.up()
        up = story.loop.time()
        await pair.monitor("orders").healed.wait()
        assert story.loop.time() - up <= 1.1

    story.run(play)


def test_at_most_four_pings_wait_at_a_time_and_the_oldest_keeps_its_time():
    story = Story(failover_interval=0, ping_primary_interval=1)
    waiting, most = 0, 0

    async def count(operation: str) -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        try:
            await asyncio.sleep(30)  # a line as slow as this answers the oldest, and nothing newer would be answered in time
        finally:
            waiting -= 1

    async def play(pair: PairedNamespaces) -> None:
        story.primary.down()
        await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
        story.primary.everywhere = count
        began = story.loop.time()
        await pair.monitor("orders").healed.wait()
        assert story.loop.time() - began <= 31.1
        assert most == 4
        await asyncio.sleep(1)
        assert waiting == 0
        assert pair.counters.pings_failed >= 20

    story.run(play)
