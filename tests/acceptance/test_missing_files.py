"""A data directory with something missing: nothing is begun anew in its place, nothing is handed to the wrong queue, and it is told."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.cli.broker_process import BrokerProcess
from tests.waiting import wait_until

ARGUMENTS = ("--port", "0", "--dev", "--data", "data", "--config", "tandem.toml")
QUEUES = ("first", "second")
PATIENCE_SECONDS = 30


def configuration(*queues: str, stores: int = 2, isolation: str = "thread") -> str:
    head = f'[stores]\ncount = {stores}\nisolation = "{isolation}"\nsegment_bytes = 1048576\n'
    return head + "".join(f'[[queue]]\nname = "{name}"\n' for name in queues)


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A data directory of a broker that was stopped: `first` and `second` hold a message each, in a store each."""
    return make_house(tmp_path)


def make_house(tmp_path: Path, isolation: str = "thread") -> Path:
    (tmp_path / "tandem.toml").write_text(configuration(*QUEUES, isolation=isolation))
    with BrokerProcess(tmp_path, *ARGUMENTS) as broker:
        for name in QUEUES:
            send(broker, name, f"of {name}")
        broker.stop()
    return tmp_path


def store_of(house: Path, queue: str) -> Path:
    """The stores take turns in the order of the configuration."""
    return next(house.glob("data/*")).parent / "tandem" / f"store-{QUEUES.index(queue)}"


def send(broker: BrokerProcess, queue: str, text: str) -> None:
    client = ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0)
    with client, client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(text, message_id=text))


def take(broker: BrokerProcess, queue: str, most: int = 10, wait: float = 5) -> list[str]:
    client = ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0)
    with client, client.get_queue_receiver(queue) as receiver:
        found = receiver.receive_messages(most, max_wait_time=wait)
        for message in found:
            receiver.complete_message(message)
        return [str(message) for message in found]


def ask(broker: BrokerProcess, page: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.port}/$tandem/{page}", timeout=10) as answer:
        text: str = answer.read().decode()
        return text


def stores(broker: BrokerProcess) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(ask(broker, "health"))["namespaces"][0]["stores"]
    return found


def await_states(broker: BrokerProcess, *wanted: str) -> None:
    eventually(lambda: [store["state"] for store in stores(broker)] == list(wanted), lambda: f"stores are {stores(broker)}, not {wanted}")


def await_cause(broker: BrokerProcess, why: str) -> None:
    """The first store says so; while it is tried again it says that."""
    eventually(lambda: why in stores(broker)[0]["cause"], lambda: f"stores are {stores(broker)}, not so because '{why}'")


def eventually(holds: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    wait_until(holds, otherwise, PATIENCE_SECONDS)


def tandem(house: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tandem", *arguments], cwd=house, capture_output=True, text=True, timeout=60)


# -- a store is missing --------------------------------------------------------------------------------------------------------


def unmount(house: Path, *, empty: bool = False) -> None:
    """The store of `first` is somewhere else; in its place is nothing, or the empty directory that a disk is mounted on."""
    store = store_of(house, "first")
    store.rename(house / "elsewhere")
    if empty:
        store.mkdir()


def mount(house: Path) -> None:
    store = store_of(house, "first")
    if store.exists():
        store.rmdir()  # fails if anybody put something there
    (house / "elsewhere").rename(store)


@pytest.mark.parametrize(("isolation", "empty"), [("thread", False), ("process", True)])
def test_a_store_that_is_not_there_at_the_start_is_down_and_told_and_comes_up_with_its_disk(
    tmp_path: Path, isolation: str, empty: bool
) -> None:
    house = make_house(tmp_path, isolation)
    unmount(house, empty=empty)
    with BrokerProcess(house, *ARGUMENTS) as broker:
        await_states(broker, "down", "up")
        await_cause(broker, "is its disk mounted")
        assert json.loads(ask(broker, "health"))["status"] == "degraded"
        assert 'store="0"} 0' in ask(broker, "metrics")
        with pytest.raises(ServiceBusError) as refused:
            send(broker, "first", "too early")
        assert "store" in str(refused.value)
        assert "not there" in str(refused.value)
        assert take(broker, "second") == ["of second"]
        mount(house)
        await_states(broker, "up", "up")
        assert take(broker, "first") == ["of first"]
        _, said = broker.stop()
    assert "store-0 is down" in said
    kinds = [(line["kind"], line["path"]) for line in map(json.loads, (house / "data/events.jsonl").read_text().splitlines())]
    assert ("store-down", "store-0") in kinds


@pytest.mark.parametrize("live", [True, False])
def test_a_lost_store_is_begun_anew_on_command_only_and_numbers_go_on_above(house: Path, live: bool) -> None:
    unmount(house, empty=live)
    lost = str(store_of(house, "first"))
    if not live:
        assert tandem(house, "store", "reset", lost).returncode == 0
    with BrokerProcess(house, *ARGUMENTS) as broker:
        if live:
            await_states(broker, "down", "up")
            assert tandem(house, "store", "reset", lost).returncode == 0
        await_states(broker, "up", "up")
        send(broker, "first", "new")
        with ServiceBusClient.from_connection_string(broker.connection_string) as client, client.get_queue_receiver("first") as receiver:
            (message,) = receiver.receive_messages(1, max_wait_time=5)
            assert str(message) == "new"
            assert message.sequence_number is not None
            assert message.sequence_number > 1_000_000
        assert take(broker, "second") == ["of second"]
        broker.stop()
    with BrokerProcess(house, *ARGUMENTS) as broker:
        assert take(broker, "first") == ["new"]
        broker.stop()
    # what was lost and turns up again is not taken for the new one
    shutil.rmtree(lost)
    mount(house)
    with BrokerProcess(house, *ARGUMENTS) as broker:
        await_states(broker, "down", "up")
        await_cause(broker, "the one that belongs here")


def test_a_store_that_is_there_cannot_be_reset(house: Path) -> None:
    before = sorted(store_of(house, "first").iterdir())
    refused = tandem(house, "store", "reset", str(store_of(house, "first")))
    assert refused.returncode == 2
    assert "Move it away first" in refused.stderr
    assert sorted(store_of(house, "first").iterdir()) == before
    stranger = tandem(house, "store", "reset", str(store_of(house, "first").with_name("store-7")))
    assert stranger.returncode == 2
    assert "never had" in stranger.stderr


def test_a_broker_whose_only_store_is_not_mounted_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(configuration("first", stores=1))
    with BrokerProcess(tmp_path, *ARGUMENTS) as broker:
        send(broker, "first", "kept")
        broker.stop()
    unmount(tmp_path)
    with BrokerProcess(tmp_path, *ARGUMENTS) as broker:
        await_states(broker, "down")
        mount(tmp_path)
        await_states(broker, "up")
        assert take(broker, "first") == ["kept"]


def test_a_store_that_is_added_to_the_configuration_is_begun(house: Path) -> None:
    (house / "tandem.toml").write_text(configuration(*QUEUES, "third", stores=3))
    with BrokerProcess(house, *ARGUMENTS) as broker:
        await_states(broker, "up", "up", "up")
        send(broker, "third", "in the new one")
        assert take(broker, "third") == ["in the new one"]
        assert take(broker, "first") == ["of first"]
        broker.stop()
    shutil.rmtree(store_of(house, "first").with_name("store-2"))
    with BrokerProcess(house, *ARGUMENTS) as broker:
        await_states(broker, "up", "up", "down")


def test_swapped_store_directories_are_both_down(house: Path) -> None:
    first, second = store_of(house, "first"), store_of(house, "second")
    first.rename(house / "aside")
    second.rename(first)
    (house / "aside").rename(second)
    broken = BrokerProcess(house, *ARGUMENTS)
    _, said = broken.process.communicate(timeout=30)
    assert broken.process.returncode == 2
    assert "the one that belongs here" in said
    first.rename(house / "aside")
    second.rename(first)
    (house / "aside").rename(second)
    with BrokerProcess(house, *ARGUMENTS) as broker:
        assert [take(broker, name) for name in QUEUES] == [["of first"], ["of second"]]


# -- data directories from before --------------------------------------------------------------------------------------------


def make_old(house: Path) -> None:
    """As it was written before metadata and stores knew each other."""
    with sqlite3.connect(house / "data/tandem/metadata.sqlite") as db:
        db.executescript("DROP TABLE identity; DROP TABLE stores; DROP TABLE relays; PRAGMA user_version = 1;")
    db.close()
    for path in house.glob("data/tandem/store-*/store.json"):
        content = json.loads(path.read_text().splitlines()[0])
        for name in ("crc", "metadata"):
            del content[name]
        content["crc"] = crc(content)
        path.write_text(json.dumps(content, sort_keys=True) + "\n")


def crc(content: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def test_a_data_directory_from_before_is_adopted_once_with_a_line_in_the_log(house: Path) -> None:
    make_old(house)
    with BrokerProcess(house, *ARGUMENTS) as broker:
        await_states(broker, "up", "up")
        assert take(broker, "first") == ["of first"]
        _, said = broker.stop()
    assert said.count("is kept as store") == 2
    with BrokerProcess(house, *ARGUMENTS) as broker:
        assert take(broker, "second") == ["of second"]
        _, said = broker.stop()
    assert "is kept as store" not in said
    unmount(house)
    with BrokerProcess(house, *ARGUMENTS) as broker:
        await_states(broker, "down", "up")


def test_a_store_that_is_missing_while_an_old_data_directory_is_adopted_is_not_begun_anew(house: Path) -> None:
    make_old(house)
    unmount(house)
    with BrokerProcess(house, *ARGUMENTS) as broker:
        await_states(broker, "down", "up")
        mount(house)
        await_states(broker, "up", "up")
        assert take(broker, "first") == ["of first"]


# -- metadata is missing -----------------------------------------------------------------------------------------------------


def refused_start(house: Path) -> str:
    broken = BrokerProcess(house, *ARGUMENTS)
    _, said = broken.process.communicate(timeout=30)
    assert broken.process.returncode == 2, said
    return said


def remove_metadata(house: Path) -> None:
    for path in (house / "data/tandem").glob("metadata.sqlite*"):
        path.unlink()


def test_stores_without_their_metadata_are_not_opened(house: Path) -> None:
    remove_metadata(house)
    (house / "tandem.toml").write_text(configuration(*reversed(QUEUES)))
    said = refused_start(house)
    assert "metadata.sqlite is missing" in said
    assert "tandem store recover-metadata" in said
    assert not (house / "data/tandem/metadata.sqlite").exists()
    (house / "data/tandem/metadata.sqlite").touch()
    assert "metadata.sqlite is missing or empty" in refused_start(house)


def test_stores_with_the_metadata_of_others_are_not_opened(house: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "tandem.toml").write_text(configuration(*reversed(QUEUES)))
    with BrokerProcess(other, *ARGUMENTS) as broker:
        broker.stop()
    remove_metadata(house)
    shutil.copy(other / "data/tandem/metadata.sqlite", house / "data/tandem/metadata.sqlite")
    said = refused_start(house)
    assert "belongs to the metadata" in said


def test_metadata_is_rebuilt_from_the_journals_and_every_queue_finds_its_own_messages(house: Path) -> None:
    remove_metadata(house)
    (house / "tandem.toml").write_text(configuration(*reversed(QUEUES)))
    done = tandem(house, "store", "recover-metadata", "data")
    assert done.returncode == 0, done.stderr
    assert "queue 'first' (number 1, store-0)" in done.stdout
    with BrokerProcess(house, *ARGUMENTS) as broker:
        assert [take(broker, name) for name in QUEUES] == [["of first"], ["of second"]]
        broker.stop()
    again = tandem(house, "store", "recover-metadata", "data/tandem")
    assert again.returncode == 2
    assert "move it away first" in again.stderr


def test_metadata_that_is_older_than_a_journal_is_noticed(house: Path) -> None:
    metadata = house / "data/tandem/metadata.sqlite"
    shutil.copy(metadata, house / "old.sqlite")
    (house / "tandem.toml").write_text(configuration(*QUEUES, "third", "fourth"))
    with BrokerProcess(house, *ARGUMENTS) as broker:
        send(broker, "third", "of third")
        broker.stop()
    remove_metadata(house)
    shutil.copy(house / "old.sqlite", metadata)
    (house / "tandem.toml").write_text(configuration(*QUEUES))
    assert "older than the journal" in refused_start(house)


def test_a_journal_is_not_read_with_metadata_that_means_other_entities(house: Path) -> None:
    """The identity alone is not enough: somebody may have edited the file, or put a copy together."""
    with sqlite3.connect(house / "data/tandem/metadata.sqlite") as db:
        rows = db.execute("SELECT id, kind, path, topic_id, store, description FROM entities ORDER BY id").fetchall()
        db.execute("DELETE FROM entities")
        for (id_, kind, _, topic, store, _), (_, _, path, _, _, text) in zip(rows, reversed(rows), strict=True):
            columns = (id_, kind, path, topic, store, text)
            checksum = zlib.crc32("\x00".join(map(str, columns)).encode())
            db.execute("INSERT INTO entities VALUES (?, ?, ?, ?, ?, ?, ?)", (*columns, checksum))
    db.close()
    assert "it is not the metadata of this store" in refused_start(house)


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_metadata_that_another_is_copied_over_is_told_before_anybody_changes_something(
    house: Path, tmp_path_factory: pytest.TempPathFactory, workers: tuple[str, ...]
) -> None:
    metadata = house / "data/tandem/metadata.sqlite"
    ours, other = metadata.read_bytes(), make_house(tmp_path_factory.mktemp("other")) / "data/tandem/metadata.sqlite"
    with BrokerProcess(house, *ARGUMENTS, *workers, log=house / "log") as broker:

        def told() -> tuple[str, list[str]]:
            health = json.loads(ask(broker, "health"))
            return health["status"], health["namespaces"][0]["notes"]

        assert told() == ("ok", [])
        metadata.write_bytes(other.read_bytes())
        wait_until(lambda: told()[0] == "degraded", "told in health", PATIENCE_SECONDS)
        assert "was overwritten with something else" in told()[1][0] and told()[1][0] in (house / "log").read_text()
        metadata.write_bytes(ours)
        wait_until(lambda: told() == ("ok", []), "put right", PATIENCE_SECONDS)
