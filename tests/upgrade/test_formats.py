"""Data directories of every released format are opened by this version, and everything in them is there.

`formats/` holds small ones, named after the day they were made; none is ever edited.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
import urllib.request
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage

from tandem.stores.checksum import crc32
from tandem.stores.migrations import ADDED, MIGRATIONS
from tests.cli.broker_process import BrokerProcess
from tests.cli.operations.conftest import command_line

FORMATS = sorted((Path(__file__).parent / "formats").glob("*.tar.xz"))
ARGUMENTS = ("--dev", "--port", "0", "--data", "data", "--config", "tandem.toml")


@pytest.fixture
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)  # Python 3.11.2 has none
        archive.extractall(tmp_path)
    return tmp_path


def of_every_format(test: object) -> object:
    return pytest.mark.parametrize("old", FORMATS, ids=lambda path: path.name.partition(".")[0], indirect=True)(test)


def take(client: ServiceBusClient, count: int, queue: str, **options: object) -> list[ServiceBusReceivedMessage]:
    found: list[ServiceBusReceivedMessage] = []
    with client.get_queue_receiver(queue, **options) as receiver:  # type: ignore[arg-type]
        while len(found) < count:
            messages = receiver.receive_messages(max_message_count=count - len(found), max_wait_time=5)
            assert messages, f"{queue}: only {len(found)} of {count}"
            for message in messages:
                receiver.complete_message(message)
            found += messages
        assert receiver.receive_messages(max_message_count=1, max_wait_time=0.5) == [], f"{queue} has more than it should"
    return found


def stores_of(broker: BrokerProcess) -> list[dict[str, str]]:
    with urllib.request.urlopen(f"http://localhost:{broker.port}/$tandem/health", timeout=30) as reply:
        found: list[dict[str, str]] = json.loads(reply.read())["namespaces"][0]["stores"]
        return found


def ids(messages: list[ServiceBusReceivedMessage]) -> list[str]:
    return [str(message.message_id) for message in messages]


@of_every_format
def test_everything_in_an_older_directory_is_there(old: Path) -> None:
    with BrokerProcess(old, *ARGUMENTS) as broker, ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_receiver("plain") as receiver:
            seen = {message.message_id: message for message in receiver.peek_messages(100)}
            assert {"later", "large", "m5"} <= set(seen)
            [deferred] = receiver.receive_deferred_messages(seen["m5"].sequence_number or 0)
            receiver.complete_message(deferred)
        taken = take(client, 14, "plain")
        assert ids(taken) == [*(f"m{n}" for n in range(7, 20)), "large"]
        assert [message.delivery_count for message in taken] == [1] * 13 + [0]
        assert (taken[0].application_properties, len(b"".join(taken[-1].body))) == ({b"n": 7}, 200_000)  # type: ignore[arg-type]
        [dead] = take(client, 1, "plain", sub_queue="deadletter")
        assert (dead.message_id, dead.dead_letter_reason) == ("m6", "odd")
        with client.get_queue_receiver("sessions", session_id="a", max_wait_time=5) as session:
            assert session.session.get_state() == b"half way"
        assert [ids(take(client, 3, "sessions", session_id=one, max_wait_time=5)) for one in ("a", "b")] == [
            ["a0", "a1", "a2"],
            ["b0", "b1", "b2"],
        ]
        assert sorted(ids(take(client, 12, "parted"))) == sorted(f"p{n}" for n in range(12))
        for name, wanted in (("all", ["e0", "e1", "e2", "e3"]), ("large", ["e2", "e3"])):
            with client.get_subscription_receiver("events", name, max_wait_time=2) as receiver:
                assert ids(list(receiver.receive_messages(max_message_count=10, max_wait_time=5))) == wanted
        with client.get_queue_sender("unique") as sender:
            sender.send_messages(ServiceBusMessage("again", message_id="once"))
        with client.get_queue_receiver("unique") as receiver:
            assert [str(message) for message in receiver.peek_messages(10)] in (["once"], ["again"])


@of_every_format
def test_it_goes_on_from_there_through_a_kill(old: Path) -> None:
    with BrokerProcess(old, *ARGUMENTS) as broker:
        with ServiceBusClient.from_connection_string(broker.connection_string) as client, client.get_queue_sender("parted") as sender:
            sender.send_messages(ServiceBusMessage("new", message_id="new"))
        broker.process.kill()
    with BrokerProcess(old, *ARGUMENTS) as broker, ServiceBusClient.from_connection_string(broker.connection_string) as client:
        assert sorted(ids(take(client, 13, "parted"))) == sorted(["new", *(f"p{n}" for n in range(12))])


@pytest.mark.parametrize("old", FORMATS[-1:], ids=["newest"], indirect=True)
def test_a_directory_of_a_newer_version_is_refused_with_what_to_do_and_never_called_damaged(old: Path) -> None:
    store = old / "data" / "tandem" / "store-0" / "store.json"
    whole = store.read_text()
    newer = json.loads(whole) | {"format": 99}
    del newer["crc"]
    store.write_text(json.dumps(newer | {"crc": crc32(json.dumps(newer, sort_keys=True).encode())}, sort_keys=True))
    with BrokerProcess(old, *ARGUMENTS) as broker:
        states = stores_of(broker)
        while states[0]["state"] == "recovering":  # it is tried again now and then
            states = stores_of(broker)
    assert (states[0]["state"], states[1]["state"]) == ("down", "up")
    assert "newer Tandem (format 99" in states[0]["cause"] and "restore a backup" in states[0]["cause"]
    store.write_text(whole)
    with sqlite3.connect(old / "data" / "tandem" / "metadata.sqlite") as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(AssertionError, match=r"newer version .*restore a backup"), BrokerProcess(old, *ARGUMENTS):
        pass
    checked = command_line("upgrade", "--check", str(old / "data"))
    assert checked.returncode == 1 and "cannot open it. Start the newer Tandem again" in checked.stdout


def test_every_migration_has_words_for_what_it_brings() -> None:
    assert len(ADDED) == len(MIGRATIONS)


@of_every_format
def test_what_an_upgrade_changes_is_said_before_and_when_it_happens(old: Path) -> None:
    def formats() -> list[dict[str, object]]:
        shown = json.loads(command_line("upgrade", "--check", str(old / "data"), "--json").stdout)
        assert shown["opens"]
        return list(shown["formats"])

    before = formats()
    assert all(one["version"] <= one["known"] for one in before)  # type: ignore[operator]
    with BrokerProcess(old, *ARGUMENTS) as broker:
        code, said = broker.stop()
    assert code == 0
    for one in before:
        assert ("brought from schema" in said) == bool(one["changes"]) or not str(one["where"]).endswith("metadata.sqlite")
    assert not any(one["changes"] for one in formats())
    assert "nothing has to be changed" in command_line("upgrade", "--check", str(old / "data")).stdout
