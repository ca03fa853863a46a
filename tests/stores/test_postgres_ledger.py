"""The fence, the doubt and the takeover, on a real PostgreSQL with a synchronous standby."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest

from tandem.model.errors import EngineAway
from tandem.stores.ledger import Deposed, InDoubt, NotOurs
from tandem.stores.postgres_ledger import PostgresLedger
from tandem.testing.postgres import PostgresEngine
from tests.stores.ledgers import ledger


def numbers(dsn: str, held: PostgresLedger) -> list[tuple[int, int]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(f"SELECT number, epoch FROM {held._table(1)} ORDER BY number").fetchall()


def opened(dsn: str, node: str) -> PostgresLedger:
    held = ledger(dsn, node)
    held.acquire()
    held.begin_segment(1)
    return held


def append(held: PostgresLedger, number: int) -> None:
    held.append(1, number, 64 * number, b"entry", b"block of %d" % number)


def test_a_deposed_owner_appends_nothing_and_learns_why_when_it_asks(cluster_dsn: str) -> None:
    old = opened(cluster_dsn, "a")
    append(old, 1)
    new = opened(cluster_dsn, "b")
    with pytest.raises(InDoubt):
        append(old, 2)
    with pytest.raises(Deposed):
        old.confirm(1)
    append(new, 2)
    assert numbers(cluster_dsn, new) == [(1, 1), (2, 2)]
    with pytest.raises(Deposed):
        old.begin_segment(2)
    with pytest.raises(Deposed):
        old.retire(2, 3)
    old.release()
    assert new._look().owner == "b", "what was taken cannot be given away by who had it"
    old.close()
    new.close()


def test_whoever_wants_a_store_sees_what_its_owner_has_done_last(cluster_dsn: str) -> None:
    held = opened(cluster_dsn, "a")
    assert held._look().owner_beat == (0, 0), "no such node is known"
    with psycopg.connect(cluster_dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO tandem.node (name, incarnation, beat, address, version) VALUES ('a', 3, 5, '', '')")
    assert held._look().owner_beat == (3, 5)
    held.close()


def test_a_block_that_is_sent_twice_is_kept_once_and_confirmed(cluster_dsn: str) -> None:
    held = opened(cluster_dsn, "a")
    append(held, 1)
    with pytest.raises(InDoubt):
        append(held, 1)
    assert held.confirm(1) == 1
    assert numbers(cluster_dsn, held) == [(1, 1)]
    held.close()


@pytest.mark.parametrize("setting", ["client_min_messages = notice", "client_min_messages = error", "synchronous_commit = local"])
def test_a_commit_whose_wait_for_the_standby_was_cancelled_is_in_doubt_not_accepted(
    cluster_dsn: str, postgres: PostgresEngine, setting: str
) -> None:
    name = cluster_dsn.rpartition("/")[2]
    postgres.primary.execute(f"ALTER DATABASE {name} SET {setting}", database="postgres")
    held = opened(cluster_dsn, "a")
    append(held, 1)
    postgres.require_missing_standby()
    outcome: list[object] = []

    def try_it() -> None:
        try:
            append(held, 2)
            outcome.append("accepted")
        except InDoubt as doubt:
            outcome.append(doubt)

    thread = threading.Thread(target=try_it)
    try:
        thread.start()
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND application_name LIKE 'tandem %%'"
        deadline = time.monotonic() + 20
        while not (found := postgres.primary.execute(waiting, database="postgres")):
            assert time.monotonic() < deadline and thread.is_alive(), outcome
        postgres.primary.execute("SELECT pg_cancel_backend(%s)", (found[0][0],), database="postgres")
        thread.join(20)
    finally:
        postgres.require_standby()
    assert len(outcome) == 1
    assert isinstance(outcome[0], InDoubt), "rowcount 1 and a warning is not a promise"
    assert held.confirm(1) == 2, "the confirmation waits for the quorum, and then it is there"
    held.close()


def test_a_takeover_waits_for_the_append_in_flight_and_sees_it(cluster_dsn: str) -> None:
    old = opened(cluster_dsn, "a")
    append(old, 1)
    with psycopg.connect(cluster_dsn) as slow:
        slow.execute("SELECT 1 FROM tandem.store WHERE id = 1 FOR SHARE")  # as an append that has not committed yet does
        slow.execute(f"INSERT INTO {old._table(1)} VALUES (2, 1, 128, '', '')")
        taken: list[PostgresLedger] = []
        thread = threading.Thread(target=lambda: taken.append(opened(cluster_dsn, "b")))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive(), "it may not go past an append that holds the row"
        slow.commit()
        thread.join(20)
    assert taken[0].confirm(1) == 2
    old.close()
    taken[0].close()


def test_an_owner_that_was_stopped_with_the_row_in_its_hands_is_terminated(cluster_dsn: str) -> None:
    old = opened(cluster_dsn, "a")
    append(old, 1)
    connection = old._committing._connection
    assert connection is not None
    connection.autocommit = False
    connection.execute("SELECT 1 FROM tandem.store WHERE id = 1 FOR SHARE")  # and nothing more is heard of it
    began = time.monotonic()
    new = opened(cluster_dsn, "b")
    assert time.monotonic() - began < 10
    append(new, 2)
    assert numbers(cluster_dsn, new) == [(1, 1), (2, 2)]
    new.close()


def test_a_store_that_others_serve_is_not_taken_but_waited_for(cluster_dsn: str) -> None:
    first = opened(cluster_dsn, "a")
    other = ledger(cluster_dsn, "b", may_take=lambda row: row.owner == "")
    with pytest.raises(NotOurs, match="served by node a"):
        other.acquire()
    first.release()
    assert other.acquire().epoch == 2
    first.close()
    other.close()


def test_what_takes_too_long_is_given_up_by_closing_the_socket(cluster_dsn: str) -> None:
    held = opened(cluster_dsn, "a")
    with psycopg.connect(cluster_dsn) as locker:
        locker.execute("UPDATE tandem.store SET touched = 0")
        timer = threading.Timer(0.3, lambda: held.give_up_after(100))
        timer.start()
        with pytest.raises(InDoubt):
            append(held, 1)
    assert held.confirm(1) in (0, 1)
    held.close()


def test_a_read_of_bodies_takes_parts_of_several_blocks_in_the_order_asked_for(cluster_dsn: str) -> None:
    held = opened(cluster_dsn, "a")
    for number in (1, 2, 3):
        append(held, number)
    assert held.read_parts(1, [(3, 9, 1), (1, 0, 5), (2, 9, 100), (9, 0, 1)]) == [b"3", b"block", b"2", b""]
    held.retire(2, 4)
    assert held.drop_retired()
    assert held.read_parts(1, [(3, 9, 1)]) == [b""]
    held.close()


@pytest.mark.parametrize("how", ["prepare_segment", "begin_segment"])
def test_a_segment_that_somebody_is_just_making_is_used(cluster_dsn: str, how: str) -> None:
    held = opened(cluster_dsn, "a")
    with psycopg.connect(cluster_dsn) as making, psycopg.connect(cluster_dsn, autocommit=True) as looking:
        columns = "(number bigint PRIMARY KEY, epoch bigint NOT NULL, at int NOT NULL, entry bytea NOT NULL, block bytea NOT NULL)"
        making.execute(f"CREATE TABLE {held._table(2)} {columns}")
        failed: list[BaseException] = []

        def use() -> None:
            try:
                getattr(held, how)(2)
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=use)
        thread.start()
        waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        while not looking.execute(waits).fetchall()[0][0]:
            time.sleep(0.01)
        making.commit()
        thread.join(30)
    assert (thread.is_alive(), failed) == (False, [])
    held.begin_segment(2)
    held.append(2, 1, 64, b"entry", b"block")
    held.close()


def test_a_segment_that_is_being_read_is_dropped_later(cluster_dsn: str) -> None:
    held = opened(cluster_dsn, "a")
    append(held, 1)
    with psycopg.connect(cluster_dsn) as reader:
        reader.execute(f"SELECT count(*) FROM {held._table(1)}")
        held.retire(2, 2)
        assert not held.drop_retired()
        append_elsewhere = time.monotonic()
        held.begin_segment(2)
        held.append(2, 2, 64, b"", b"x")
        assert time.monotonic() - append_elsewhere < 5, "appends go on meanwhile"
    assert held.drop_retired()
    held.close()


def test_a_deposed_owner_that_drops_and_rolls_late_leaves_one_journal_without_a_gap(cluster_dsn: str) -> None:
    old = opened(cluster_dsn, "a")
    append(old, 1)
    old.begin_segment(2)
    old.append(2, 2, 64, b"entry", b"two")
    old.retire(2, 2)  # and before it has dropped anything somebody takes over
    new = ledger(cluster_dsn, "b")
    row = new.acquire()
    assert (row.first_segment, row.last_segment, row.first_block) == (2, 2, 2)
    new.append(2, 3, 128, b"entry", b"three")
    assert old.drop_retired(), "what the fence had given up"
    with pytest.raises(Deposed):
        old.begin_segment(3)
    with pytest.raises(Deposed):
        old.retire(3, 4)
    assert new._look().last_segment == 2, "the late roll hides nothing"
    assert [(number, epoch) for number, epoch, _, _ in new.read_entries(2, 0, 10)] == [(2, 1), (3, 2)]
    new.begin_segment(3)
    new.append(3, 4, 64, b"entry", b"four")
    assert [number for number, *_ in new.read_entries(3, 0, 10)] == [4]
    assert new.drop_retired()
    old.close()
    new.close()


def test_an_engine_that_is_not_there_says_so(cluster_dsn: str) -> None:
    held = ledger(cluster_dsn, "a")
    held._committing._hosts._places = [("127.0.0.1", "1", "")]
    with pytest.raises(EngineAway, match="the engine"):
        held.acquire()
