"""The syphon's task, run here: what is moved, buried, left waiting, and in which order."""

from __future__ import annotations

import dataclasses
import multiprocessing
import multiprocessing.process
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from tandem.amqp import Symbol, decode_message, encode_message
from tandem.client.envelope import FENCE, PATH, TIME_TO_LIVE, wrap_payload
from tandem.engine_client.blocking import BATCH_FORMAT, BlockingSender, TransportError
from tandem.engine_client.message_encoding import encode_numbered_batch, encode_row
from tandem.spark.connector.claims import BatchClaims
from tandem.spark.connector.connections import connection, drop
from tandem.spark.connector.leased_batches import LeasedBatches
from tandem.spark.connector.options import Where
from tandem.spark.syphon.task import DestinationCount, SyphonTask, SyphonTaskSettings
from tests.acceptance.brokers import Broker
from tests.spark.conftest import where
from tests.spark.house import EXACT, connect, counts, create_queue, diverted, ids, send, take_all, verdict
from tests.waiting import wait_until


def settings(primary: Broker, secondary: Broker, timeout: int = 20, per_transfer: int = 50) -> SyphonTaskSettings:
    return SyphonTaskSettings(
        primary=where(primary, timeout), secondary=where(secondary, timeout), batch_messages=per_transfer, subtract_time_in_backlog=False
    )


class Backlog:
    """A backlog queue, its batches, and attempts at moving it."""

    def __init__(self, primary: Broker, secondary: Broker, queue: str, timeout: int = 20, per_transfer: int = 50) -> None:
        self.settings = settings(primary, secondary, timeout, per_transfer)
        self.secondary = secondary
        self.queue = queue
        self.batches = LeasedBatches(self.settings.secondary, 60, 60, 100_000)
        self.leases: list[tuple[str, int]] = []
        self.trouble = ""

    def lease(self) -> int:
        share = self.batches.take(self.queue, len(self.leases), {self.queue: 50_000}, 10**8, 10.0)[self.queue]
        self.leases.append((share.lease, share.count))
        return share.count

    def move(self, now_ms: int = 0, refusing: dict[str, int] | None = None) -> dict[str, DestinationCount]:
        task = SyphonTask(self.settings, self.queue, now_ms, refusing)
        found = {count.path: count for count in task.run(self.leases)}
        self.trouble = task.trouble
        return found

    def close(self) -> None:
        self.batches.close()
        drop(self.settings.primary)
        drop(self.settings.secondary)


@pytest.fixture
def backlog(west: Broker, east: Broker, name: str) -> Iterator[Backlog]:
    create_queue(east, name)
    found = Backlog(west, east, name)
    yield found
    found.close()


def test_a_worker_that_runs_task_after_task_keeps_no_links(backlog: Backlog, west: Broker, east: Broker, name: str) -> None:
    create_queue(west, name)
    for round_ in range(20):
        send(east, name, diverted(2, name, f"{round_}-"))
        backlog.lease()
        assert backlog.move()[name].moved == 2
    assert len(connection(backlog.settings.primary).session.links) < 10


def test_messages_arrive_once_in_order_and_as_they_were(west: Broker, east: Broker, backlog: Backlog, name: str) -> None:
    create_queue(west, f"{name}-a", requires_session=True)
    create_queue(west, f"{name}-b")
    original = encode_row(b"body", "whole", session_id="s", subject="hello", time_to_live_ms=3_600_000, application_properties={"n": 1})
    send(east, name, [wrap_payload(original, f"{name}-a", 1)])
    send(east, name, diverted(2_500, f"{name}-a", "a", sessions=7))
    send(east, name, diverted(2_500, f"{name}-b", "b"))
    backlog.lease()
    moved = backlog.move()
    assert {path: count.moved for path, count in moved.items()} == {f"{name}-a": 2_501, f"{name}-b": 2_500}
    there = take_all(west, f"{name}-a")
    by_session: dict[str, list[int]] = {}
    for session, message_id in zip(there.column("session_id") or [], ids(there), strict=True):
        if message_id != "whole":
            by_session.setdefault(session, []).append(int(message_id[1:]))
    assert all(numbers == sorted(numbers) for numbers in by_session.values())
    place = ids(there).index("whole")
    assert (there.column("subject") or [])[place] == "hello"
    assert (there.column("time_to_live_ms") or [])[place] == 3_600_000
    assert (there.column("application_properties") or [])[place] == [("n", "1")]
    plain = ids(take_all(west, f"{name}-b"))
    assert plain == [f"b{n}" for n in range(2_500)]
    assert counts(east, name)["total"] == 0


def test_poison_is_buried_with_its_reason_and_stops_nothing(west: Broker, east: Broker, backlog: Backlog, name: str) -> None:
    create_queue(west, f"{name}-to")
    create_queue(west, f"{name}-sessions", requires_session=True)
    good = list(diverted(10, f"{name}-to", "good"))
    send(
        east,
        name,
        [
            *good[:5],
            encode_row(b"", "no-path"),
            encode_message(properties={"message-id": "bad-path"}, application_properties={PATH: 5}, body=b""),
            encode_message(properties={"message-id": "bad-ttl"}, application_properties={PATH: "x", TIME_TO_LIVE: True}, body=b""),
            wrap_payload(encode_row(b"", "nowhere"), "no/such/queue", 1),
            wrap_payload(encode_row(b"", "no-session"), f"{name}-sessions", 1),
            wrap_payload(encode_row(b"", "with-session", session_id="s"), f"{name}-sessions", 1),
            *good[5:],
        ],
        per_transfer=1,
    )
    backlog.settings = dataclasses.replace(backlog.settings, destination_wait_ms=0)
    backlog.lease()
    backlog.move()
    assert ids(take_all(west, f"{name}-to")) == [f"good{n}" for n in range(10)]
    assert ids(take_all(west, f"{name}-sessions")) == ["with-session"]
    dead = take_all(east, f"{name}/$DeadLetterQueue")
    reasons = dict(zip(ids(dead), dead.column("dead_letter_reason") or [], strict=True))
    assert reasons == {
        "no-path": "no queue path",
        "bad-path": "no queue path",
        "bad-ttl": "property extraction",
        "nowhere": "not retryable",
        "no-session": "not retryable",
    }
    said = dict(zip(ids(dead), dead.column("dead_letter_description") or [], strict=True))
    assert "no/such/queue" in said["nowhere"] and "amqp:not-found" in said["nowhere"]
    assert "x-ms-timetolive" in said["bad-ttl"]


@pytest.mark.parametrize("how", ["disabled", "missing"])
def test_a_destination_that_is_disabled_or_missing_is_waited_for_as_long_as_the_setting_says(
    west: Broker, east: Broker, backlog: Backlog, name: str, how: str
) -> None:
    create_queue(west, f"{name}-up")
    if how == "disabled":
        create_queue(west, f"{name}-to", status="SendDisabled")
    send(east, name, diverted(30, f"{name}-to", "m"))
    send(east, name, diverted(5, f"{name}-up", "u"))
    backlog.settings = dataclasses.replace(backlog.settings, destination_wait_ms=60_000)
    backlog.lease()
    moved = backlog.move(now_ms=1_000_000)
    assert moved[f"{name}-up"].moved == 5
    waiting = moved[f"{name}-to"]
    assert (waiting.moved, waiting.waiting, waiting.dead_lettered, waiting.trouble) == (0, 30, 0, "destination")
    assert backlog.move(1_059_999, {f"{name}-to": 1_000_000})[f"{name}-to"].waiting == 30
    if how == "missing":
        create_queue(west, f"{name}-to")
        assert backlog.move(1_060_000, {f"{name}-to": 1_000_000})[f"{name}-to"].moved == 30
        assert ids(take_all(west, f"{name}-to")) == [f"m{n}" for n in range(30)]
    else:
        assert backlog.move(1_060_000, {f"{name}-to": 1_000_000})[f"{name}-to"].dead_lettered == 30
        assert len(take_all(east, f"{name}/$DeadLetterQueue")) == 30


def test_one_refused_message_of_a_transfer_is_found_and_the_order_of_the_others_kept(
    west: Broker, east: Broker, backlog: Backlog, name: str
) -> None:
    create_queue(west, f"{name}-to", requires_session=True)
    payloads = [wrap_payload(encode_row(b"", f"m{n}", session_id=None if n in (20, 77) else "s"), f"{name}-to", 1) for n in range(120)]
    send(east, name, payloads)
    backlog.lease()
    count = backlog.move()[f"{name}-to"]
    assert (count.moved, count.dead_lettered, count.waiting) == (118, 2, 0)
    assert ids(take_all(west, f"{name}-to")) == [f"m{n}" for n in range(120) if n not in (20, 77)]


def test_a_wrong_key_for_the_primary_leaves_everything_waiting(west: Broker, east: Broker, name: str) -> None:
    create_queue(west, f"{name}-to")
    create_queue(east, name)
    send(east, name, diverted(5, f"{name}-to"))
    backlog = Backlog(west, east, name)
    wrong = Where(connection_string=west.string_for("RootManageSharedAccessKey", "wrong"), ca_file=None, timeout_seconds=20)
    backlog.settings = dataclasses.replace(backlog.settings, primary=wrong)
    try:
        backlog.lease()
        count = backlog.move()[f"{name}-to"]
        assert (count.moved, count.dead_lettered, count.waiting) == (0, 0, 5)
        assert "unauthorized" in count.reason
        assert counts(east, name)["leased"] == 5
    finally:
        backlog.close()


@pytest.mark.slow
def test_primary_killed_and_back_nothing_is_lost_and_repeats_are_dropped(mortal: Broker, east: Broker, name: str) -> None:
    create_queue(mortal, "orders", requires_duplicate_detection=True)
    create_queue(east, name)
    total = 6_000
    send(east, name, diverted(total, "orders", "m", size=1_000))
    backlog = Backlog(mortal, east, name, timeout=5)
    try:
        assert backlog.lease() == total
        killer = threading.Thread(target=_kill_when_some_moved, args=(mortal, east, name, total))
        killer.start()
        first = backlog.move()["orders"]
        killer.join()
        assert 0 < first.moved < total, "the kill came in the middle"
        assert first.waiting > 0
        second = backlog.move()["orders"]
        assert (second.moved, second.dead_lettered) == (0, 0)
        assert "connect" in second.reason
        mortal.start()
        last = backlog.move()["orders"]
        assert last.waiting == 0
        assert verdict((f"m{n}" for n in range(total)), ids(take_all(mortal, "orders"))) == EXACT
        assert counts(east, name)["total"] == 0
    finally:
        backlog.close()


def _kill_when_some_moved(primary: Broker, secondary: Broker, queue: str, total: int) -> None:
    while counts(secondary, queue)["total"] == total:
        pass
    primary.kill()


@pytest.mark.slow
def test_secondary_killed_in_between_the_task_waits_and_goes_on(west: Broker, mortal: Broker, name: str) -> None:
    create_queue(west, name, requires_duplicate_detection=True)
    create_queue(mortal, "backlog")
    total = 6_000
    send(mortal, "backlog", diverted(total, name, "m", size=1_000))
    backlog = Backlog(west, mortal, "backlog", timeout=60)
    try:
        backlog.lease()
        reviver = threading.Thread(target=_kill_and_revive, args=(mortal, total))
        reviver.start()
        count = backlog.move()[name]
        reviver.join()
        assert backlog.trouble == ""
        assert count.waiting == 0
        assert verdict((f"m{n}" for n in range(total)), ids(take_all(west, name))) == EXACT
        assert counts(mortal, "backlog")["total"] == 0
    finally:
        backlog.close()


def _kill_and_revive(broker: Broker, total: int) -> None:
    while counts(broker, "backlog")["total"] == total:
        pass
    broker.kill()
    broker.start()


def test_a_lapsed_lease_moves_nothing_and_says_so(west: Broker, east: Broker, backlog: Backlog, name: str) -> None:
    create_queue(west, f"{name}-to")
    send(east, name, diverted(3, f"{name}-to"))
    backlog.lease()
    backlog.batches.request(name, "com.tandem:abandon-lease", {"lease-id": backlog.leases[0][0]})
    assert backlog.move() == {}
    assert "com.tandem:lease-lost" in backlog.trouble
    assert counts(east, name)["active"] == 3


def ordered(count: int, path: str, prefix: str, session: str, after: str = "") -> list[bytes]:
    return [
        wrap_payload(encode_row(b"x", f"{prefix}{number}", session_id=session), path, 1, after) for number in range(count)
    ]  # fmt: skip


def fence(path: str) -> bytes:
    parts = decode_message(encode_row(b"", "fence"))
    parts.application_properties[PATH] = path
    parts.message_annotations[Symbol(FENCE)] = "1"
    return parts.encode()


def test_a_fence_goes_when_all_before_it_are_home_and_never_home_itself(west: Broker, east: Broker, backlog: Backlog, name: str) -> None:
    create_queue(west, f"{name}-a")
    send(east, name, [*ordered(3, f"{name}-a", "a", "s"), fence(f"{name}-a"), *ordered(2, f"{name}-a", "b", "s"), fence(f"{name}-a")])
    backlog.lease()
    moved = backlog.move()
    assert moved[f"{name}-a"].moved == 5
    assert ids(take_all(west, f"{name}-a")) == ["a0", "a1", "a2", "b0", "b1"]
    assert counts(east, name)["active"] + counts(east, name)["leased"] == 0


def test_a_session_waits_for_what_another_syphon_has_of_it_and_its_fence_too(
    west: Broker, east: Broker, backlog: Backlog, name: str
) -> None:
    create_queue(west, f"{name}-a")
    send(east, name, [*ordered(2, f"{name}-a", "a", "s")])
    other = LeasedBatches(backlog.settings.secondary, 60, 60, 100_000)
    theirs = other.take(f"{name}-other", 0, {name: 1}, 10**8, 10.0)[name]
    send(east, name, [*ordered(1, f"{name}-a", "b", "t"), fence(f"{name}-a")])
    backlog.lease()
    backlog.move()
    assert ids(take_all(west, f"{name}-a")) == ["b0"]
    assert counts(east, name)["leased"] == 3, "a0 in other hands, a1 and the fence behind it"
    other.request(name, "com.tandem:complete-lease", {"lease-id": theirs.lease})
    other.close()
    backlog.move()
    assert ids(take_all(west, f"{name}-a")) == ["a1"]
    assert counts(east, name)["leased"] == 0


def test_a_session_that_changed_queues_waits_for_the_one_it_came_from(west: Broker, east: Broker, name: str) -> None:
    create_queue(west, f"{name}-a")
    queues = [f"{name}/x-servicebus-transfer/{number}" for number in range(2)]
    backlogs = []
    for queue in queues:
        create_queue(east, queue)
        backlogs.append(Backlog(west, east, queue))
    send(east, queues[1], ordered(2, f"{name}-a", "a", "s"))
    send(east, queues[0], ordered(2, f"{name}-a", "b", "s", after="1") + ordered(1, f"{name}-a", "c", "t"))
    for found in backlogs:
        found.lease()
    backlogs[0].move()
    assert ids(take_all(west, f"{name}-a")) == ["c0"]
    backlogs[1].move()
    backlogs[0].move()
    assert ids(take_all(west, f"{name}-a")) == ["a0", "a1", "b0", "b1"]
    for found in backlogs:
        found.close()


def attempt(settings: SyphonTaskSettings, queue: str, leases: tuple[tuple[str, int], ...]) -> int:
    """One attempt at a task, in a process of its own as Spark's are: how many messages it sent."""
    return sum(count.moved for count in SyphonTask(settings, queue, 0).run(leases))


@pytest.mark.slow
def test_of_two_attempts_at_one_task_one_sends_and_the_other_waits(west: Broker, east: Broker, backlog: Backlog, name: str) -> None:
    """As with `spark.speculation`: without claims both read the same lease and both send, and this queue drops no duplicates."""
    create_queue(west, f"{name}-a")
    send(east, name, diverted(5_000, f"{name}-a"))
    backlog.lease()
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        attempts = [pool.submit(attempt, backlog.settings, name, tuple(backlog.leases)) for _ in range(2)]
        moved = [one.result(90) for one in attempts]
    assert sorted(moved) == [0, 5_000]
    assert verdict((f"m{n}" for n in range(5_000)), ids(take_all(west, f"{name}-a"))) == EXACT


def stop_and_go_on(process: multiprocessing.process.BaseProcess, stop: int) -> None:
    assert process.pid is not None
    os.kill(process.pid, stop)


@pytest.mark.slow
@pytest.mark.parametrize("messages", [150, 400, 700])
def test_an_attempt_that_is_stopped_in_the_middle_and_goes_on_later_doubles_nothing(
    west: Broker, east: Broker, backlog: Backlog, name: str, messages: int
) -> None:
    """Wherever it was: with a transfer under way, or accepted and not yet noted in the backlog. This queue drops no duplicates."""
    create_queue(west, f"{name}-a")
    send(east, name, diverted(2_000, f"{name}-a"))
    backlog.lease()
    backlog.settings = dataclasses.replace(backlog.settings, batch_messages=3, claim_ms=1_500)
    arguments = (backlog.settings, name, tuple(backlog.leases))
    stalled = multiprocessing.get_context("spawn").Process(target=attempt, args=arguments, daemon=True)
    stalled.start()
    with connect(west) as client:
        wait_until(lambda: int(client.request(f"{name}-a", "com.tandem:message-counts", {})["total"]) >= messages, "half of them", 60)
    stop_and_go_on(stalled, signal.SIGSTOP)
    assert backlog.move()[f"{name}-a"].moved > 0
    stop_and_go_on(stalled, signal.SIGCONT)
    stalled.join(60)
    assert stalled.exitcode is not None
    assert verdict((f"m{n}" for n in range(2_000)), ids(take_all(west, f"{name}-a"))) == EXACT


def test_messages_with_numbers_are_stored_once_whoever_sends_them(west: Broker, name: str) -> None:
    """The one of a stopped process reaches the broker long after another has sent some of the same, in other batches."""
    create_queue(west, f"{name}-a")
    payloads = {number: encode_message(properties={"message-id": f"m{number}"}, body=[b"x"]) for number in range(9)}

    def post(sender: BlockingSender, scope: str, *numbers: int) -> None:
        sender.send(encode_numbered_batch(scope, numbers, [payloads[number] for number in numbers]), numbers, BATCH_FORMAT)

    with connect(west) as first, connect(west) as second:
        late, sender = first.sender(f"{name}-a", once=True), second.sender(f"{name}-a", once=True)
        assert late.once and sender.once
        post(late, "lease", 0, 1, 2, 3)
        late.drain()
        for numbers in ((2, 3, 4), (4, 5)):
            post(sender, "lease", *numbers)
            sender.drain()
        post(late, "lease", 5, 6)
        late.drain()
        post(late, "another lease", 7)
        post(late, "lease", 7)
        late.drain()
        plain = second.sender(f"{name}-a")
        assert not plain.once
        plain.send(payloads[8])
        plain.drain()
        assert [len(one.failed) for one in (late, sender, plain)] == [0, 0, 0]
    assert sorted(ids(take_all(west, f"{name}-a"))) == ["m0", "m1", "m2", "m3", "m4", "m5", "m6", "m7", "m7", "m8"]


def test_a_dead_attempts_claim_is_taken_over_and_a_stalled_one_sends_nothing_when_it_goes_on(
    west: Broker, east: Broker, backlog: Backlog, name: str
) -> None:
    create_queue(west, f"{name}-a")
    send(east, name, diverted(300, f"{name}-a"))
    backlog.lease()
    ((lease, _),) = backlog.leases
    stalled = BatchClaims(backlog.settings.secondary, name, claim_ms=1_500)
    stalled._keeper = threading.Thread()  # a stopped process keeps nothing
    stalled.take(lease)
    stalled.check()
    began = time.monotonic()
    assert backlog.move()[f"{name}-a"].moved == 300
    assert time.monotonic() - began > 1, "only after the claim had lapsed"
    backlog.batches.request(name, "com.tandem:complete-lease", {"lease-id": lease})
    with pytest.raises(TransportError, match="lease"):
        stalled.check()
    assert verdict((f"m{n}" for n in range(300)), ids(take_all(west, f"{name}-a"))) == EXACT


def test_a_stalled_attempt_is_told_that_another_has_its_lease(west: Broker, east: Broker, backlog: Backlog, name: str) -> None:
    send(east, name, diverted(3, f"{name}-a"))
    backlog.lease()
    ((lease, _),) = backlog.leases
    stalled, other = (BatchClaims(backlog.settings.secondary, name, claim_ms=ms) for ms in (500, 30_000))
    stalled._keeper = threading.Thread()
    stalled.take(lease)
    other.take(lease)
    with pytest.raises(TransportError, match="in the hands of attempt"):
        stalled.check()
    other.check()
    other.release()
