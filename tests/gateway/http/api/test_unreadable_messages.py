"""Values are not read on the way in: a message whose values are no AMQP, or that JSON has no word for, stands in nobody's way."""

from __future__ import annotations

import asyncio
import http.client
import json
import struct
import time
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient

from tandem.model.entity import RuleDescription, SqlFilter
from tandem.simulator.amqp_client import AmqpClient
from tandem.testing import Bus
from tests.gateway.http.api.console_client import ConsoleClient, console_of

NO_CHARACTER = b"\x73\x00\x00\xd8\x00"
END_OF_TIME = b"\x83\x7f" + b"\xff" * 7
NOT_A_NUMBER = b"\x82\x7f\xf8" + b"\x00" * 6
BODY = b"\x00\x53\x75\xa0\x01x"


def section(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes((code,)) + value


def map_of(*items: bytes) -> bytes:
    body = b"".join(items)
    return b"\xd1" + struct.pack(">II", len(body) + 4, len(items)) + body


def property_of(value: bytes) -> bytes:
    return section(0x74, map_of(b"\xa1\x01n", value))


UNREADABLE = {
    "a value": section(0x77, NO_CHARACTER),
    "a sequence": section(0x76, b"\xd0" + struct.pack(">II", len(NO_CHARACTER) + 4, 1) + NO_CHARACTER),
    "a footer": BODY + section(0x78, map_of(b"\xa3\x01f", NO_CHARACTER)),
    "a property": property_of(NO_CHARACTER) + BODY,
    "an instant": property_of(END_OF_TIME) + BODY,
    "an instant as body": section(0x77, END_OF_TIME),
    "no number": property_of(NOT_A_NUMBER) + BODY,
}


@pytest.fixture(scope="module")
def bus() -> Iterator[Bus]:
    with Bus(real_time=True) as running:
        yield running


@pytest.fixture(scope="module")
def console(bus: Bus) -> ConsoleClient:
    return console_of(bus)


def sent(bus: Bus, entity: str, *messages: bytes) -> None:
    async def send() -> None:
        client = await AmqpClient.connect(bus.port)
        sender = await client.sender(entity)
        for message in messages:
            await asyncio.wait_for(sender.send(message), 30)
        client.abort()

    asyncio.run(send())


def strictly(text: bytes) -> dict[str, object]:
    """As a browser reads it."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    found: dict[str, object] = json.loads(text, parse_constant=refuse)
    return found


def test_the_console_shows_them_and_what_stands_beside(bus: Bus, console: ConsoleClient) -> None:
    bus.create_queue("shown")
    sent(bus, "shown", *UNREADABLE.values(), BODY)
    for what, wanted in (
        ("messages", {}),
        ("messages/lines", {}),
        ("messages", {"where": "n IS NULL OR n IS NOT NULL"}),
        ("messages", {"text": "x"}),
    ):
        page = strictly(console.raw("POST", what, {"path": "shown", **wanted}))
        assert len(page["messages"]) == len(UNREADABLE) + 1 or "text" in wanted  # type: ignore[arg-type]
    for number in range(1, len(UNREADABLE) + 2):
        one = strictly(console.raw("POST", "message", {"path": "shown", "sequence_number": number}))
        assert one["body_bytes"]


def test_one_that_no_copy_can_be_made_of_stays(bus: Bus, console: ConsoleClient) -> None:
    bus.create_queue("old")
    bus.create_queue("new")
    sent(bus, "old", UNREADABLE["a property"], UNREADABLE["a value"], BODY)
    told = console("POST", "messages/resubmit", path="old", to="new")
    assert told["done"] == 2 and [one["reason"] for one in told["skipped"]] == [
        "it has properties that are no AMQP: a copy would lack them"
    ]


def test_a_receiver_over_http_gets_every_one_of_them(bus: Bus, console: ConsoleClient) -> None:
    bus.create_queue("fetched")
    sent(bus, "fetched", *UNREADABLE.values())
    for _ in UNREADABLE:
        connection = http.client.HTTPConnection("127.0.0.1", bus.port, timeout=60)
        connection.request("DELETE", "/fetched/messages/head?timeout=30", headers={"Authorization": console.token})
        answer = connection.getresponse()
        assert answer.status == 200 and answer.read()
        strictly(answer.headers["BrokerProperties"].encode())
        strictly((answer.headers.get("n") or "null").encode())
        connection.close()


def test_rules_look_at_an_instant_beyond_time_whenever_it_comes(bus: Bus) -> None:
    """Accepted is delivered: also what is scheduled, or forwarded, and meets the rules later."""
    bus.create_topic("judged")
    looks = RuleDescription(name="looks", filter=SqlFilter(expression="n IS NULL OR n <> 'x' OR 1 = 1"))
    bus.create_subscription("judged", "all", rules=[looks])
    bus.create_queue("onward", forward_to="judged")
    due = int(time.time() * 1_000) + 200
    later = section(0x72, map_of(b"\xa3\x1cx-opt-scheduled-enqueue-time", b"\x83" + struct.pack(">q", due)))
    sent(bus, "judged", UNREADABLE["an instant"], later + UNREADABLE["an instant"])
    sent(bus, "onward", UNREADABLE["an instant"])
    with (
        ServiceBusClient.from_connection_string(bus.connection_string) as client,
        client.get_subscription_receiver("judged", "all") as receiver,
    ):
        got = 0
        while got < 3:
            messages = receiver.receive_messages(max_message_count=10, max_wait_time=30)
            assert messages, f"{got} of 3 came"
            got += len(messages)
