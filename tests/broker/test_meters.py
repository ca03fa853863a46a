"""Every operation is counted once, whatever happens to the process; polls that find nothing count too."""

from __future__ import annotations

import csv
import json
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tandem import amqp
from tandem.broker.meters import EMPTY, MINUTE_MS, OK, RECEIVE, SEND, MeterBook, slot_of
from tandem.broker.ports import Effect, Journal
from tandem.broker.turn import Turn
from tandem.model.clock import SystemClock
from tandem.server.sas import make_token
from tandem.testing import Bus
from tests.cli.broker_process import BrokerProcess
from tests.conformance.raw import Raw, message
from tests.gateway.amqp.coordinator import Coordinator, send_in, settle_in

AFTER_ALL = 1 << 32


class Remembering(Journal):
    """Remembers what was appended."""

    def __init__(self) -> None:
        self.facts: list[tuple[int, int, int, int, bytes]] = []

    def append(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes) -> int:
        self.facts.append((kind, seq, at, aux, key))
        return 0

    def when_durable(self, effect: Effect) -> None:
        effect.done(None)


def rows_of(files: Path) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for path in sorted(files.glob("*.csv")):
        with path.open(newline="") as lines:
            for row in csv.DictReader(lines):
                assert int(row["check"]) == int(row["unit"]) + int(row["count"]) + int(row["bytes"])
                found[row["entity"], row["operation"], row["outcome"]] += int(row["count"])
    return found


def replayed(journal: Remembering) -> MeterBook:
    book = MeterBook(journal)
    for kind, seq, at, aux, key in journal.facts:
        book.replayed(kind, seq, at, aux, key)
    return book


def test_replay_finds_exactly_what_no_file_has_at_every_fact() -> None:
    journal = Remembering()
    turn = Turn(SystemClock(), lambda: None)
    book = MeterBook(journal)
    meter = book.meter(4, "orders", turn)
    in_file: Counter[int] = Counter()
    counted: Counter[int] = Counter()
    for step in range(50):
        meter.sent(1_000)
        meter.add(RECEIVE, EMPTY, 1, 0)
        counted[slot_of(4, SEND, OK, 1)] += 1
        counted[slot_of(4, RECEIVE, EMPTY, 1)] += 1
        book.record(step * MINUTE_MS // 3)
        if step % 7 == 6:
            rows = book.take(step // 3)
            for _, slot, count, _ in rows:
                in_file[slot] += count
            book.rolled(rows, 1, step, 0)
        again = Counter(in_file)
        for _, slot, count, _ in replayed(journal).take(AFTER_ALL):
            again[slot] += count
        assert again == counted
        assert replayed(journal).file_bytes == book.file_bytes


def test_size_units_are_counted_apart() -> None:
    journal = Remembering()
    book = MeterBook(journal)
    meter = book.meter(4, "orders", Turn(SystemClock(), lambda: None))
    for size in (1, 65_536, 65_537, 200_000):
        meter.sent(size)
    book.record(0)
    units = {slot & 0xFFFF: count for _, slot, count, _ in book.take(AFTER_ALL)}
    assert units == {1: 2, 2: 1, 4: 1}


@pytest.mark.slow
def test_everything_counted_survives_sigkill_and_reaches_the_files(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text('[[queue]]\nname = "orders"\n')
    arguments = ("--dev", "--port", "0", "--data", "data")
    with BrokerProcess(tmp_path, *arguments) as broker:
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            with client.get_queue_sender("orders") as sender:
                sender.send_messages([ServiceBusMessage(f"{n}") for n in range(20)])
            with client.get_queue_receiver("orders") as receiver:
                messages = receiver.receive_messages(max_message_count=20, max_wait_time=5)
                for message in messages[:15]:
                    receiver.complete_message(message)
            with client.get_queue_sender("orders") as sender:
                sender.send_messages(ServiceBusMessage("durable, and so is everything counted before it"))
        broker.process.kill()
        broker.process.wait(30)
    with BrokerProcess(tmp_path, *arguments) as broker:
        token = make_token(f"http://localhost:{broker.port}", "RootManageSharedAccessKey", "SAS_KEY_VALUE", SystemClock().now_ms() + 60_000)
        request = urllib.request.Request(f"http://localhost:{broker.port}/$tandem/meters", headers={"Authorization": token})
        files = tmp_path / "data" / "tandem" / "meters"
        deadline = time.monotonic() + 10
        expected = (21, len(messages), 15)
        counted = (0, 0, 0)
        while counted != expected and time.monotonic() < deadline:
            # A minute may end just now: its rows move from the answer to a file.
            total = Counter({key[1:]: count for key, count in rows_of(files).items()})
            with urllib.request.urlopen(request) as answer:
                for row in json.load(answer)["rows"]:
                    total[row["operation"], row["outcome"]] += row["count"]
            counted = (total["send", "ok"], total["receive", "ok"], total["settle", "completed"])
        assert counted == expected
        assert broker.stop()[0] == 0
    written = rows_of(tmp_path / "data" / "tandem" / "meters")
    assert written["orders", "send", "ok"] == 21
    assert written["orders", "settle", "completed"] == 15


def test_a_receive_that_ends_with_nothing_counts_once_each(tmp_path: Path) -> None:
    with Bus(data_dir=tmp_path, real_time=True) as bus:
        bus.create_queue("idle")
        with ServiceBusClient.from_connection_string(bus.connection_string) as client, client.get_queue_receiver("idle") as receiver:
            for _ in range(3):
                assert receiver.receive_messages(max_wait_time=0.2) == []
    assert rows_of(tmp_path / "tandem" / "meters") == {("idle", "receive", "empty"): 3}


def test_what_a_transaction_sends_and_settles_is_counted(tmp_path: Path) -> None:
    with Bus(data_dir=tmp_path, real_time=True) as bus, Raw(bus.port) as raw:
        bus.create_queue("orders")
        raw.feed("orders", "complete", "abandon", "defer", "dead")
        receiver = raw.receiver("orders")
        coordinator = Coordinator(raw)
        transaction = coordinator.declare()
        outcomes = (amqp.ACCEPTED, amqp.encode_modified(True, False), amqp.encode_modified(True, True), amqp.encode_rejected(None))
        for arrival, outcome in zip(receiver.receive(4), outcomes, strict=True):
            settle_in(receiver, transaction, arrival, outcome)
        send_in(raw.sender("orders"), transaction, message("new"))
        coordinator.discharge(transaction)
    rows = rows_of(tmp_path / "tandem" / "meters")
    settled = {outcome: count for (entity, operation, outcome), count in rows.items() if (entity, operation) == ("orders", "settle")}
    assert settled == {"completed": 1, "abandoned": 1, "deferred": 1, "dead-lettered": 1}
    assert rows["orders", "send", "ok"] == 5
