"""Limits that one client can run into: what it is told, and that everybody else goes on."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator

import pytest

from tandem import amqp
from tandem.model.limits import Limits
from tandem.testing import Bus
from tests.conformance.raw import End, Raw, Refused, message, token_for
from tests.waiting import wait_until

LIMITS = Limits(
    connections_max=6,
    header_bytes_max=4_000,
    link_credit_max=10,
    idle_timeout_ms=10_000,
    drop_silent_peer_after_ms=15_000,
    management_requests_in_flight_max=50,
)


@pytest.fixture
def bus() -> Iterator[Bus]:
    with Bus(store_count=1, limits=LIMITS) as bus:
        bus.create_queue("q")
        yield bus


# --- before a token


def test_a_stranger_may_have_eight_links(bus: Bus) -> None:
    with Raw(bus.port, user="") as raw:
        for _ in range(8):
            raw.receiver("$cbs", delete=True)
        with pytest.raises(Refused) as refused:
            raw.receiver("$cbs", delete=True)
        assert refused.value.condition == "amqp:resource-limit-exceeded"
        assert "may have 8 links" in str(refused.value) and "TrackingId" in str(refused.value)


def test_links_that_were_refused_count_until_they_are_gone(bus: Bus) -> None:
    with Raw(bus.port, user="") as raw:
        ends = [End() for _ in range(20)]
        for end in ends:
            raw.session.attach_receiver(str(uuid.uuid4()), amqp.Terminus("q"), amqp.Terminus("here"), end)
        with pytest.raises(Refused) as refused:
            raw.until(lambda: ends[-1].attached)
        assert refused.value.condition == "amqp:resource-limit-exceeded"


def test_a_stranger_may_have_eight_sessions(bus: Bus) -> None:
    with Raw(bus.port, user="") as raw:
        others = [raw.engine.begin() for _ in range(7)]
        raw.until(lambda: all(session.mapped for session in others))
        raw.engine.begin()
        with pytest.raises(Refused) as refused:
            raw.until(lambda: False)
        assert refused.value.condition == "amqp:resource-limit-exceeded"
        assert "may have 8 sessions" in str(refused.value)


def test_after_a_token_the_usual_limits_hold(bus: Bus) -> None:
    with Raw(bus.port, user="") as raw:
        assert raw.put_token("q", token_for(raw.port, "q"))[0] == 202
        for _ in range(20):
            raw.receiver("q", delete=True)
        sessions = [raw.engine.begin() for _ in range(5)]
        raw.until(lambda: all(session.mapped for session in sessions))


# --- answers that nobody takes in


def test_answers_to_a_shut_window_are_not_kept_without_end(bus: Bus) -> None:
    with Raw(bus.port, user="") as raw:
        receiver = raw.receiver("$cbs", delete=True)
        raw.session.incoming_left, raw.session.incoming_low = 0, -1_000_000
        raw.session.send_flow()
        sender = raw.sender("$cbs")
        request = amqp.encode_message(application_properties={"operation": "none"}, body=None, body_kind=0x77)
        for _ in range(100):
            sender.start(request, settled=True)
        raw.until(lambda: receiver.end.gone)
        assert receiver.end.error is not None and receiver.end.error.condition == "amqp:resource-limit-exceeded"
        assert receiver.end.deliveries == []


# --- connections


def test_one_connection_too_many_is_told_so_and_the_others_work(bus: Bus) -> None:
    others = [Raw(bus.port) for _ in range(6)]
    for raw in others:
        raw.sender("q")
    with Raw(bus.port) as late, pytest.raises(Refused) as refused:
        late.sender("q")
    assert refused.value.condition == "amqp:resource-limit-exceeded"
    assert "6 connections" in str(refused.value)
    others[0].feed("q", "still served")
    others[1].close()
    wait_until(lambda: bus.inside(lambda server: server.connection_count()) <= 5, "the connection that was closed is counted no more", 10)
    with Raw(bus.port) as another:
        assert [arrival.text for arrival in another.receiver("q").receive()] == ["still served"]
    for raw in others:
        raw.close()


def test_connections_that_say_nothing_are_bounded_too(bus: Bus) -> None:
    """Beyond the limit and a hundred that are told so, newcomers are hung up on at once."""
    silent = [socket.create_connection(("127.0.0.1", bus.port)) for _ in range(106)]
    wait_until(lambda: bus.inside(lambda server: len(server._lobby)) >= 106, "all wait in the lobby", 10)
    with socket.create_connection(("127.0.0.1", bus.port)) as late:
        late.settimeout(10)
        try:
            assert late.recv(1) == b""
        except ConnectionResetError:
            pass
    silent[0].close()
    for one in silent:
        one.close()


# --- messages


def test_a_message_may_be_large_but_not_its_header(bus: Bus) -> None:
    with Raw(bus.port) as raw:
        sender = raw.sender("q")
        sender.send(message("b" * 100_000))
        sender.send(message("b" * 100_000, application_properties={"some": "p" * 3_500}))
        for sections in (
            {"application_properties": {"long": "p" * 4_000}},
            {"message_annotations": {amqp.Symbol("long"): "p" * 4_000}},
            {"footer": {amqp.Symbol("long"): "p" * 4_000}},
            {"properties": {"subject": "p" * 4_000}},
        ):
            for body in ("", "b" * 100_000):
                with pytest.raises(Refused) as refused:
                    sender.send(message(body, **sections))
                assert refused.value.condition == "amqp:link:message-size-exceeded"
                assert "at most 4000 are allowed" in str(refused.value)
        assert len(raw.receiver("q", delete=True).receive(2)) == 2


@pytest.mark.parametrize("when", [amqp.ULong(2**64 - 1), amqp.Timestamp(2**63 - 1)])
def test_a_schedule_beyond_all_years_is_refused_and_costs_nothing_else(bus: Bus, when: object) -> None:
    with Raw(bus.port) as raw:
        sender = raw.sender("q")
        with pytest.raises(Refused) as refused:
            sender.send(message("never", message_annotations={amqp.Symbol("x-opt-scheduled-enqueue-time"): when}))
        assert refused.value.condition == "amqp:invalid-field"
        sender.send(message("now"))


# --- credit


@pytest.mark.parametrize("delete", [False, True], ids=["peek-lock", "receive-and-delete"])
def test_a_boundless_credit_is_served_a_part_at_a_time_and_wholly(bus: Bus, delete: bool) -> None:
    with Raw(bus.port) as raw:
        raw.feed("q", *[str(number) for number in range(100)])
        receiver = raw.receiver("q", delete=delete)
        receiver.link.grant(0xFFFFFFFF)
        raw.until(lambda: len(receiver.end.deliveries) == 100)
        assert [arrival.text for arrival in receiver.end.deliveries] == [str(number) for number in range(100)]
        raw.feed("q", "one more")
        raw.until(lambda: len(receiver.end.deliveries) == 101)

        def rooms(server: object) -> list[int]:
            queue = server.contexts[0].namespace.entities["q"].queues  # type: ignore[attr-defined]
            return [consumer.room() for main in queue.values() for consumer in main.receivers.consumers]

        assert bus.inside(rooms) == [10], "of the four billion"


# --- silence


def test_a_silent_client_is_taken_for_dead_after_the_time_set_for_that(bus: Bus) -> None:
    with Raw(bus.port) as raw:
        raw.sender("q")
        bus.age_connections(1)  # notices that it spoke
        bus.age_connections(14)
        raw.quiet(0.1)
        assert not raw.hung_up and raw.events.closed_with is None
        bus.age_connections(2)
        with pytest.raises(Refused) as refused:
            raw.until(lambda: False)
        assert refused.value.condition == "amqp:connection:forced"
        assert "the idle timeout is 10000 ms" in str(refused.value)
