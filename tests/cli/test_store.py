"""`tandem store` on a live broker's directory."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tandem.model.errors import EntityAlreadyExists
from tandem.stores.engines import without_stores
from tandem.testing import Bus
from tests.cli.broker_process import BrokerProcess
from tests.cli.operations.conftest import command_line


def tandem(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tandem", *arguments], capture_output=True, text=True, timeout=60)


def send(broker: BrokerProcess, *texts: str) -> None:
    with ServiceBusClient.from_connection_string(broker.connection_string) as client, client.get_queue_sender("orders") as sender:
        for text in texts:
            sender.send_messages(ServiceBusMessage(text, message_id=text))


@pytest.mark.slow
def test_a_backup_of_a_live_broker_opens_with_every_message(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text('[[queue]]\nname = "orders"\n')
    with BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", "data #1?%41", "--config", "tandem.toml") as broker:
        send(broker, "one", "two")
        assert tandem("store", "check", str(tmp_path / "data #1?%41")).returncode == 0
        rows = [json.loads(line) for line in tandem("store", "dump", str(tmp_path / "data #1?%41")).stdout.splitlines()]
        assert [row["message_id"] for row in rows if row["kind"] == "enqueued"] == ["one", "two"]
        done = tandem("store", "backup", str(tmp_path / "data #1?%41"), str(tmp_path / "copy"))
        assert done.returncode == 0, done.stderr
    with BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", "copy") as restored:
        client = ServiceBusClient.from_connection_string(restored.connection_string)
        with client, client.get_queue_receiver("orders") as receiver:
            assert [str(m) for m in receiver.receive_messages(2, max_wait_time=5)] == ["one", "two"]


@pytest.mark.slow
def test_a_flipped_bit_is_found_named_and_ends_with_one(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text('[[queue]]\nname = "orders"\n')
    with BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", "data", "--config", "tandem.toml") as broker:
        send(broker, "one", "two", "three")
    (holder,) = [p for p in (tmp_path / "data").glob("*/store-*/*") if b"three" in p.read_bytes() and not p.name.endswith(".lock")]
    content = bytearray(holder.read_bytes())
    content[content.index(b"one") + 1] ^= 4
    holder.write_bytes(bytes(content))
    found = tandem("store", "check", str(tmp_path / "data"))
    assert found.returncode == 1
    assert holder.name in found.stdout


@pytest.mark.parametrize(("column", "rotten"), [("description", b"lock_duration"), ("path", b"orders")])
def test_rotten_metadata_is_found_and_neither_copied_nor_put_to_use(tmp_path: Path, column: str, rotten: bytes) -> None:
    """SQLite itself finds nothing wrong with a letter that has changed."""
    data = tmp_path / "data"
    with Bus(data_dir=data) as bus:
        bus.create_queue("orders")
    assert tandem("store", "backup", str(data), str(tmp_path / "copy")).returncode == 0
    told = tandem("store", "check", str(data))
    assert (told.returncode, told.stdout.splitlines()[-1].endswith("metadata.sqlite: whole")) == (0, True), told.stdout
    for directory in (data, tmp_path / "copy"):
        (metadata,) = directory.glob("*/metadata.sqlite")
        with contextlib.closing(sqlite3.connect(metadata)) as db:
            db.execute(f"UPDATE entities SET {column} = replace({column}, ?, ?)", (rotten.decode(), rotten.decode().upper()))
            db.commit()
    checked = tandem("store", "check", str(data))
    assert checked.returncode == 1
    assert "entities 1 does not match its checksum" in checked.stdout and "recover-metadata" in checked.stdout
    assert [one["metadata_problems"] != [] for one in json.loads(tandem("store", "check", "--json", str(data)).stdout)] == [True]
    assert tandem("store", "check", str(next(data.glob("*/store-0")))).returncode == 0, "one store is asked for, and is whole"
    refused = tandem("store", "backup", str(data), str(tmp_path / "another"))
    assert (refused.returncode, "does not match its checksum" in refused.stderr) == (2, True)
    not_restored = tandem("store", "restore", str(tmp_path / "copy"), str(tmp_path / "again"))
    assert (not_restored.returncode, (tmp_path / "again").exists()) == (1, False)


def test_metadata_that_was_cut_to_nothing_is_not_whole(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Bus(data_dir=data) as bus:
        bus.create_queue("orders")
    (metadata,) = data.glob("*/metadata.sqlite")
    metadata.write_bytes(b"")
    checked = tandem("store", "check", str(data))
    assert (checked.returncode, "metadata.sqlite: holds nothing" in checked.stdout) == (1, True), checked.stdout
    refused = tandem("store", "backup", str(data), str(tmp_path / "copy"))
    assert (refused.returncode, "holds nothing" in refused.stderr) == (2, True), refused.stderr


def test_a_directory_without_stores_is_a_usage_error(tmp_path: Path) -> None:
    wrong = tandem("store", "check", str(tmp_path))
    assert wrong.returncode == 2
    assert "store-" in wrong.stderr


def test_a_store_that_is_not_there_keeps_nobody_from_looking_at_the_others(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text('[[queue]]\nname = "orders"\n')
    with BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", "data", "--store-count", "2") as broker:
        broker.stop()
    namespace = tmp_path / "data" / "tandem"
    shutil.copytree(namespace / "store-0", namespace / "store-0.old")
    (namespace / "store-list.txt").touch()
    (namespace / "store-1").rename(tmp_path / "away")
    (namespace / "store-1").mkdir()
    checked = command_line("store", "check", str(tmp_path / "data"), "--json")
    assert checked.returncode == 1, checked
    assert [(Path(one["store"]).name, len(one["problems"])) for one in json.loads(checked.stdout)] == [("store-0", 0), ("store-1", 1)]
    dumped = command_line("store", "dump", str(tmp_path / "data"))
    assert dumped.returncode == 1
    assert {json.loads(line)["store"] for line in dumped.stdout.splitlines()} == {"store-0", "store-1"}
    repaired = command_line("store", "repair", str(tmp_path / "data"))
    assert repaired.returncode == 1, repaired
    assert "store-0: " in repaired.stdout and "store-1: " in repaired.stdout and "cannot be repaired: " in repaired.stdout
    alone = command_line("store", "check", str(namespace / "store-1"))
    assert (alone.returncode, "store.json is missing" in alone.stderr) == (2, True)


def test_what_may_not_be_read_is_not_said_to_be_empty(tmp_path: Path) -> None:
    (tmp_path / "tandem" / "store-0").mkdir(parents=True)
    (tmp_path / "tandem").chmod(0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65_534)
    try:
        assert "may not be read by this user; run this as its owner" in str(without_stores(tmp_path))
    finally:
        os.seteuid(user)


def forwarding(names: int) -> str:
    """Queues in a ring of stores, each of which forwards to the next; the last one keeps what arrives."""
    text = "[stores]\ncount = 3\n"
    for number in range(names):
        text += f'[[queue]]\nname = "q{number}"\n' + (f'forward_to = "q{number + 1}"\n' if number < names - 1 else "")
    return text


@pytest.mark.slow
def test_a_backup_taken_under_load_is_restored_and_is_the_same_broker_with_every_message_once(tmp_path: Path) -> None:
    """Messages move from store to store all the time: copied at different instants, some would be in no copy, or in two."""
    (tmp_path / "tandem.toml").write_text(forwarding(4))
    arguments = ("--port", "0", "--host", "127.0.0.1", "--config", "tandem.toml")
    with BrokerProcess(tmp_path, *arguments, "--data", "data", environ={"TANDEM_KEY": ""}) as broker:
        keys = (tmp_path / "data/keys.json").read_text()
        text = connection_string(tmp_path / "data", broker)
        accepted: list[str] = []
        enough, stop = threading.Event(), threading.Event()

        def load() -> None:
            with ServiceBusClient.from_connection_string(text) as client, client.get_queue_sender("q0") as sender:
                while not stop.is_set():
                    name = str(len(accepted))
                    sender.send_messages(ServiceBusMessage(name, message_id=name))
                    accepted.append(name)
                    if len(accepted) > 50:
                        enough.set()

        thread = threading.Thread(target=load)
        thread.start()
        try:
            assert enough.wait(30)
            before = len(accepted)
            done = tandem("store", "backup", str(tmp_path / "data"), str(tmp_path / "copy"))
            after = len(accepted) + 1
        finally:
            stop.set()
            thread.join()
        assert done.returncode == 0, done.stderr
    done = tandem("store", "restore", str(tmp_path / "copy"), str(tmp_path / "again"))
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("keys.json", "ca.pem", "ca.key", "server.pem", "server.key"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "data" / name).read_bytes()
        assert (tmp_path / "again" / name).stat().st_mode & 0o077 == 0
    with BrokerProcess(tmp_path, *arguments, "--data", "again", environ={"TANDEM_KEY": ""}) as broker:
        assert (tmp_path / "again/keys.json").read_text() == keys
        found: list[str] = []
        client = ServiceBusClient.from_connection_string(connection_string(tmp_path / "again", broker))
        with client, client.get_queue_receiver("q3") as receiver:
            while messages := receiver.receive_messages(100, max_wait_time=5 if len(found) < before else 1):
                found += [str(message) for message in messages]
                for message in messages:
                    receiver.complete_message(message)
        _, said = broker.stop()
    assert sorted(found, key=int) == [str(number) for number in range(len(found))], "each once, and none left out"
    assert before <= len(found) <= after
    assert "was opened" not in said, "nothing is amiss with a copy"


def connection_string(data: Path, broker: BrokerProcess) -> str:
    key = json.loads((data / "keys.json").read_text())["tandem"][""]["RootManageSharedAccessKey"]["primary_key"]
    port = broker.line("ready: listening on").split(";")[0].rpartition(":")[2]
    return f"Endpoint=sb://localhost:{port};SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={key};UseDevelopmentEmulator=true"


@pytest.mark.slow
def test_a_backup_without_one_of_the_stores_is_refused_and_a_damaged_one_is_not_restored(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text('[[queue]]\nname = "orders"\n')
    with BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", "data", "--config", "tandem.toml", "--store-count", "2") as broker:
        send(broker, "one", "two")
        broker.stop()
    data = tmp_path / "data"
    (data / "tandem/store-1").rename(tmp_path / "away")
    refused = tandem("store", "backup", str(data), str(tmp_path / "copy"))
    assert refused.returncode == 2
    assert "store-1 is not there" in refused.stderr
    (tmp_path / "away").rename(data / "tandem/store-1")
    inside = tandem("store", "backup", str(data), str(data / "tandem/store-9"))
    assert (inside.returncode, "is inside of" in inside.stderr, (data / "tandem/store-9").exists()) == (2, True, False)
    assert tandem("store", "backup", str(data), str(tmp_path / "whole")).returncode == 0
    segment = next(path for path in (tmp_path / "whole").glob("*/store-*/*.seg") if b"two" in path.read_bytes())
    content = segment.read_bytes()
    segment.write_bytes(content.replace(b"one", b"onE", 1))
    damaged = tandem("store", "restore", str(tmp_path / "whole"), str(tmp_path / "again"))
    assert damaged.returncode == 1
    assert segment.name in damaged.stdout
    assert not (tmp_path / "again").exists()
    occupied = tandem("store", "restore", str(tmp_path / "whole"), str(data))
    assert occupied.returncode == 2
    assert "not empty" in occupied.stderr


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system with a data directory that is closed and may only be read, as a snapshot or the disk of a backup is mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system to read from")
    place = tmp_path / "medium"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        with Bus(data_dir=tmp_path / "data") as bus:
            bus.create_queue("orders")
        done = tandem("store", "backup", str(tmp_path / "data"), str(place / "copy"))
        assert done.returncode == 0, done.stderr
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        yield place / "copy"
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_directory_that_may_only_be_read_is_restored_from_and_copied(read_only: Path, tmp_path: Path) -> None:
    for command in ("restore", "backup"):
        done = tandem("store", command, str(read_only), str(tmp_path / command))
        assert done.returncode == 0, done.stderr
        with Bus(data_dir=tmp_path / command) as bus, pytest.raises(EntityAlreadyExists):
            bus.create_queue("orders")
    assert "nothing has to be changed" in tandem("upgrade", "--check", str(read_only)).stdout
