"""What senders and receivers wrote down themselves, and what both journals say, brought into one form that can be compared."""

from __future__ import annotations

import json
import mmap
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from tandem.client.envelope import FENCE_ID
from tandem.model.errors import ConfigurationError
from tandem.spark.analytics.engines import is_engine, must_answer
from tandem.spark.analytics.journal_files import find_stores
from tandem.spark.analytics.journal_rows import BACKLOG
from tandem.spark.analytics.journal_source import JournalDataSource

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Where a row comes from: a letter each, so that they can be counted in one pass.
PRIMARY: Final = "P"
BACKLOG_ROW: Final = "B"
DEAD_LETTER: Final = "D"
SENT: Final = "S"
RECEIVED: Final = "R"

_KINDS: Final = "enqueued,published,settled,leased,lease-ended,lease-part"
SUBSCRIPTIONS: Final = "/subscriptions/"
_LEDGER: Final = {"message_id": "string", "path": "string", "at_ms": "double", "session_id": "string", "number": "long"}
"""As they are read; clocks often give milliseconds with a fraction."""
_COMPRESSED: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate")


@dataclass(frozen=True, slots=True)
class Evidence:
    """Rows (origin, entity, home, message_id, session_id, at, done_at, reason, sequence_number, number), one per copy of a message."""

    rows: DataFrame
    has_sent: bool
    has_received: bool
    has_journals: bool
    has_topics: bool
    has_sessions: bool
    has_forwards: bool
    parts: tuple[DataFrame, ...]
    """What `rows` was put together from."""
    kept: tuple[DataFrame, ...] = ()
    """Persisted meanwhile."""
    ledgers: tuple[DataFrame, ...] = ()
    """Those of the parts that are not journals: here with lines that could not be read, which have no entity."""

    def broken_lines(self) -> int:
        """Of ledgers: cut off, damaged, or without id or path. Takes a look at all of them."""
        return sum(ledger.filter(F.col("entity").isNull()).count() for ledger in self.ledgers)

    def homes(self) -> dict[int, str | None]:
        """Every home by its hash; None is that of lines that could not be read.

        Paths are few: they are told apart before they are looked at.
        """
        paths = self.parts[0].select("entity").distinct()
        for part in self.parts[1:]:
            paths = paths.union(part.select("entity").distinct())
        home = home_of(F.col("entity"))
        return {row["key"]: row["home"] for row in paths.select(home.alias("home"), F.xxhash64(home).alias("key")).distinct().collect()}

    def release(self) -> None:
        for frame in self.kept:
            frame.unpersist()


def home_of(path: Column) -> Column:
    """The queue or topic that a path belongs to, without regard to case."""
    return F.substring_index(F.lower(path), SUBSCRIPTIONS, 1)


def load_ledger(spark: SparkSession, path: str) -> DataFrame:
    """JSON lines or Parquet with `message_id`, `path` and `at_ms`; `session_id` and `number` (the order) if they have them."""
    if not Path(path).exists() and "://" not in path:
        raise ConfigurationError(f"ledger: {path} does not exist")
    frame = _read_parquet(spark, path) if _is_parquet(path) else _read_json(spark, path)
    _must_have_all(path, frame.columns)
    return frame


def _must_have_all(path: str, columns: Collection[str]) -> None:
    missing = [name for name in ("message_id", "path", "at_ms") if name not in columns]
    if missing:
        raise ConfigurationError(f"ledger: {path} has no column {missing[0]}; it needs message_id, path and at_ms")


def _read_json(spark: SparkSession, path: str) -> DataFrame:
    """With the columns any of its lines has: nothing else has to be guessed."""
    found = Path(path)
    if not found.exists():  # somewhere only Spark can read
        return spark.read.json(path)
    files = sorted(file for file in found.rglob("*") if file.is_file() and file.name[0] not in "._") if found.is_dir() else [found]
    if not files:
        raise ConfigurationError(f"ledger: there is no file in {path}; give lines of JSON, or Parquet")
    names = {name for file in files for name in _columns_of(file)}
    _must_have_all(path, names)
    place = in_spark(found)
    return spark.read.json(place, schema=", ".join(f"{name} {kind}" for name, kind in _LEDGER.items() if name in names))


def _columns_of(file: Path) -> set[str]:
    if file.suffix in _COMPRESSED:
        return set(_LEDGER)
    try:
        with file.open("rb") as lines:
            first = next((line for line in lines if line.strip()), b"")
            if not first:
                return set(_LEDGER)
            value = json.loads(first.decode("utf-8-sig"))
            with mmap.mmap(lines.fileno(), 0, access=mmap.ACCESS_READ) as text:
                names = {name for name in _LEDGER if text.find(f'"{name}"'.encode()) >= 0}
    except OSError as error:
        raise ConfigurationError(f"ledger: {file} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"ledger: {file} is neither Parquet nor lines of JSON in UTF-8 ({error})") from error
    if not isinstance(value, dict):
        raise ConfigurationError(f"ledger: {file} is neither Parquet nor lines of JSON: its first line is no object")
    return names


def in_spark(path: Path) -> str:
    """A local path as Spark takes it: no pattern, whatever its characters."""
    if ":" in path.name:
        raise ConfigurationError(f"{path}: Spark cannot read files with a colon in their names: rename it")
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", str(path.resolve()))


def _read_parquet(spark: SparkSession, path: str) -> DataFrame:
    found = Path(path)
    if not found.exists():
        return spark.read.parquet(path)
    file = next(iter(sorted(found.glob("*.parquet"))), found)
    try:
        pq.read_schema(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigurationError(f"ledger: {file} cannot be read as Parquet: {error}") from error
    return spark.read.parquet(in_spark(found))


def _is_parquet(path: str) -> bool:
    found = Path(path)
    return path.endswith(".parquet") or (found.is_dir() and next(found.glob("*.parquet"), None) is not None)


def ledger_rows(ledger: DataFrame, origin: str) -> DataFrame:
    def if_there(name: str, kind: str) -> Column:
        return (F.col(name) if name in ledger.columns else F.lit(None)).try_cast(kind).alias(name)

    path = F.when(F.col("message_id").isNotNull(), F.col("path").cast("string"))
    return ledger.select(
        F.lit(origin).alias("origin"),
        path.alias("entity"),
        home_of(path).alias("home"),
        F.col("message_id").cast("string").alias("message_id"),
        if_there("session_id", "string"),
        F.col("at_ms").try_cast("long").alias("at"),
        F.lit(None).cast("long").alias("done_at"),
        F.lit(None).cast("string").alias("reason"),
        F.lit(None).cast("long").alias("sequence_number"),
        if_there("number", "long"),
    )


def journal_facts(spark: SparkSession, paths: list[str]) -> DataFrame:
    """Facts about messages coming and going. Look at them once: every action on them reads the journals again."""
    engines = [path for path in paths if is_engine(path)]
    directories = [path for path in paths if not is_engine(path)]
    find_stores(directories)  # here, where a wrong path is one clear line
    must_answer(engines)
    spark.dataSource.register(JournalDataSource)
    return (
        spark.read.format("tandem_journal")
        .option("paths", json.dumps(directories))
        .option("dsn", " ".join(engines))
        .option("kinds", _KINDS)
        .option("destinations", "true")
        .load()
        .withColumn("at", F.unix_millis("at"))
    )


def copies_of(facts: DataFrame, with_leases: bool) -> DataFrame:
    """One row per copy of a message that a journal knows: when it came, and when and why it left."""
    copy = ["journal", "entity", "sub_queue", "sequence_number"]
    arrived = F.col("kind").isin("enqueued", "published")
    left = F.col("kind").isin("settled", "lease-completed")
    told = facts.filter(F.col("kind").isin("enqueued", "published", "settled"))
    if with_leases:
        told = told.unionByName(_completed_by_lease(facts))
    copies = told.groupBy(*copy).agg(
        F.first(F.when(arrived, F.col("message_id")), ignorenulls=True).alias("message_id"),
        F.first(F.when(arrived, F.col("session_id")), ignorenulls=True).alias("session_id"),
        F.first(F.when(arrived, F.col("destination")), ignorenulls=True).alias("destination"),
        F.min(F.when(arrived, F.col("at"))).alias("at"),
        F.max(F.when(left, F.col("at"))).alias("done_at"),
        F.max(F.when(left, F.col("reason"))).alias("reason"),
    )
    in_backlog = F.lower("entity").contains(BACKLOG)
    # A scheduled message that became active has a second copy, which counts; a settlement whose arrival was compacted away has no id;
    # a fence in a backlog queue only marks a place.
    counts = F.col("message_id").isNotNull() & ~F.coalesce(F.col("reason") == "activated", F.lit(False))
    fence = in_backlog & F.col("message_id").startswith(FENCE_ID)
    return copies.filter(counts & ~fence).select(
        F.when(F.col("sub_queue") != "", DEAD_LETTER).when(in_backlog, BACKLOG_ROW).otherwise(PRIMARY).alias("origin"),
        F.when(in_backlog, F.coalesce("destination", "entity")).otherwise(F.col("entity")).alias("entity"),
        home_of(F.when(in_backlog, F.coalesce("destination", "entity")).otherwise(F.col("entity"))).alias("home"),
        "message_id",
        "session_id",
        "at",
        "done_at",
        "reason",
        "sequence_number",
        F.lit(None).cast("long").alias("number"),
    )


def _completed_by_lease(facts: DataFrame) -> DataFrame:
    """Messages that left with a completed lease: the lease's end does not name them, its beginning does."""
    lease = ["journal", "entity", "sub_queue", "lease_id"]
    ended = facts.filter((F.col("kind") == "lease-ended") & (F.col("reason") == "completed")).select(*lease, F.col("at").alias("ended_at"))
    returned = facts.filter(F.col("kind") == "lease-part").select(*lease, "sequence_number").distinct()
    leased = facts.filter(F.col("kind") == "leased").dropDuplicates([*lease, "sequence_number"])
    return (
        leased.join(returned, [*lease, "sequence_number"], "left_anti")
        .join(ended, lease)
        .withColumn("kind", F.lit("lease-completed"))
        .withColumn("reason", F.lit("completed"))
        .withColumn("at", F.col("ended_at"))
        .drop("ended_at")
        .select(*facts.columns)
    )


def gather(
    spark: SparkSession, journals: list[str] | None = None, sent: DataFrame | None = None, received: DataFrame | None = None
) -> Evidence:
    """Everything that is known, in one table."""
    parts: list[DataFrame] = []
    kept: list[DataFrame] = []
    ledgers: list[DataFrame] = []
    has_topics = has_sessions = has_forwards = False
    if journals:
        facts = journal_facts(spark, journals).persist()
        has_topics, has_sessions, has_leases, has_forwards = _survey(facts)
        copies = copies_of(facts, has_leases).persist()
        kept = [copies, facts]
        parts.append(copies)
    for ledger, origin in ((sent, SENT), (received, RECEIVED)):
        if ledger is not None:
            ledgers.append(ledger_rows(ledger, origin))
            has_sessions = has_sessions or "session_id" in ledger.columns
            has_topics = has_topics or _names_subscriptions(ledgers[-1])
    readable = [*parts, *(ledger.filter(F.col("entity").isNotNull()) for ledger in ledgers)]
    parts += ledgers
    if not readable:
        raise ConfigurationError("nothing to reconcile: give journals, ledgers, or both")
    rows = readable[0]
    for part in readable[1:]:
        rows = rows.unionByName(part)
    known = (sent is not None, received is not None, bool(journals), has_topics, has_sessions, has_forwards)
    return Evidence(rows, *known, tuple(parts), tuple(kept), tuple(ledgers))


def _names_subscriptions(rows: DataFrame) -> bool:
    return bool(rows.filter(F.lower("entity").contains(SUBSCRIPTIONS)).limit(1).count())


def _survey(facts: DataFrame) -> tuple[bool, bool, bool, bool]:
    """Whether there are topics, sessions, completed leases, forwarded messages: what is not there need not be looked for."""
    row = facts.agg(
        F.max(F.lower("entity").contains(SUBSCRIPTIONS)).alias("topics"),
        F.max(F.col("session_id").isNotNull()).alias("sessions"),
        F.max((F.col("kind") == "lease-ended") & (F.col("reason") == "completed")).alias("leases"),
        F.max((F.col("kind") == "settled") & (F.col("reason") == "forwarded")).alias("forwards"),
    ).first()
    assert row is not None
    return bool(row["topics"]), bool(row["sessions"]), bool(row["leases"]), bool(row["forwards"])
