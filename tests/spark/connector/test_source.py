"""The stream reader as Spark drives it: planned, read, read again, committed late, restarted; and on Spark itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from tandem.amqp import Timestamp, encode_value
from tandem.engine_client.blocking import BlockingClient, TransportError
from tandem.engine_client.message_encoding import encode_row
from tandem.spark.connector.connections import drop
from tandem.spark.connector.options import OptionError, source_options
from tandem.spark.connector.source import ServiceBusReader, ServiceBusStreamReader
from tests.acceptance.brokers import Broker
from tests.spark.house import administration, connect, counts, create_queue, messages, send, take_all
from tests.waiting import wait_until


class Query:
    """What Spark's engine does with a reader, step by step."""

    def __init__(self, broker: Broker, checkpoint: list[dict[str, Any]] | None = None, **options: str) -> None:
        self.options = source_options({"connectionString": broker.connection_string, "pollMs": "100", **options})
        self.reader = ServiceBusStreamReader(self.options)
        self.log = checkpoint if checkpoint is not None else [self.reader.initialOffset()]

    def plan(self, limit: Any = None) -> bool:
        """A new batch is logged; False when there is nothing new."""
        end = self.reader.latestOffset(self.log[-1], limit or ReadAllAvailable())
        if end == self.log[-1]:
            return False
        self.log.append(end)
        return True

    def next(self, limit: Any = None) -> None:
        """A batch comes, sooner or later."""
        wait_until(lambda: self.plan(limit), "a batch", 30)

    def read(self) -> list[str]:
        """Every task of the last batch, in another process as far as the reader knows."""
        return [message_id for batch in self.batches() for message_id in batch.column("message_id").to_pylist()]

    def batches(self) -> list[pa.RecordBatch]:
        worker = ServiceBusStreamReader(self.options)
        return [batch for part in self.reader.partitions(self.log[-2], self.log[-1]) for batch in worker.read(part)]

    def die(self) -> None:
        """The process beside the driver is gone; nobody renews or completes."""
        self.reader.stop()


@pytest.fixture(autouse=True)
def no_connection_outlives_its_test() -> Iterator[None]:
    from tandem.spark.connector import connections

    yield
    for one in list(connections._cached):
        drop(one)


@pytest.fixture
def queue(west: Broker, name: str) -> str:
    create_queue(west, name)
    return name


MODES = pytest.mark.parametrize("mode", ["lease", "defer"])


@MODES
def test_messages_that_no_table_can_show_in_full_are_rows_all_the_same(west: Broker, queue: str, mode: str) -> None:
    ids = [b"\x00\x53\x73" + encode_value([name, *[None] * 8, created]) for name, created in (("late", Timestamp(1 << 62)), ("odd", "now"))]
    texts = [b"\x00\x53\x74\xc1\x08\x02\xa1\x01a\xa1\x02\xff!", b"\x00\x53\x72\xc1\x08\x02\xa3\x01a\xa1\x02\xff!"]
    send(west, queue, [section + b"\x00\x53\x75\xa0\x01x" for section in (*ids, *texts)])
    browser = ServiceBusReader(source_options({"connectionString": west.connection_string, "queue": queue}))
    assert sum(batch.num_rows for part in browser.partitions() for batch in browser.read(part)) == 4
    query = Query(west, queue=queue, mode=mode)
    query.next()
    found = query.read()
    assert (found[:2], len(found)) == (["late", "odd"], 4)
    assert not query.plan()
    query.die()
    assert counts(west, queue)["total"] == 0


@MODES
def test_a_batch_is_the_same_on_every_read_and_settled_once_it_is_committed(west: Broker, queue: str, mode: str) -> None:
    send(west, queue, messages(50))
    query = Query(west, queue=queue, mode=mode)
    query.next()
    wanted = [f"m{n}" for n in range(50)]
    assert query.read() == wanted
    assert query.read() == wanted
    assert counts(west, queue)["total"] == 50, "nothing is settled before Spark's commit"
    query.reader.commit(query.log[-1])
    query.reader.commit(query.log[-1])
    assert counts(west, queue)["total"] == 0
    query.die()


@MODES
def test_the_last_batch_is_settled_without_waiting_for_another(west: Broker, queue: str, mode: str) -> None:
    send(west, queue, messages(3))
    query = Query(west, queue=queue, mode=mode)
    query.next()
    query.read()
    assert not query.plan()
    assert counts(west, queue)["total"] == 0
    query.die()


@MODES
def test_a_logged_batch_is_read_again_by_the_next_driver(west: Broker, queue: str, mode: str) -> None:
    send(west, queue, messages(20))
    query = Query(west, queue=queue, mode=mode)
    query.next()
    query.die()
    send(west, queue, messages(5, "late"))
    heir = Query(west, query.log, queue=queue, mode=mode)
    assert heir.read() == [f"m{n}" for n in range(20)]
    heir.next()
    assert heir.read() == [f"late{n}" for n in range(5)]
    assert counts(west, queue)["total"] == 5
    heir.die()


@MODES
def test_what_was_set_aside_and_never_logged_comes_with_the_next_batch(west: Broker, queue: str, mode: str) -> None:
    send(west, queue, messages(10))
    query = Query(west, queue=queue, mode=mode)
    query.next()
    query.log.pop()  # the driver dies before Spark has written it down
    query.die()
    heir = Query(west, query.log, queue=queue, mode=mode)
    heir.next()
    assert sorted(heir.read()) == sorted(f"m{n}" for n in range(10))
    heir.plan()
    assert counts(west, queue)["total"] == 0
    heir.die()


def test_what_was_deferred_and_never_logged_comes_also_when_batches_are_smaller_now(west: Broker, queue: str) -> None:
    send(west, queue, messages(10))
    query = Query(west, queue=queue, mode="defer")
    query.next()
    query.log.pop()
    query.die()
    heir = Query(west, query.log, queue=queue, mode="defer", maxMessagesPerTrigger="4")
    found: list[str] = []
    for _ in range(3):
        heir.next()
        found += heir.read()
    assert found == [f"m{n}" for n in range(10)]
    heir.die()


def test_what_was_deferred_when_the_connection_broke_comes_with_the_next_batch(
    west: Broker, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(west, queue, messages(1))
    query = Query(west, queue=queue, mode="defer")
    query.next()
    assert query.read() == ["m0"]
    send(west, queue, messages(10, "n"))
    request = BlockingClient.request

    def unheard(client: BlockingClient, entity: str, operation: str, body: dict[str, object]) -> Any:
        answer = request(client, entity, operation, body)
        if operation == "com.microsoft:update-disposition":
            raise TransportError("connect", "the connection broke")
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(BlockingClient, "request", unheard)
        assert not query.plan()
    query.next()
    assert sorted(query.read()) == sorted(f"n{n}" for n in range(10))
    query.die()


def test_a_lease_that_lapsed_is_taken_again_with_the_same_messages(west: Broker, queue: str) -> None:
    send(west, queue, messages(10))
    query = Query(west, queue=queue)
    query.next()
    query.die()
    with connect(west) as client:
        client.request(queue, "com.tandem:abandon-lease", {"lease-id": query.log[-1]["entities"][queue]["lease"]})
    heir = Query(west, query.log, queue=queue)
    assert heir.read() == [f"m{n}" for n in range(10)]
    heir.die()


def test_a_lapsed_batch_that_others_took_from_fails_and_never_shrinks(west: Broker, queue: str) -> None:
    send(west, queue, messages(10))
    query = Query(west, queue=queue)
    query.next()
    query.die()
    with connect(west) as client:
        client.request(queue, "com.tandem:abandon-lease", {"lease-id": query.log[-1]["entities"][queue]["lease"]})
    take_all(west, queue)
    heir = Query(west, query.log, queue=queue)
    with pytest.raises(TransportError, match="10 of its 10 messages"):
        heir.read()
    heir.die()


def test_a_lease_that_ends_under_a_reader_fails_its_task(west: Broker, queue: str) -> None:
    send(west, queue, messages(10))
    query = Query(west, queue=queue)
    query.next()
    parts = query.reader.partitions(query.log[-2], query.log[-1])
    with connect(west) as client:
        client.request(queue, "com.tandem:abandon-lease", {"lease-id": query.log[-1]["entities"][queue]["lease"]})
    with pytest.raises(TransportError, match="lease-lost"):
        list(query.reader.read(parts[0]))
    query.die()


def test_leases_of_a_living_driver_are_renewed(west: Broker, queue: str) -> None:
    send(west, queue, messages(5))
    query = Query(west, queue=queue, leaseSeconds="5")
    query.next()

    def expires() -> int:
        with connect(west) as client:
            listed = client.request(queue, "com.tandem:list-leases", {})
            assert listed is not None, "the lease is alive"
            return int(listed["leases"][0]["expires-at"])

    first = expires()
    wait_until(lambda: expires() > first, "renewal", 10)
    query.die()


def test_admission_limits_messages_and_bytes(west: Broker, queue: str) -> None:
    send(west, queue, messages(30, size=1_000))
    query = Query(west, queue=queue, maxMessagesPerTrigger="12")
    query.next()
    assert len(query.read()) == 12
    query.next(ReadMaxRows(5))
    assert len(query.read()) == 5
    query.die()
    small = Query(west, queue=queue, maxBytesPerTrigger="4000")
    small.next()
    assert len(small.read()) == 3
    small.die()


def test_idle_planning_asks_nothing_beyond_one_long_poll(west: Broker, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    post = BlockingClient.post

    def counted(self: BlockingClient, path: str, operation: str, body: dict[str, object], seconds: float) -> Any:
        asked.append(operation)
        return post(self, path, operation, body, seconds)

    monkeypatch.setattr(BlockingClient, "post", counted)
    send(west, queue, messages(3))
    query = Query(west, queue=queue, pollMs="5")
    query.next()
    query.read()
    asked.clear()
    for _ in range(20):
        assert not query.plan()
    assert asked == ["com.tandem:complete-lease", "com.tandem:lease-batch"]
    send(west, queue, messages(1, "next"))
    wait_until(query.plan, "the poll that was open all the time", 10)
    assert query.read() == ["next0"]
    assert asked.count("com.tandem:lease-batch") == 1
    query.die()


@pytest.mark.slow
def test_available_now_waits_for_messages_in_dead_hands(west: Broker, queue: str) -> None:
    send(west, queue, messages(10))
    with connect(west) as client:
        body: dict[str, object] = {"lease-id": "of-the-dead", "max-messages": 4, "max-bytes": 10**6, "duration-ms": 3_000}
        client.request(queue, "com.tandem:lease-batch", body)
    query = Query(west, queue=queue)
    query.reader.prepareForTriggerAvailableNow()
    found: list[str] = []
    while query.plan():
        found += query.read()
        send(west, queue, messages(1, "later"))
    assert sorted(found) == sorted(f"m{n}" for n in range(10))
    query.die()


def test_sessions_are_never_split_over_tasks(west: Broker, name: str) -> None:
    create_queue(west, name, requires_session=True)
    send(west, name, [encode_row(b"", f"m{n}", session_id=f"s{n % 5}") for n in range(100)])
    query = Query(west, queue=name, messagesPerTask="30")
    query.next()
    parts = query.reader.partitions(query.log[-2], query.log[-1])
    owners: dict[str, set[int]] = {}
    for at, part in enumerate(parts):
        for batch in query.reader.read(part):
            for session in batch.column("session_id").to_pylist():
                owners.setdefault(session, set()).add(at)
    assert len(parts) == 5
    assert {session: len(tasks) for session, tasks in owners.items()} == {f"s{n}": 1 for n in range(5)}
    query.die()


def test_a_stream_may_read_more_entities_than_a_session_has_room_for(west: Broker, name: str) -> None:
    names = [f"{name}-{n}" for n in range(130)]
    create_queue(west, *names)
    for one in (names[0], names[-1]):
        send(west, one, messages(3, one))
    query = Query(west, entities=",".join(names))
    query.reader.prepareForTriggerAvailableNow()
    query.next()
    assert len(query.read()) == 6
    assert not query.plan()
    query.die()


def test_several_entities_subscriptions_and_dead_letters_in_one_stream(west: Broker, name: str) -> None:
    create_queue(west, f"{name}-q")
    with administration(west) as admin:
        admin.create_topic(f"{name}-t")
        admin.create_subscription(f"{name}-t", "sub")
    send(west, f"{name}-q", messages(3, "q"))
    send(west, f"{name}-t", messages(3, "t"))
    query = Query(west, entities=f"{name}-q,{name}-t/Subscriptions/sub")
    found: set[tuple[str, str]] = set()
    wait_until(lambda: _collect(query, found) >= 6, "both entities", 20)
    assert found == {(f"{name}-q", f"q{n}") for n in range(3)} | {(f"{name}-t/Subscriptions/sub", f"t{n}") for n in range(3)}
    query.die()
    with connect(west) as client:
        client.request(f"{name}-q", "com.tandem:lease-batch", {"lease-id": "d", "max-messages": 1, "max-bytes": 9, "duration-ms": 60_000})
    send(west, f"{name}-q", messages(1, "dead"))
    with connect(west) as client:
        found_lease = client.request(
            f"{name}-q", "com.tandem:lease-batch", {"lease-id": "e", "max-messages": 9, "max-bytes": 10**6, "duration-ms": 60_000}
        )
        assert found_lease is not None
        words = {"sequence-number": int(found_lease["ranges"]), "reason": "why", "description": "because"}
        client.request(f"{name}-q", "com.tandem:settle-lease-part", {"lease-id": "e", "dead-lettered": [words]})
    dead = Query(west, queue=f"{name}-q", subQueue="deadLetter")
    dead.next()
    (batch,) = dead.batches()
    row = batch.to_pylist()[0]
    assert (row["message_id"], row["dead_letter_reason"], row["dead_letter_description"]) == ("dead0", "why", "because")
    dead.die()


def _collect(query: Query, found: set[tuple[str, str]]) -> int:
    if query.plan():
        for batch in query.batches():
            found |= set(zip(batch.column("entity").to_pylist(), batch.column("message_id").to_pylist(), strict=True))
    return len(found)


@pytest.mark.slow
def test_the_broker_may_be_killed_at_any_step(mortal: Broker) -> None:
    create_queue(mortal, "orders")
    send(mortal, "orders", messages(500, size=1_000))
    query = Query(mortal, queue="orders", maxMessagesPerTrigger="200", rowsPerBatch="50", operationTimeoutSeconds="60")
    found: list[str] = []
    batches = 0
    while len(found) < 500:
        mortal.kill()
        assert batches == 0 or not query.plan(), "a broker that is away is no error of a running query"
        mortal.start()
        query.next()
        mortal.kill()
        mortal.start()
        found += query.read()
        batches += 1
    query.plan()
    assert found == [f"m{n}" for n in range(500)]
    assert counts(mortal, "orders")["total"] == 0
    query.die()


@pytest.mark.parametrize(
    "options, said",
    [
        ({"queue": "no-such-queue"}, "option 'queue': no such entity.*no-such-queue"),
        ({"queue": "q", "connectionString": "wrong-key"}, "option 'connectionString': the broker does not accept the key"),
        ({"queue": "q", "connectionString": "nobody"}, "option 'connectionString': cannot connect"),
        ({"queue": "q", "mode": "peek"}, "option 'mode'"),
    ],
)
def test_what_only_the_user_can_mend_is_one_clear_error(west: Broker, options: dict[str, str], said: str) -> None:
    strings = {
        "wrong-key": west.string_for("RootManageSharedAccessKey", "wrong"),
        "nobody": west.connection_string.replace(str(west.port), "1"),
    }
    if "connectionString" in options:
        options = {**options, "connectionString": strings[options["connectionString"]]}
    with pytest.raises(OptionError, match=said):
        Query(west, **options).plan()


# -- on Spark ----------------------------------------------------------------------------------------------------------


@pytest.mark.spark
def test_spark_reads_a_stream_with_every_column_and_leaves_the_queue_empty(spark: Any, west: Broker, queue: str, tmp_path: Path) -> None:
    send(west, queue, [encode_row(b"body", f"m{n}", subject="s", application_properties={"n": n}) for n in range(1_000)])
    options = {"connectionString": west.connection_string, "queue": queue, "maxMessagesPerTrigger": "400", "messagesPerTask": "100"}
    stream = spark.readStream.format("servicebus").options(**options, includePayload="true").load()
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start(str(tmp_path / "table")).awaitTermination()
    table = spark.read.parquet(str(tmp_path / "table"))
    rows = table.selectExpr(
        "message_id", "subject", "application_properties['n'] as n", "decode(body, 'utf-8') as body", "entity"
    ).collect()
    assert sorted((row.message_id, row.n) for row in rows) == sorted((f"m{n}", str(n)) for n in range(1_000))
    assert {(row.subject, row.body, row.entity) for row in rows} == {("s", "body", queue)}
    assert table.where("payload is null or enqueued_time is null or sequence_number is null").count() == 0
    assert counts(west, queue)["total"] == 0


@pytest.mark.spark
def test_spark_browses_without_taking(spark: Any, west: Broker, queue: str) -> None:
    send(west, queue, messages(600))
    table = spark.read.format("servicebus").options(connectionString=west.connection_string, queue=queue).load()
    assert table.count() == 600
    assert table.where("state = 'active' or state is null").select("message_id").distinct().count() == 600
    assert counts(west, queue)["active"] == 600


@pytest.mark.spark
def test_a_failed_batch_runs_again_with_the_same_rows(spark: Any, west: Broker, queue: str, tmp_path: Path) -> None:
    send(west, queue, messages(300))
    seen: list[list[str]] = []

    def fails_first(frame: Any, number: int) -> None:
        seen.append(sorted(row.message_id for row in frame.select("message_id").collect()))
        if len(seen) == 1:
            raise RuntimeError("the sink is not well")

    def start() -> Any:
        stream = spark.readStream.format("servicebus").options(connectionString=west.connection_string, queue=queue).load()
        writer = stream.writeStream.foreachBatch(fails_first).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.trigger(availableNow=True).start()

    with pytest.raises(Exception, match="the sink is not well"):
        start().awaitTermination()
    assert counts(west, queue)["leased"] == 300
    start().awaitTermination()
    assert seen[0] == seen[1] == sorted(f"m{n}" for n in range(300))
    assert len(seen) == 2
    assert counts(west, queue)["total"] == 0


@pytest.mark.spark
def test_spark_reports_a_wrong_option_by_name(spark: Any, west: Broker) -> None:
    with pytest.raises(Exception, match="option 'queue'"):
        spark.read.format("servicebus").options(connectionString=west.connection_string).load().count()
