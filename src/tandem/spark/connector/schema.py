"""The columns of a message: what Spark is told, and how columns become record batches."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tandem.engine_client.message_rows import MessageRows

_MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")
_INSTANT: Final = pa.timestamp("us", tz="UTC")
_TEXT_MAP: Final = pa.map_(pa.string(), pa.string())

_TYPES: Final[dict[str, tuple[Any, Any]]] = {
    "text": (StringType(), pa.string()),
    "long": (LongType(), pa.int64()),
    "int": (IntegerType(), pa.int32()),
    "flag": (BooleanType(), pa.bool_()),
    "bytes": (BinaryType(), pa.binary()),
    "instant": (TimestampType(), _INSTANT),
    "map": (MapType(StringType(), StringType(), True), _TEXT_MAP),
}
_KINDS: Final = {
    "sequence_number": "long",
    "user_id": "bytes",
    "creation_time": "instant",
    "enqueued_time": "instant",
    "scheduled_enqueue_time": "instant",
    "expires_time": "instant",
    "time_to_live_ms": "long",
    "delivery_count": "int",
    "priority": "int",
    "durable": "flag",
    "application_properties": "map",
    "application_property_types": "map",
    "annotations": "map",
    "body": "bytes",
}
"""Everything else is text."""
COLUMNS: Final = (("entity", "text"), *((name, _KINDS.get(name, "text")) for name in MessageRows.COLUMNS))


def message_schema(include_payload: bool = False) -> StructType:
    columns = (*COLUMNS, ("payload", "bytes")) if include_payload else COLUMNS
    return StructType([StructField(name, _TYPES[kind][0], True) for name, kind in columns])


def record_batch(entity: str, rows: MessageRows, payloads: list[bytes] | None = None) -> pa.RecordBatch:
    """The rows as Spark takes them."""
    count = len(rows)
    arrays: list[pa.Array] = []
    names: list[str] = []
    for name, kind in COLUMNS:
        arrow = _TYPES[kind][1]
        names.append(name)
        if name == "entity":
            arrays.append(pa.repeat(pa.scalar(entity, pa.string()), count))
            continue
        values = rows.column(name)
        if values is None:
            arrays.append(pa.nulls(count, arrow))
        elif kind == "instant":
            arrays.append(pa.array(values, _MILLISECONDS).cast(_INSTANT))
        else:
            arrays.append(pa.array(values, arrow))
    if payloads is not None:
        names.append("payload")
        arrays.append(pa.array(payloads, pa.binary()))
    return pa.RecordBatch.from_arrays(arrays, names=names)
