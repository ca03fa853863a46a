"""Batch leases over the wire, with a broker that is killed in between."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem import amqp
from tandem.engine_client.blocking import BlockingClient, TransportError
from tandem.engine_client.message_encoding import encode_row
from tandem.engine_client.message_rows import MessageRows
from tandem.spark.connector.lease_reading import unpack
from tests.acceptance.brokers import Broker
from tests.spark.house import administration, connect, counts, create_queue, send

MINUTE = 60_000


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[Broker]:
    broker = Broker(module_path, "lease").start()
    yield broker
    broker.stop()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path, "mortal").start()
    yield broker
    broker.stop()


@pytest.fixture
def client(broker: Broker) -> Iterator[BlockingClient]:
    with connect(broker) as client:
        yield client


@pytest.fixture
def queue(broker: Broker) -> str:
    name = f"q{uuid.uuid4().hex[:10]}"
    create_queue(broker, name)
    return name


def lease(client: BlockingClient, queue: str, lease_id: str = "one", most: int = 1_000, **more: object) -> dict[str, Any] | None:
    body = {"lease-id": lease_id, "max-messages": most, "max-bytes": 10**8, "duration-ms": MINUTE, **more}
    return client.request(queue, "com.tandem:lease-batch", body)


def ids_in(client: BlockingClient, queue: str, lease_id: str = "one", **more: object) -> list[str]:
    page = client.request(queue, "com.tandem:read-lease", {"lease-id": lease_id, "skip": 0, "top": 1_000, "packed": True, **more})
    rows = MessageRows()
    for stamp, payload in unpack(page["stamps"], page["payloads"]) if page is not None else []:
        rows.add(payload, stamp)
    return rows.column("message_id") or []


def settle(client: BlockingClient, queue: str, lease_id: str = "one", **parts: object) -> dict[str, Any]:
    answer = client.request(
        queue, "com.tandem:settle-lease-part", {"lease-id": lease_id, **{k.replace("_", "-"): v for k, v in parts.items()}}
    )
    assert answer is not None
    return answer


def numbered(count: int) -> list[bytes]:
    return [encode_row(b"body", f"m{number}") for number in range(count)]


@pytest.mark.slow
def test_a_long_poll_gets_the_message_that_comes_while_it_waits(broker: Broker, client: BlockingClient, queue: str) -> None:
    late = threading.Timer(0.3, lambda: send(broker, queue, numbered(1)))
    late.start()
    found = lease(client, queue, **{"wait-ms": 20_000})
    late.join()
    assert found is not None
    assert (found["message-count"], found["ranges"]) == (1, "1")


def test_a_long_poll_ends_empty_when_nothing_comes(client: BlockingClient, queue: str) -> None:
    assert lease(client, queue, **{"wait-ms": 50}) is None


def test_a_waiting_client_that_hung_up_gets_nothing(broker: Broker, client: BlockingClient, queue: str) -> None:
    gone = connect(broker)
    gone.post(
        queue, "com.tandem:lease-batch", {"lease-id": "g", "max-messages": 9, "max-bytes": 99, "duration-ms": MINUTE, "wait-ms": MINUTE}, 5
    )
    gone.pump(0.2)
    gone.close()
    send(broker, queue, numbered(1))
    found = lease(client, queue, "mine", **{"wait-ms": 10_000})
    assert found is not None
    assert found["message-count"] == 1


def test_packed_and_plain_pages_hold_the_same_messages(broker: Broker, client: BlockingClient, queue: str) -> None:
    send(broker, queue, [encode_row(b"x" * 500, f"m{n}", subject="s", partition_key="p", time_to_live_ms=90_000) for n in range(20)])
    lease(client, queue)
    plain = client.request(queue, "com.tandem:read-lease", {"lease-id": "one", "skip": 5, "top": 10})
    packed = client.request(queue, "com.tandem:read-lease", {"lease-id": "one", "skip": 5, "top": 10, "packed": True})
    assert plain is not None and packed is not None
    assert plain["next"] == packed["next"] == 15
    one, other = MessageRows(), MessageRows()
    for payload in plain["messages"]:
        one.add(payload)
    for stamp, payload in unpack(packed["stamps"], packed["payloads"]):
        other.add(payload, stamp)
    for name in MessageRows.COLUMNS:
        assert one.column(name) == other.column(name), name


def test_a_page_ends_where_a_reply_is_full_and_says_where_to_go_on(broker: Broker, client: BlockingClient, queue: str) -> None:
    send(broker, queue, [encode_row(b"x" * 200_000, f"m{n}") for n in range(25)], per_transfer=1)
    lease(client, queue)
    seen, at = 0, 0
    while at < 25:
        page = client.request(queue, "com.tandem:read-lease", {"lease-id": "one", "skip": at, "top": 1_000, "packed": True})
        assert page is not None
        assert page["next"] > at
        seen += len(unpack(page["stamps"], page["payloads"]))
        at = page["next"]
    assert seen == 25


def test_a_lapsed_lease_is_taken_again_whole_or_not_at_all(broker: Broker, client: BlockingClient, queue: str) -> None:
    send(broker, queue, numbered(6))
    found = lease(client, queue, most=4)
    assert found is not None and found["ranges"] == "1-4"
    client.request(queue, "com.tandem:abandon-lease", {"lease-id": "one"})
    again = lease(client, queue, ranges="1-4")
    assert again is not None and again["ranges"] == "1-4"
    assert ids_in(client, queue) == ["m0", "m1", "m2", "m3"]
    client.request(queue, "com.tandem:abandon-lease", {"lease-id": "one"})
    lease(client, queue, "other", most=1)
    with pytest.raises(TransportError, match=r"com.tandem:lease-lost.*1 of its 4 messages"):
        lease(client, queue, ranges="1-4")
    assert counts(broker, queue)["leased"] == 1


def test_parts_are_settled_dead_lettered_and_returned_and_the_rest_stays(broker: Broker, client: BlockingClient, queue: str) -> None:
    send(broker, queue, numbered(6))
    lease(client, queue)
    answer = settle(
        client, queue, completed="1-2", returned=BlockingClient.longs([3]),
        dead_lettered=[{"sequence-number": 4, "reason": "not retryable", "description": "why"}],
    )  # fmt: skip
    assert answer == {"completed": 2, "returned": 1, "dead-lettered": 1, "remaining": 2}
    assert settle(client, queue, completed="1-4") == {"completed": 0, "returned": 0, "dead-lettered": 0, "remaining": 2}
    with pytest.raises(TransportError, match="cannot be read whole"):
        ids_in(client, queue)
    assert ids_in(client, queue, remaining=True) == ["m4", "m5"]
    assert {name: counts(broker, queue)[name] for name in ("active", "leased")} == {"active": 1, "leased": 2}
    rows = MessageRows()
    dead = client.request(
        f"{queue}/$DeadLetterQueue", "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": client.int32(5)}
    )
    assert dead is not None
    for entry in dead["messages"]:
        rows.add(entry["message"])
    assert (rows.column("message_id"), rows.column("dead_letter_reason"), rows.column("dead_letter_description")) == (
        ["m3"], ["not retryable"], ["why"],
    )  # fmt: skip
    assert lease(client, queue, "second")["ranges"] == "3"  # type: ignore[index]
    assert client.request(queue, "com.tandem:complete-lease", {"lease-id": "one"}) == {"message-count": 2}


@pytest.mark.slow
def test_a_lease_settled_in_part_is_the_same_after_a_crash(mortal: Broker) -> None:
    create_queue(mortal, "orders")
    send(mortal, "orders", numbered(8))
    with connect(mortal) as client:
        lease(client, "orders")
        settle(client, "orders", completed="2", returned="5-6")
        lease(client, "orders", "second")
    mortal.kill()
    mortal.start()
    with connect(mortal) as client:
        assert ids_in(client, "orders", remaining=True) == ["m0", "m2", "m3", "m6", "m7"]
        assert ids_in(client, "orders", "second") == ["m4", "m5"]
        page = client.request("orders", "com.tandem:read-lease", {"lease-id": "one", "skip": 2, "top": 2, "remaining": True})
        assert page is not None
        assert (len(page["messages"]), page["next"]) == (2, 4), "places are as they were"
        client.request("orders", "com.tandem:complete-lease", {"lease-id": "one"})
        client.request("orders", "com.tandem:abandon-lease", {"lease-id": "second"})
        left = lease(client, "orders", "third")
        assert left is not None
        assert left["ranges"] == "5-6"


def test_sessions_are_leased_whole_and_say_how_long_each_is(broker: Broker, client: BlockingClient) -> None:
    create_queue(broker, name := f"s{uuid.uuid4().hex[:10]}", requires_session=True)
    send(broker, name, [encode_row(b"", f"m{n}", session_id=f"s{n % 3}") for n in range(9)])
    found = lease(client, name)
    assert found is not None
    assert found["sessions"].values == [3, 3, 3]
    assert ids_in(client, name) == ["m0", "m3", "m6", "m1", "m4", "m7", "m2", "m5", "m8"]
    ranges = found["ranges"]
    client.request(name, "com.tandem:abandon-lease", {"lease-id": "one"})
    again = lease(client, name, ranges=ranges)
    assert again is not None
    assert again["ranges"] == ranges
    assert lease(client, name, "other") is None


def test_leased_messages_are_counted_and_can_be_looked_at(broker: Broker, client: BlockingClient, queue: str) -> None:
    send(broker, queue, numbered(3))
    lease(client, queue, most=2)
    found = counts(broker, queue)
    assert {name: found[name] for name in ("active", "locked", "deferred", "scheduled", "leased", "total")} == {
        "active": 1, "locked": 0, "deferred": 0, "scheduled": 0, "leased": 2, "total": 3,
    }  # fmt: skip
    peeked = client.request(queue, "com.microsoft:peek-message", {"from-sequence-number": 0, "message-count": client.int32(9)})
    assert peeked is not None
    assert len(peeked["messages"]) == 3
    listed = client.request(queue, "com.tandem:list-leases", {})
    assert listed is not None
    assert [(one["lease-id"], one["message-count"], one["remaining"]) for one in listed["leases"]] == [("one", 2, 2)]


def test_a_partitioned_queue_is_leased_as_one(broker: Broker, client: BlockingClient) -> None:
    create_queue(broker, name := f"p{uuid.uuid4().hex[:10]}", enable_partitioning=True)
    send(broker, name, [encode_row(b"", f"m{n}", partition_key=f"k{n}") for n in range(60)], per_transfer=1)
    found = lease(client, name, **{"wait-ms": 5_000})
    assert found is not None
    while found["message-count"] < 60:
        more = lease(client, name, f"more{found['message-count']}", **{"wait-ms": 5_000})
        assert more is not None
        found["message-count"] += more["message-count"]
    mine = ids_in(client, name)
    answer = settle(client, name, completed=found["ranges"])
    assert (answer["completed"], answer["remaining"]) == (len(mine), 0)


@pytest.mark.parametrize(
    "more, said",
    [
        ({"wait-ms": -1}, "wait-ms"),
        ({"ranges": "x"}, "ranges"),
        ({"ranges": 7}, "ranges"),
        ({"duration-ms": 1}, "lasts"),
        ({"lease-id": ""}, "lease id"),
        ({"max-messages": 0}, "max-messages"),
    ],
)
def test_wrong_requests_name_the_part_that_is_wrong(client: BlockingClient, queue: str, more: dict[str, object], said: str) -> None:
    with pytest.raises(TransportError, match=said):
        lease(client, queue, **more)


@pytest.mark.parametrize(
    "operation, more, said",
    [
        ("settle-lease-part", {"completed": "1-9999999"}, "'completed': '1-9999999' is no range, or too large a one"),
        ("settle-lease-part", {"returned": amqp.Array(0x81, [1] * 100_001)}, "'returned': a lease holds at most 100000 messages"),
        ("lease-batch", {"ranges": "1-9999999", "duration-ms": 10_000}, "'ranges': '1-9999999' is no range, or too large a one"),
        ("renew-lease", {"duration-ms": 0}, "A lease lasts 1000 to"),
        ("renew-lease", {"duration-ms": -1}, "A lease lasts 1000 to"),
    ],
)
def test_nobody_names_more_than_a_lease_holds_and_a_renewal_lasts(
    broker: Broker, client: BlockingClient, queue: str, operation: str, more: dict[str, object], said: str
) -> None:
    send(broker, queue, numbered(1))
    assert lease(client, queue) is not None
    with pytest.raises(TransportError, match=said):
        client.request(queue, f"com.tandem:{operation}", {"lease-id": "one", **more})
    assert len(ids_in(client, queue)) == 1


def test_a_disabled_queue_lends_nothing(broker: Broker, client: BlockingClient, queue: str) -> None:
    send(broker, queue, numbered(1))
    with administration(broker) as admin:
        properties = admin.get_queue(queue)
        properties.status = "ReceiveDisabled"
        admin.update_queue(properties)
    with pytest.raises(TransportError, match="disabled"):
        lease(client, queue)


def claim(client: BlockingClient, queue: str, attempt: str, milliseconds: int = 30_000, held: bool = False) -> str:
    body: dict[str, object] = {"lease-id": "one", "attempt": attempt, "duration-ms": milliseconds, "held": held}
    answer = client.request(queue, "com.tandem:claim-lease", body)
    assert answer is not None
    return str(answer["attempt"])


def test_one_attempt_at_a_time_works_on_a_lease(broker: Broker, client: BlockingClient, queue: str) -> None:
    send(broker, queue, [encode_row(b"x", "1")])
    lease(client, queue)
    assert claim(client, queue, "a") == "a"
    assert claim(client, queue, "b") == "a"
    assert claim(client, queue, "b", held=True) == "a", "whoever was too late is told so"
    assert claim(client, queue, "a", held=True) == "a"
    assert claim(client, queue, "a", 0) == "", "given back"
    assert claim(client, queue, "b", 50) == "b"
    threading.Event().wait(0.1)
    assert claim(client, queue, "a") == "a", "b was not heard of any more"
    with pytest.raises(TransportError, match="lasts up to"):
        claim(client, queue, "a", 3_600_000)
    client.request(queue, "com.tandem:complete-lease", {"lease-id": "one"})
    with pytest.raises(TransportError, match="lease-lost"):
        claim(client, queue, "a")


def test_one_attempt_at_a_time_works_at_a_task_and_one_that_nobody_knows_is_free(client: BlockingClient, queue: str) -> None:
    def ask(attempt: str, milliseconds: int = 30_000, task: str = "one") -> str:
        body: dict[str, object] = {"task": task, "attempt": attempt, "duration-ms": milliseconds}
        answer = client.request(queue, "com.tandem:claim-task", body)
        assert answer is not None
        return str(answer["attempt"])

    assert ask("a") == "a"
    assert ask("b") == "a"
    assert ask("b", task="two") == "b"
    assert ask("a", 0) == "", "given back"
    assert ask("b", 50) == "b"
    threading.Event().wait(0.1)
    assert ask("a") == "a", "b was not heard of any more"
    with pytest.raises(TransportError, match="lasts up to"):
        ask("a", 3_600_000)
    with pytest.raises(TransportError, match="'task' has 1 to"):
        ask("a", task="")


@pytest.mark.slow
def test_after_a_restart_only_the_attempt_that_had_a_lease_goes_on_with_it(mortal: Broker) -> None:
    create_queue(mortal, "orders")
    send(mortal, "orders", [encode_row(b"x", "1")])
    with connect(mortal) as client:
        lease(client, "orders")
        assert claim(client, "orders", "a") == "a"
    mortal.kill()
    mortal.start()
    with connect(mortal) as client:
        assert claim(client, "orders", "b") not in ("a", "b"), "somebody may be working on it"
        assert claim(client, "orders", "a", held=True) == "a"
        assert claim(client, "orders", "b") == "a"
