"""`tandem send|receive|peek|purge|schedule|cancel`, dead letters and sessions, against a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.cli.broker_process import BrokerProcess
from tests.cli.operations.conftest import Tandem


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module", autouse=True)
def entities(tandem: Tandem) -> None:
    for name in ("plain", "copies", "soon", "bodies", "many"):
        tandem("queue", "create", name)
    tandem("queue", "create", "sessions", "-p", "requires-session=true")
    tandem("queue", "create", "poor", "-p", "requires-duplicate-detection=true")


@pytest.mark.slow
def test_what_is_sent_is_seen_by_peek_and_taken_once_by_receive(tandem: Tandem) -> None:
    said = tandem(
        "send", "plain", '{"total": 120}', "--subject", "created", "-p", "region=eu", "-p", "n=3", "--message-id", "m", "--ttl", "1h"
    )
    assert said.stdout == "sent 1\n"
    [seen] = lines(tandem("peek", "plain", "--json").stdout)
    assert (seen["body"], seen["message_id"], seen["subject"]) == ('{"total": 120}', "m", "created")
    assert (seen["properties"], seen["time_to_live_ms"]) == ({"region": "eu", "n": 3}, 3_600_000)
    kept = lines(tandem("receive", "plain", "--keep", "--json").stdout)
    taken = lines(tandem("receive", "plain", "--json").stdout)
    assert [one["message_id"] for one in (*kept, *taken)] == ["m", "m"]
    assert "there is no message" in tandem("receive", "plain", "--wait", "0.5", expect=1).stderr


@pytest.mark.slow
def test_what_peek_prints_can_be_sent_again_elsewhere(tandem: Tandem, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(bytes(range(256)))
    tandem("send", "bodies", "--file", str(tmp_path / "body"), "--message-id", "raw")
    tandem("send", "bodies", "text", "--count", "300", "--message-id", "n")
    exported = tandem("peek", "bodies", "--count", "1000", "--json").stdout
    assert tandem("send", "copies", "--lines", "-", stdin=exported).stdout == "sent 301\n"
    again = lines(tandem("peek", "copies", "--count", "1000", "--json").stdout)
    wanted = ("message_id", "body", "body_base64")
    assert [[one.get(name) for name in wanted] for one in again] == [[one.get(name) for name in wanted] for one in lines(exported)]
    assert json.loads(tandem("purge", "copies", "--yes", "--json").stdout) == {"entity": "copies", "dropped": 301}
    assert "line 2" in tandem("send", "copies", "--lines", "-", stdin='{"body": "x"}\n{"colour": 1}\n', expect=2).stderr


@pytest.mark.slow
def test_what_is_scheduled_can_be_cancelled_by_its_number(tandem: Tandem) -> None:
    number = tandem("schedule", "soon", "wake up", "--at", "2h").stdout.strip()
    [seen] = lines(tandem("peek", "soon", "--json").stdout)
    assert (str(seen["sequence_number"]), seen["body"]) == (number, "wake up")
    tandem("cancel", "soon", number)
    assert tandem("peek", "soon", "--json").stdout == ""
    assert "neither a span" in tandem("schedule", "soon", "x", "--at", "tomorrow", expect=2).stderr


@pytest.mark.slow
def test_sessions_are_listed_have_a_state_and_are_purged(tandem: Tandem) -> None:
    for session in ("a", "b"):
        tandem("send", "sessions", "x", "--session-id", session, "--count", "5")
    assert [one["session_id"] for one in json.loads(tandem("session", "list", "sessions", "--json").stdout)] == ["a", "b"]
    assert tandem("session", "state", "sessions", "a", "--set", "half way").stdout == "half way\n"
    assert json.loads(tandem("session", "state", "sessions", "a", "--json").stdout) == {"session_id": "a", "state": "half way"}
    [first] = lines(tandem("receive", "sessions", "--session", "b", "--json").stdout)
    assert first["session_id"] == "b"
    assert "dropped 9" in tandem("purge", "sessions", "--yes").stdout


def _bury(broker: BrokerProcess, queue: str, reasons: list[str]) -> None:
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_sender(queue) as sender:
            for number, reason in enumerate(reasons):
                sender.send_messages(
                    ServiceBusMessage(
                        f"body {number}",
                        message_id=f"{reason}-{number}",
                        application_properties={"n": number, "reason": reason},
                        subject="s",
                    )
                )
        with client.get_queue_receiver(queue) as receiver:
            left = len(reasons)
            while left:
                for message in receiver.receive_messages(max_message_count=left, max_wait_time=5):
                    reason = str((message.application_properties or {})[b"reason"], "utf-8")
                    receiver.dead_letter_message(message, reason=reason, error_description="on purpose")
                    left -= 1


@pytest.mark.slow
def test_dead_letters_are_listed_by_reason_and_sent_again_with_their_ids(broker: BrokerProcess, tandem: Tandem) -> None:
    _bury(broker, "poor", ["late", "odd", "late", "odd", "late"])
    late = lines(tandem("dead-letter", "list", "poor", "--reason", "late", "--json").stdout)
    assert [one["message_id"] for one in late] == ["late-0", "late-2", "late-4"]
    number = str(late[0]["sequence_number"])
    assert json.loads(tandem("dead-letter", "show", "poor", number, "--json").stdout)["dead_letter_error_description"] == "on purpose"
    meant = ("--where", "n > 0 AND reason = 'late'")
    assert "2 dead letters" in tandem("dead-letter", "resubmit", "poor", *meant, "--dry-run").stdout
    changed = ("--set", "retried=true", "--set", "reason=", "--to", "many")
    assert "sent 2 of 2 again" in tandem("dead-letter", "resubmit", "poor", *meant, *changed, "--yes").stdout
    again = lines(tandem("receive", "many", "--count", "10", "--wait", "1", "--json").stdout)
    assert [(one["message_id"], one["body"], one["subject"], one["properties"]) for one in again] == [
        ("late-2", "body 2", "s", {"n": 2, "retried": True}),
        ("late-4", "body 4", "s", {"n": 4, "retried": True}),
    ]
    left = lines(tandem("dead-letter", "list", "poor", "--json").stdout)
    assert [one["message_id"] for one in left] == ["late-0", "odd-1", "odd-3"]
    assert "sent 1 of 1 again" in tandem("dead-letter", "resubmit", "poor", "--reason", "late", "--yes").stdout
    assert tandem("peek", "poor", "--json").stdout == "", "duplicate detection knows the id that stayed"
    assert "dropped 2 of 2" in tandem("dead-letter", "purge", "poor", "--reason", "odd", "--since", "1h", "--yes").stdout
    assert "--where" in tandem("dead-letter", "list", "poor", "--where", "n >", expect=2).stderr
