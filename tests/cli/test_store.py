"""`tandem store` on a live broker's directory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.cli.broker_process import BrokerProcess


def tandem(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tandem", *arguments], capture_output=True, text=True, timeout=60)


def send(broker: BrokerProcess, *texts: str) -> None:
    with ServiceBusClient.from_connection_string(broker.connection_string) as client, client.get_queue_sender("orders") as sender:
        for text in texts:
            sender.send_messages(ServiceBusMessage(text, message_id=text))


def test_a_backup_of_a_live_broker_opens_with_every_message(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text('[[queue]]\nname = "orders"\n')
    with BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", "data", "--config", "tandem.toml") as broker:
        send(broker, "one", "two")
        assert tandem("store", "check", str(tmp_path / "data")).returncode == 0
        rows = [json.loads(line) for line in tandem("store", "dump", str(tmp_path / "data")).stdout.splitlines()]
        assert [row["message_id"] for row in rows if row["kind"] == "enqueued"] == ["one", "two"]
        done = tandem("store", "backup", str(tmp_path / "data"), str(tmp_path / "copy"))
        assert done.returncode == 0, done.stderr
    with BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", "copy") as restored:
        client = ServiceBusClient.from_connection_string(restored.connection_string)
        with client, client.get_queue_receiver("orders") as receiver:
            assert [str(m) for m in receiver.receive_messages(2, max_wait_time=5)] == ["one", "two"]


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


def test_a_directory_without_stores_is_a_usage_error(tmp_path: Path) -> None:
    wrong = tandem("store", "check", str(tmp_path))
    assert wrong.returncode == 2
    assert "store-" in wrong.stderr
