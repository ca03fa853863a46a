"""Journals are a table: every fact once, live or stopped, from indexes, segments and audit alike."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from pyspark.sql.types import StructType

from tandem.model.clock import SystemClock
from tandem.model.errors import ConfigurationError
from tandem.spark.analytics.journal_files import entities_of, find_stores, segments_of
from tandem.spark.analytics.journal_rows import SegmentTask, read_segment, text_of_id
from tandem.spark.analytics.journal_source import JournalDataSource
from tandem.stores.segment import SegmentStore
from tandem.stores.settings import LogSettings
from tandem.testing import Bus


def rows_below(path: Path, destinations: bool = False) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for store in find_stores([str(path)]):
        entities = entities_of(store)
        for place in segments_of(store):
            for batch in read_segment(SegmentTask(place, entities, frozenset(), destinations)):
                rows.extend(batch.to_pylist())
    return rows


def play(bus: Bus) -> None:
    bus.create_queue("Orders", max_delivery_count=10)
    bus.create_topic("Events")
    bus.create_subscription("Events", "all")
    bus.create_subscription("Events", "copy")
    with ServiceBusClient.from_connection_string(bus.connection_string) as client:
        with client.get_queue_sender("Orders") as sender:
            sender.send_messages([ServiceBusMessage("x", message_id=f"m{n}") for n in range(4)])
        with client.get_topic_sender("Events") as sender:
            sender.send_messages(ServiceBusMessage("x", message_id="e0", session_id="s"))
        with client.get_queue_receiver("Orders") as receiver:
            first, second, third, *_ = receiver.receive_messages(max_message_count=4, max_wait_time=5)
            receiver.complete_message(first)
            receiver.dead_letter_message(second, reason="bad")
            receiver.defer_message(third)


@pytest.mark.slow
def test_every_fact_of_a_live_broker_is_a_row(tmp_path: Path) -> None:
    with Bus(data_dir=tmp_path, store_count=2) as bus:
        play(bus)
        rows = rows_below(tmp_path)
    kinds = Counter((row["entity"], row["sub_queue"], row["kind"], row["reason"]) for row in rows)
    assert kinds["Orders", "", "enqueued", None] == 4
    assert kinds["Orders", "", "delivered", None] == 4
    assert kinds["Orders", "", "settled", "completed"] == 1
    assert kinds["Orders", "", "settled", "dead-lettered"] == 1
    assert kinds["Orders", "$DeadLetterQueue", "enqueued", None] == 1
    assert kinds["Orders", "", "state", "deferred"] == 1
    published = {row["entity"]: (row["message_id"], row["session_id"]) for row in rows if row["kind"] == "published"}
    assert published == {"Events/Subscriptions/all": ("e0", "s"), "Events/Subscriptions/copy": ("e0", "s")}


def fill(directory: Path, retention_ms: int) -> None:
    """A namespace with one store of many small segments, most of them dead."""
    settings = LogSettings(segment_bytes=20_000, audit_retention_ms=retention_ms)
    pending: list[Any] = []
    store = SegmentStore(directory / "space" / "store-0", pending.append, settings, SystemClock())
    tenant = _Tenant(store)
    store.replay(tenant)
    for seq in range(1, 401):
        key = b"\x00" * 12 + (4).to_bytes(2, "little") + b"\x00\x00" + b"\xa1\x02%02d" % (seq % 100)
        tenant.locations[seq] = store.append(1, 0, 4, seq, 1_000 + seq, 0, key, b"b" * 500)
        store.append(2, 0, 4, seq, 2_000 + seq, 0, b"", b"")
        store.forget(tenant.locations.pop(seq))
        store.when_durable(_Nothing())
        store.flush()
        while store.pending_bytes or pending:
            while pending:
                pending.pop(0)()
        store.step_compaction()
    store.close()


@pytest.mark.slow
def test_segments_kept_for_audit_are_read_too(tmp_path: Path) -> None:
    fill(tmp_path, retention_ms=3_600_000)
    assert list((tmp_path / "space" / "store-0" / "audit").glob("*.seg"))
    found = Counter((row["kind"], row["sequence_number"]) for row in rows_below(tmp_path))
    assert {seq for kind, seq in found if kind == "enqueued"} == set(range(1, 401))
    assert {seq for kind, seq in found if kind == "settled"} == set(range(1, 401))


@pytest.mark.slow
def test_an_index_says_the_same_as_its_segment(tmp_path: Path) -> None:
    fill(tmp_path, retention_ms=0)
    directory = tmp_path / "space" / "store-0"
    indexes = list(directory.glob("*.idx"))
    assert indexes
    with_indexes = rows_below(tmp_path)
    for index in indexes:
        index.unlink()
    assert rows_below(tmp_path) == with_indexes


@pytest.mark.slow
def test_a_table_is_whole_in_spite_of_a_rotten_byte_and_says_so_where_it_is_not(tmp_path: Path) -> None:
    fill(tmp_path, retention_ms=0)
    whole = rows_below(tmp_path)
    directory = tmp_path / "space" / "store-0"
    segment = sorted(directory.glob("*.seg"))[0]
    segment.with_suffix(".idx").unlink(missing_ok=True)
    raw = bytearray(segment.read_bytes())
    raw[100] ^= 0xFF
    segment.write_bytes(raw)
    assert rows_below(tmp_path) == whole
    segment.write_bytes(raw[:70] + bytes(40) + raw[110:].replace(b"TGRD", b"TGR?", 1))
    rows = rows_below(tmp_path)
    lost = [row for row in rows if row["kind"] == "damaged"]
    assert [(row["segment"], row["offset"]) for row in lost] == [(int(segment.stem), 64)]
    assert 0 < len(whole) - (len(rows) - 1) < 20, "the rest is there"


def test_a_directory_without_journals_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no journal below"):
        find_stores([str(tmp_path)])


def test_directories_may_have_any_name(tmp_path: Path) -> None:
    data = tmp_path / "a,b #1 50%20?"
    with Bus(data_dir=data) as bus:
        play(bus)
    for options in ({"paths": json.dumps([str(data)])}, {"path": str(data)}):
        source = JournalDataSource(options)
        reader = source.reader(StructType())
        entities = {row["entity"] for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()}
        assert {"Orders", "Events/Subscriptions/all"} <= entities
    with pytest.raises(ConfigurationError, match="no JSON list"):
        JournalDataSource({"paths": "[nothing"}).reader(StructType())


def test_ids_of_every_type_are_written_as_applications_write_them() -> None:
    assert text_of_id(b"\xa1\x03abc") == "abc"
    assert text_of_id(b"\x53\x07") == "7"
    assert text_of_id(b"\x98" + bytes(range(16))) == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert text_of_id(b"\xa0\x02\x01\xff") == "01ff"


@pytest.mark.spark
def test_spark_reads_journals_by_path_and_kind(tmp_path: Path, spark: Any) -> None:
    with Bus(data_dir=tmp_path, store_count=2) as bus:
        play(bus)
    frame = spark.read.format("tandem_journal").option("path", str(tmp_path)).option("kinds", "settled").load()
    assert sorted((row["entity"], row["reason"]) for row in frame.collect()) == [("Orders", "completed"), ("Orders", "dead-lettered")]
    with pytest.raises(Exception, match="kinds: 'sent' is no kind of fact"):
        spark.read.format("tandem_journal").option("path", str(tmp_path)).option("kinds", "sent").load().collect()


class _Nothing:
    def done(self, error: BaseException | None) -> None:
        assert error is None


class _Tenant:
    def __init__(self, store: SegmentStore) -> None:
        self.locations: dict[int, int] = {}
        self._store = store

    def replayed(self, *fact: Any) -> None:
        raise AssertionError("the store is new")

    def relocate(
        self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes | None, location: int
    ) -> bool:
        if body is not None and self.locations.get(seq) == location:
            self.locations[seq] = self._store.append(kind, flags | 8, entity, seq, at, aux, key, body)
        return False

    def segment_leaving(self, entities: set[int]) -> None:
        """Nothing of it has to outlive the segment."""
