from __future__ import annotations

import asyncio

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageAlreadySettled, MessageLockLostError, MessagingEntityNotFoundError, ServiceBusError

from tandem.client.dedup import MemorySeenIds, SqliteSeenIds
from tandem.client.errors import BothNamespacesUnavailableError, NamespaceClosedError
from tandem.client.receiver import DuplicateSuppressingReceiver, ReceiverSettings
from tandem.client.sdk_codec import payload_from_message
from tests.client.scripted import ScriptedNamespace, raising


@pytest.fixture
def west(clock) -> ScriptedNamespace:
    return ScriptedNamespace("west", clock)


@pytest.fixture
def east(clock) -> ScriptedNamespace:
    return ScriptedNamespace("east", clock)


@pytest.fixture
async def make_receiver(west, east, clock):
    made = []

    def make(**options) -> DuplicateSuppressingReceiver:
        options.setdefault("max_wait_time", 0.1)
        options.setdefault("settings", ReceiverSettings(retry_pause=0.01, retry_pause_max=0.02, keep_every=0.01))
        session_id = options.pop("session_id", None)
        receivers = [namespace.receiver("q", session_id=session_id) for namespace in (west, east)]
        receiver = DuplicateSuppressingReceiver(receivers, now_ms=clock, **options)
        made.append(receiver)
        return receiver

    yield make
    for receiver in made:
        await receiver.close()


def put(namespace: ScriptedNamespace, message_id: str, body: str = "", **properties) -> None:
    message = ServiceBusMessage(body or message_id, message_id=message_id, **properties)
    namespace.store(namespace.entity("q"), payload_from_message(message))


def left(*namespaces: ScriptedNamespace) -> int:
    return sum(len(namespace.entity("q").messages) for namespace in namespaces)


async def process(receiver: DuplicateSuppressingReceiver) -> list[str]:
    """Complete everything that is handed out; the ids in order."""
    ids = []
    async for message in receiver:
        ids.append(message.message_id)
        await receiver.complete_message(message)
    return ids


async def test_each_message_is_handed_out_once_whichever_copy_comes_first(make_receiver, west, east):
    for i in range(20):
        put(west, f"m{i}")
        put(east, f"m{i}")
    receiver = make_receiver()
    assert sorted(await process(receiver)) == sorted(f"m{i}" for i in range(20))
    assert left(west, east) == 0
    assert receiver.counters.suppressed == 20


async def test_a_copy_that_comes_while_the_first_is_processed_waits_and_is_completed_with_it(make_receiver, west, east):
    put(west, "m")
    receiver = make_receiver()
    (first,) = await receiver.receive_messages()
    put(east, "m")
    assert await receiver.receive_messages(max_wait_time=0.05) == []
    assert left(east) == 1
    await receiver.complete_message(first)
    assert left(west, east) == 0


async def test_an_abandoned_message_is_not_seen_and_its_other_copy_is_handed_out(make_receiver, west, east):
    put(west, "m", "from west")
    receiver = make_receiver()
    (first,) = await receiver.receive_messages()
    put(east, "m", "from east")
    assert await receiver.receive_messages(max_wait_time=0.05) == []
    await receiver.abandon_message(first)
    (second,) = await receiver.receive_messages()
    assert str(second) == "from east"
    await receiver.complete_message(second)
    assert await process(receiver) == []
    assert left(west, east) == 0


async def test_a_redelivery_after_abandon_is_processed_and_not_taken_for_the_duplicate(make_receiver, west, east):
    put(west, "m")
    receiver = make_receiver()
    (first,) = await receiver.receive_messages()
    await receiver.abandon_message(first)
    assert await process(receiver) == ["m"]


async def test_a_lost_lock_lets_the_message_come_again_and_nothing_is_lost(make_receiver, west, east, clock):
    put(west, "m")
    receiver = make_receiver()
    await receiver.receive_messages()
    clock.ms += 61_000
    (again,) = await receiver.receive_messages()
    await receiver.complete_message(again)
    assert left(west, east) == 0


async def test_completing_after_the_lock_was_lost_raises_and_the_work_is_not_done_twice(make_receiver, west, east, clock):
    put(west, "m")
    receiver = make_receiver()
    (first,) = await receiver.receive_messages()
    clock.ms += 61_000
    with pytest.raises(MessageLockLostError):
        await receiver.complete_message(first)
    put(east, "m")
    assert await process(receiver) == []
    assert left(west, east) == 0


async def test_a_third_copy_is_suppressed_too(make_receiver, west, east):
    receiver = make_receiver()
    for namespace in (west, east, east, west):
        put(namespace, "m")
    assert await process(receiver) == ["m"]
    put(west, "m")
    assert await process(receiver) == []
    assert left(west, east) == 0
    assert receiver.counters.suppressed == 4


async def test_locks_of_waiting_copies_are_renewed_while_the_first_is_processed(make_receiver, west, east, clock):
    put(west, "m")
    receiver = make_receiver()
    (first,) = await receiver.receive_messages()
    put(east, "m")
    assert await receiver.receive_messages(max_wait_time=0.02) == []
    for _ in range(5):
        clock.ms += 50_000
        await receiver.renew_message_lock(first)
        await asyncio.sleep(0.05)
    await receiver.complete_message(first)
    assert left(west, east) == 0
    assert east.entity("q").completed[0].delivery_count == 0


async def test_a_dead_lettered_copy_is_not_processing_so_the_other_is_handed_out(make_receiver, west, east):
    put(west, "m")
    receiver = make_receiver()
    (first,) = await receiver.receive_messages()
    put(east, "m")
    await receiver.receive_messages(max_wait_time=0.02)
    await receiver.dead_letter_message(first, reason="bad", error_description="why")
    assert await process(receiver) == ["m"]
    assert [(r, d) for _, r, d in west.entity("q").dead] == [("bad", "why")]


async def test_a_durable_memory_suppresses_across_restarts(make_receiver, west, east, tmp_path):
    put(west, "m")
    seen = SqliteSeenIds(tmp_path / "seen.db")
    first = make_receiver(seen=seen)
    assert await process(first) == ["m"]
    await first.close()
    await seen.close()
    put(east, "m")
    seen = SqliteSeenIds(tmp_path / "seen.db")
    assert await process(make_receiver(seen=seen)) == []
    await seen.close()
    assert left(west, east) == 0


async def test_ids_are_forgotten_within_the_configured_window(make_receiver, west, east, clock):
    receiver = make_receiver(seen=MemorySeenIds(window=60))
    put(west, "m")
    assert await process(receiver) == ["m"]
    clock.ms += 60_000
    put(east, "m")
    assert await process(receiver) == ["m"]


async def test_a_property_of_ones_own_can_identify_the_copies(make_receiver, west, east):
    put(west, "1", application_properties={"order": 7})
    put(east, "2", application_properties={"order": 7})
    receiver = make_receiver(identify=lambda message: str(message.application_properties[b"order"]))
    assert len(await process(receiver)) == 1


async def test_messages_without_an_id_are_all_handed_out(make_receiver, west, east):
    put(west, "1")
    put(east, "1")
    assert len(await process(make_receiver(identify=lambda message: None))) == 2


async def test_order_within_one_namespace_is_kept(make_receiver, west, east):
    for i in range(30):
        put(west, f"{i:02}")
    assert await process(make_receiver()) == [f"{i:02}" for i in range(30)]


async def test_only_the_named_session_is_received(make_receiver, west, east):
    put(west, "a", session_id="one")
    put(east, "b", session_id="two")
    assert await process(make_receiver(session_id="two")) == ["b"]


async def test_one_namespace_down_does_not_stop_the_other(make_receiver, west, east):
    west.down()
    put(east, "m")
    receiver = make_receiver()
    assert await process(receiver) == ["m"]
    west.up()
    put(west, "n")
    assert await process(receiver) == ["n"]


async def test_both_down_for_the_whole_wait_raises_with_both_causes(make_receiver, west, east):
    west.down()
    east.down()
    with pytest.raises(BothNamespacesUnavailableError) as caught:
        await make_receiver().receive_messages(max_wait_time=0.05)
    assert len(caught.value.causes) == 2


async def test_a_missing_entity_is_told_at_once(make_receiver, west, east):
    east.behave("q", raising(lambda: MessagingEntityNotFoundError(message="gone")))
    with pytest.raises(MessagingEntityNotFoundError):
        await make_receiver().receive_messages()


async def test_settling_twice_is_refused(make_receiver, west):
    put(west, "m")
    receiver = make_receiver()
    (message,) = await receiver.receive_messages()
    await receiver.complete_message(message)
    with pytest.raises(MessageAlreadySettled):
        await receiver.abandon_message(message)


async def test_a_complete_that_failed_for_the_moment_may_be_repeated(make_receiver, west):
    put(west, "m")
    receiver = make_receiver()
    (message,) = await receiver.receive_messages()
    west.down()
    with pytest.raises(ServiceBusError):
        await receiver.complete_message(message)
    west.up()
    await receiver.complete_message(message)
    assert left(west) == 0


async def test_closing_gives_back_what_was_not_handed_out(make_receiver, west):
    for i in range(3):
        put(west, str(i))
    receiver = make_receiver()
    receiver._sources[0].reading = asyncio.ensure_future(receiver._sources[0].receiver.receive(3, 1))
    await receiver.receive_messages()
    await receiver.close()
    assert [stored.lock is None for stored in west.entity("q").messages] == [False, True, True]
    with pytest.raises(NamespaceClosedError):
        await receiver.receive_messages()
