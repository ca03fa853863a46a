"""Order within sessions across an outage, on scripted namespaces: who is held, for how long, and what the syphon may send."""

from __future__ import annotations

import asyncio

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError

from tandem.client.coupling import PairSide
from tandem.client.envelope import wrap_payload
from tandem.client.events import Counters, EventHub
from tandem.client.places import gaps, read_after, write_after
from tandem.client.sdk_codec import payload_from_message
from tandem.client.syphon import ClientSyphonSettings, Syphon
from tests.client.scripted import ScriptedNamespace, raising
from tests.waiting import until

QUEUES = [f"contoso/x-servicebus-transfer/{number}" for number in range(3)]


def bodies(namespace: ScriptedNamespace, path: str) -> list[str]:
    return [stored.parts.body_sections[5:].decode() for stored in namespace.entity(path).messages]


def where(secondary: ScriptedNamespace, body: str) -> list[str]:
    return [queue for queue in QUEUES if body in bodies(secondary, queue)]


@pytest.fixture
def make_syphon(primary, secondary, clock):
    def make() -> Syphon:
        return Syphon(
            PairSide("primary", primary), PairSide("secondary", secondary), QUEUES,
            settings=ClientSyphonSettings(retry_pause=0.01, retry_pause_max=0.05), events=EventHub(clock), counters=Counters(), now_ms=clock
        )  # fmt: skip

    return make


async def outage(pair, primary, *messages: ServiceBusMessage):
    """These are diverted; then the path is healthy again."""
    sender = pair.get_queue_sender("orders")
    primary.down()
    for message in messages:
        await sender.send_messages(message)
    primary.up()
    await pair.mark_path_healthy("orders")
    return sender


async def test_after_healing_a_session_with_a_backlog_is_diverted_and_others_are_not(make_pair, primary, secondary, make_syphon):
    pair = await make_pair(keep_session_order=True)
    sender = await outage(pair, primary, ServiceBusMessage("1", session_id="a"))
    await sender.send_messages(ServiceBusMessage("2", session_id="a"))
    await sender.send_messages(ServiceBusMessage("3", session_id="b"))
    await sender.send_messages(ServiceBusMessage("4"))
    assert bodies(primary, "orders") == ["3", "4"]
    assert where(secondary, "1") == where(secondary, "2") != []
    syphon = make_syphon()
    syphon.start()
    await until(lambda: not pair.monitor("orders")._holding)
    await sender.send_messages(ServiceBusMessage("5", session_id="a"))
    await syphon.stop()
    assert bodies(primary, "orders") == ["3", "4", "1", "2", "5"]
    assert not any(secondary.entity(queue).messages for queue in QUEUES), "fences are gone too"


async def test_a_session_that_is_sent_to_all_the_time_is_let_go_too(make_pair, primary, secondary, make_syphon):
    pair = await make_pair(keep_session_order=True)
    sender = await outage(pair, primary, *(ServiceBusMessage(str(number), session_id="a") for number in range(20)))
    syphon = make_syphon()
    syphon.start()
    number = 20
    async with asyncio.timeout(20):
        while pair.monitor("orders")._holding:
            await sender.send_messages(ServiceBusMessage(str(number), session_id="a"))
            number += 1
            await asyncio.sleep(0)
    await sender.send_messages(ServiceBusMessage(str(number), session_id="a"))
    await syphon.stop()
    assert bodies(primary, "orders") == [str(one) for one in range(number + 1)]


async def test_a_session_sent_to_faster_than_it_is_carried_home_is_let_go_too(make_pair, primary, secondary, make_syphon, monkeypatch):
    monkeypatch.setattr("tandem.client.session_order._SOON_SECONDS", 0.02)
    pair = await make_pair(keep_session_order=True)
    sender = await outage(pair, primary, *(ServiceBusMessage(str(number), session_id="a") for number in range(10)))

    async def slow(operation: str) -> None:
        if operation == "complete":
            await asyncio.sleep(0.005)

    secondary.behave(*where(secondary, "0"), slow)
    syphon = make_syphon()
    syphon.start()
    order = pair.order.path("orders", pair.monitor("orders"))
    sent = 10

    async def send() -> None:
        nonlocal sent
        while order.holding:
            await sender.send_messages(ServiceBusMessage(str(sent), session_id="a"))
            sent += 1
            await asyncio.sleep(0.001)

    sending = asyncio.ensure_future(send())
    await until(lambda: order._insisting)
    assert order._round == 2, "known as soon as the second round takes longer than the first, not at its end"
    await sending
    await syphon.stop()
    assert bodies(primary, "orders") == [str(one) for one in range(sent)]


async def test_a_process_that_begins_holds_what_an_earlier_one_left_in_the_backlog(make_pair, primary, secondary, make_syphon):
    first = await make_pair(keep_session_order=True)
    await outage(first, primary, ServiceBusMessage("1", session_id="a"))
    first.order.stop()
    second = await make_pair(keep_session_order=True)
    sender = second.get_queue_sender("Orders")
    await sender.send_messages(ServiceBusMessage("2", session_id="a"))
    await sender.send_messages(ServiceBusMessage("3", session_id="b"))
    assert bodies(primary, "orders") == ["3"]
    syphon = make_syphon()
    syphon.start()
    await until(lambda: not second.monitor("orders")._holding)
    await syphon.stop()
    assert bodies(primary, "orders") == ["3", "1", "2"]


async def test_a_backlog_that_cannot_be_looked_at_holds_every_session_until_it_could_be(make_pair, primary, secondary, make_syphon):
    secondary.entity(QUEUES[1])
    secondary.behave(QUEUES[1], raising(lambda: ServiceBusConnectionError(message="store down"), on="peek"), times=2)
    pair = await make_pair(keep_session_order=True)
    sender = pair.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage("1", session_id="new"))
    assert bodies(primary, "orders") == []
    syphon = make_syphon()
    syphon.start()
    await until(lambda: not pair.monitor("orders")._holding)
    await syphon.stop()
    assert bodies(primary, "orders") == ["1"]


async def test_when_its_queue_fails_a_session_goes_on_in_another_and_comes_home_in_order(make_pair, primary, secondary, make_syphon, clock):
    pair = await make_pair(keep_session_order=True)
    sender = pair.get_queue_sender("orders")
    primary.down()
    await sender.send_messages(ServiceBusMessage("1", session_id="a"))
    (first,) = where(secondary, "1")
    clock.ms += 1
    secondary.behave(first, raising(lambda: ServiceBusConnectionError(message="store down")))
    await sender.send_messages(ServiceBusMessage("2", session_id="a"))
    (second,) = where(secondary, "2")
    assert second != first
    primary.up()
    await pair.mark_path_healthy("orders")
    syphon = make_syphon()
    syphon.queues = [second]
    await syphon.drain(0.01)
    assert bodies(primary, "orders") == []
    secondary.recover(first)
    await syphon.drain(0.01)
    assert bodies(primary, "orders") == [], "1 is still in the other queue"
    syphon.queues = QUEUES
    syphon.start()
    await until(lambda: not pair.monitor("orders")._holding)
    await syphon.stop()
    assert bodies(primary, "orders") == ["1", "2"]


async def test_a_queue_that_cannot_be_used_when_a_process_begins_is_looked_at_too(make_pair, primary, secondary, make_syphon, clock):
    first = await make_pair(keep_session_order=True)
    await outage(first, primary, ServiceBusMessage("1", session_id="a"))
    first.order.stop()
    (queue,) = where(secondary, "1")
    secondary.behave(queue, raising(lambda: ServiceBusConnectionError(message="store down")))
    clock.ms += 1
    second = await make_pair(keep_session_order=True, creation_attempts=1)
    sender = second.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage("2", session_id="a"))
    assert bodies(primary, "orders") == []
    assert where(secondary, "2") != [queue]
    secondary.recover(queue)
    syphon = make_syphon()
    syphon.start()
    await until(lambda: not second.state("orders").held_sessions)
    await syphon.stop()
    assert bodies(primary, "orders") == ["1", "2"]


def put(secondary: ScriptedNamespace, body: str, session: str, queue: int = 0, after: str | None = "") -> None:
    payload = payload_from_message(ServiceBusMessage(body, session_id=session))
    secondary.store(secondary.entity(QUEUES[queue]), wrap_payload(payload, "orders", secondary.now_ms(), after))


async def test_a_syphon_leaves_messages_alone_while_another_has_earlier_ones_of_their_session(primary, secondary, make_syphon):
    for queue in QUEUES:
        secondary.entity(queue)
    for body in "123":
        put(secondary, body, "a")
    put(secondary, "x", "b")
    other = secondary.receiver(QUEUES[0])
    (taken,) = await other.receive(1, 0.1)
    syphon = make_syphon()
    await syphon.drain(0.01)
    assert bodies(primary, "orders") == ["x"]
    await other.abandon(taken)
    await syphon.drain(0.01)
    assert bodies(primary, "orders") == ["x", "1", "2", "3"]


async def test_a_syphon_opens_one_link_to_look_into_another_queue_however_many_batches_it_carries(primary, secondary, make_syphon):
    for queue in QUEUES:
        secondary.entity(queue)
    for number in range(250):
        put(secondary, str(number), "a", after=write_after([QUEUES[1]]))
    await make_syphon().drain(0.01)
    assert bodies(primary, "orders") == [str(number) for number in range(250)]
    assert secondary.operations["peek", QUEUES[1]] >= 3
    assert secondary.receivers[QUEUES[1]] == 2, "one to look, one to carry"


async def test_sessions_that_nobody_keeps_in_order_are_carried_as_ever(primary, secondary, make_syphon):
    for queue in QUEUES:
        secondary.entity(queue)
    for body in "123":
        put(secondary, body, "a", after=None)
    (taken,) = await secondary.receiver(QUEUES[0]).receive(1, 0.1)
    await make_syphon().drain(0.01)
    assert bodies(primary, "orders") == ["2", "3"] and taken.message_id


async def test_a_fence_waits_for_everything_of_its_path_even_in_other_hands(make_pair, primary, secondary, make_syphon):
    pair = await make_pair(keep_session_order=True)
    await outage(pair, primary, ServiceBusMessage("1", session_id="a"))
    (queue,) = where(secondary, "1")
    await until(lambda: len(secondary.entity(queue).messages) == 2)
    other = secondary.receiver(queue)
    (taken,) = await other.receive(1, 0.1)
    syphon = make_syphon()
    await syphon.drain(0.01)
    assert len(secondary.entity(queue).messages) == 2
    await other.complete(taken)
    await syphon.drain(0.01)
    await until(lambda: not pair.monitor("orders")._holding)
    assert secondary.entity(queue).messages == []


async def test_without_the_option_nothing_is_looked_at_and_nothing_is_marked(make_pair, primary, secondary):
    pair = await make_pair()
    sender = await outage(pair, primary, ServiceBusMessage("1", session_id="a"))
    await sender.send_messages(ServiceBusMessage("2", session_id="a"))
    assert bodies(primary, "orders") == ["2"]
    assert not any(operation in ("peek", "schedule") for operation, _ in secondary.operations)


def test_gaps_are_where_others_may_stand():
    assert gaps([3, 4, 7]) == [(1, 3), (5, 7)]
    assert gaps([1, 2]) == []


def test_queues_to_come_after_travel_by_number_or_as_any():
    assert read_after(write_after([QUEUES[2], QUEUES[0]]), QUEUES[1], QUEUES) == [QUEUES[0], QUEUES[2]]
    assert read_after(write_after([f"c/{n}" for n in range(40)]), QUEUES[1], QUEUES) == [QUEUES[0], QUEUES[2]]
    assert read_after(write_after([]), QUEUES[1], QUEUES) == []


async def test_a_secondary_that_is_away_at_the_start_keeps_nobody_from_sending_and_is_looked_at_later(
    make_pair, primary, secondary, make_syphon, monkeypatch
):
    monkeypatch.setattr("tandem.client.session_order._LOOK_AGAIN_SECONDS", 0.05)
    for queue in QUEUES:
        secondary.behave(queue, raising(lambda: ServiceBusConnectionError(message="down"), on="peek"))
    put(secondary, "1", "a")
    pair = await make_pair(keep_session_order=True)
    sender = pair.get_queue_sender("orders")
    await sender.send_messages(ServiceBusMessage("x", session_id="b"))
    assert bodies(primary, "orders") == ["x"]
    for queue in QUEUES:
        secondary.recover(queue)
    await until(lambda: pair.state("orders").held_sessions == 1)
    await sender.send_messages(ServiceBusMessage("2", session_id="a"))
    syphon = make_syphon()
    syphon.start()
    await until(lambda: not pair.state("orders").held_sessions)
    await syphon.stop()
    assert bodies(primary, "orders") == ["x", "1", "2"]
