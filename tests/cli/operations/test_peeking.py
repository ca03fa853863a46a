"""A message that the SDK cannot read stands in nobody's way: `peek` and `dead-letter list` name it and go on."""

from __future__ import annotations

import json

import pytest

from tandem import amqp
from tests.cli.broker_process import BrokerProcess
from tests.cli.operations.conftest import Tandem
from tests.conformance.raw import Raw
from tests.gateway.http.api.console_client import ConsoleClient
from tests.gateway.http.api.test_unreadable_messages import BODY, UNREADABLE


def fill(broker: BrokerProcess, queue: str, *messages: bytes) -> None:
    with Raw(broker.port) as raw:
        sender = raw.sender(queue)
        for message in messages:
            sender.send(message)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["a value", "a footer", "a property"])
def test_peek_names_it_and_shows_the_others(tandem: Tandem, broker: BrokerProcess, kind: str) -> None:
    queue = f"with-{kind.replace(' ', '-')}"
    tandem("queue", "create", queue)
    fill(broker, queue, BODY, UNREADABLE[kind], UNREADABLE[kind], BODY)
    done = tandem("peek", queue, "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["sequence_number"] for row in rows] == [1, 2, 3, 4]
    assert ["unreadable" in row for row in rows] == [False, True, True, False]
    assert "decoder cannot read it" in rows[1]["unreadable"] and done.stderr == ""
    shown = " ".join(tandem("peek", queue).stdout.split())
    assert shown.count("unreadable: the SDK's decoder") == 2
    part = tandem("peek", queue, "--json", "--from", "3", "-n", "1").stdout
    assert [json.loads(line)["sequence_number"] for line in part.splitlines()] == [3]


@pytest.mark.slow
def test_peek_of_a_session_does_too(tandem: Tandem, broker: BrokerProcess) -> None:
    tandem("queue", "create", "with-sessions", "-p", "requires-session=true")
    bodies = (BODY, UNREADABLE["a value"], BODY)
    properties = [amqp.encode_message(properties={"message-id": f"{number}", "group-id": "s"}) for number in range(len(bodies))]
    fill(broker, "with-sessions", *(one + body for one, body in zip(properties, bodies, strict=True)))
    rows = [json.loads(line) for line in tandem("peek", "with-sessions", "--session", "s", "--json").stdout.splitlines()]
    assert ["unreadable" in row for row in rows] == [False, True, False]


@pytest.mark.slow
def test_dead_letters_that_cannot_be_read_are_left_out_and_named(tandem: Tandem, broker: BrokerProcess) -> None:
    tandem("queue", "create", "dead")
    fill(broker, "dead", BODY, UNREADABLE["a value"])
    ConsoleClient(broker.port)("POST", "messages/dead-letter", path="dead", sequence_numbers=[1, 2], reason="told so")
    done = tandem("dead-letter", "list", "dead", "--json")
    assert len(done.stdout.splitlines()) == 1
    assert "is left out: the SDK's decoder cannot read it" in done.stderr


@pytest.mark.slow
def test_what_is_no_number_is_printed_as_json(tandem: Tandem, broker: BrokerProcess) -> None:
    tandem("queue", "create", "no-number")
    fill(broker, "no-number", UNREADABLE["no number"])
    printed = tandem("peek", "no-number", "--json").stdout
    assert json.loads(printed, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))["properties"] == {"n": "nan"}
