"""Journals in an engine read from outside: all that was planned or a refusal, from a standby as far as it has to be, in nobody's way."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import psycopg
import pytest

from tandem.broker.facts import ENQUEUED
from tandem.model.errors import EngineAway, StoreUnavailable
from tandem.stores import postgres_reading
from tandem.stores.blocks import RECORD, pack_block_header, parse_block_header, seed_of
from tandem.stores.ledger_entries import seal_entry
from tandem.stores.postgres_ledger import PostgresLedger
from tandem.stores.postgres_reading import BlockRange, EngineReader, look_at, ranges_of, read_range, stores_in_engine
from tandem.stores.segment_index import pack_entry
from tandem.testing.postgres import PostgresEngine
from tests.cluster.nodes import until
from tests.stores.ledgers import ledger


class Writer:
    """One store with one record in each block."""

    def __init__(self, dsn: str) -> None:
        self.held: PostgresLedger = ledger(dsn)
        row = self.held.acquire()
        self.seed = seed_of(row.journal)
        self.number = 0

    def append(self, segment: int, count: int, spoil: bool = False) -> None:
        self.held.begin_segment(segment)
        for _ in range(count):
            self.number += 1
            payload = RECORD.pack(ENQUEUED, 0, 4, self.number, 10, 20, 3, 4, 0) + b"key" + b"body"
            raw = pack_block_header(self.seed, segment, self.number, 1, payload)
            header = parse_block_header(raw, self.seed)
            assert header is not None
            heads = payload[: RECORD.size]
            entry = seal_entry(pack_entry(self.number, 64, 1, len(payload), header.crc, heads, b"key"), self.seed)
            self.held.append(segment, self.number, 64, entry[:-1] + b"!" if spoil else entry, raw + payload)

    def retire(self, first_segment: int, first_block: int) -> bool:
        self.held.retire(first_segment, first_block)
        return self.held.drop_retired()


@pytest.fixture
def writer(cluster_dsn: str) -> Iterator[Writer]:
    made = Writer(cluster_dsn)
    yield made
    made.held.close()


def planned(dsn: str) -> list[BlockRange]:
    place = look_at(dsn)
    reader = EngineReader(place)
    try:
        return [one for row in stores_in_engine(reader) for one in ranges_of(place, reader, row)]
    finally:
        reader.close()


def sequence_numbers(blocks: BlockRange, bodies: bool = False) -> list[int]:
    lost: list[tuple[int, str]] = []
    found = [RECORD.unpack(heads)[3] for _, heads, keys, payload in read_range(blocks, bodies, lost) if payload or not bodies]
    assert lost == []
    return found


def test_ranges_are_read_apart_and_hold_everything(cluster_dsn: str, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_reading, "BLOCKS_PER_RANGE", 3)
    monkeypatch.setattr(postgres_reading, "_ENTRIES_AT_ONCE", 2)
    writer.append(1, 7)
    writer.append(2, 2, spoil=True)
    ranges = [pickle.loads(pickle.dumps(one)) for one in planned(cluster_dsn)]
    assert [(one.segment, one.first, one.last) for one in ranges] == [(1, 1, 3), (1, 4, 6), (1, 7, 7), (2, 8, 9)]
    for bodies in (False, True):
        assert [number for one in ranges for number in sequence_numbers(one, bodies)] == list(range(1, 10)), "a bad entry is in its block"


def test_a_segment_that_is_given_up_while_it_is_read_is_told_and_no_half_of_it_is_the_result(
    cluster_dsn: str, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_reading, "_ENTRIES_AT_ONCE", 2)
    writer.append(1, 5)
    writer.append(2, 1)
    first, second = planned(cluster_dsn)
    under_way = read_range(first, False, [])
    next(under_way)
    assert writer.retire(2, 6), "a reader between two statements keeps nobody from dropping it"
    with pytest.raises(StoreUnavailable, match="segment 1: block 3 is gone: the segment was given up"):
        list(under_way)
    assert sequence_numbers(second) == [6]
    assert [one.segment for one in planned(cluster_dsn)] == [2]


def test_what_is_kept_for_audit_is_read_too_until_it_was_kept_long_enough(cluster_dsn: str, writer: Writer) -> None:
    writer.append(1, 2)
    writer.append(2, 1)
    writer.held._audit_retention_ms = 3_600_000
    assert writer.retire(2, 3)
    assert [number for one in planned(cluster_dsn) for number in sequence_numbers(one)] == [1, 2, 3]
    assert writer.held.drop_retired(), "nothing is due"
    with psycopg.connect(cluster_dsn, autocommit=True) as connection:
        connection.execute("UPDATE tandem.retired SET at_ms = at_ms - 3600000")
    assert writer.held.drop_retired()
    assert [(one.segment, one.first) for one in planned(cluster_dsn)] == [(2, 3)]
    with psycopg.connect(cluster_dsn, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM tandem.retired").fetchall() == [(0,)]


@pytest.mark.slow
def test_a_standby_is_read_once_it_has_what_the_primary_had(postgres: PostgresEngine, cluster_dsn: str, writer: Writer) -> None:
    name = cluster_dsn.rpartition("/")[2]
    both, standby = postgres.dsn(name), postgres.nodes[1]
    writer.append(1, 3)
    standby.execute("SELECT pg_wal_replay_pause()", database=name)
    try:
        until(lambda: standby.execute("SELECT pg_get_wal_replay_pause_state()", database=name) == [("paused",)])
        writer.append(1, 2)
        (blocks,) = planned(both)
        assert blocks.last == 5
    finally:
        standby.execute("SELECT pg_wal_replay_resume()", database=name)
    reader = EngineReader(blocks.engine)
    assert reader.rows("SELECT pg_is_in_recovery()") == [(True,)]
    reader.close()
    assert sequence_numbers(blocks) == [1, 2, 3, 4, 5]


def test_a_standby_that_stays_behind_is_not_waited_for_for_ever(
    postgres: PostgresEngine, cluster_dsn: str, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_reading, "_STANDBY_TRIES", 2)
    name = cluster_dsn.rpartition("/")[2]
    standby = postgres.nodes[1]
    standby.execute("SELECT pg_wal_replay_pause()", database=name)
    try:
        until(lambda: standby.execute("SELECT pg_get_wal_replay_pause_state()", database=name) == [("paused",)])
        writer.append(1, 2)
        (blocks,) = planned(postgres.dsn(name))
        assert sequence_numbers(blocks) == [1, 2]
    finally:
        standby.execute("SELECT pg_wal_replay_resume()", database=name)


def test_no_password_is_shown(cluster_dsn: str, writer: Writer) -> None:
    writer.append(1, 1)
    (blocks,) = planned(cluster_dsn.replace("tandem@", "tandem:not-for-you@"))
    assert "not-for-you" not in repr(blocks)
    assert blocks.directory.endswith("tandem/store-0")
    with pytest.raises(EngineAway) as refused:
        look_at("postgresql://tandem:not-for-you@127.0.0.1:1/tandem")
    assert "not-for-you" not in str(refused.value)


def test_a_table_that_grows_while_it_is_read_is_read_as_far_as_it_was_planned(cluster_dsn: str, writer: Writer) -> None:
    writer.append(1, 2)
    (blocks,) = planned(cluster_dsn)
    with psycopg.connect(cluster_dsn) as forgotten:
        forgotten.execute("SELECT 1")
        writer.append(1, 1)
        assert sequence_numbers(blocks) == [1, 2]
