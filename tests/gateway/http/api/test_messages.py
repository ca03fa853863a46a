"""Messages through the console's interface: looked at, sent, sent again, removed; nothing lost, nothing without a bound."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSubQueue

from tandem.cli.operations.message_text import as_line, from_line
from tandem.model.limits import Limits
from tandem.testing import Bus
from tests.gateway.http.api.console_client import ConsoleClient, Refusal, console_of
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def bus() -> Iterator[Bus]:
    with Bus(real_time=True, store_count=2, limits=Limits(message_bytes_max=1_048_576)) as running:
        yield running


@pytest.fixture(scope="module")
def client(bus: Bus) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(bus.connection_string) as running:
        yield running


@pytest.fixture(scope="module")
def console(bus: Bus) -> ConsoleClient:
    return console_of(bus)


NAMES = iter(range(1_000))


@pytest.fixture
def queue(bus: Bus) -> str:
    name = f"queue-{next(NAMES)}"
    bus.create_queue(name)
    return name


def send(client: ServiceBusClient, queue: str, *messages: ServiceBusMessage) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(list(messages))


def dead(console: ConsoleClient, queue: str, count: int, **fields: Any) -> None:
    lines = [{"body": f"body {n}", "message_id": f"m{n}", "properties": {"n": n}, **fields} for n in range(count)]
    sent = console("POST", "messages/send", path=queue, messages=lines)
    told = console(
        "POST", "messages/dead-letter", path=queue, sequence_numbers=sent["sequence_numbers"], reason="Unwanted", description="for the test"
    )
    assert told["done"] == count


def test_pages_follow_one_another_by_sequence_number(client: ServiceBusClient, console: ConsoleClient, queue: str) -> None:
    console("POST", "messages/send", path=queue, messages=[{"body": f"body {n}", "message_id": f"m{n}"} for n in range(130)])
    seen, start, pages = [], "0", 0
    while start is not None:
        page = console("POST", "messages", path=queue, count=50, **{"from": start})
        seen += [one["message_id"] for one in page["messages"]]
        start, pages = page["next"], pages + 1
        if not page["messages"]:
            break
    assert seen == [f"m{n}" for n in range(130)] and pages <= 4


def test_a_filter_is_an_sql_expression_or_a_text(client: ServiceBusClient, console: ConsoleClient, queue: str) -> None:
    lines = [{"body": f"body {n}", "properties": {"n": n}, "subject": f"s{n % 2}"} for n in range(40)]
    console("POST", "messages/send", path=queue, messages=lines)
    found = console("POST", "messages", path=queue, where="n > 35 AND sys.Label = 's1'")
    assert [one["preview"] for one in found["messages"]] == ["body 37", "body 39"]
    assert [one["preview"] for one in console("POST", "messages", path=queue, text="BODY 21")["messages"]] == ["body 21"]
    with pytest.raises(Refusal) as refused:
        console("POST", "messages", path=queue, where="n >")
    assert refused.value.status == 400 and "TrackingId" in refused.value.description


def test_a_message_is_shown_with_all_it_has(client: ServiceBusClient, console: ConsoleClient, queue: str) -> None:
    body = bytes(range(256))
    now = datetime(2030, 1, 31, 12, tzinfo=UTC)
    properties = {"text": "<b>", "number": 2**30, "flag": True, "when": now, "real": 1.5}
    send(
        client,
        queue,
        ServiceBusMessage(body, message_id="m", correlation_id="c", time_to_live=timedelta(hours=1), application_properties=properties),
    )
    (row,) = console("POST", "messages", path=queue)["messages"]
    whole = console("POST", "message", path=queue, sequence_number=row["sequence_number"])
    assert base64.b64decode(whole["body_base64"]) == body and whole["body_kind"] == "data" and whole["state"] == "active"
    shown = {one["name"]: (one["type"], one["value"]) for one in whole["properties"]}
    assert shown["text"] == ("string", "<b>") and shown["when"] == ("timestamp", "2030-01-31T12:00:00Z") and shown["flag"][1] is True
    assert whole["correlation_id"] == "c" and whole["time_to_live_ms"] == 3_600_000
    assert console.raw("POST", "message/body", {"path": queue, "sequence_number": row["sequence_number"]}) == body
    with pytest.raises(Refusal) as refused:
        console("POST", "message", path=queue, sequence_number="999")
    assert refused.value.status == 404


def test_lines_are_those_of_the_commands(client: ServiceBusClient, console: ConsoleClient, queue: str, bus: Bus) -> None:
    send(
        client,
        queue,
        ServiceBusMessage("one", message_id="a", subject="s", application_properties={"n": 1}),
        ServiceBusMessage(b"\xff\x00"),
    )
    lines = console("POST", "messages/lines", path=queue)["messages"]
    with client.get_queue_receiver(queue) as receiver:
        printed = [as_line(message) for message in receiver.peek_messages(2)]
    for line, theirs in zip(lines, printed, strict=True):
        for name in ("message_id", "subject", "properties", "body", "body_base64", "sequence_number"):
            assert line.get(name) == theirs.get(name)
        from_line(json.dumps(line), 1)
    assert console("POST", "messages/send", path=queue, messages=lines)["sent"] == 2
    assert bus.counts(queue).active == 4


def test_a_message_is_sent_now_or_later_and_taken_back(bus: Bus, console: ConsoleClient, queue: str) -> None:
    line = {"body": "hello", "message_id": "x", "properties": {"n": 1}, "time_to_live_ms": 60_000}
    later = console("POST", "messages/send", path=queue, messages=[line], scheduled_at_ms=4_000_000_000_000)
    assert bus.counts(queue).scheduled == 1
    assert [one["state"] for one in console("POST", "messages", path=queue, state="scheduled")["messages"]] == ["scheduled"]
    assert console("POST", "messages/cancel", path=queue, sequence_numbers=later["sequence_numbers"])["done"] == 1
    assert bus.counts(queue).scheduled == 0
    for wrong in (
        {"body": "x", "colour": "red"},
        {"message_id": 5},
        {"body_base64": "!"},
        {"time_to_live_ms": -1},
        {"properties": {"a": []}},
    ):
        with pytest.raises(Refusal) as refused:
            console("POST", "messages/send", path=queue, messages=[line, wrong])
        assert refused.value.status == 400 and refused.value.description.startswith("message 2: ")
    assert bus.counts(queue).total == 0


@pytest.mark.parametrize("time_to_live_ms", [60 * 86_400_000, 10**20])
def test_a_dead_letter_with_a_long_time_to_live_goes_home_with_it(console: ConsoleClient, queue: str, time_to_live_ms: int) -> None:
    """Longer than a header of AMQP can say."""
    dead(console, queue, 1, time_to_live_ms=time_to_live_ms)
    assert console("POST", "messages/resubmit", path=f"{queue}/$DeadLetterQueue")["done"] == 1
    (home,) = console("POST", "messages/lines", path=queue)["messages"]
    assert home["time_to_live_ms"] >= 60 * 86_400_000


def test_dead_letters_go_home_under_their_own_ids(bus: Bus, client: ServiceBusClient, console: ConsoleClient) -> None:
    bus.create_queue("home", requires_duplicate_detection=True)
    dead(console, "home", 3)
    path = "home/$DeadLetterQueue"
    numbers = [one["sequence_number"] for one in console("POST", "messages", path=path)["messages"]]
    # The ids are still in the window of duplicate detection: a repeat is accepted, dropped, and the dead letter completed.
    assert console("POST", "messages/resubmit", path=path, sequence_numbers=numbers[:1])["done"] == 1
    assert bus.counts("home").active == 0
    bus.create_queue("elsewhere")
    assert console("POST", "messages/resubmit", path=path, to="elsewhere", changes={"properties": {"n": None, "again": True}})["done"] == 2
    with client.get_queue_receiver("elsewhere") as receiver:
        messages = receiver.receive_messages(max_message_count=2, max_wait_time=5)
    assert [str(message) for message in messages] == ["body 1", "body 2"] and [message.message_id for message in messages] == ["m1", "m2"]
    assert messages[0].application_properties == {b"again": True} and messages[0].dead_letter_reason is None
    assert bus.counts("home").dead_lettered == 0


def test_a_dead_letter_is_edited_and_sent_again(bus: Bus, client: ServiceBusClient, console: ConsoleClient, queue: str) -> None:
    dead(console, queue, 1, subject="old")
    path = f"{queue}/$DeadLetterQueue"
    (row,) = console("POST", "messages", path=path)["messages"]
    changes = {"body": "mended", "subject": "new", "properties": {"n": 7}}
    assert console("POST", "messages/resubmit", path=path, sequence_numbers=[row["sequence_number"]], changes=changes)["done"] == 1
    with client.get_queue_receiver(queue) as receiver:
        (message,) = receiver.receive_messages(max_wait_time=5)
    assert (str(message), message.subject, message.message_id, message.application_properties) == ("mended", "new", "m0", {b"n": 7})


def test_a_dead_letter_whose_copy_is_refused_stays_where_it_is(
    bus: Bus, client: ServiceBusClient, console: ConsoleClient, queue: str
) -> None:
    dead(console, queue, 3)
    path = f"{queue}/$DeadLetterQueue"
    bus.create_queue("needs-sessions", requires_session=True)
    told = console("POST", "messages/resubmit", path=path, to="needs-sessions")
    assert told["done"] == 0 and told["skipped_total"] == 3 and "session" in told["skipped"][0]["reason"].lower()
    assert bus.counts(queue).dead_lettered == 3
    assert console("POST", "messages/resubmit", path=path)["done"] == 3  # nothing is left in anybody's hands
    with pytest.raises(Refusal) as refused:
        console("POST", "messages/resubmit", path=path, to="nowhere")
    assert refused.value.status == 404


def test_one_in_somebody_elses_hands_is_named_and_left(bus: Bus, client: ServiceBusClient, console: ConsoleClient, queue: str) -> None:
    dead(console, queue, 2)
    path = f"{queue}/$DeadLetterQueue"
    with client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (held,) = receiver.receive_messages(max_wait_time=5)
        rows = console("POST", "messages", path=path)["messages"]
        told = console("POST", "messages/resubmit", path=path, sequence_numbers=[row["sequence_number"] for row in rows])
        assert told["done"] == 1
        assert told["skipped"] == [{"sequence_number": str(held.sequence_number), "reason": "it is in somebody else's hands"}]
        receiver.abandon_message(held)
    assert bus.counts(queue).dead_lettered == 1


def test_thousands_of_dead_letters_are_sent_again_in_bounded_steps(
    bus: Bus, client: ServiceBusClient, console: ConsoleClient, queue: str
) -> None:
    console("PUT", "entity", kind="queue", path=queue, description={"max_delivery_count": 1})
    for _ in range(3):
        console("POST", "messages/send", path=queue, messages=[{"body": "x"}] * 1_000)
    numbers = []
    start = "0"
    while start is not None:
        page = console("POST", "messages", path=queue, count=500, **{"from": start})
        numbers += [one["sequence_number"] for one in page["messages"]]
        start = page["next"] if page["messages"] else None
    for at in range(0, 3_000, 1_000):
        console("POST", "messages/dead-letter", path=queue, sequence_numbers=numbers[at : at + 1_000], reason="Bulk")
    assert bus.counts(queue).dead_lettered == 3_000
    done, start, steps = 0, "0", 0
    while start is not None:
        told = console(
            "POST", "messages/resubmit", path=f"{queue}/$DeadLetterQueue", count=500, where="DeadLetterReason = 'Bulk'", **{"from": start}
        )
        done, start, steps = done + told["done"], told["next"], steps + 1
        if not told["done"] and told["next"] is None:
            break
    assert done == 3_000 and steps >= 6
    assert bus.counts(queue).active == 3_000 and bus.counts(queue).dead_lettered == 0


def test_whoever_hangs_up_in_the_middle_leaves_nothing_half_done(
    bus: Bus, client: ServiceBusClient, console: ConsoleClient, queue: str
) -> None:
    import socket

    dead(console, queue, 200)
    path = f"{queue}/$DeadLetterQueue"
    body = json.dumps({"path": path, "count": 200}).encode()
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", bus.port)) as peer:
            head = f"POST /$tandem/api/messages/resubmit HTTP/1.1\r\nHost: localhost\r\nAuthorization: {console.token}\r\n"
            head += f"Content-Length: {len(body)}\r\n\r\n"
            peer.sendall(head.encode() + body)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    wait_until(lambda: console("POST", "messages/resubmit", path=path, count=500) and not bus.counts(queue).dead_lettered, "all are home")
    counts = bus.counts(queue)
    assert counts.dead_lettered == 0 and counts.active == 200
    with client.get_queue_receiver(queue) as receiver:
        ids = [message.message_id for message in receiver.peek_messages(250)]
    assert sorted(ids) == sorted(f"m{n}" for n in range(200))


def test_what_is_deferred_is_fetched_by_number(bus: Bus, client: ServiceBusClient, console: ConsoleClient, queue: str) -> None:
    console("POST", "messages/send", path=queue, messages=[{"body": f"body {n}"} for n in range(3)])
    with client.get_queue_receiver(queue) as receiver:
        for message in receiver.receive_messages(max_message_count=3, max_wait_time=5):
            receiver.defer_message(message)
    numbers = [one["sequence_number"] for one in console("POST", "messages", path=queue, state="deferred")["messages"]]
    assert len(numbers) == 3
    assert console("POST", "messages/resubmit", path=queue, sequence_numbers=numbers[:1])["done"] == 1
    assert console("POST", "messages/remove", path=queue, sequence_numbers=numbers[1:2])["done"] == 1
    assert console("POST", "messages/dead-letter", path=queue, sequence_numbers=numbers[2:], reason="old")["done"] == 1
    counts = bus.counts(queue)
    assert (counts.active, counts.deferred, counts.dead_lettered) == (1, 0, 1)


def test_purging_takes_what_was_there_and_leaves_what_came(bus: Bus, console: ConsoleClient, queue: str) -> None:
    for _ in range(5):
        console("POST", "messages/send", path=queue, messages=[{"body": "x"}] * 1_000)
    first = console("POST", "messages/purge", path=queue)
    assert first["done"] == 4_000 and not first["finished"]
    second = console("POST", "messages/purge", path=queue, before_ms=first["before_ms"])
    assert second["done"] == 1_000 and second["finished"] and bus.counts(queue).total == 0


def test_sessions_are_shown_with_their_state(bus: Bus, client: ServiceBusClient, console: ConsoleClient) -> None:
    bus.create_queue("sessions", requires_session=True)
    console("POST", "messages/send", path="sessions", messages=[{"body": "x", "session_id": f"s{n % 3}"} for n in range(6)])
    with client.get_queue_receiver("sessions", session_id="s1") as receiver:
        receiver.session.set_state("working")
        shown = {one["session_id"]: one for one in console("POST", "sessions", path="sessions")["sessions"]}
        assert shown["s1"]["held"] and shown["s1"]["messages"] == 2 and base64.b64decode(shown["s1"]["state_base64"]) == b"working"
        with pytest.raises(Refusal) as refused:
            console("PUT", "session", path="sessions", session="s1", state_base64=base64.b64encode(b"no").decode())
        assert "may be locked by another receiver" in refused.value.description
    assert base64.b64decode(console("PUT", "session", path="sessions", session="s0", state_base64="aGk=")["state_base64"]) == b"hi"
    assert console("PUT", "session", path="sessions", session="s0")["state_base64"] is None
    assert [one["session_id"] for one in console("POST", "messages", path="sessions", session="s2")["messages"]] == ["s2", "s2"]
    with client.get_queue_receiver("sessions", session_id="s2") as receiver:
        (message, *_) = receiver.receive_messages(max_wait_time=5)
        receiver.defer_message(message)
    told = console("POST", "messages/remove", path="sessions", sequence_numbers=[str(message.sequence_number)])
    assert told["done"] == 1


def test_a_partitioned_queue_is_browsed_through_all_fragments(bus: Bus, console: ConsoleClient) -> None:
    bus.create_queue("parts", enable_partitioning=True)
    console("POST", "messages/send", path="parts", messages=[{"body": f"b{n}", "partition_key": str(n)} for n in range(60)])
    seen, start = [], "0"
    while start is not None:
        page = console("POST", "messages", path="parts", count=25, state="active", **{"from": start})
        seen += [one["preview"] for one in page["messages"]]
        start = page["next"] if page["messages"] else None
    assert sorted(seen) == sorted(f"b{n}" for n in range(60))


def test_rights_are_those_of_the_key(bus: Bus, console: ConsoleClient) -> None:
    from tandem.model.entity import AuthorizationRule, Right

    namespace = bus._server.contexts[0].namespace  # type: ignore[union-attr]
    for name, rights in (("looker", {Right.LISTEN}), ("sender", {Right.SEND})):
        namespace.authorization_rules[name] = AuthorizationRule(key_name=name, primary_key=name, secondary_key="", rights=frozenset(rights))
    bus.create_queue("guarded")
    sender = ConsoleClient(bus.port, {"key_name": "sender", "key": "sender"})
    looker = ConsoleClient(bus.port, {"key_name": "looker", "key": "looker"})
    assert sender("POST", "messages/send", path="guarded", messages=[{"body": "x"}])["sent"] == 1
    assert len(looker("POST", "messages", path="guarded")["messages"]) == 1
    for who, method, what in (
        (sender, "POST", "messages"),
        (sender, "POST", "messages/purge"),
        (sender, "POST", "messages/resubmit"),
        (looker, "POST", "messages/send"),
        (looker, "POST", "messages/resubmit"),
        (looker, "DELETE", "entity"),
    ):
        with pytest.raises(Refusal) as refused:
            who(method, what, path="guarded", messages=[{"body": "x"}])
        assert refused.value.status == 401 and "InsufficientClaims" in refused.value.description


@pytest.mark.parametrize(
    "body",
    [
        *(b"[]", b"{", b"\xff", b'{"path": 5}', b'{"path": "orders", "from": -1}', b"{}", b"[" * 100_000),
        *('{"path": "orders", "from": "\u00b2"}'.encode(), b'{"path": "orders", "from": "%s"}' % (b"1" * 5_000)),
        *(b'{"path": "orders", "from": NaN}', b'{"path": "orders", "text": "\\ud800"}'),
    ],
)
def test_nonsense_is_refused_with_words(console: ConsoleClient, body: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        console.raw("POST", "messages", body)
    assert refused.value.status in (400, 404) and "TrackingId" in refused.value.description


@pytest.mark.parametrize("numbers", ["[Infinity]", "[1.7]", "[true]", "[-5]", '["1e3"]', "[%s]" % ("9" * 40), "[1, 1]", "[]", "1"])
def test_what_is_no_sequence_number_means_no_message(console: ConsoleClient, queue: str, numbers: str) -> None:
    console("POST", "messages/send", path=queue, messages=[{"body": "x"}])
    with pytest.raises(Refusal) as refused:
        console.raw("POST", "messages/remove", f'{{"path": "{queue}", "sequence_numbers": {numbers}}}'.encode())
    assert refused.value.status == 400
    assert len(console("POST", "messages", path=queue)["messages"]) == 1


@pytest.mark.parametrize(
    "line",
    [b'{"body": "\\ud800"}', b'{"message_id": "\\udfff"}', b'{"properties": {"n": NaN}}', b'{"properties": {"n": %s}}' % (b"9" * 30)],
)
def test_what_no_message_can_hold_is_refused_with_words(console: ConsoleClient, queue: str, line: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        console.raw("POST", "messages/send", b'{"path": "%s", "messages": [%s]}' % (queue.encode(), line))
    assert refused.value.status == 400 and "TrackingId" in refused.value.description


def test_a_connection_string_that_is_none_is_refused_with_words(console: ConsoleClient) -> None:
    with pytest.raises(Refusal) as refused:
        console("POST", "login", connection_string="Endpoint=sb://[;SharedAccessKeyName=a;SharedAccessKey=b")
    assert refused.value.status == 400 and "Endpoint" in refused.value.description


def test_a_request_that_is_too_large_is_refused(console: ConsoleClient, queue: str) -> None:
    with pytest.raises(Refusal) as refused:
        console("POST", "messages/send", path=queue, messages=[{"body": "x" * 2_000_000}])
    assert refused.value.status == 413


def test_many_ask_at_once_and_all_are_answered(bus: Bus, console: ConsoleClient, queue: str) -> None:
    console("POST", "messages/send", path=queue, messages=[{"body": "y" * 1_000}] * 500)
    answers: list[int] = []

    def search() -> None:
        found, start = 0, "0"
        while start is not None:  # an answer takes a bounded time, and says where to go on
            page = console("POST", "messages", path=queue, text="y", count=500, **{"from": start})
            found, start = found + len(page["messages"]), page["next"]
        answers.append(found)

    threads = [threading.Thread(target=search) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [500] * 8


def test_who_changed_and_removed_what_is_audited(bus: Bus, console: ConsoleClient) -> None:
    entries: list[Any] = []
    context = bus._server.contexts[0]  # type: ignore[union-attr]
    kept, context.audit = context.audit, entries.append
    try:
        console("PUT", "entity", kind="queue", path="watched", description={}, create=True)
        console("POST", "messages/send", path="watched", messages=[{"body": "x"}])
        console("POST", "messages", path="watched")
        console("POST", "messages/purge", path="watched")
        console("POST", "messages/purge", path="watched")
        console("DELETE", "entity", path="watched")
    finally:
        context.audit = kept
    told = [(one.action, one.who, one.what, one.detail) for one in entries]
    who = "RootManageSharedAccessKey"
    assert told == [
        ("changed", who, "watched", "console: PUT entity"),
        ("purged", who, "watched", "console: POST messages/purge, 1 messages"),
        ("changed", who, "watched", "console: DELETE entity"),
    ]


def test_a_change_whose_client_hangs_up_is_in_force_as_it_is_on_disk_and_audited(bus: Bus, console: ConsoleClient, queue: str) -> None:
    import socket

    context, admin = bus._server.contexts[0], bus._server.admins[0]  # type: ignore[union-attr]
    entries: list[Any] = []
    began, hung_up, written = threading.Event(), threading.Event(), threading.Event()
    delete = admin._catalog.delete_entity

    def slow(id_: int) -> None:
        began.set()
        assert hung_up.wait(10)
        delete(id_)
        written.set()

    admin._catalog.delete_entity = slow  # type: ignore[method-assign]
    kept, context.audit = context.audit, entries.append
    try:
        body = json.dumps({"path": queue}).encode()
        with socket.create_connection(("127.0.0.1", bus.port)) as peer:
            head = f"DELETE /$tandem/api/entity HTTP/1.1\r\nHost: localhost\r\nAuthorization: {console.token}\r\n"
            peer.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            where = "{}:{}".format(*peer.getsockname())
            assert began.wait(10)
        console("POST", "entity", path=queue)  # a later request: the broker knows of the hang-up
        hung_up.set()
        assert written.wait(10)
        wait_until(lambda: entries, "the change is audited")
    finally:
        context.audit = kept
        admin._catalog.delete_entity = delete  # type: ignore[method-assign]
    assert [(one.action, one.peer, one.what, one.detail) for one in entries] == [("changed", where, queue, "console: DELETE entity")]
    with pytest.raises(Refusal, match="404"):
        console("POST", "messages/send", path=queue, messages=[{"body": "would be lost with the next start"}])
