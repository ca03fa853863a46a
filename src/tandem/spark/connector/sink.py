"""The writers of `format("servicebus")`: rows become messages, accepted durably before the task says so."""

from __future__ import annotations

import datetime
import hashlib
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tandem.amqp import Byte, Float, Int, Short, Timestamp
from tandem.engine_client.blocking import TransportError
from tandem.engine_client.message_encoding import TTL_MS_MAX, encode_row
from tandem.engine_client.property_text import instant_ms, parse, render
from tandem.model.clock import SystemClock
from tandem.spark.connector.claims import TASK, BatchClaims
from tandem.spark.connector.connections import unreachable
from tandem.spark.connector.options import OptionError, SinkOptions
from tandem.spark.connector.schema import COLUMNS
from tandem.spark.connector.task_sender import SendRefusal, TaskSender

_TEXT: Final = (
    "message_id",
    "session_id",
    "partition_key",
    "correlation_id",
    "subject",
    "to",
    "reply_to",
    "reply_to_session_id",
    "content_type",
)
_TAKEN: Final[dict[str, tuple[type[DataType], ...]]] = {
    "entity": (StringType,),
    "body": (BinaryType, StringType),
    **dict.fromkeys(_TEXT, (StringType,)),
    "time_to_live_ms": (LongType, IntegerType, ShortType),
    "scheduled_enqueue_time": (TimestampType, TimestampNTZType),
    "application_properties": (MapType,),
    "application_property_types": (MapType,),
}
_OF_THE_SOURCE: Final = frozenset(name for name, _ in COLUMNS) | {"payload"}
"""Columns a message has when it was read: those that are not for senders to set are passed over."""
_SHOWN: Final = 3
_CLAIM_MS: Final = 10_000
_DONE_MS: Final = 60_000
"""Spark kills the other attempts when one has finished; so long they may not think that it is their turn."""

log = logging.getLogger("tandem.spark")


class RowsRefused(Exception):
    """The broker refused rows for good; the first few are named."""


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc]
    accepted: int
    refused: int


def check_schema(schema: StructType, options: SinkOptions) -> None:
    """Raises OptionError or ValueError naming the column."""
    for name in schema.fieldNames():
        kinds = _TAKEN.get(name)
        if kinds is None:
            if name not in _OF_THE_SOURCE:
                raise ValueError(f"column {name!r} is no part of a message; a message takes {', '.join(sorted(_TAKEN))}")
        elif not isinstance(schema[name].dataType, kinds):
            allowed = " or ".join(kind.typeName() for kind in kinds)
            raise ValueError(f"column {name!r} must be {allowed}, found {schema[name].dataType.simpleString()}")
    if "body" not in schema.fieldNames():
        raise ValueError("column 'body' (binary or string) is needed")
    if not options.entity and "entity" not in schema.fieldNames():
        raise OptionError("queue", "name the destination by queue or topic, or by a column 'entity'")


class _SinkRows:
    """Turns record batches into messages."""

    def __init__(self, options: SinkOptions, names: Sequence[str], id_prefix: str) -> None:
        self._options = options
        self._names = [name for name in names if name in _TAKEN]
        self._id_prefix = id_prefix
        self._clock = SystemClock()
        self._number = 0

    def messages(self, batch: pa.RecordBatch) -> Iterator[tuple[str, bytes | ValueError, int]]:
        """(destination, payload or why there is none, place in the batch)."""
        columns = {name: _values(batch.column(name), name) for name in self._names}
        in_amqp = _in_amqp(batch.column("application_properties").type) if "application_properties" in self._names else _as_it_is
        for at in range(batch.num_rows):
            self._number += 1
            row = {name: values[at] for name, values in columns.items()}
            try:
                _must_be_text(row)
                yield self._destination(row), self._payload(row, in_amqp), at
            except ValueError as error:
                yield str(row.get("entity") or self._options.entity), error, at

    def _destination(self, row: dict[str, Any]) -> str:
        entity = self._options.entity or row.get("entity")
        if not entity:
            raise ValueError("column 'entity' is null and no destination is fixed")
        return str(entity)

    def _payload(self, row: dict[str, Any], in_amqp: Callable[[Any], Any]) -> bytes:
        body = row["body"]
        if body is None:
            raise ValueError("column 'body' is null")
        properties = row.get("application_properties")
        if properties:
            types = dict(row.get("application_property_types") or ())
            properties = {name: in_amqp(value) for name, value in properties}
            properties |= {name: parse(name, render(properties[name])[0], kind) for name, kind in types.items() if name in properties}
        lives_ms = row.get("time_to_live_ms")
        return encode_row(
            body,
            row.get("message_id") or f"{self._id_prefix}-{self._number}",
            session_id=row.get("session_id"),
            partition_key=row.get("partition_key"),
            correlation_id=row.get("correlation_id"),
            subject=row.get("subject"),
            to=row.get("to"),
            reply_to=row.get("reply_to"),
            reply_to_session_id=row.get("reply_to_session_id"),
            content_type=row.get("content_type"),
            time_to_live_ms=lives_ms,
            created_at_ms=self._clock.now_ms() if lives_ms is not None and lives_ms > TTL_MS_MAX else None,
            scheduled_at_ms=row.get("scheduled_enqueue_time"),
            application_properties=properties or None,
        )


_NARROW: Final = {pa.int8(): Byte, pa.int16(): Short, pa.int32(): Int, pa.float32(): Float}
"""Types of properties for which Python has no type of its own."""


def _as_it_is(value: Any) -> Any:
    return value


def _instant(value: datetime.datetime | None) -> Timestamp | None:
    return None if value is None else Timestamp(instant_ms(value.isoformat()))


def _in_amqp(properties: pa.MapType) -> Callable[[Any], Any]:
    """From a value of such a map to the AMQP type that says the same."""
    if pa.types.is_timestamp(properties.item_type):
        return _instant
    narrow = _NARROW.get(properties.item_type)
    return _as_it_is if narrow is None else lambda value: None if value is None else narrow(value)


def _must_be_text(row: dict[str, Any]) -> None:
    for name, value in row.items():
        if isinstance(value, UnicodeDecodeError):
            raise ValueError(f"column {name!r} has text that is not UTF-8: {value}")


def _one(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except UnicodeDecodeError as error:
        return error


def _values(column: pa.Array, name: str) -> list[Any]:
    """As Python has them; a row whose text is not UTF-8, which Spark does not mind, has the error instead."""
    if name == "scheduled_enqueue_time":
        column = column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) and column.type.tz is None else column
        return [None if at is None else at // 1000 for at in column.cast(pa.int64()).to_pylist()]
    if name == "body" and (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        column = column.cast(pa.binary())
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        values = [_one(value) for value in column]
    return values


class _Task:
    """One attempt at one partition. `run_id` is the same for attempts that Spark runs beside each other, and for no others."""

    def __init__(
        self, options: SinkOptions, names: Sequence[str], job: str, partition: int, run_id: str = "", claim_ms: int = _CLAIM_MS
    ) -> None:
        self._options = options
        self._job = f"{job}-{partition}"
        self._claim_name = f"{self._job}-{run_id}"
        self._claim_ms = claim_ms
        self._claims: BatchClaims | None = None
        self._rows = _SinkRows(options, names, self._job)
        in_order = "session_id" in names
        self._sender = TaskSender(options.where, options.max_in_flight, options.batch_messages, self._check_claim, in_order)
        self._table: list[pa.RecordBatch] = []
        self._refused = 0

    def run(self, batches: Iterator[pa.RecordBatch]) -> Written:
        try:
            written = self._send_all(batches)
        except BaseException:
            self._release(0)
            raise
        finally:
            self._sender.close()
        self._release(_DONE_MS)
        return written

    def _send_all(self, batches: Iterator[pa.RecordBatch]) -> Written:
        for batch in batches:
            for path, payload, at in self._rows.messages(batch):
                if isinstance(payload, ValueError):
                    self._sender.refused.append(SendRefusal(path, (batch, at), "com.tandem:row", str(payload)))
                    continue
                if self._claims is None:
                    self._claim(path)
                self._sender.send(path, payload, (batch, at))
            self._refuse()
        self._sender.drain()
        self._refuse()
        self._write_table()
        return Written(self._sender.accepted, self._refused)

    def _claim(self, path: str) -> None:
        """At the entity of the first row: a second attempt begins with the same one."""
        self._claims = BatchClaims(self._options.where, path, TASK, self._claim_ms)
        try:
            self._claims.take(self._claim_name)
        except TransportError as error:
            if unreachable(error):
                raise
            log.info("%s: nothing can be claimed there: %s", path, error)  # a broker of another make, or no such entity

    def _check_claim(self) -> None:
        if self._claims is not None:
            self._claims.check()

    def _release(self, after_ms: int) -> None:
        if self._claims is not None:
            self._claims.release(after_ms)

    def _refuse(self) -> None:
        refused = self._sender.take_refused()
        if not refused:
            return
        self._refused += len(refused)
        if self._options.failure_policy == "fail":
            shown = "; ".join(f"to {one.path!r}: {one.condition}: {one.description}" for one in refused[:_SHOWN])
            raise RowsRefused(f"{len(refused)} rows were refused: {shown}. Set onFailure=table to keep such rows and go on.")
        for one in refused:
            assert isinstance(one.context, tuple)
            batch, at = one.context
            row = batch.slice(at, 1)
            for name, text in (("failed_entity", one.path), ("failed_condition", one.condition), ("failed_description", one.description)):
                row = row.append_column(name, pa.array([text], pa.string()))
            self._table.append(row)

    def _write_table(self) -> None:
        """Under a name that follows from query, batch and partition: an attempt that comes again writes the same file."""
        if self._table:
            directory = Path(self._options.failure_path)
            directory.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_batches(self._table), directory / f"refused-{self._job}.parquet")


def _short(text: str) -> str:
    """A query id in few characters: message ids have 128 at most."""
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _run_id(run: str, context: TaskContext) -> str:
    """A query that was started again waits for nobody of the run before."""
    return f"{run}-{context.stageId()}"


class ServiceBusWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """A batch write. Ids follow from the write, the partition and the row, so that a task that runs again repeats them."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._names = schema.fieldNames()
        self._run = _short(uuid.uuid4().hex)
        self._job = options.id_prefix or self._run

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        return _Task(self._options, self._names, self._job, context.partitionId(), _run_id(self._run, context)).run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Every message was accepted durably when its task ended."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was accepted cannot be taken back; a repeat carries the same ids only within this write."""


class ServiceBusStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """A streaming write. Ids follow from query, batch, partition and row: a batch that runs again vanishes under duplicate detection."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_schema(schema, options)
        self._options = options
        self._names = schema.fieldNames()
        self._run = _short(uuid.uuid4().hex)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise RuntimeError("Spark does not say which query and batch this is, so message ids cannot be made: give a column message_id")
        job = f"{self._options.id_prefix or _short(query)}-{batch}"
        return _Task(self._options, self._names, job, context.partitionId(), _run_id(self._run, context)).run(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Every message was accepted durably when its task ended."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The batch comes again with the same ids."""
