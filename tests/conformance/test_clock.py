"""Somebody sets the machine's clock: what lasts for a time lasts as long as before, instants are right again at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem import amqp
from tandem.model.clock import JUMP_MS, SystemClock
from tandem.server.server import Server
from tandem.testing import Bus
from tandem.testing.clock import ManualClock
from tests.conformance.raw import Raw, Refused, message, token_for

HOUR = 3_600
DAY = 24 * HOUR
JUMPS = [2 * HOUR, DAY, -2 * HOUR, -DAY, 2]
IDS = ["two-hours-ahead", "a-day-ahead", "two-hours-back", "a-day-back", "two-seconds-ahead"]


class Machine:
    """Wall and steady clock of a machine, to be set and to pass."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000.0
        self.steady = 500.0
        self.clock = SystemClock(lambda: int(self.wall * 1e9), lambda: int(self.steady * 1e9))

    def passes(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


def test_instants_are_counted_on_from_the_steady_clock_and_follow_the_wall_clock_when_asked() -> None:
    machine = Machine()
    clock = machine.clock
    machine.passes(10)
    assert (clock.now_ms(), clock.jumped()) == (1_700_000_010_000, 0)
    machine.wall += 2 * HOUR
    assert clock.now_ms() == 1_700_000_010_000, "not in the middle of something"
    assert clock.jumped() == 2 * HOUR * 1000
    assert clock.now_ms() == 1_700_000_010_000 + 2 * HOUR * 1000
    machine.wall -= DAY
    machine.passes(1)
    assert clock.jumped() == -DAY * 1000
    assert clock.now_ms() == int(machine.wall * 1000)
    assert clock.steady_ms() == 511_000


def test_drift_is_followed_a_little_at_a_time_and_is_no_jump() -> None:
    machine = Machine()
    clock = machine.clock
    machine.wall -= (JUMP_MS - 100) / 1000
    last = clock.now_ms()
    for _ in range(50):
        machine.passes(0.25)
        assert clock.jumped() == 0
        assert clock.now_ms() > last, "time never runs backwards for a drift"
        last = clock.now_ms()
    assert clock.now_ms() == int(machine.wall * 1000)


@pytest.fixture
def bus() -> Iterator[Bus]:
    with Bus(store_count=2) as bus:
        bus.create_queue("q", lock_duration=30)
        bus.create_queue("brief", default_message_time_to_live=60, dead_lettering_on_message_expiration=True)
        bus.create_queue("s", requires_session=True, lock_duration=30)
        bus.create_queue("once", requires_duplicate_detection=True, duplicate_detection_history_time_window=60)
        bus.create_queue("idle", auto_delete_on_idle=300)
        yield bus


def set_clock(bus: Bus, seconds: float) -> None:
    """As an administrator would, and the broker notices with its next look."""

    def jump(server: Server) -> None:
        clock = bus._clock
        assert isinstance(clock, ManualClock)
        clock.set_by(seconds)
        server.driver.run_housekeeping()

    bus.inside(jump)
    bus.advance(0)


def annotation(arrival: Any, name: str) -> int:
    return int(arrival.message.message_annotations[amqp.Symbol(name)])


@pytest.mark.parametrize("jump", JUMPS, ids=IDS)
def test_a_lock_lasts_as_long_as_before(bus: Bus, jump: int) -> None:
    with Raw(bus.port) as raw:
        raw.feed("q", "one")
        receiver = raw.receiver("q")
        receiver.receive()
        bus.advance(20)
        set_clock(bus, jump)
        bus.advance(9)
        receiver.link.grant(1)
        raw.quiet(0.1)
        assert receiver.end.deliveries == [], "it is still locked"
        set_clock(bus, -jump)
        bus.advance(2)
        raw.until(lambda: len(receiver.end.deliveries) == 1)
        assert receiver.end.deliveries[0].text == "one"


@pytest.mark.parametrize("jump", JUMPS, ids=IDS)
def test_a_lock_can_be_settled_and_renewed_after_the_clock_was_set(bus: Bus, jump: int) -> None:
    with Raw(bus.port) as raw:
        raw.feed("q", "one")
        receiver = raw.receiver("q")
        (arrival,) = receiver.receive()
        set_clock(bus, jump)
        status, reply = raw.request("q", "com.microsoft:renew-lock", {"lock-tokens": amqp.Array(0x98, [arrival.token])})
        assert status == 200
        answer: Any = reply.body
        assert int(answer["expirations"].values[0]) == int(bus.now.timestamp() * 1000) + 30_000
        receiver.settle(arrival, amqp.ACCEPTED)
        assert bus.counts("q").total == 0


@pytest.mark.parametrize("jump", JUMPS, ids=IDS)
def test_instants_that_clients_see_follow_the_clock(bus: Bus, jump: int) -> None:
    with Raw(bus.port) as raw:
        set_clock(bus, jump)
        now = int(bus.now.timestamp() * 1000)
        raw.feed("q", "one")
        (arrival,) = raw.receiver("q").receive()
        assert annotation(arrival, "x-opt-enqueued-time") == now
        assert annotation(arrival, "x-opt-locked-until") == now + 30_000


@pytest.mark.parametrize("jump", JUMPS, ids=IDS)
def test_a_message_lives_as_long_as_before(bus: Bus, jump: int) -> None:
    with Raw(bus.port) as raw:
        raw.feed("brief", "one")
        bus.advance(50)
        set_clock(bus, jump)
        assert bus.counts("brief").active == 1
        bus.advance(9)
        assert bus.counts("brief").active == 1
        bus.advance(2)
        assert (bus.counts("brief").active, bus.counts("brief").dead_lettered) == (0, 1)


@pytest.mark.parametrize("jump", JUMPS, ids=IDS)
def test_a_session_is_held_as_long_as_before(bus: Bus, jump: int) -> None:
    with Raw(bus.port) as raw, Raw(bus.port) as other:
        raw.feed("s", "one", session_id="a")
        holder = raw.receiver("s", session="a")
        holder.receive()
        set_clock(bus, jump)
        bus.advance(28)
        with pytest.raises(Refused) as refused:
            other.receiver("s", session="a")
        assert refused.value.condition == "com.microsoft:session-cannot-be-locked"
        bus.advance(3)
        other.receiver("s", session="a")


@pytest.mark.parametrize("jump", JUMPS, ids=IDS)
def test_duplicates_are_known_as_long_as_before(bus: Bus, jump: int) -> None:
    with Raw(bus.port) as raw:
        sender = raw.sender("once")
        sender.send(message("one", message_id="m"))
        bus.advance(30)
        set_clock(bus, jump)
        sender.send(message("again", message_id="m"))
        assert bus.counts("once").total == 1
        bus.advance(61)
        sender.send(message("later", message_id="m"))
        assert bus.counts("once").total == 2


def test_scheduled_messages_are_due_when_the_clock_says_so(bus: Bus) -> None:
    with Raw(bus.port) as raw:
        due = int(bus.now.timestamp() * 1000) + HOUR * 1000
        raw.feed("q", "later", message_annotations={amqp.Symbol("x-opt-scheduled-enqueue-time"): amqp.Timestamp(due)})
        bus.advance(60)
        set_clock(bus, -30 * 60)
        bus.advance(HOUR)
        assert bus.counts("q").scheduled == 1, "on the clock as it is now half an hour is left"
        set_clock(bus, HOUR)
        bus.advance(1)
        assert (bus.counts("q").scheduled, bus.counts("q").active) == (0, 1)


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["ahead", "back"])
def test_nothing_is_deleted_as_idle_because_the_clock_was_set(bus: Bus, jump: int) -> None:
    def there() -> bool:
        bus.inside(lambda server: server.driver.run_housekeeping())
        bus.advance(0)
        return bus.inside(lambda server: "idle" in server.contexts[0].namespace.entities)

    bus.advance(250)
    set_clock(bus, jump)
    bus.advance(200)
    assert there()
    bus.advance(200)
    deadline = time.monotonic() + 10
    while there():
        assert time.monotonic() < deadline, "five minutes after the clock was set it goes"


@pytest.mark.parametrize("jump", [DAY, -DAY], ids=["ahead", "back"])
def test_what_was_written_while_the_clock_was_wrong_lasts_as_long_after_a_restart(tmp_path: Path, jump: int) -> None:
    with Bus(store_count=1, data_dir=tmp_path) as bus:
        bus.create_queue("once", requires_duplicate_detection=True, duplicate_detection_history_time_window=60)
        bus.create_queue("brief", default_message_time_to_live=60)
        set_clock(bus, jump)
        with Raw(bus.port) as raw:
            raw.feed("once", "one", message_id="m")
            raw.feed("brief", "one")
        bus.advance(5)
        set_clock(bus, -jump)
        bus.restart()
        with Raw(bus.port) as raw:
            raw.feed("once", "again", message_id="m")
            assert (bus.counts("once").total, bus.counts("brief").total) == (1, 1)
            bus.advance(61)
            raw.feed("once", "later", message_id="m")
            assert (bus.counts("once").total, bus.counts("brief").total) == (2, 0)


def test_it_is_told(bus: Bus) -> None:
    set_clock(bus, 2 * HOUR)
    set_clock(bus, -2 * HOUR)
    assert [note for note in bus.notes if "clock of this machine was set 7200000 ms ahead" in note]
    assert [note for note in bus.notes if "clock of this machine was set 7200000 ms back" in note]
    events = bus.inside(lambda server: [(event["subject"], event["state"], event["cause"]) for event in server.events.of("")])
    assert ("clock", "set", "7200000 ms ahead") in events
    assert bus.inside(lambda server: server.clock_jumps) == 2


class ConnectionMachine(Machine):
    """For a broker whose connections run on this clock too."""

    def __init__(self) -> None:
        super().__init__()
        self.began = time.monotonic()
        self.set_by = 0.0
        self.clock = SystemClock(lambda: time.time_ns() + int(self.set_by * 1e9), time.monotonic_ns)


def with_machine(use: Callable[[Bus, ConnectionMachine], None]) -> None:
    machine = ConnectionMachine()
    bus = Bus(store_count=1)
    bus._connection_clock = machine.clock  # type: ignore[assignment]
    with bus:
        bus.create_queue("q")
        use(bus, machine)


def test_two_hours_ahead_for_a_moment_costs_nobody_anything() -> None:
    """The clock is wrong for a moment: whoever is connected stays, and afterwards tokens are good again at once."""

    def story(bus: Bus, machine: ConnectionMachine) -> None:
        with Raw(bus.port, user="") as raw:
            assert raw.put_token("q", token_for(raw.port, "q"))[0] == 202
            sender = raw.sender("q")
            machine.set_by = 2 * HOUR
            bus.inside(lambda server: server.driver.run_housekeeping())
            time.sleep(1.1)
            bus.inside(lambda server: server.driver.run_housekeeping())
            sender.send(message("during"))
            with Raw(bus.port, user="") as late:
                status, text = late.put_token("q", token_for(late.port, "q"))
                assert (status, "ExpiredToken" in text) == (401, True)
            machine.set_by = 0
            bus.inside(lambda server: server.driver.run_housekeeping())
            sender.send(message("after"))
            with Raw(bus.port, user="") as late:
                assert late.put_token("q", token_for(late.port, "q"))[0] == 202
                assert [one.text for one in late.receiver("q", delete=True).receive(2)] == ["during", "after"]

    with_machine(story)


def test_silence_is_not_measured_on_a_clock_that_somebody_sets() -> None:
    def story(bus: Bus, machine: ConnectionMachine) -> None:
        with Raw(bus.port) as raw:
            sender = raw.sender("q")
            for jump in (DAY, -DAY, 2 * HOUR):
                machine.set_by = jump
                bus.inside(lambda server: server.driver.run_housekeeping())
                sender.send(message("alive"))

    with_machine(story)
