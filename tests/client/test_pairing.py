from __future__ import annotations

import asyncio
import datetime

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.exceptions import MessagingEntityNotFoundError, ServiceBusConnectionError, ServiceBusServerBusyError

from tandem.client.coupling import SideState
from tandem.client.errors import NamespaceClosedError, PairedNamespaceFaultedError, SendAvailabilityBacklogError
from tandem.client.health import PathState
from tandem.client.pairing import PairedNamespaces, PairingOptions
from tandem.client.transport import namespace_label
from tests.client.scripted import ScriptedNamespace, raising


def refused() -> Exception:
    return ServiceBusConnectionError(message="refused")


def test_defaults_are_those_of_the_original():
    options = PairingOptions()
    assert options.backlog_queue_count == 10
    assert options.failover_interval == datetime.timedelta(minutes=1)
    assert options.ping_primary_interval == datetime.timedelta(minutes=1)
    assert options.enable_syphon is False
    assert options.syphon_retry_interval == datetime.timedelta(seconds=1)


@pytest.mark.parametrize(
    "bad",
    [
        {"backlog_queue_count": 0},
        {"failover_interval": datetime.timedelta(minutes=61)},
        {"failover_interval": -1},
        {"ping_primary_interval": 0.5},
        {"ping_primary_interval": datetime.timedelta(minutes=31)},
        {"syphon_retry_interval": 121},
        {"operation_timeout": 0},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_by_name(bad: dict):
    with pytest.raises(ValueError, match=next(iter(bad))):
        PairingOptions(**bad)


@pytest.mark.parametrize(
    ("host", "label"),
    [
        ("contoso.servicebus.windows.net", "contoso"),
        ("localhost:5672", "localhost"),
        ("127.0.0.1:5672", "127.0.0.1"),
        ("[::1]:5672", "--1"),
    ],
)
def test_the_namespace_name_is_the_first_label_of_the_host(host: str, label: str):
    assert namespace_label(host) == label


async def test_a_namespace_cannot_be_paired_with_itself(primary: ScriptedNamespace):
    with pytest.raises(ValueError, match="same namespace"):
        PairedNamespaces(primary, ScriptedNamespace("CONTOSO.example:5671"))


async def test_pairing_reports_how_many_queues_are_usable(make_pair, secondary: ScriptedNamespace):
    pair = await make_pair(backlog_queue_count=4)
    assert pair.backlog_queue_count == 4
    assert sorted(secondary.entities) == [f"contoso/x-servicebus-transfer/{i}" for i in range(4)]


async def test_a_configured_primary_name_is_used_for_the_queues(make_pair, secondary: ScriptedNamespace):
    await make_pair(primary_namespace="fabrikam", backlog_queue_count=1)
    assert list(secondary.entities) == ["fabrikam/x-servicebus-transfer/0"]


async def test_pairing_that_failed_can_be_repeated(primary, secondary, clock):
    pair = PairedNamespaces(primary, secondary, now_ms=clock, backlog_queue_count=1, creation_attempts=1)
    with pytest.raises(SendAvailabilityBacklogError):
        await pair.pair()
    with pytest.raises(RuntimeError, match="pair first"):
        pair.get_queue_sender("orders")
    secondary.entity("contoso/x-servicebus-transfer/0")
    assert await pair.pair() == 1
    with pytest.raises(RuntimeError, match="already"):
        await pair.pair()
    await pair.close()


async def test_one_client_cannot_be_in_two_pairs():
    string = "Endpoint=sb://localhost:1;SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true"
    client = ServiceBusClient.from_connection_string(string)
    others = [ScriptedNamespace(f"other{i}") for i in range(2)]
    for other in others:
        other.entity("localhost/x-servicebus-transfer/0")
    first = PairedNamespaces(client, others[0], backlog_queue_count=1)
    await first.pair()
    second = PairedNamespaces(client, others[1], backlog_queue_count=1)
    with pytest.raises(RuntimeError, match="already the primary"):
        await second.pair()
    await first.close()
    assert await second.pair() == 1
    await second.close()
    await client.close()


async def test_every_change_is_told_counted_and_can_be_looked_at(make_pair, primary: ScriptedNamespace):
    told = []
    pair = await make_pair(on_event=told.append)
    primary.down()
    async with pair.get_queue_sender("Orders") as sender:
        await sender.send_messages(ServiceBusMessage("x"))
        assert sender.state is PathState.FAILED_OVER
        status = pair.state("orders")
        assert status.state is PathState.FAILED_OVER and isinstance(status.last_error, ServiceBusConnectionError)
        assert [s.path for s in pair.states()] == ["Orders"]
        await pair.mark_path_healthy("ORDERS")
        assert pair.state("orders").state is PathState.HEALTHY
    assert [event.kind for event in told] == ["paired", "path-failed-over", "path-healthy"]
    assert (pair.counters.failovers, pair.counters.failbacks, pair.counters.diverted) == (1, 1, 1)
    assert pair.counters.by_path["orders"].diverted == 1


async def test_a_broken_callback_does_not_break_sending(make_pair, primary: ScriptedNamespace):
    pair = await make_pair()

    def broken(event) -> None:
        raise RuntimeError("listener")

    stop = pair.subscribe(broken)
    primary.down()
    async with pair.get_queue_sender("q") as sender:
        await sender.send_messages(ServiceBusMessage("x"))
    stop()
    assert pair.counters.diverted == 1


async def test_a_drill_diverts_a_healthy_path_and_is_ended_by_hand(make_pair, primary: ScriptedNamespace, secondary: ScriptedNamespace):
    pair = await make_pair()
    await pair.fail_over("orders", hold=True)
    async with pair.get_queue_sender("orders") as sender:
        await sender.send_messages(ServiceBusMessage("drill"))
        assert len(secondary.entity("contoso/x-servicebus-transfer/0").messages) == 1
        await pair.mark_path_healthy("orders")
        await sender.send_messages(ServiceBusMessage("real"))
    assert len(primary.entity("orders").messages) == 1


# -- pings ---------------------------------------------------------------------------------------------------------------


async def healthy(pair: PairedNamespaces, path: str) -> None:
    async with asyncio.timeout(10):
        await pair.monitor(path).healed.wait()


async def test_a_ping_heals_the_path_for_all_senders_at_once(make_pair, primary: ScriptedNamespace):
    pair = await make_pair(ping_primary_interval=1)
    first, second = pair.get_queue_sender("q"), pair.get_topic_sender("Q")
    primary.down()
    await first.send_messages(ServiceBusMessage("1"))
    assert second.state is PathState.FAILED_OVER
    primary.up()
    await healthy(pair, "q")
    await first.send_messages(ServiceBusMessage("2"))
    await second.send_messages(ServiceBusMessage("3"))
    entity = primary.entity("q")
    assert len(entity.messages) == 2
    ping = entity.pings[0]
    assert ping.properties["content-type"] == "application/vnd.ms-servicebus-ping"
    assert ping.header["ttl"] == 1_000
    assert ping.properties["group-id"] and ping.properties["message-id"]


async def test_the_first_ping_comes_one_full_interval_after_the_switch(make_pair, primary: ScriptedNamespace):
    pair = await make_pair(ping_primary_interval=1)
    loop = asyncio.get_running_loop()
    primary.down()
    sender = pair.get_queue_sender("q")
    before = loop.time()
    await sender.send_messages(ServiceBusMessage("1"))
    primary.up()
    await healthy(pair, "q")
    assert loop.time() - before >= 1.0
    assert pair.counters.pings_sent == 1


async def test_a_refused_ping_poisons_the_path_and_sends_hear_why(make_pair, primary: ScriptedNamespace):
    pair = await make_pair(ping_primary_interval=1)
    told: asyncio.Queue = asyncio.Queue()
    pair.subscribe(told.put_nowait)
    sender = pair.get_queue_sender("q")
    primary.down()
    await sender.send_messages(ServiceBusMessage("1"))
    primary.up()
    primary.behave("q", raising(lambda: MessagingEntityNotFoundError(message="gone")))
    while (await asyncio.wait_for(told.get(), 10)).kind != "path-poisoned":
        pass
    with pytest.raises(Exception, match="pings are refused") as caught:
        await sender.send_messages(ServiceBusMessage("2"))
    assert isinstance(caught.value.ping_error, MessagingEntityNotFoundError)
    primary.recover("q")
    await healthy(pair, "q")
    await sender.send_messages(ServiceBusMessage("3"))
    assert len(primary.entity("q").messages) == 1


async def test_a_busy_answer_to_a_ping_keeps_the_path_failed_over(make_pair, primary: ScriptedNamespace):
    pair = await make_pair(ping_primary_interval=1)
    told: asyncio.Queue = asyncio.Queue()
    sender = pair.get_queue_sender("q")
    primary.down()
    await sender.send_messages(ServiceBusMessage("1"))
    primary.up()
    pair.subscribe(told.put_nowait)
    primary.behave("q", raising(lambda: ServiceBusServerBusyError(message="busy")), times=1)
    assert (await asyncio.wait_for(told.get(), 10)).kind == "ping-failed"
    assert sender.state is PathState.FAILED_OVER
    await healthy(pair, "q")


# -- close and fault coupling --------------------------------------------------------------------------------------------


async def until(side, state: SideState) -> None:
    reached = asyncio.Event()
    side.watch(lambda s: reached.set() if s.state is state else None)
    if side.state is not state:
        async with asyncio.timeout(10):
            await reached.wait()


async def test_closing_the_primary_closes_the_secondary_where_a_syphon_runs(make_pair, secondary: ScriptedNamespace):
    pair = await make_pair(enable_syphon=True)
    await pair.primary.close()
    await until(pair.secondary, SideState.CLOSED)
    assert secondary.closed
    assert not pair.syphon.running


async def test_closing_the_primary_leaves_the_secondary_alone_without_a_syphon(make_pair, secondary: ScriptedNamespace):
    pair = await make_pair()
    sender = pair.get_queue_sender("q")
    await pair.primary.close()
    assert pair.secondary.state is SideState.OPEN and not secondary.closed
    with pytest.raises(NamespaceClosedError):
        await sender.send_messages(ServiceBusMessage("x"))


async def test_a_secondary_that_does_not_close_is_faulted(make_pair, secondary: ScriptedNamespace):
    pair = await make_pair(enable_syphon=True)
    secondary.close_error = RuntimeError("stuck")
    await pair.primary.close()
    await until(pair.secondary, SideState.CLOSED)
    secondary.close_error = None


async def test_closing_the_secondary_faults_the_primary_after_the_grace(make_pair):
    pair = await make_pair(enable_syphon=True)
    pair._coupling._grace = 0.05
    sender = pair.get_queue_sender("q")
    await pair.secondary.close()
    assert pair.primary.state is SideState.OPEN
    await until(pair.primary, SideState.FAULTED)
    with pytest.raises(PairedNamespaceFaultedError):
        await sender.send_messages(ServiceBusMessage("x"))


async def test_a_faulted_side_faults_its_partner_without_grace(make_pair):
    pair = await make_pair(enable_syphon=True)
    pair.secondary.fault(RuntimeError("broken"))
    assert pair.primary.state is SideState.FAULTED
    assert any(event.kind == "namespace-faulted" for event in pair.events.recent)


async def test_closing_the_pair_closes_everything_made_here(make_pair, primary, secondary):
    pair = await make_pair()
    sender = pair.get_queue_sender("q")
    await pair.close()
    assert primary.closed and secondary.closed
    with pytest.raises(NamespaceClosedError):
        await sender.send_messages(ServiceBusMessage("x"))
    with pytest.raises(NamespaceClosedError):
        pair.get_queue_sender("q")


async def test_a_pair_that_is_closed_leaves_no_task_behind(make_pair):
    before = asyncio.all_tasks()
    pair = await make_pair(enable_syphon=True)
    await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
    await pair.close()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
