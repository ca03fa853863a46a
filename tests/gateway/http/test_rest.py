"""Messages over plain HTTP requests: send, receive, lock, unlock, delete, renew."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests

from tandem.gateway.http.data_port import HttpMessage, ReceivedMessage
from tandem.gateway.http.properties import read_batch, read_single, write_headers
from tandem.gateway.http.rest import RestTarget, Verb, read_target
from tandem.model.entity import QueueDescription, Right
from tandem.model.errors import ArgumentOutOfRange, ArgumentRefused, BusError, MessageSizeExceeded, QuotaExceeded
from tests.gateway.http.http_house import KEY, ROOT, HttpHouse, http_house
from tests.waiting import until

BATCH = "application/vnd.microsoft.servicebus.json"


@pytest.fixture(params=["asyncio", "uvloop"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HttpHouse]:
    with http_house(tmp_path, loop=request.param) as running:
        running.run(running.namespace.create_queue(QueueDescription(name="q")))
        yield running


def call(house: HttpHouse, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> requests.Response:
    sent = {"Authorization": house.token()} | (headers or {})
    url = path if path.startswith("https:") else f"https://{house.host}{path}"
    return requests.request(method, url, data=body, headers=sent, verify=house.ca, timeout=10)


def test_message_is_sent_and_received_with_all_its_properties(house: HttpHouse) -> None:
    broker = {
        "MessageId": "m1",
        "Label": "l\u00fc",
        "CorrelationId": "c",
        "SessionId": "s",
        "TimeToLive": 90,
        "To": "t",
        "ReplyTo": "r",
        "ReplyToSessionId": "rs",
        "PartitionKey": "s",
        "ScheduledEnqueueTimeUtc": "Wed, 02 Jul 2014 01:32:27 GMT",
    }
    headers = {
        "BrokerProperties": json.dumps(broker),
        "Content-Type": "text/plain; charset=utf-8",
        "Priority": '"High"',
        "Count": "5",
        "Ratio": "1.5",
        "Urgent": "true",
        "Bare": "just text",
        "x-ms-client-request-id": "not a property",
    }
    sent = call(house, "POST", "/q/messages", b"hello", headers)
    assert (sent.status_code, sent.content) == (201, b"")
    kept = house.namespace.messages["q"][0].message
    assert dict(kept.properties) == {"Priority": "High", "Count": 5, "Ratio": 1.5, "Urgent": True, "Bare": "just text"}
    assert (kept.time_to_live_ms, kept.scheduled_at_ms) == (90_000, 1_404_264_747_000)
    got = call(house, "DELETE", "/q/messages/head?timeout=5")
    assert (got.status_code, got.content) == (200, b"hello")
    assert got.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert (got.headers["Priority"], got.headers["Count"], got.headers["Urgent"]) == ('"High"', "5", "true")
    back = json.loads(got.headers["BrokerProperties"])
    assert back["SequenceNumber"] == 1
    assert {key: back[key] for key in broker} == broker
    assert "LockToken" not in back and "Location" not in got.headers
    assert call(house, "DELETE", "/q/messages/head?timeout=0").status_code == 204


def test_batch_is_sent_in_order_or_not_at_all(house: HttpHouse) -> None:
    batch = [
        {"Body": "one", "BrokerProperties": {"Label": "M1"}, "UserProperties": {"Priority": "Low", "N": 1}},
        {"Body": "tw\u00f6"},
    ]
    assert call(house, "POST", "/q/messages", json.dumps(batch), {"Content-Type": BATCH + "; charset=utf-8"}).status_code == 201
    assert [m.message.body for m in house.namespace.messages["q"]] == [b"one", "tw\u00f6".encode()]
    bad = call(house, "POST", "/q/messages", json.dumps([*batch, {"Body": 5}]), {"Content-Type": BATCH})
    assert bad.status_code == 400 and "message 2 of the batch needs a Body that is a string, found a number" in bad.text
    assert len(house.namespace.messages["q"]) == 2
    assert call(house, "POST", "/q/messages", "[]", {"Content-Type": BATCH}).status_code == 201


def test_locked_message_is_renewed_unlocked_locked_again_and_deleted(house: HttpHouse) -> None:
    call(house, "POST", "/q/messages", b"x", {"BrokerProperties": '{"MessageId":"m"}'})
    first = call(house, "POST", "/q/messages/head?timeout=5")
    assert (first.status_code, first.content) == (201, b"x")
    properties = json.loads(first.headers["BrokerProperties"])
    assert properties["DeliveryCount"] == 1 and "LockedUntilUtc" in properties
    location = first.headers["Location"]
    assert location == f"https://{house.host}/q/messages/1/{properties['LockToken']}"
    assert call(house, "POST", "/q/messages/head?timeout=0").status_code == 204
    assert call(house, "POST", location).status_code == 200
    assert call(house, "PUT", location).status_code == 200
    second = call(house, "POST", "/q/messages/head?timeout=5")
    token = json.loads(second.headers["BrokerProperties"])["LockToken"]
    for method in ("POST", "PUT", "DELETE"):
        assert call(house, method, location).status_code == 404  # the first lock is gone
        assert call(house, method, f"/q/messages/m/{uuid.uuid4()}").status_code == 404
        assert call(house, method, f"/q/messages/nobody/{token}").status_code == 404
    assert call(house, "DELETE", f"/q/messages/m/{token}").status_code == 200
    assert house.namespace.messages["q"] == []


def test_missing_entity_is_gone_and_other_codes_are_as_documented(house: HttpHouse) -> None:
    for method, path in (
        ("POST", "/none/messages"),
        ("POST", "/none/messages/head"),
        ("DELETE", "/none/messages/head"),
        ("DELETE", f"/none/messages/1/{uuid.uuid4()}"),
        ("POST", "/$cbs/messages"),
    ):
        answer = call(house, method, path, b"" if method == "POST" else None)
        assert answer.status_code == 410, path
        assert "SubCode=41000." in answer.text

    errors: list[tuple[BusError, int]] = [(MessageSizeExceeded("too large"), 403), (QuotaExceeded("full"), 403)]
    for error, status in errors:

        async def refuse(*_: object, error: BusError = error) -> None:
            raise error

        house.namespace.send = refuse  # type: ignore[method-assign,assignment]
        assert call(house, "POST", "/q/messages", b"x").status_code == status


@pytest.mark.parametrize(
    ("headers", "body", "says"),
    [
        ({"BrokerProperties": "{"}, b"x", "BrokerProperties is not JSON"),
        ({"BrokerProperties": "[]"}, b"x", "must be a JSON object, found an array"),
        ({"BrokerProperties": '{"MessageId":5}'}, b"x", "MessageId in BrokerProperties must be a string, found a number"),
        ({"BrokerProperties": '{"TimeToLive":"long"}'}, b"x", "TimeToLive in BrokerProperties must be a number of seconds"),
        ({"BrokerProperties": '{"TimeToLive":-1}'}, b"x", "TimeToLive is -1 seconds"),
        ({"BrokerProperties": '{"TimeToLive":NaN}'}, b"x", "is not JSON"),
        ({"BrokerProperties": '{"ScheduledEnqueueTimeUtc":"soon"}'}, b"x", "must be an instant like"),
        ({"Content-Type": BATCH}, b"", "the batch is not JSON"),
        ({"Content-Type": BATCH}, b"{}", "must be a JSON array of messages, found an object"),
        ({"Content-Type": BATCH}, b"[5]", "message 0 of the batch must be an object"),
        ({"Content-Type": BATCH}, b'[{"Body":"x","UserProperties":{"a":[1]}}]', "property 'a' must be a string, a number"),
        ({"Content-Type": BATCH}, b'[{"Body":"x","BrokerProperties":[1]}]', "must be objects"),
        ({"Content-Type": BATCH}, b"[" * 100_000, "the batch is not JSON"),
        ({"Content-Type": BATCH}, b'[{"Body":"\\ud800"}]', "half of a surrogate pair"),
        ({"Number": "9" * 30}, b"x", "a number beyond 64 bits"),
    ],
)
def test_bad_requests_are_refused_with_the_reason(house: HttpHouse, headers: dict[str, str], body: bytes, says: str) -> None:
    answer = call(house, "POST", "/q/messages", body, headers)
    assert answer.status_code == 400
    assert says in answer.text
    assert house.namespace.messages == {}


def test_timeout_has_bounds(house: HttpHouse) -> None:
    for timeout in ("-1", "x", "1801", "1e3"):
        answer = call(house, "DELETE", f"/q/messages/head?timeout={timeout}")
        assert answer.status_code == 400 and "0 to 1800 seconds are allowed" in answer.text


def test_rights_are_needed_send_to_send_and_listen_to_receive(house: HttpHouse) -> None:
    for right, may in ((Right.SEND, {"send"}), (Right.LISTEN, {"receive", "take", "settle"})):
        house.namespace.root = replace(ROOT, rights=frozenset({right}))
        calls = {
            "send": ("POST", "/q/messages"),
            "receive": ("POST", "/q/messages/head?timeout=0"),
            "take": ("DELETE", "/q/messages/head?timeout=0"),
            "settle": ("DELETE", f"/q/messages/1/{uuid.uuid4()}"),
        }
        for name, (method, path) in calls.items():
            assert (call(house, method, path, b"x").status_code != 401) is (name in may), (right, name)
    for token in ("", "nonsense", house.token(key="wrong"), house.token(lasts_ms=-600_000), house.token(path="other")):
        assert call(house, "POST", "/q/messages", b"x", {"Authorization": token}).status_code == 401
    house.namespace.root = ROOT
    scoped = house.token(ROOT.key_name, KEY, path="Q")
    assert call(house, "POST", "/q/messages", b"x", {"Authorization": scoped}).status_code == 201
    for method, path, status in (
        ("POST", "Q/messages", 201),
        ("DELETE", "q/messages/head", 200),
        ("DELETE", f"q/messages/1/{uuid.uuid4()}", 404),
    ):
        own = house.token(ROOT.key_name, KEY, path=path)
        assert call(house, method, f"/{path}", b"x", {"Authorization": own}).status_code == status, "signed for the URL it calls"
        assert call(house, method, f"/other{path}", b"x", {"Authorization": own}).status_code == 401


def test_sub_queues_and_names_with_slashes_can_be_reached(house: HttpHouse) -> None:
    house.run(house.namespace.create_queue(QueueDescription(name="a/b")))
    assert call(house, "POST", "/a/b/messages", b"x").status_code == 201
    assert call(house, "POST", "/a%2Fb/messages", b"y").status_code == 201
    assert [m.message.body for m in house.namespace.messages["a/b"]] == [b"x", b"y"]
    house.namespace.messages["a/b/$deadletterqueue"] = house.namespace.messages.pop("a/b")
    got = call(house, "POST", "/a/b/$DeadLetterQueue/messages/head?timeout=0")
    assert got.content == b"x"
    assert got.headers["Location"].startswith(f"https://{house.host}/a/b/$DeadLetterQueue/messages/1/")
    assert call(house, "DELETE", got.headers["Location"]).status_code == 200


async def test_receiver_that_hangs_up_takes_nothing_with_it(house: HttpHouse) -> None:
    waiting = asyncio.Event()
    here, receive = asyncio.get_running_loop(), house.namespace.receive

    async def observed(*args: Any, **kwargs: Any) -> Any:
        here.call_soon_threadsafe(waiting.set)
        return await receive(*args, **kwargs)

    house.namespace.receive = observed  # type: ignore[method-assign]
    headers = {"Authorization": house.token()}
    async with aiohttp.ClientSession(headers=headers) as session:
        url = f"https://{house.host}/q/messages"
        task = asyncio.ensure_future(session.delete(f"{url}/head?timeout=60", ssl=house.client_context())._coro)  # type: ignore[attr-defined]
        await asyncio.wait_for(waiting.wait(), 10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await until(lambda: not house.front._server.connections, 10)
    async with aiohttp.ClientSession(headers=headers) as session:
        async with session.post(url, data=b"kept", ssl=house.client_context()) as sent:
            assert sent.status == 201
        async with session.delete(f"{url}/head?timeout=5", ssl=house.client_context()) as got:
            assert await got.read() == b"kept"


def test_waiting_receive_is_answered_when_a_message_arrives(house: HttpHouse) -> None:
    answers: list[bytes] = []
    receiver = threading.Thread(target=lambda: answers.append(call(house, "DELETE", "/q/messages/head").content))
    receiver.start()
    assert call(house, "POST", "/q/messages", b"now").status_code == 201
    receiver.join(10)
    assert answers == [b"now"]


@pytest.mark.parametrize(
    ("method", "address", "target"),
    [
        ("POST", ("q", "messages"), RestTarget(Verb.SEND, "q")),
        ("POST", ("t", "Subscriptions", "s", "Messages", "Head"), RestTarget(Verb.HEAD, "t/Subscriptions/s")),
        ("DELETE", ("q", "messages", "head"), RestTarget(Verb.HEAD, "q")),
        ("PUT", ("q", "messages", "1", str(uuid.UUID(int=1))), RestTarget(Verb.LOCKED, "q", "1", uuid.UUID(int=1))),
        ("POST", ("q", "messages", ""), RestTarget(Verb.SEND, "q")),
        ("DELETE", ("q", "messages", "head", ""), RestTarget(Verb.HEAD, "q")),
        ("POST", ("q", "messages", "", ""), None),
        ("PUT", ("q", "messages"), None),  # an entity of that name is being created
        ("GET", ("q", "messages"), None),
        ("PUT", ("q", "messages", "head"), None),
        ("PUT", ("a", "messages", "b", "c"), None),
        ("POST", ("messages",), None),
        ("DELETE", ("a/messages/head",), None),
    ],
)
def test_addresses_of_messages_are_told_from_those_of_entities(method: str, address: tuple[str, ...], target: RestTarget | None) -> None:
    assert read_target(method, address) == target


def test_properties_that_no_header_can_name_travel_together() -> None:
    properties = (("with space", 1), ("Content-Type", "mine"), ("br\u00fccke", None), ("ok", "line\nbreak"), ("OK", 2))
    message = HttpMessage(body=b"", properties=properties)
    headers = write_headers(ReceivedMessage(message=message, sequence_number=1, delivery_count=1, enqueued_at_ms=0))
    assert all(value.isascii() and "\n" not in value for value in headers.values())
    assert headers["ok"] == '"line\\nbreak"'
    assert json.loads(headers["Tandem-Properties"]) == {"with space": 1, "Content-Type": "mine", "br\u00fccke": None, "OK": 2}
    back = read_single(b"", None, None, headers.items())
    assert dict(back.properties) == dict(properties)


def test_received_broker_properties_can_be_sent_again() -> None:
    message = HttpMessage(body=b"", message_id="m", session_id="", time_to_live_ms=None)
    headers = write_headers(
        ReceivedMessage(message=message, sequence_number=1, delivery_count=1, enqueued_at_ms=5, lock_token=uuid.uuid4())
    )
    assert read_single(b"", None, headers["BrokerProperties"], ()) == message


def test_too_many_or_repeated_properties_are_refused() -> None:
    with pytest.raises(ArgumentOutOfRange, match="more than 256"):
        read_single(b"", None, None, [(f"P{i}", "1") for i in range(257)])
    with pytest.raises(ArgumentRefused, match="given twice"):
        read_single(b"", None, None, [("P", "1"), ("P", "2")])
    assert read_batch(b'[{"Body":"","UserProperties":null}]') == [HttpMessage(body=b"")]


def test_a_body_beyond_the_limit_counts_for_who_may_send_and_tells_others_only_that_they_may_not(house: HttpHouse) -> None:
    sent = {"Content-Length": str(house.limits.http_body_bytes_max + 1), "Authorization": house.token()}
    assert raw_status(house, "/q/messages", sent) == 413
    assert house.namespace.refused_sends == 1
    assert raw_status(house, "/q/messages", sent | {"Authorization": "SharedAccessSignature nonsense"}) == 401
    assert raw_status(house, "/q/messages/head", sent) == 413
    assert house.namespace.refused_sends == 1, "a receive is no send"


def raw_status(house: HttpHouse, path: str, headers: dict[str, str]) -> int:
    """Of a request that only announces its body."""
    connection = http.client.HTTPSConnection("localhost", house.port, timeout=30, context=ssl.create_default_context(cafile=house.ca))
    try:
        connection.putrequest("POST", path)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection.getresponse().status
    finally:
        connection.close()
