"""The proof: what was sent is delivered once, waits, or is accounted for; whatever is not is named by its message id.

Each message is looked at under its home (queue or topic) and its id. `sent` means that a sender wrote it down, or without such a ledger
that either namespace accepted it; `delivered` that a receiver wrote it down, or without such a ledger that it was completed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from tandem.spark.analytics.ledgers import BACKLOG_ROW, DEAD_LETTER, PRIMARY, RECEIVED, SENT, SUBSCRIPTIONS, Evidence, gather, load_ledger

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PROBLEMS: Final = ("lost", "duplicated", "out_of_order", "dead_lettered", "expired", "removed", "waiting", "delayed", "unexpected")
"""What can be wrong or worth knowing, worst first. `removed`: purged or cancelled by hand; `unexpected`: came without having been sent."""
_NAMES: Final = ("home_key", "key")
_SENT, _WAITS, _DEAD, _EXPIRED, _REMOVED, _DIVERTED, _FORWARDED = 1, 2, 4, 8, 16, 32, 64
_COUNTS: Final = ("sent", "delivered", *PROBLEMS, "diverted", "forwarded")
"""What is said of a message, a bit each, in this order."""
_FINENESS: Final = 100
"""Times to delivery are told to about one part in so many."""


@dataclass(frozen=True, slots=True)
class EntityCounts:
    """Messages of one queue or topic."""

    entity: str
    sent: int = 0
    delivered: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    dead_lettered: int = 0
    expired: int = 0
    removed: int = 0
    waiting: int = 0
    delayed: int = 0
    unexpected: int = 0
    diverted: int = 0
    forwarded: int = 0
    """Left for another entity by auto-forwarding, where they count again."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A message to look at."""

    entity: str
    message_id: str
    problem: str
    sent_at_ms: int | None
    delivered_at_ms: int | None

    @property
    def delay_ms(self) -> int | None:
        """From sending to delivery; None if one of them is not known."""
        return None if self.sent_at_ms is None or self.delivered_at_ms is None else self.delivered_at_ms - self.sent_at_ms


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """`held` is the verdict: nothing lost, nothing delivered twice."""

    total: EntityCounts
    entities: tuple[EntityCounts, ...]
    findings: tuple[Finding, ...]
    latency_ms: dict[str, float] = field(default_factory=dict)
    """From the first acceptance, or the sender's own note, to delivery: p50, p90, p99, max."""
    delayed_after_ms: int = 60_000
    """What took longer counts as delayed."""
    broken_lines: int = 0
    """Of ledgers, not counted: damaged, cut off or just being written, or without id or path."""

    @property
    def held(self) -> bool:
        return self.total.lost == 0 and self.total.duplicated == 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "held": self.held,
            "total": asdict(self.total),
            "entities": [asdict(one) for one in self.entities],
            "findings": [asdict(one) for one in self.findings],
            "latency_ms": self.latency_ms,
            "delayed_after_ms": self.delayed_after_ms,
            "broken_lines": self.broken_lines,
        }


def reconcile(
    spark: SparkSession,
    *,
    journals: list[str] | None = None,
    sent: str | DataFrame | None = None,
    received: str | DataFrame | None = None,
    delayed_after_ms: int = 60_000,
    findings_max: int = 1_000,
) -> Reconciliation:
    """Compare the journals of both namespaces, and ledgers of senders and receivers where there are any."""
    sent_rows = load_ledger(spark, sent) if isinstance(sent, str) else sent
    received_rows = load_ledger(spark, received) if isinstance(received, str) else received
    evidence = gather(spark, journals, sent_rows, received_rows)
    messages = judge(evidence, delayed_after_ms)
    try:
        return summarize(evidence, messages, delayed_after_ms, findings_max)
    finally:
        messages.unpersist()
        evidence.release()


def summarize(evidence: Evidence, messages: DataFrame, delayed_after_ms: int, findings_max: int = 1_000) -> Reconciliation:
    """Counts and findings of what `judge` found."""
    homes = evidence.homes()
    entities, latency = _count(homes, messages)
    findings = _find(evidence, messages, findings_max) if any(_worth_listing(one) for one in entities) else ()
    total = EntityCounts("", **{name: sum(getattr(one, name) for one in entities) for name in _COUNTS})
    broken = evidence.broken_lines() if None in homes.values() else 0
    return Reconciliation(total, tuple(entities), findings, latency, delayed_after_ms, broken)


def _worth_listing(one: EntityCounts) -> bool:
    return any(getattr(one, problem) for problem in PROBLEMS)


def _is(origin: str) -> Column:
    return F.col("origin") == origin


def _keys() -> tuple[Column, Column]:
    return F.xxhash64("home").alias("home_key"), F.xxhash64("message_id").alias("key")


def judge(evidence: Evidence, delayed_after_ms: int) -> DataFrame:
    """One row per message, persisted: hashes of its home and its id, so that no text has to travel, and what is to be said of it."""
    rows = evidence.rows.select(*_keys(), "origin", "entity", "session_id", "at", "done_at", "reason", "sequence_number", "number")
    completed = _is(PRIMARY) & F.col("reason").isin("completed", "received")
    delivery = _is(RECEIVED) if evidence.has_received else F.coalesce(completed, F.lit(False))
    delivered_at = F.when(_is(RECEIVED), F.col("at")) if evidence.has_received else F.when(completed, F.col("done_at"))
    facts = rows.select(
        *_NAMES,
        _flags(evidence).alias("flags"),
        delivery.cast("int").alias("deliveries"),
        *([(delivery & ~_in_subscription()).cast("int").alias("queue_deliveries")] if evidence.has_topics else []),
        F.when(_is(PRIMARY) | _is(BACKLOG_ROW) | _is(SENT), F.col("at")).alias("sent_at"),
        *([F.when(_is(PRIMARY), F.col("at")).alias("arrived_at")] if evidence.has_journals else []),
        delivered_at.alias("delivered_at"),
    )
    # Nearly every key is new: adding up before the rows travel, as Spark does by itself, would be in vain.
    once = (
        facts.repartition(*_NAMES)
        .groupBy(*_NAMES)
        .agg(
            F.bit_or("flags").alias("flags"),
            F.sum("deliveries").alias("deliveries"),
            *([F.sum("queue_deliveries").alias("queue_deliveries")] if evidence.has_topics else []),
            F.min("sent_at").alias("sent_at"),
            F.min("arrived_at").alias("arrived_at") if evidence.has_journals else F.lit(None).cast("long").alias("arrived_at"),
            F.min("delivered_at").alias("delivered_at"),
        )
    )
    if evidence.has_topics:
        once = once.join(F.broadcast(_delivered_twice_in_a_subscription(rows, delivery)), list(_NAMES), "left")
    if evidence.has_forwards:
        once = once.join(_fates_of_forwarded(once), "key", "left")
    if evidence.has_sessions:
        once = once.join(_out_of_order(rows, evidence), list(_NAMES), "left")
    return _verdicts(once, evidence, delayed_after_ms).persist()


def _flags(evidence: Evidence) -> Column:
    """What one row says about its message, as bits: they add up by `or`."""
    here = _is(PRIMARY) | _is(BACKLOG_ROW)
    reason = F.coalesce(F.col("reason"), F.lit(""))
    said = (
        (_SENT, _is(SENT) if evidence.has_sent else here & (reason != "forwarded")),
        (_WAITS, here & F.col("reason").isNull()),
        (_DEAD, _is(DEAD_LETTER) | (reason == "dead-lettered")),
        (_EXPIRED, reason == "expired"),
        (_REMOVED, reason.isin("purged", "cancelled")),
        (_DIVERTED, _is(BACKLOG_ROW)),
        (_FORWARDED, reason == "forwarded"),
    )
    flags = F.lit(0)
    for bit, condition in said:
        flags = flags + F.when(condition, F.lit(bit)).otherwise(F.lit(0))
    return flags


_ACCOUNTED_FOR: Final = _WAITS | _DEAD | _EXPIRED | _REMOVED


def _fates_of_forwarded(once: DataFrame) -> DataFrame:
    """Of messages that were forwarded, by id alone: what is known of them in all entities together."""
    moved = once.filter(F.col("flags").bitwiseAND(_FORWARDED) != 0).select("key").distinct()
    fate = F.max((F.col("deliveries") > 0) | (F.col("flags").bitwiseAND(_ACCOUNTED_FOR) != 0))
    return once.join(moved, "key", "left_semi").groupBy("key").agg(fate.alias("accounted_elsewhere"))


def _verdicts(once: DataFrame, evidence: Evidence, delayed_after_ms: int) -> DataFrame:
    def has(bits: int) -> Column:
        return F.col("flags").bitwiseAND(bits) != 0

    moved_on, followed = F.lit(False), F.lit(False)
    if evidence.has_forwards:
        followed = F.col("accounted_elsewhere").isNotNull()
        # A topic whose rules want it nowhere drops it: only receivers who wrote everything down prove that it should have come.
        moved_on = has(_FORWARDED) & (F.col("accounted_elsewhere") if evidence.has_received else F.lit(True))
    there = F.col("deliveries") > 0
    twice = F.col("queue_deliveries" if evidence.has_topics else "deliveries") > 1
    verdicts = {
        "sent": has(_SENT),
        "delivered": there,
        "lost": has(_SENT) & ~there & ~has(_ACCOUNTED_FOR) & ~moved_on,
        "duplicated": twice | F.col("twice").isNotNull() if evidence.has_topics else twice,
        "out_of_order": F.col("disordered").isNotNull() if evidence.has_sessions else F.lit(False),
        "dead_lettered": ~there & has(_DEAD),
        "expired": ~there & ~has(_DEAD) & has(_EXPIRED),
        "removed": ~there & ~has(_DEAD | _EXPIRED) & has(_REMOVED),
        "waiting": ~there & ~has(_DEAD) & has(_WAITS),
        "delayed": there & (F.col("delivered_at") - F.col("sent_at") > delayed_after_ms),
        "unexpected": there & ~has(_SENT) & ~followed,
        "diverted": has(_DIVERTED),
        "forwarded": has(_FORWARDED),
    }
    said = F.lit(0)
    for bit, name in enumerate(_COUNTS):
        said = said + F.when(verdicts[name], F.lit(1 << bit)).otherwise(F.lit(0))
    return once.select(*_NAMES, said.alias("said"), "sent_at", "arrived_at", "delivered_at")


def says(name: str) -> Column:
    """Whether `judge` said this of a message."""
    return F.col("said").bitwiseAND(1 << _COUNTS.index(name)) != 0


def _in_subscription() -> Column:
    return F.lower("entity").contains(SUBSCRIPTIONS)


def _delivered_twice_in_a_subscription(rows: DataFrame, delivery: Column) -> DataFrame:
    """A topic delivers a copy to each subscription: only two to the same one are one too many."""
    return (
        rows.filter(delivery & _in_subscription())
        .groupBy(*_NAMES, F.lower("entity"))
        .count()
        .filter(F.col("count") > 1)
        .select(*_NAMES)
        .distinct()
        .withColumn("twice", F.lit(True))
    )


def _out_of_order(rows: DataFrame, evidence: Evidence) -> DataFrame:
    """Order is promised within a session of a queue or of one subscription: a message that came before one sent earlier is named.

    In a backlog queue a message has no session, so its home and id bring its copies together, not its session.
    """
    accepted = _is(PRIMARY) | _is(BACKLOG_ROW) | _is(SENT)
    arrived = F.when(_is(RECEIVED), F.coalesce("number", "at")) if evidence.has_received else F.when(_is(PRIMARY), F.col("sequence_number"))
    sent = (
        rows.groupBy(*_NAMES)
        .agg(
            F.max("session_id").alias("session_id"),
            F.min(F.when(_is(SENT), F.col("number"))).alias("sent_number"),
            F.min(F.when(accepted, F.col("at"))).alias("sent_at"),
            F.min(F.when(_is(PRIMARY) | _is(BACKLOG_ROW), F.col("sequence_number"))).alias("accepted_as"),
        )
        .filter(F.col("session_id").isNotNull())
    )
    place = F.lower("entity") if evidence.has_topics else F.lit("")
    came = rows.filter(arrived.isNotNull()).groupBy(*_NAMES, place.alias("place")).agg(F.min(arrived).alias("arrived"))
    # Subscriptions number messages each for itself: among those accepted in one millisecond such numbers would tell nothing.
    accepted_as = F.when(F.col("place").contains(SUBSCRIPTIONS), F.col("arrived")).otherwise(F.col("accepted_as"))
    before = (
        Window.partitionBy("home_key", "place", "session_id")
        .orderBy(F.coalesce("sent_number", "sent_at"), accepted_as)
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    late = sent.join(came, list(_NAMES)).withColumn("before", F.max("arrived").over(before)).filter(F.col("before") > F.col("arrived"))
    return late.select(*_NAMES).distinct().withColumn("disordered", F.lit(True))


def _count(homes: dict[int, str | None], messages: DataFrame) -> tuple[list[EntityCounts], dict[str, float]]:
    """Counts per entity, and times to delivery, from one look at all messages."""
    waited = F.col("delivered_at") - F.col("sent_at")
    step = F.floor(F.log1p(F.greatest(waited, F.lit(0))) * _FINENESS)
    sums = [F.sum(says(name).cast("int")).alias(name) for name in _COUNTS]
    parts = messages.groupBy("home_key", step.alias("step")).agg(*sums, F.count(waited).alias("timed"), F.max(waited).alias("longest"))
    parts = parts.persist()
    try:
        found = parts.groupBy("home_key").agg(*(F.sum(name).alias(name) for name in _COUNTS)).collect()
        times = parts.filter("timed > 0").groupBy("step").agg(F.sum("timed").alias("timed"), F.max("longest").alias("longest")).collect()
    finally:
        parts.unpersist()
    entities = [EntityCounts(homes[row["home_key"]] or "", **{name: row[name] for name in _COUNTS}) for row in found]
    return sorted(entities, key=lambda one: one.entity), _latency(sorted((row["step"], row["timed"], row["longest"]) for row in times))


def _latency(steps: list[tuple[int, int, int]]) -> dict[str, float]:
    """(step, messages, longest of them), shortest first."""
    if not steps:
        return {}
    total = sum(count for _, count, _ in steps)
    found: dict[str, float] = {}
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        seen = 0
        for _, count, longest in steps:
            seen += count
            if seen >= total * share:
                found[name] = longest
                break
    return found | {"max": max(longest for _, _, longest in steps)}


_NEVER_MS: Final = 1 << 62


def _find(evidence: Evidence, messages: DataFrame, findings_max: int) -> tuple[Finding, ...]:
    problem = F.coalesce(*[F.when(says(name), F.lit(name)) for name in PROBLEMS])
    rank = F.array_position(F.array(*[F.lit(name) for name in PROBLEMS]), F.col("problem"))
    wrong = messages.select(*_NAMES, problem.alias("problem"), "sent_at", "delivered_at").filter(F.col("problem").isNotNull())
    # Among equals the longest on their way first; what never arrived has been so since it was sent.
    delay = F.coalesce(F.col("delivered_at") - F.col("sent_at"), F.lit(_NEVER_MS) - F.col("sent_at")).desc_nulls_last()
    listed = wrong.orderBy(rank, delay, "home_key").limit(findings_max)
    named = (
        evidence.rows.select("home", "message_id", *_keys())
        .join(F.broadcast(listed), list(_NAMES))
        .dropDuplicates(["home", "message_id"])
        .orderBy(rank, delay, "home")
    )
    return tuple(Finding(r["home"], r["message_id"], r["problem"], r["sent_at"], r["delivered_at"]) for r in named.collect())
