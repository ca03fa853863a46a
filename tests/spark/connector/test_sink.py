"""Rows to messages: what they carry, where they go, what happens to those that are refused, and what a repeat does."""

from __future__ import annotations

import datetime
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import BinaryType, IntegerType, MapType, StringType, StructField, StructType

from tandem.engine_client.blocking import TransportError
from tandem.spark.connector.claims import BatchClaims
from tandem.spark.connector.connections import connection, drop
from tandem.spark.connector.options import OptionError, sink_options, source_options
from tandem.spark.connector.sink import RowsRefused, Written, _Task, check_schema
from tandem.spark.connector.source import ServiceBusReader
from tests.acceptance.brokers import Broker
from tests.spark.house import EXACT, counts, create_queue, ids, take_all, verdict


@pytest.fixture(autouse=True)
def no_connection_outlives_its_test() -> Iterator[None]:
    from tandem.spark.connector import connections

    yield
    for one in list(connections._cached):
        drop(one)


def write(broker: Broker, rows: pa.RecordBatch, job: str = "job", partition: int = 0, **options: str) -> Written:
    parsed = sink_options({"connectionString": broker.connection_string, **options})
    return _Task(parsed, rows.schema.names, job, partition, uuid.uuid4().hex).run(iter([rows.slice(0, 7), rows.slice(7)]))


def bodies(count: int, **columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"body": [b"x" * 100] * count, **columns})


@pytest.mark.slow
def test_everything_a_row_says_is_in_the_message(west: Broker, name: str) -> None:
    create_queue(west, name, requires_session=True)
    at = datetime.datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=datetime.UTC)
    rows = pa.RecordBatch.from_pydict(
        {
            "body": pa.array(["text"]),
            "message_id": ["id"],
            "session_id": ["s"],
            "partition_key": ["s"],
            "correlation_id": ["c"],
            "subject": ["subject"],
            "to": ["to"],
            "reply_to": ["r"],
            "reply_to_session_id": ["rs"],
            "content_type": ["text/plain"],
            "time_to_live_ms": [3_600_000],
            "scheduled_enqueue_time": pa.array([at], pa.timestamp("us", tz="UTC")),
            "application_properties": pa.array([[("n", "5"), ("t", "x")]], pa.map_(pa.string(), pa.string())),
            "application_property_types": pa.array([[("n", "int")]], pa.map_(pa.string(), pa.string())),
            "sequence_number": [99],
        }
    )
    assert write(west, rows, queue=name).accepted == 1
    there = take_all(west, name)
    found = {column: values[0] for column in there.COLUMNS if (values := there.column(column)) is not None}
    assert (found["session_id"], found["partition_key"], found["correlation_id"], found["subject"]) == ("s", "s", "c", "subject")
    assert (found["to"], found["reply_to"], found["reply_to_session_id"], found["content_type"]) == ("to", "r", "rs", "text/plain")
    assert found["scheduled_enqueue_time"] == int(at.timestamp() * 1000)
    assert found["time_to_live_ms"] == 3_600_000
    assert found["application_properties"] == [("n", "5"), ("t", "x")]
    assert found["application_property_types"] == [("n", "int"), ("t", "string")]
    assert found["body"] == b"text"
    assert found["message_id"] == "id"
    assert found["sequence_number"] != 99


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Amsterdam"])
def test_instants_among_the_properties_stay_instants(west: Broker, name: str, zone: str | None) -> None:
    create_queue(west, name)
    at = datetime.datetime(1900, 1, 1, 12, tzinfo=datetime.UTC if zone else None)
    maps = pa.array([[("at", at)]], pa.map_(pa.string(), pa.timestamp("us", zone)))
    write(west, bodies(1, application_properties=maps), queue=name)
    found = take_all(west, name)
    assert found.column("application_properties") == [[("at", "1900-01-01T12:00:00.000Z")]]
    assert found.column("application_property_types") == [[("at", "timestamp")]]


def test_numbers_among_the_properties_keep_their_type(west: Broker, name: str) -> None:
    create_queue(west, name)
    kinds = {"byte": pa.int8(), "short": pa.int16(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64()}
    for kind in kinds.values():
        write(west, bodies(1, application_properties=pa.array([[("n", 5), ("none", None)]], pa.map_(pa.string(), kind))), queue=name)
    found = take_all(west, name).column("application_property_types")
    assert found == [[("n", kind), ("none", "null")] for kind in kinds]


def test_a_time_to_live_of_more_than_49_days_is_kept(west: Broker, name: str) -> None:
    create_queue(west, name)
    write(west, bodies(1, time_to_live_ms=[60 * 86_400_000]), queue=name)
    looked = ServiceBusReader(source_options({"connectionString": west.connection_string, "queue": name}))
    browsed = next(iter(looked.read(looked.partitions()[0])))
    assert browsed.column("time_to_live_ms").to_pylist() == [60 * 86_400_000]
    assert take_all(west, name).column("time_to_live_ms") == [60 * 86_400_000]


def test_rows_that_cannot_be_read_are_refused_and_the_others_arrive(west: Broker, name: str, tmp_path: Path) -> None:
    create_queue(west, name)
    text = pa.array([b"good", b"\xff", b"good"])
    bad_text = pa.Array.from_buffers(pa.string(), 3, text.buffers())
    numbers = pa.array([[("n", 1)], [("n", 2)], [("n", 3)]], pa.map_(pa.string(), pa.int64()))
    kinds = pa.array([[], [], [("n", "binary")]], pa.map_(pa.string(), pa.string()))
    rows = pa.RecordBatch.from_pydict(
        {"body": bad_text, "subject": bad_text, "application_properties": numbers, "application_property_types": kinds}
    )
    assert write(west, rows, queue=name, onFailure="table", failurePath=str(tmp_path)) == Written(1, 2)
    (table,) = tmp_path.glob("*.parquet")
    said = pq.read_table(table, columns=["failed_description"]).column(0).to_pylist()
    assert ["'subject' has text that is not UTF-8" in one or "'n'" in one for one in said] == [True, True]
    write(west, pa.RecordBatch.from_pydict({"body": bad_text}), queue=name)
    assert take_all(west, name).column("body") == [b"good", b"good", b"\xff", b"good"]


def test_ids_follow_from_job_partition_and_row_so_a_repeat_vanishes(west: Broker, name: str) -> None:
    create_queue(west, name, requires_duplicate_detection=True)
    for _ in range(2):
        write(west, bodies(50), job="job", partition=3, queue=name)
    write(west, bodies(50), job="job", partition=4, queue=name)
    found = ids(take_all(west, name))
    assert sorted(found) == sorted(f"job-{partition}-{n + 1}" for partition in (3, 4) for n in range(50))


class Attempts:
    """Attempts of one task, each on a connection of its own as in processes of their own."""

    def __init__(self, broker: Broker, queue: str) -> None:
        self._words = {"connectionString": broker.connection_string, "queue": queue, "messagesPerTransfer": "1"}
        self.rows = bodies(10)
        self.go_on = threading.Event()
        self.under_way = threading.Event()

    def attempt(self, number: int, claim_ms: int = 30_000) -> _Task:
        options = sink_options({**self._words, "operationTimeoutSeconds": f"{60 + number}"})
        return _Task(options, self.rows.schema.names, "job", 0, "run", claim_ms)

    def stalling(self) -> Iterator[pa.RecordBatch]:
        """Four rows; the others when told to go on."""
        yield self.rows.slice(0, 4)
        self.under_way.set()
        assert self.go_on.wait(60)
        yield self.rows.slice(4)


@pytest.fixture
def attempts(west: Broker, name: str) -> Attempts:
    create_queue(west, name)
    return Attempts(west, name)


class Killed(BaseException):
    """What Spark does to an attempt when another one has finished."""


def test_a_second_attempt_waits_for_the_first_and_sends_nothing_when_that_has_finished(
    west: Broker, name: str, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.spark.connector.claims._LOOK_SECONDS", 0.02)
    finished = threading.Event()
    looked = threading.Semaphore(0)
    ask = BatchClaims._ask

    def asking(self: BatchClaims, task: str, held: bool) -> str:
        holder = ask(self, task, held)
        if holder != self.attempt:
            looked.release()
            if finished.is_set():
                raise Killed
        return holder

    monkeypatch.setattr(BatchClaims, "_ask", asking)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(attempts.attempt(1).run, attempts.stalling())
        assert attempts.under_way.wait(60)
        second = pool.submit(attempts.attempt(2).run, iter([attempts.rows]))
        for _ in range(3):
            assert looked.acquire(timeout=60)
        attempts.go_on.set()
        assert first.result(60).accepted == 10
        for _ in range(3):
            assert looked.acquire(timeout=60)
        finished.set()
        with pytest.raises(Killed):
            second.result(60)
    assert sorted(ids(take_all(west, name))) == sorted(f"job-0-{n + 1}" for n in range(10))


def test_an_attempt_that_is_not_heard_of_is_taken_over_from_and_sends_nothing_more(west: Broker, name: str, attempts: Attempts) -> None:
    stalled = attempts.attempt(1, claim_ms=500)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(stalled.run, attempts.stalling())
        assert attempts.under_way.wait(60)
        assert stalled._claims is not None
        stalled._claims._done.set()  # a stopped process keeps nothing
        assert attempts.attempt(2).run(iter([attempts.rows])).accepted == 10
        attempts.go_on.set()
        with pytest.raises(TransportError, match="in the hands of attempt"):
            first.result(30)  # long before an operation's time is over: there is nothing to wait for
    assert len(ids(take_all(west, name))) <= 14, "what the first had sent, and all of the second"


def test_a_worker_that_runs_task_after_task_keeps_no_links(west: Broker, name: str) -> None:
    """Those of a session are limited, and Spark uses its workers for as long as a query runs."""
    create_queue(west, name)
    for partition in range(20):
        write(west, bodies(3), partition=partition, queue=name)
        with pytest.raises(RowsRefused):
            write(west, bodies(3, time_to_live_ms=[1_000, 1_000, 0]), queue=name)
    where = sink_options({"connectionString": west.connection_string, "queue": name}).where
    assert len(connection(where).session.links) < 10


def test_each_row_may_name_its_destination(west: Broker, name: str) -> None:
    create_queue(west, f"{name}-a", f"{name}-b")
    write(west, bodies(10, entity=[f"{name}-{'ab'[n % 2]}" for n in range(10)], message_id=[f"m{n}" for n in range(10)]))
    assert ids(take_all(west, f"{name}-a")) == ["m0", "m2", "m4", "m6", "m8"]
    assert ids(take_all(west, f"{name}-b")) == ["m1", "m3", "m5", "m7", "m9"]


def test_a_refused_row_fails_the_batch_and_says_why(west: Broker, name: str) -> None:
    create_queue(west, name)
    with pytest.raises(RowsRefused, match=r"1 rows were refused.*'no-such'.*amqp:not-found"):
        write(west, bodies(10, entity=[name] * 9 + ["no-such"]))
    with pytest.raises(RowsRefused, match=r"body.*is null"):
        write(west, pa.RecordBatch.from_pydict({"body": pa.array([b"x", None], pa.binary())}), queue=name)


def test_refused_rows_go_to_a_table_and_the_others_arrive(west: Broker, name: str, tmp_path: Path) -> None:
    create_queue(west, name, requires_session=True)
    sessions = [None if n in (3, 40) else "s" for n in range(60)]
    options = {"queue": name, "onFailure": "table", "failurePath": str(tmp_path / "refused")}
    for _ in range(2):
        written = write(west, bodies(60, message_id=[f"m{n}" for n in range(60)], session_id=sessions), **options)
        assert (written.accepted, written.refused) == (58, 2)
    (file,) = (tmp_path / "refused").iterdir()
    table = pq.read_table(file).to_pylist()
    assert [row["message_id"] for row in table] == ["m3", "m40"]
    assert {row["failed_entity"] for row in table} == {name}
    assert all("SessionId" in row["failed_description"] for row in table)


@pytest.mark.slow
def test_a_broker_that_is_killed_meanwhile_is_waited_for_and_nothing_is_lost(mortal: Broker) -> None:
    create_queue(mortal, "orders", requires_duplicate_detection=True)
    total = 20_000

    def outage() -> None:
        while counts(mortal, "orders")["total"] == 0:
            pass
        mortal.kill()
        mortal.start()

    meanwhile = threading.Thread(target=outage)
    meanwhile.start()
    written = write(mortal, bodies(total), queue="orders", operationTimeoutSeconds="60", maxInFlight="200", messagesPerTransfer="20")
    meanwhile.join()
    assert written.accepted == total
    assert verdict((f"job-0-{n + 1}" for n in range(total)), ids(take_all(mortal, "orders"))) == EXACT


def run_with(broker: Broker, queue: str, rows: pa.RecordBatch, trouble: Callable[[], None], **options: str) -> Written:
    """One attempt, with trouble between its first half and its second."""

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows.slice(0, rows.num_rows // 2)
        trouble()
        yield rows.slice(rows.num_rows // 2)

    parsed = sink_options({"connectionString": broker.connection_string, "queue": queue, **options})
    return _Task(parsed, rows.schema.names, "job", 0, uuid.uuid4().hex).run(batches())


@pytest.mark.parametrize("in_sessions", [False, True])
def test_what_the_broker_is_too_busy_for_is_sent_again_and_nothing_else(west: Broker, name: str, in_sessions: bool) -> None:
    create_queue(west, name)
    rows = bodies(5_000, **({"session_id": ["s"] * 5_000} if in_sessions else {}))

    def busy() -> None:
        west.inject("entity-error", entity=name, condition="com.microsoft:server-busy", count=3)

    assert run_with(west, name, rows, busy) == Written(5_000, 0)
    found = ids(take_all(west, name))
    assert verdict([f"job-0-{n + 1}" for n in range(5_000)], found) == EXACT
    if in_sessions:
        assert found == [f"job-0-{n + 1}" for n in range(5_000)]


def test_a_store_that_is_down_meanwhile_loses_nothing(mortal: Broker) -> None:
    create_queue(mortal, "orders")
    healing = threading.Timer(0.5, mortal.heal)

    def down() -> None:
        mortal.inject("store-down", store=0)
        healing.start()

    assert run_with(mortal, "orders", bodies(2_000), down) == Written(2_000, 0)
    healing.join()
    assert verdict([f"job-0-{n + 1}" for n in range(2_000)], ids(take_all(mortal, "orders")))["lost"] == 0


def test_a_session_stays_in_order_when_rows_between_are_refused(west: Broker, name: str, tmp_path: Path) -> None:
    create_queue(west, name, requires_session=True)
    rows = bodies(2_000, session_id=[None if n == 150 else "s" for n in range(2_000)])
    assert write(west, rows, queue=name, onFailure="table", failurePath=str(tmp_path)) == Written(1_999, 1)
    assert ids(take_all(west, name)) == [f"job-0-{n + 1}" for n in range(2_000) if n != 150]


def test_a_broker_that_stays_away_fails_the_task(mortal: Broker) -> None:
    mortal.kill()
    with pytest.raises(TransportError, match="connect"):
        write(mortal, bodies(1), queue="orders", operationTimeoutSeconds="1")


@pytest.mark.parametrize(
    "fields, said",
    [
        ([StructField("body", BinaryType()), StructField("colour", StringType())], "column 'colour' is no part of a message"),
        ([StructField("message_id", StringType())], "column 'body'.*is needed"),
        ([StructField("body", IntegerType())], "column 'body' must be binary or string, found int"),
        ([StructField("body", BinaryType()), StructField("session_id", IntegerType())], "column 'session_id' must be string"),
        (
            [StructField("body", BinaryType()), StructField("application_properties", StringType())],
            "column 'application_properties' must be map",
        ),
    ],
)
def test_a_wrong_column_is_named_before_anything_is_sent(fields: list[StructField], said: str) -> None:
    options = sink_options({"connectionString": "Endpoint=sb://h;SharedAccessKeyName=k;SharedAccessKey=v", "queue": "q"})
    with pytest.raises(ValueError, match=said):
        check_schema(StructType(fields), options)


def test_a_destination_is_needed() -> None:
    options = sink_options({"connectionString": "Endpoint=sb://h;SharedAccessKeyName=k;SharedAccessKey=v"})
    schema = StructType([StructField("body", BinaryType()), StructField("application_properties", MapType(StringType(), IntegerType()))])
    with pytest.raises(OptionError, match="option 'queue'"):
        check_schema(schema, options)


# -- on Spark ----------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_spark_writes_a_table(spark: Any, west: Broker, name: str) -> None:
    create_queue(west, name)
    table = spark.range(500).selectExpr("cast(id as string) as body", "map('n', id) as application_properties")
    table.write.format("servicebus").mode("append").options(connectionString=west.connection_string, queue=name).save()
    with pytest.raises(Exception, match="found overwrite"):
        table.write.format("servicebus").mode("overwrite").options(connectionString=west.connection_string, queue=name).save()
    there = take_all(west, name)
    assert sorted(int(body) for body in there.column("body") or []) == list(range(500))
    assert len(set(ids(there))) == 500
    assert {kind for types in there.column("application_property_types") or [] for _, kind in types} == {"long"}


@pytest.mark.spark
def test_a_stream_from_queue_to_queue_repeats_a_failed_batch_with_the_same_ids(spark: Any, west: Broker, name: str, tmp_path: Path) -> None:
    create_queue(west, f"{name}-from")
    create_queue(west, f"{name}-to", requires_duplicate_detection=True)
    create_queue(west, f"{name}-late", requires_duplicate_detection=True)
    write(west, bodies(300, message_id=[f"m{n}" for n in range(300)]), queue=f"{name}-from")

    def start(late: str) -> Any:
        stream = spark.readStream.format("servicebus").options(connectionString=west.connection_string, queue=f"{name}-from").load()
        # Two destinations, of which the second does not exist at first: the batch fails after its first half was accepted.
        row = stream.selectExpr("body", f"if(sequence_number > 150, '{late}', '{name}-to') as entity")
        writer = row.writeStream.format("servicebus").option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.option("connectionString", west.connection_string).trigger(availableNow=True).start()

    with pytest.raises(Exception, match="rows were refused"):
        start("no-such-queue").awaitTermination()
    start(f"{name}-late").awaitTermination()
    first, late = ids(take_all(west, f"{name}-to")), ids(take_all(west, f"{name}-late"))
    assert len(first) == len(set(first)) == 150
    assert len(late) == len(set(late)) == 150
    assert counts(west, f"{name}-from")["total"] == 0
