from __future__ import annotations

import asyncio

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError, OperationTimeoutError, ServiceBusConnectionError

from tandem.client.errors import BothNamespacesUnavailableError, NamespaceClosedError
from tandem.client.replication import ActiveReplication, PassiveReplication, ReplicaRoles
from tests.client.scripted import ScriptedNamespace, delaying, raising


@pytest.fixture
def west(clock) -> ScriptedNamespace:
    return ScriptedNamespace("west", clock)


@pytest.fixture
def east(clock) -> ScriptedNamespace:
    return ScriptedNamespace("east", clock)


# -- active --------------------------------------------------------------------------------------------------------------


async def test_active_sends_to_both_under_one_id(west, east):
    async with ActiveReplication(west, east) as replication:
        acceptance = await replication.get_queue_sender("q").send_messages(AmqpAnnotatedMessage(data_body=b"x"))
        assert acceptance.accepted == ("west", "east") and acceptance.by_both
        assert west.entity("q").ids == east.entity("q").ids != [None]


async def test_active_sends_a_batch_under_the_same_ids_to_both(west, east):
    async with ActiveReplication(west, east) as replication:
        batch = ServiceBusMessageBatch()
        for body in ("a", "b"):
            batch.add_message(ServiceBusMessage(body))
        await replication.get_queue_sender("q").send_messages(batch)
        ids = west.entity("q").ids
        assert ids == east.entity("q").ids and None not in ids and len(set(ids)) == 2


@pytest.mark.parametrize("pattern", [ActiveReplication, PassiveReplication])
async def test_text_is_no_message(west, east, pattern):
    async with pattern(west, east) as replication:
        with pytest.raises(TypeError, match="not str"):
            await replication.get_queue_sender("q").send_messages("hello")


async def test_active_succeeds_if_one_accepts_and_says_which(west, east):
    told = []
    async with ActiveReplication(west, east, on_event=told.append) as replication:
        west.down()
        acceptance = await replication.get_topic_sender("q").send_messages([ServiceBusMessage("a"), {"body": "b"}])
        assert acceptance.accepted == ("east",)
        assert isinstance(acceptance.errors["west"], ServiceBusConnectionError)
        assert len(east.entity("q").messages) == 2
        assert [event.kind for event in told] == ["one-copy-only"]
        assert replication.counters.sent_to_one_only == 1


async def test_active_fails_only_if_both_fail_and_shows_both_causes(west, east):
    async with ActiveReplication(west, east) as replication:
        west.down()
        east.behave("q", raising(lambda: MessagingEntityNotFoundError(message="gone")))
        with pytest.raises(BothNamespacesUnavailableError) as caught:
            await replication.get_queue_sender("q").send_messages(ServiceBusMessage("x"))
        assert [type(cause) for cause in caught.value.causes] == [ServiceBusConnectionError, MessagingEntityNotFoundError]


async def test_active_does_not_wait_for_a_black_hole_longer_than_told(west, east):
    async with ActiveReplication(west, east, laggard_timeout=0.05) as replication:
        east.hang()
        async with asyncio.timeout(2):
            acceptance = await replication.get_queue_sender("q").send_messages(ServiceBusMessage("x"))
        assert acceptance.accepted == ("west",)
        assert isinstance(acceptance.errors["east"], OperationTimeoutError)


async def test_active_waits_for_a_slow_partner(west, east):
    async with ActiveReplication(west, east) as replication:
        east.behave("q", delaying(0.05))
        assert (await replication.get_queue_sender("q").send_messages(ServiceBusMessage("x"))).by_both


async def test_active_round_trip_delivers_each_message_once_with_one_namespace_flapping(west, east, clock):
    async with ActiveReplication(west, east, now_ms=clock) as replication:
        sender = replication.get_queue_sender("q")
        for i in range(20):
            if i % 5 == 0:
                west.down()
            if i % 5 == 3:
                west.up()
            await sender.send_messages(ServiceBusMessage(str(i), message_id=str(i)))
        west.up()
        received = []
        async with replication.get_queue_receiver("q", max_wait_time=0.1) as receiver:
            async for message in receiver:
                received.append(message.message_id)
                await receiver.complete_message(message)
        assert sorted(received, key=int) == [str(i) for i in range(20)]


# -- passive -------------------------------------------------------------------------------------------------------------


async def test_passive_sends_to_the_active_namespace_only(west, east):
    async with PassiveReplication(west, east) as replication:
        assert await replication.get_queue_sender("q").send_messages(ServiceBusMessage("x")) == "west"
        assert east.entities == {}


async def test_passive_switches_roles_when_the_backup_accepted(west, east):
    told = []
    async with PassiveReplication(west, east, on_event=told.append) as replication:
        sender = replication.get_queue_sender("q")
        west.down()
        assert await sender.send_messages(ServiceBusMessage("1")) == "east"
        assert replication.active_host("q") == "east"
        west.up()
        assert await sender.send_messages(ServiceBusMessage("2")) == "east"
        assert replication.active_host("other") == "west"
        assert [event.kind for event in told] == ["roles-switched"]


async def test_passive_keeps_its_roles_when_both_fail(west, east):
    async with PassiveReplication(west, east) as replication:
        west.down()
        east.down()
        with pytest.raises(BothNamespacesUnavailableError) as caught:
            await replication.get_queue_sender("q").send_messages(ServiceBusMessage("x"))
        assert len(caught.value.causes) == 2
        assert replication.active_host("q") == "west"


async def test_sends_that_fail_together_switch_once(west, east):
    async with PassiveReplication(west, east) as replication:
        sender = replication.get_queue_sender("q")
        west.down()
        east.behave("q", delaying(0.01))
        hosts = await asyncio.gather(*(sender.send_messages(ServiceBusMessage(str(i))) for i in range(10)))
        assert set(hosts) == {"east"}
        assert replication.active_host("q") == "east"
        assert replication.counters.role_switches == 1


def test_a_switch_needs_the_roles_the_failing_send_used():
    roles = ReplicaRoles()
    assert roles.switch(0)
    assert not roles.switch(0)
    assert (roles.active, roles.version) == (1, 1)


async def test_passive_does_not_switch_for_an_error_that_is_not_loss_of_reachability(west, east):
    async with PassiveReplication(west, east) as replication:
        west.behave("q", raising(lambda: MessagingEntityNotFoundError(message="gone")))
        with pytest.raises(MessagingEntityNotFoundError):
            await replication.get_queue_sender("q").send_messages(ServiceBusMessage("x"))
        assert replication.active_host("q") == "west"


async def test_passive_leaves_time_for_the_backup_when_the_active_is_a_black_hole(west, east):
    async with PassiveReplication(west, east) as replication:
        west.hang()
        assert await replication.get_queue_sender("q").send_messages(ServiceBusMessage("x"), timeout=0.2) == "east"


async def test_anomaly_one_a_message_accepted_before_the_outage_is_delayed_while_later_ones_flow(west, east, clock):
    async with PassiveReplication(west, east, now_ms=clock) as replication:
        sender = replication.get_queue_sender("q")
        await sender.send_messages(ServiceBusMessage("m1", message_id="m1"))
        west.down()
        await sender.send_messages(ServiceBusMessage("m2", message_id="m2"))
        async with replication.get_queue_receiver("q", max_wait_time=0.1) as receiver:
            (message,) = await receiver.receive_messages(5)
            assert message.message_id == "m2"
            await receiver.complete_message(message)
            west.up()
            (message,) = await receiver.receive_messages(5, max_wait_time=5)
            assert message.message_id == "m1"
            await receiver.complete_message(message)


async def test_anomaly_two_a_lost_answer_makes_two_copies_and_the_receiver_hands_out_one(west, east, clock):
    async with PassiveReplication(west, east, now_ms=clock) as replication:
        sender = replication.get_queue_sender("q")
        sender._senders[0].lose_answers = 1
        await sender.send_messages(ServiceBusMessage("m", message_id="m"))
        assert west.entity("q").ids == east.entity("q").ids == ["m"]
        ids = []
        async with replication.get_queue_receiver("q", max_wait_time=0.1) as receiver:
            async for message in receiver:
                ids.append(message.message_id)
                await receiver.complete_message(message)
        assert ids == ["m"]
        assert west.entity("q").messages == east.entity("q").messages == []


# -- both ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", [ActiveReplication, PassiveReplication])
async def test_the_same_namespace_twice_is_refused_and_closing_ends_it(pattern, west, east):
    with pytest.raises(ValueError, match="same namespace"):
        pattern(west, ScriptedNamespace("WEST"))
    replication = pattern(west, east)
    await replication.close()
    assert west.closed and east.closed
    with pytest.raises(NamespaceClosedError):
        replication.get_queue_sender("q")
    with pytest.raises(NamespaceClosedError):
        replication.get_queue_receiver("q")


async def test_an_empty_list_is_nothing_to_send(west, east):
    assert (await ActiveReplication(west, east).get_queue_sender("q").send_messages([])).accepted == ()
    assert await PassiveReplication(west, east).get_queue_sender("q").send_messages([]) == "west"
    with pytest.raises(TypeError):
        await ActiveReplication(west, east).get_queue_sender("q").send_messages(3)
