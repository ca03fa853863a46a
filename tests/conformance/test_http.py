"""The HTTP interface for messages, as clients without a library use it: one request, one answer, against a broker process."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any

import pytest

from tandem import amqp
from tests.conformance.house import ProcessBroker
from tests.conformance.raw import Raw, token_for

QUEUES = {"plain": 6, "partitioned": 1, "receive-disabled": 1, "disabled": 1}


@dataclass
class Answer:
    status: int
    body: str
    headers: dict[str, str]

    @property
    def broker(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.headers["BrokerProperties"])
        return found


def ask(broker: ProcessBroker, method: str, path: str, body: str = "", **headers: str) -> Answer:
    connection = http.client.HTTPConnection("localhost", broker.port, timeout=20)
    try:
        connection.request(method, f"/{path}", body, {"Authorization": token_for(broker.port, ""), **headers})
        answer = connection.getresponse()
        return Answer(answer.status, answer.read().decode(), dict(answer.getheaders()))
    finally:
        connection.close()


def test_a_locked_message_is_named_by_its_number_or_by_its_id(broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    for message_id in ("4711", "1" * 120, "\u0663"):
        assert ask(broker, "POST", f"{queue}/messages", "x", BrokerProperties=json.dumps({"MessageId": message_id})).status == 201
        token = ask(broker, "POST", f"{queue}/messages/head?timeout=5").broker["LockToken"]
        for other in ("4712", "9" * 5000, "%C2%B2", "%D9%A4"):
            status = ask(broker, "POST", f"{queue}/messages/{other}/{token}").status
            assert status == (200 if other == "%C2%B2" else 404), other  # no number: the token says which it is
        path = message_id.replace("\u0663", "%D9%A3")
        assert ask(broker, "POST", f"{queue}/messages/{path}/{token}").status == 200
        assert ask(broker, "DELETE", f"{queue}/messages/{path}/{token}").status == 200
    assert ask(broker, "DELETE", f"{queue}/messages/head?timeout=0").status == 204


def test_receiving_from_a_disabled_entity_is_refused_at_once(broker: ProcessBroker) -> None:
    for kind in ("receive-disabled", "disabled"):
        queue = broker.queue(kind)
        for method in ("POST", "DELETE"):
            refused = ask(broker, method, f"{queue}/messages/head?timeout=60")
            assert refused.status == 403
            assert f"Messaging entity '{queue}' is currently disabled for receiving" in refused.body


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"BrokerProperties": '{"ScheduledEnqueueTimeUtc":"Wed, 02 Jul 99999999999999999999 01:32:27 GMT"}'}, "must be an instant like"),
        ({"BrokerProperties": '{"Label":"half \\ud800"}'}, "half"),
        ({"BrokerProperties": '{"SessionId":"half \\ud800"}'}, "half"),
        ({"Property": '"half \\ud800"'}, "half"),
        ({"Tandem-Properties": '{"half \\ud800":1}'}, "half"),
    ],
)
def test_values_that_nothing_can_hold_are_refused_by_name(broker: ProcessBroker, said: dict[str, str], words: str) -> None:
    refused = ask(broker, "POST", "plain-0/messages", "x", **said)
    assert refused.status == 400
    assert words in refused.body


@pytest.mark.parametrize("seconds", ["1e308", "1e999", "9" * 400])
def test_a_time_to_live_beyond_all_numbers_is_for_ever(broker: ProcessBroker, seconds: str) -> None:
    queue = broker.queue("plain")
    assert ask(broker, "POST", f"{queue}/messages", "x", BrokerProperties=f'{{"TimeToLive":{seconds}}}').status == 201
    assert ask(broker, "DELETE", f"{queue}/messages/head?timeout=5").broker["TimeToLive"] > 9e11


def test_a_slash_after_the_address_says_nothing(broker: ProcessBroker) -> None:
    assert ask(broker, "POST", "plain-0/messages/?timeout=60", "x").status == 201
    locked = ask(broker, "POST", "plain-0/messages/head/?timeout=5")
    assert (locked.status, locked.body) == (201, "x")
    assert ask(broker, "DELETE", f"plain-0/messages/{locked.broker['MessageId']}/{locked.broker['LockToken']}/").status == 200


def test_nothing_is_sent_to_a_sub_queue(broker: ProcessBroker, raw: Raw) -> None:
    for kind in ("plain", "partitioned"):
        queue = broker.queue(kind)
        for sub_queue in ("$DeadLetterQueue", "$Transfer/$DeadLetterQueue"):
            refused = ask(broker, "POST", f"{queue}/{sub_queue}/messages", "x")
            assert refused.status == 400
            assert f"'{queue}/{sub_queue}' is a sub-queue: messages are moved there, not sent." in refused.body
        assert raw.peek(queue) == []


def test_a_forwarded_dead_letter_says_where_it_was_and_under_which_number(broker: ProcessBroker, raw: Raw) -> None:
    home = broker.queue("plain")
    space = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
    entry = f"""<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription xmlns="{space}">
        <ForwardDeadLetteredMessagesTo>{home}</ForwardDeadLetteredMessagesTo></QueueDescription></content></entry>"""
    assert ask(broker, "PUT", "careless?api-version=2021-05", entry).status == 201
    raw.feed("careless", "fine", "bad")
    receiver = raw.receiver("careless")
    _, bad = receiver.receive(2)
    receiver.settle(bad, amqp.encode_rejected(None))
    found = ask(broker, "DELETE", f"{home}/messages/head?timeout=10")
    assert (found.status, found.body) == (200, "bad")
    assert (found.broker["DeadLetterSource"], found.broker["EnqueuedSequenceNumber"]) == ("careless", 1)  # the first dead letter there
