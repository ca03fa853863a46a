"""A holder that vanishes without an AMQP close gives back what it held, unless its entity says that locks outlive connections."""

from __future__ import annotations

import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

from tandem import amqp
from tandem.model.limits import Limits
from tandem.testing import Bus
from tests.cli.broker_process import BrokerProcess
from tests.conformance.raw import Arrival, Raw, Receiver, Refused
from tests.gateway.amqp.coordinator import Coordinator, settle_in

pytestmark = pytest.mark.compiled_too

DEFERRED = amqp.encode_modified(False, True)


@pytest.fixture
def bus() -> Iterator[Bus]:
    """Time stands still: whatever comes back does so at once."""
    with Bus() as bus:
        bus.create_queue("plain")
        bus.create_queue("kept", locks_outlive_connections=True)
        yield bus


def held(raw: Raw, queue: str, *bodies: str) -> tuple[Receiver, list[Arrival]]:
    raw.feed(queue, *bodies)
    receiver = raw.receiver(queue)
    return receiver, receiver.receive(len(bodies))


def reset(raw: Raw) -> None:
    raw.socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    raw.socket.close()


def close(raw: Raw) -> None:
    raw.engine.close()
    raw.until(lambda: raw.engine.closed)
    raw.socket.close()


def noticed(bus: Bus) -> None:
    """The broker has heard that everybody is gone."""

    async def clients() -> int:
        return len(bus._running().contexts[0].connections)

    deadline = time.monotonic() + 20
    while bus._call(clients()):
        assert time.monotonic() < deadline, "the broker did not notice"


def count_of(arrival: Arrival) -> int:
    count = arrival.message.header.get("delivery-count", 0)
    assert isinstance(count, int)
    return count


def complete_by_token(raw: Raw, queue: str, *arrivals: Arrival) -> int:
    tokens = amqp.Array(0x98, [arrival.token for arrival in arrivals])
    return raw.request(queue, "com.microsoft:update-disposition", {"lock-tokens": tokens, "disposition-status": "completed"})[0]


@pytest.mark.parametrize("vanish", [reset, Raw.close], ids=["reset", "end-of-stream"])
def test_messages_of_a_broken_connection_are_back_at_once_in_front_and_counted(bus: Bus, vanish: object) -> None:
    assert callable(vanish)
    first = Raw(bus.port)
    held(first, "plain", "one", "two")
    first.feed("plain", "three")
    vanish(first)
    noticed(bus)
    with Raw(bus.port) as second:
        again = second.receiver("plain").receive(3)
        assert [(one.text, count_of(one)) for one in again] == [("one", 1), ("two", 1), ("three", 0)]


def test_messages_of_a_connection_that_fell_silent_are_back_with_its_end() -> None:
    with Bus(limits=Limits(idle_timeout_ms=300, drop_silent_peer_after_ms=600)) as bus:
        bus.create_queue("plain")
        silent = Raw(bus.port)
        held(silent, "plain", "one")
        with Raw(bus.port) as other:
            receiver = other.receiver("plain")
            receiver.link.grant(1)
            other.flush()
            while not receiver.end.deliveries:  # heartbeats of the one that lives
                other.socket.sendall(b"\x00\x00\x00\x08\x02\x00\x00\x00")
                other.quiet(0.1)
            assert [(one.text, count_of(one)) for one in receiver.end.deliveries] == [("one", 1)]
        silent.close()


@pytest.mark.parametrize("partitioned", [False, True])
def test_after_a_close_messages_stay_locked_until_their_time_is_over(bus: Bus, partitioned: bool) -> None:
    bus.create_queue("closed", enable_partitioning=partitioned)
    first = Raw(bus.port)
    _, arrivals = held(first, "closed", "one", "two")
    close(first)
    noticed(bus)
    with Raw(bus.port) as second:
        assert second.receiver("closed").drain(10) == []
        assert complete_by_token(second, "closed", arrivals[0]) == 200
        bus.advance(61)
        assert [(one.text, count_of(one)) for one in second.receiver("closed").receive()] == [("two", 1)]


def test_after_a_detach_messages_stay_locked_even_if_the_connection_breaks_later(bus: Bus) -> None:
    first = Raw(bus.port)
    receiver, _ = held(first, "plain", "one")
    receiver.link.detach()
    first.until(lambda: receiver.end.gone)
    reset(first)
    noticed(bus)
    with Raw(bus.port) as second:
        assert second.receiver("plain").drain(10) == []
        assert bus.counts("plain").locked == 1


def test_messages_of_a_partitioned_queue_come_back_too(bus: Bus) -> None:
    bus.create_queue("parts", enable_partitioning=True)
    first = Raw(bus.port)
    held(first, "parts", *"abcdef")
    reset(first)
    with Raw(bus.port) as second:
        assert sorted(one.text for one in second.receiver("parts").receive(6)) == list("abcdef")


def test_the_last_delivery_that_breaks_ends_in_the_dead_letter_queue(bus: Bus) -> None:
    bus.create_queue("once", max_delivery_count=1)
    first = Raw(bus.port)
    held(first, "once", "poison")
    reset(first)
    with Raw(bus.port) as second:
        [letter] = second.receiver("once/$deadletterqueue").receive()
        assert letter.message.application_properties["DeadLetterReason"] == "MaxDeliveryCountExceeded"


def test_a_session_is_free_at_once_and_what_was_in_hand_counts(bus: Bus) -> None:
    bus.create_queue("sessions", requires_session=True)
    first = Raw(bus.port)
    first.feed("sessions", "one", properties={"group-id": "s"})
    first.receiver("sessions", session="s").receive()
    reset(first)
    with Raw(bus.port) as second:
        [again] = second.receiver("sessions", session=None).receive()
        assert (again.text, count_of(again)) == ("one", 1)


def test_a_session_stays_locked_where_locks_outlive_connections(bus: Bus) -> None:
    bus.create_queue("sessions", requires_session=True, locks_outlive_connections=True)
    first = Raw(bus.port)
    first.feed("sessions", "one", "two", properties={"group-id": "s"})
    arrivals = first.receiver("sessions", session="s").receive(2)
    reset(first)
    noticed(bus)
    with Raw(bus.port) as second:
        second.feed("sessions", "three", properties={"group-id": "s"})
        with pytest.raises(Refused) as refused:
            second.receiver("sessions", session="s")
        assert refused.value.condition == "com.microsoft:session-cannot-be-locked"
        assert complete_by_token(second, "sessions", arrivals[0]) == 200
        bus.advance(61)
        found = second.receiver("sessions", session="s").receive(2)
        assert [(one.text, count_of(one)) for one in found] == [("two", 1), ("three", 0)]


def test_locks_outlive_a_broken_connection_where_the_entity_says_so(bus: Bus) -> None:
    first = Raw(bus.port)
    _, arrivals = held(first, "kept", "one", "two")
    reset(first)
    noticed(bus)
    with Raw(bus.port) as second:
        assert second.receiver("kept").drain(10) == []
        assert complete_by_token(second, "kept", arrivals[0]) == 200
        bus.advance(61)
        assert [one.text for one in second.receiver("kept").receive()] == ["two"]


def test_deferred_messages_in_hand_are_deferred_again(bus: Bus) -> None:
    first = Raw(bus.port)
    receiver, [one] = held(first, "plain", "later")
    receiver.settle(one, DEFERRED)
    wish = {"sequence-numbers": amqp.Array(0x81, [1]), "receiver-settle-mode": amqp.UInt(1)}
    assert first.request("plain", "com.microsoft:receive-by-sequence-number", wish)[0] == 200
    assert first.request("plain", "com.microsoft:receive-by-sequence-number", wish)[0] == 404, "it is in hand"
    reset(first)
    noticed(bus)
    with Raw(bus.port) as second:
        status, reply = second.request("plain", "com.microsoft:receive-by-sequence-number", wish)
        assert status == 200 and isinstance(reply.body, dict)
        again = amqp.decode_message(reply.body["messages"][0]["message"])
        assert again.header["delivery-count"] == 2


def test_what_was_settled_in_an_open_transaction_comes_back_with_everything_else(bus: Bus) -> None:
    first = Raw(bus.port)
    receiver, [one, _] = held(first, "plain", "one", "two")
    settle_in(receiver, Coordinator(first).declare(), one)
    reset(first)
    with Raw(bus.port) as second:
        assert [(one.text, count_of(one)) for one in second.receiver("plain").receive(2)] == [("one", 1), ("two", 1)]


CONFIG = """
locks_outlive_connections = true
[[queue]]
name = "kept"
[[queue]]
name = "dropped"
locks_outlive_connections = false
[[topic]]
name = "events"
[[topic.subscription]]
name = "kept"
locks_outlive_connections = true
"""


@pytest.mark.slow
def test_the_choice_survives_an_update_by_an_administration_client_and_a_restart(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(CONFIG)
    arguments = ("--port", "0", "--data", "data", "--dev", "--config", "tandem.toml")
    with BrokerProcess(tmp_path, *arguments) as broker:
        options = {"connection_verify": broker.line("CA file:")}
        with ServiceBusAdministrationClient.from_connection_string(broker.connection_string, **options) as administration:
            queue = administration.get_queue("dropped")
            queue.max_delivery_count = 3
            administration.update_queue(queue)
            subscription = administration.get_subscription("events", "kept")
            subscription.max_delivery_count = 3
            administration.update_subscription("events", subscription)
        broker.stop()
    with BrokerProcess(tmp_path, *arguments) as broker:
        first = Raw(broker.port)
        for name, address in (("events", "events/Subscriptions/kept"), ("kept", "kept"), ("dropped", "dropped")):
            first.feed(name, "one")
            first.receiver(address).receive()
        reset(first)
        with Raw(broker.port) as second:
            assert [one.text for one in second.receiver("dropped").receive()] == ["one"]
            assert second.receiver("kept").drain(1) == []
            assert second.receiver("events/Subscriptions/kept").drain(1) == []


WORKER = """
import sys
from azure.servicebus import ServiceBusClient
client = ServiceBusClient.from_connection_string(sys.argv[1])
receiver = client.get_queue_receiver("plain")
print(receiver.receive_messages(1, max_wait_time=30)[0], flush=True)
sys.stdin.read()
"""


def test_the_message_of_a_killed_worker_is_with_the_next_one_at_once(bus: Bus) -> None:
    with Raw(bus.port) as raw:
        raw.feed("plain", "work")
    command = [sys.executable, "-c", WORKER, bus.connection_string]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "work\n"
        worker.kill()
    with ServiceBusClient.from_connection_string(bus.connection_string) as client, client.get_queue_receiver("plain") as receiver:
        [again] = receiver.receive_messages(1, max_wait_time=20)
        assert (str(again), again.delivery_count) == ("work", 1)
        receiver.complete_message(again)
