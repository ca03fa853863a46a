"""Ten times as much of anything costs about ten times as much: one peer's many links do not become everybody's long wait."""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Callable, Iterator

import pytest

from tandem import amqp
from tandem.amqp.numbers import Numbers
from tandem.model.limits import Limits
from tandem.server.sas import Grant, Grants
from tandem.testing import Bus
from tests.conformance.raw import SESSION_FILTER, End, Raw, message

LIMITS = Limits(
    links_per_session_max=60_000,
    channels_max=60_000,
    unsettled_deliveries_per_link_max=100_000,
    management_requests_in_flight_max=100_000,
)
TIMES_DEARER_MAX = 18
"""Ten would be a straight line, a hundred a square; the rest is room for caches, sorting and a noisy machine."""


@pytest.fixture
def bus() -> Iterator[Bus]:
    with Bus(store_count=1, limits=LIMITS) as bus:
        bus.create_queue("q")
        bus.create_queue("s", requires_session=True)
        yield bus


def connect(bus: Bus) -> Raw:
    return Raw(bus.port, handle_max=100_000, channel_max=60_000, incoming_window=1_000_000)


def cpu_seconds(work: Callable[[], None]) -> float:
    """The processor time of client and broker, which share this process. Other programs take caches away, but no time."""
    gc.collect()
    gc.disable()
    began = time.process_time()
    try:
        work()
        return time.process_time() - began
    finally:
        gc.enable()


def must_grow_straight(cost: Callable[[int], float], n: int) -> None:
    """The least of some measurements counts, since others on the machine can only make it dearer: a square is one every time."""
    few, many = cost(n), cost(10 * n)
    for _ in range(4):
        few, many = min(few, cost(n)), min(many, cost(10 * n))
        if many < few * TIMES_DEARER_MAX:
            return
    raise AssertionError(f"{n}: {few:.3f} s, {10 * n}: {many:.3f} s")


def links_leave_backwards(bus: Bus, raw: Raw, n: int, address: str = "$cbs", credit: int = 0) -> None:
    ends = [End() for _ in range(n)]
    links = [
        raw.session.attach_receiver(str(uuid.uuid4()), amqp.Terminus(address), amqp.Terminus("here"), end, snd_settle_mode=1)
        for end in ends
    ]
    for link in links if credit else ():
        link.grant(credit)
    raw.until(lambda: ends[-1].attached)
    for link in reversed(links):
        link.detach()
    raw.until(lambda: ends[0].gone)


def receivers_with_credit_leave_backwards(bus: Bus, raw: Raw, n: int) -> None:
    links_leave_backwards(bus, raw, n, "q", 1)


def sessions_end_backwards(bus: Bus, raw: Raw, n: int) -> None:
    sessions = [raw.engine.begin() for _ in range(n)]
    for session in reversed(sessions):
        session.end()
    raw.until(lambda: not any(session.channel in raw.engine.sessions for session in (sessions[0], sessions[-1])))


def requests_beside_many_links(bus: Bus, raw: Raw, n: int) -> None:
    """Each answer finds its link among all that were opened for answers."""
    end = End()
    for _ in range(n):
        raw.session.attach_receiver(str(uuid.uuid4()), amqp.Terminus("$cbs"), amqp.Terminus("here"), end, snd_settle_mode=1)
    last = raw.receiver("$cbs", delete=True)
    last.link.grant(2 * n)
    sender = raw.sender("$cbs")
    request = amqp.encode_message(properties={"message-id": "1"}, application_properties={"operation": "none"}, body=None, body_kind=0x77)
    for _ in range(n):
        sender.start(request, settled=True)
    raw.until(lambda: len(last.end.deliveries) == n)


def answers_leave_through_a_narrow_window(bus: Bus, raw: Raw, n: int) -> None:
    """All answers wait; then the window opens for one at a time."""
    narrow = raw.engine.begin()
    narrow.incoming_left, narrow.incoming_low = 0, -1_000_000  # it is not opened by itself
    end = End()
    narrow.attach_receiver(str(uuid.uuid4()), amqp.Terminus("$cbs"), amqp.Terminus("here"), end, snd_settle_mode=1)
    raw.until(lambda: end.attached)
    narrow.send_flow()
    sender_end = End()
    sender = narrow.attach_sender(str(uuid.uuid4()), amqp.Terminus("here"), amqp.Terminus("$cbs"), sender_end)
    raw.until(lambda: sender_end.attached)
    request = amqp.encode_message(properties={"message-id": "1"}, application_properties={"operation": "none"}, body=None, body_kind=0x77)
    for _ in range(n):
        sender.send(request, b"t", True, None)
    raw.until(lambda: not narrow.waiting)
    raw.receiver("q", delete=True)  # its attach is answered after the requests were
    taken = narrow.next_incoming_id
    for number in range(n):
        narrow.incoming_left = 1
        narrow.next_incoming_id = taken + number
        narrow.send_flow()
    narrow.next_incoming_id = taken
    raw.until(lambda: len(end.deliveries) == n)


def deliveries_settled_backwards(bus: Bus, raw: Raw, n: int) -> None:
    raw.feed("q", *["x"] * n)
    receiver = raw.receiver("q")
    arrivals = receiver.receive(n)
    for arrival in reversed(arrivals):
        raw.session.send_disposition(True, arrival.delivery_id, arrival.delivery_id, False, amqp.ACCEPTED)
    raw.until(lambda: len(receiver.end.outcomes) == n)


def links_leave_with_deliveries_in_hand(bus: Bus, raw: Raw, n: int) -> None:
    """Each link holds one message when it is detached."""
    raw.feed("q", *["x"] * n)
    ends = [End() for _ in range(n)]
    links = [raw.session.attach_receiver(str(uuid.uuid4()), amqp.Terminus("q"), amqp.Terminus("here"), end, 0, 1) for end in ends]
    for link in links:
        link.grant(1)
    raw.until(lambda: all(end.deliveries for end in ends))
    for end in ends:
        raw.session.send_disposition(True, end.deliveries[0].delivery_id, end.deliveries[0].delivery_id, True, amqp.RELEASED)
    for link in links:
        link.detach()
    raw.until(lambda: ends[-1].gone)
    links_leave_backwards(bus, raw, 1, "q")
    drained = raw.receiver("q", delete=True)
    assert len(drained.receive(n)) == n


def many_wait_for_a_session_and_leave_backwards(bus: Bus, raw: Raw, n: int) -> None:
    links = [raw.receiver("s", session=None, wait=False) for _ in range(n)]
    raw.flush()
    for receiver in reversed(links):
        receiver.link.detach()
    raw.until(lambda: links[0].end.gone)


def each_session_gets_its_message(bus: Bus, raw: Raw, n: int) -> None:
    """Holders with credit, and a message for each: nobody else is asked when one arrives."""
    wanted = [{amqp.Symbol(SESSION_FILTER): f"{n}-{number}"} for number in range(n)]
    ends = [End() for _ in range(n)]
    for end, one in zip(ends, wanted, strict=True):
        name = str(uuid.uuid4())
        link = raw.session.attach_receiver(name, amqp.Terminus("s", filter=one), amqp.Terminus("here"), end, snd_settle_mode=1)
        link.grant(1)
    raw.until(lambda: ends[-1].attached)
    sender = raw.sender("s")
    for number, end in enumerate(ends):
        sender.start(message("x", session_id=f"{n}-{number}"))
        if number % 20 == 0:
            raw.until(lambda end=end: bool(end.deliveries))  # type: ignore[misc]
    raw.until(lambda: all(end.deliveries for end in ends))


def free_sessions_are_accepted_in_turn(bus: Bus, raw: Raw, n: int) -> None:
    sender = raw.sender("s")
    for number in range(n):
        sender.start(message("x", session_id=f"free-{n}-{number}"))
    raw.until(lambda: len(sender.end.outcomes) == n)
    receivers = [raw.receiver("s", delete=True, session=None, wait=False) for _ in range(n)]
    raw.until(lambda: all(receiver.end.attached for receiver in receivers))
    for receiver in receivers:
        receiver.link.grant(1)
    raw.until(lambda: all(receiver.end.deliveries for receiver in receivers))


def the_window_opens_and_shuts(bus: Bus, raw: Raw, n: int) -> None:
    """n flows beside n links that want nothing."""
    end = End()
    for _ in range(n):
        raw.session.attach_receiver(str(uuid.uuid4()), amqp.Terminus("q"), amqp.Terminus("here"), end, snd_settle_mode=1)
    raw.receiver("q", delete=True)
    session = raw.session
    for number in range(n):
        session.incoming_left = number & 1
        session.send_flow()
    session.incoming_left = 1_000_000
    session.send_flow()
    raw.receiver("q", delete=True)


STORIES = [
    (links_leave_backwards, 1_500),
    (receivers_with_credit_leave_backwards, 1_000),
    (sessions_end_backwards, 1_000),
    (requests_beside_many_links, 700),
    (answers_leave_through_a_narrow_window, 1_500),
    (deliveries_settled_backwards, 1_000),
    (links_leave_with_deliveries_in_hand, 1_000),
    (many_wait_for_a_session_and_leave_backwards, 1_000),
    (each_session_gets_its_message, 600),
    (free_sessions_are_accepted_in_turn, 900),
    (the_window_opens_and_shuts, 800),
]


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("story", "n"), STORIES, ids=[story.__name__.replace("_", "-") for story, _ in STORIES])
def test_ten_times_as_much_costs_about_ten_times_as_much(bus: Bus, story: Callable[[Bus, Raw, int], None], n: int) -> None:
    def cost(count: int) -> float:
        with connect(bus) as raw:
            return cpu_seconds(lambda: story(bus, raw, count))

    must_grow_straight(cost, n)


def test_tokens_for_many_entities_are_found_by_what_they_cover() -> None:
    def fill_and_empty(n: int) -> None:
        grants = Grants()
        for number in range(n):
            grants.add(Grant(frozenset(), 1, f"queue-{number}", "key"))
        for number in range(n):
            assert [grant.scope for grant in grants.covering(f"queue-{number}/$deadletterqueue")] == [f"queue-{number}"]
        assert len(grants) == n
        grants.drop_expired(1)
        assert len(grants) == 0 and grants.next_expiry() == 0

    must_grow_straight(lambda n: cpu_seconds(lambda: fill_and_empty(n)), 5_000)


def test_numbers_cost_the_same_however_many_are_in_use() -> None:
    numbers = Numbers()
    assert [numbers.take(-1, 9) for _ in range(3)] == [0, 1, 2]
    assert numbers.take(7, 9) == 7
    numbers.give_back(1)
    assert (numbers.take(7, 9), numbers.take(-1, 9), numbers.take(12, 9)) == (1, 3, 4)
    for _ in range(1000):
        numbers.give_back(numbers.take(7, 9))
    assert len(numbers._spare) <= 8
