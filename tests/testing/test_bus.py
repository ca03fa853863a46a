"""The broker inside a test process, seen by the official SDK while the test moves its clock."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusClient as AsyncClient
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusError,
    SessionLockLostError,
)

from tandem.model.entity import RuleDescription, SqlFilter
from tandem.model.errors import ArgumentRefused, EntityAlreadyExists, EntityNotFound
from tandem.testing import Bus, Counts

pytestmark = pytest.mark.compiled_too
WAIT = 5


def send(bus: Bus, name: str, *messages: ServiceBusMessage) -> None:
    with ServiceBusClient.from_connection_string(bus.connection_string) as client, client.get_queue_sender(name) as sender:
        sender.send_messages(list(messages))


def take(bus: Bus, name: str, count: int = 10, wait: float = 0.5) -> list[str]:
    with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_queue_receiver(name, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE) as receiver,
    ):
        return [str(message) for message in receiver.receive_messages(count, max_wait_time=wait)]


@pytest.fixture
def bus() -> Iterator[Bus]:
    with Bus() as made:
        yield made


@pytest.fixture(params=["memory", "disk"])
def either_bus(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bus]:
    with Bus(data_dir=tmp_path if request.param == "disk" else None) as made:
        yield made


def test_lock_ends_when_the_clock_passes_it_and_not_before(bus: Bus) -> None:
    bus.create_queue("orders", lock_duration=30)
    send(bus, "orders", ServiceBusMessage("one"))
    with ServiceBusClient.from_connection_string(bus.connection_string) as client, client.get_queue_receiver("orders") as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=WAIT)
        bus.advance(29.999)
        assert bus.counts("orders").locked == 1
        bus.advance(0.001)
        assert bus.counts("orders") == Counts(
            active=1, locked=0, deferred=0, scheduled=0, dead_lettered=0, total=1, size_bytes=bus.counts("orders").size_bytes
        )
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(message)
        [again] = receiver.receive_messages(1, max_wait_time=WAIT)
        assert again.delivery_count == 1
        receiver.complete_message(again)
    assert bus.counts("orders").total == 0


def test_scheduled_messages_appear_when_their_time_comes_however_many(either_bus: Bus) -> None:
    bus = either_bus
    bus.create_queue("later")
    with ServiceBusClient.from_connection_string(bus.connection_string) as client, client.get_queue_sender("later") as sender:
        for part in range(5):
            batch = [ServiceBusMessage(f"{part}-{number}") for number in range(500)]
            sender.schedule_messages(batch, bus.now + timedelta(hours=1))
    bus.advance(3599)
    assert (bus.counts("later").scheduled, bus.counts("later").active) == (2500, 0)
    bus.advance(1)
    assert (bus.counts("later").scheduled, bus.counts("later").active) == (0, 2500)


def test_expired_messages_are_dead_lettered_at_once(bus: Bus) -> None:
    bus.create_queue("short", default_message_time_to_live=timedelta(minutes=5), dead_lettering_on_message_expiration=True)
    send(bus, "short", ServiceBusMessage("by the queue"), ServiceBusMessage("by its sender", time_to_live=timedelta(seconds=10)))
    bus.advance(10)
    assert (bus.counts("short").active, bus.counts("short").dead_lettered) == (1, 1)
    bus.advance(290)
    assert (bus.counts("short").active, bus.counts("short").dead_lettered) == (0, 2)
    assert bus.counts("short/$DeadLetterQueue").active == 2
    with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_queue_receiver("short", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver,
    ):
        dead = receiver.receive_messages(2, max_wait_time=WAIT)
        assert {message.dead_letter_reason for message in dead} == {"TTLExpiredException"}


@pytest.mark.slow
def test_session_lock_ends_with_the_clock(bus: Bus) -> None:
    bus.create_queue("sessions", requires_session=True, lock_duration=30)
    send(bus, "sessions", ServiceBusMessage("one", session_id="s"))
    with ServiceBusClient.from_connection_string(bus.connection_string) as client:
        with client.get_queue_receiver("sessions", session_id="s") as receiver:
            [message] = receiver.receive_messages(1, max_wait_time=WAIT)
            bus.advance(31)
            with pytest.raises(SessionLockLostError):
                receiver.complete_message(message)
        with client.get_queue_receiver("sessions", session_id="s") as receiver:
            [message] = receiver.receive_messages(1, max_wait_time=WAIT)
            assert message.delivery_count == 1


@pytest.mark.slow
def test_duplicate_window_closes_with_the_clock(bus: Bus) -> None:
    bus.create_queue("once", requires_duplicate_detection=True, duplicate_detection_history_time_window="PT1M")
    send(bus, "once", ServiceBusMessage("a", message_id="1"))
    bus.advance(59)
    send(bus, "once", ServiceBusMessage("b", message_id="1"))
    assert bus.counts("once").active == 1
    bus.advance(61)
    send(bus, "once", ServiceBusMessage("c", message_id="1"))
    assert take(bus, "once") == ["a", "c"]


def test_days_may_pass_without_clients_being_thrown_out(bus: Bus) -> None:
    """Tokens last an hour and silent clients are dropped after minutes: of their time, which `advance` leaves alone."""
    bus.create_queue("orders", default_message_time_to_live=timedelta(days=30))
    with ServiceBusClient.from_connection_string(bus.connection_string) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("before"))
        bus.advance(7 * 24 * 3600)
        sender.send_messages(ServiceBusMessage("after"))
    bus.advance(23 * 24 * 3600 - 1)
    assert bus.counts("orders").active == 2
    bus.advance(1)
    assert take(bus, "orders") == ["after"]


def test_tokens_lapse_when_connections_grow_old() -> None:
    with Bus() as bus:
        bus.create_queue("orders")
        connection = RawConnection(bus)
        bus.age_connections(30)
        assert connection.is_closed(), "a connection that never showed a token is dropped"


def test_waiting_for_the_next_session_ends_in_real_time(bus: Bus) -> None:
    bus.create_queue("sessions", requires_session=True)
    with (
        ServiceBusClient.from_connection_string(bus.connection_string, retry_total=0) as client,
        pytest.raises(OperationTimeoutError),
        client.get_queue_receiver("sessions", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1),
    ):
        pass


@pytest.mark.slow
def test_restart_releases_locks_and_keeps_everything_else(either_bus: Bus) -> None:
    bus = either_bus
    bus.create_queue("orders", lock_duration=300)
    bus.create_topic("news")
    bus.create_subscription("news", "all")
    send(bus, "orders", ServiceBusMessage("locked"), ServiceBusMessage("waiting"))
    with ServiceBusClient.from_connection_string(bus.connection_string) as client:
        with client.get_topic_sender("news") as sender:
            sender.send_messages(ServiceBusMessage("paper"))
        with client.get_queue_receiver("orders") as receiver:
            receiver.receive_messages(1, max_wait_time=WAIT)
            assert bus.counts("orders").locked == 1
    before = bus.connection_string
    bus.restart()
    assert bus.connection_string == before
    assert (bus.counts("orders").active, bus.counts("orders").locked) == (2, 0)
    assert bus.counts("news/Subscriptions/all").active == 1
    assert take(bus, "orders") == ["locked", "waiting"]


def test_rules_decide_what_a_subscription_gets(bus: Bus) -> None:
    bus.create_topic("news")
    bus.create_subscription("news", "red", rules=[RuleDescription(name="red", filter=SqlFilter(expression="color = 'red'"))])
    bus.create_subscription("news", "all", max_delivery_count=2)
    with ServiceBusClient.from_connection_string(bus.connection_string) as client, client.get_topic_sender("news") as sender:
        sender.send_messages([ServiceBusMessage("x", application_properties={"color": color}) for color in ("red", "blue")])
    assert bus.counts("news/Subscriptions/red").active == 1
    assert bus.counts("news/Subscriptions/all").active == 2


def test_real_time_runs_by_itself_and_cannot_be_moved() -> None:
    with Bus(real_time=True) as bus:
        bus.create_queue("short")
        send(bus, "short", ServiceBusMessage("gone soon", time_to_live=timedelta(milliseconds=50)), ServiceBusMessage("stays"))
        deadline = time.monotonic() + 30
        while bus.counts("short").active == 2 and time.monotonic() < deadline:
            threading.Event().wait(0.01)
        assert bus.counts("short").active == 1
        with pytest.raises(RuntimeError, match="real time"):
            bus.advance(1)


def test_a_stopped_bus_hangs_up_and_refuses_until_it_is_started_again() -> None:
    bus = Bus()
    with pytest.raises(RuntimeError, match="not been started"):
        _ = bus.connection_string
    with bus:
        bus.create_queue("orders")
        connection = RawConnection(bus)
        bus.stop()
        bus.stop()
        assert connection.is_closed()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", bus.port), 5)
        with pytest.raises(RuntimeError, match="not running"):
            bus.counts("orders")
        bus.start()
        with pytest.raises(RuntimeError, match="running already"):
            bus.start()
        assert bus.counts("orders").total == 0


def test_a_bus_that_cannot_start_says_why_and_can_be_tried_again() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bus = Bus(port=taken.getsockname()[1])
        with pytest.raises(OSError, match="address already in use"):
            bus.start()
    with bus:
        bus.create_queue("orders")


def test_wrong_wishes_are_refused_with_the_reason() -> None:
    with Bus() as bus:
        with pytest.raises(TypeError, match=r"'lock_seconds' is not a property of a queue; there are .*lock_duration"):
            bus.create_queue("orders", lock_seconds=30)
        with pytest.raises(TypeError, match="lock_duration: a timedelta"):
            bus.create_queue("orders", lock_duration=object())
        bus.create_queue("orders")
        with pytest.raises(EntityAlreadyExists):
            bus.create_queue("Orders")
        with pytest.raises(EntityNotFound):
            bus.counts("nowhere")
        with pytest.raises(ValueError, match="forwards"):
            bus.advance(-1)
        bus.delete("orders")
        with pytest.raises(EntityNotFound):
            bus.counts("orders")


async def test_async_clients_work_while_the_test_moves_the_clock(bus: Bus) -> None:
    bus.create_queue("orders", lock_duration=30)
    async with AsyncClient.from_connection_string(bus.connection_string) as client:
        async with client.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("one"))
        async with client.get_queue_receiver("orders") as receiver:
            [message] = await receiver.receive_messages(max_message_count=1, max_wait_time=WAIT)
            bus.advance(31)
            with pytest.raises(MessageLockLostError):
                await receiver.complete_message(message)


class RawConnection:
    """Says the AMQP header and listens for the end."""

    def __init__(self, bus: Bus) -> None:
        self._socket = socket.create_connection(("127.0.0.1", bus.port), 10)
        self._socket.sendall(b"AMQP\x03\x01\x00\x00")
        assert self._socket.recv(8) == b"AMQP\x03\x01\x00\x00"

    def is_closed(self) -> bool:
        with self._socket as connected:
            try:
                while connected.recv(4096):
                    pass
            except TimeoutError:
                return False
            except ConnectionError:
                return True
        return True


def try_once(bus: Bus, name: str, message: ServiceBusMessage) -> None:
    with ServiceBusClient.from_connection_string(bus.connection_string, retry_total=0) as client, client.get_queue_sender(name) as sender:
        sender.send_messages(message)


@pytest.mark.slow
def test_faults_are_injected_and_healed_from_the_test(bus: Bus) -> None:
    bus.create_queue("q")
    bus.inject("entity-error", entity="q", condition="com.microsoft:entity-disabled", count=1)
    with pytest.raises(MessagingEntityDisabledError):
        try_once(bus, "q", ServiceBusMessage("refused"))
    send(bus, "q", ServiceBusMessage("its count is used up"))
    number = bus.inject("entity-error", entity="q", condition="com.microsoft:entity-disabled")
    with pytest.raises(MessagingEntityDisabledError):
        try_once(bus, "q", ServiceBusMessage("refused"))
    bus.heal(number)
    bus.inject("entity-error", entity="q", condition="com.microsoft:entity-disabled", for_seconds=3600)
    bus.advance(3600)
    send(bus, "q", ServiceBusMessage("its time is over"))
    assert take(bus, "q") == ["its count is used up", "its time is over"]
    with pytest.raises(ArgumentRefused, match="unknown fault 'flood'"):
        bus.inject("flood")


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["in memory", "on disk"])
def test_a_store_is_taken_down_and_comes_back(kept: str, tmp_path: Path) -> None:
    with Bus(real_time=True, store_count=2, data_dir=tmp_path if kept == "on disk" else None) as bus:
        bus.create_queue("q")
        send(bus, "q", ServiceBusMessage("kept"))
        for store in range(2):
            bus.inject("store-down", store=store)
        with pytest.raises(ServiceBusError):
            try_once(bus, "q", ServiceBusMessage("refused"))
        bus.heal()
        send(bus, "q", ServiceBusMessage("accepted"))  # the SDK tries again until the store is back
        assert take(bus, "q") == ["kept", "accepted"]
