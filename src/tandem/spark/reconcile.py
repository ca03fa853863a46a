"""The proof: what was sent is delivered once, waits, or is accounted for; whatever is not is named by its message id.

Each message is looked at under its home (queue or topic) and its id. `sent` means that a sender wrote it down, or without such a ledger
that either namespace accepted it; `delivered` that a receiver wrote it down, or without such a ledger that it was completed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Window
from pyspark.sql import functions as F

from tandem.spark.ledgers import BACKLOG_ROW, DEAD_LETTER, PRIMARY, RECEIVED, SENT, Evidence, gather, load_ledger

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

PROBLEMS: Final = ("lost", "duplicated", "out_of_order", "dead_lettered", "expired", "removed", "waiting", "delayed", "unexpected")
"""What can be wrong or worth knowing, worst first. `removed`: purged or cancelled by hand; `unexpected`: came without having been sent."""
_COUNTS: Final = ("sent", "delivered", *PROBLEMS, "diverted")


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


@dataclass(frozen=True, slots=True)
class Finding:
    """A message to look at."""

    entity: str
    message_id: str
    problem: str
    sent_at_ms: int | None
    delivered_at_ms: int | None


@dataclass(frozen=True, slots=True)
class Reconciliation:
    """`held` is the verdict: nothing lost, nothing delivered twice."""

    total: EntityCounts
    entities: tuple[EntityCounts, ...]
    findings: tuple[Finding, ...]
    latency_ms: dict[str, float] = field(default_factory=dict)
    """From the first acceptance, or the sender's own note, to delivery: p50, p90, p99, max."""

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
    messages = judge(evidence, delayed_after_ms).persist()
    try:
        return summarize(evidence, messages, findings_max)
    finally:
        messages.unpersist()
        evidence.release()


def summarize(evidence: Evidence, messages: DataFrame, findings_max: int = 1_000) -> Reconciliation:
    """Counts and findings of what `judge` found."""
    entities = _count(messages)
    findings = _find(evidence, messages, findings_max) if any(_worth_listing(one) for one in entities) else ()
    latency = _latency(messages)
    total = EntityCounts("", **{name: sum(getattr(one, name) for one in entities) for name in _COUNTS})
    return Reconciliation(total, tuple(entities), findings, latency)


def _worth_listing(one: EntityCounts) -> bool:
    return any(getattr(one, problem) for problem in PROBLEMS)


def _is(origin: str) -> Column:
    return F.col("origin") == origin


def _any(condition: Column) -> Column:
    return F.max(F.coalesce(condition, F.lit(False)).cast("int")) == 1


def judge(evidence: Evidence, delayed_after_ms: int) -> DataFrame:
    """One row per message: home, key (a hash of the id, so that no text has to travel), and a flag for each thing to be said of it."""
    rows = evidence.rows.select(
        "home",
        F.xxhash64("message_id").alias("key"),
        F.hash("message_id", F.lit(7)).alias("key2"),
        "origin",
        "entity",
        "session_id",
        "at",
        "done_at",
        "reason",
        "sequence_number",
        "number",
    )
    completed = _is(PRIMARY) & F.col("reason").isin("completed", "received")
    delivery = _is(RECEIVED) if evidence.has_received else completed
    delivered_at = F.when(_is(RECEIVED), F.col("at")) if evidence.has_received else F.when(completed, F.col("done_at"))
    in_subscription = F.lower("entity").contains("/subscriptions/")
    accepted = _is(PRIMARY) | _is(BACKLOG_ROW) | _is(SENT)
    facts = rows.groupBy("home", "key", "key2").agg(
        _any(_is(SENT) if evidence.has_sent else _is(PRIMARY) | _is(BACKLOG_ROW)).alias("sent"),
        F.count(F.when(delivery, 1)).alias("deliveries"),
        F.count(F.when(delivery & ~in_subscription, 1)).alias("queue_deliveries"),
        _any((_is(PRIMARY) | _is(BACKLOG_ROW)) & F.col("reason").isNull()).alias("waits"),
        _any(_is(DEAD_LETTER) | (F.col("reason") == "dead-lettered")).alias("dead"),
        _any(F.col("reason") == "expired").alias("out_of_time"),
        _any(F.col("reason").isin("purged", "cancelled")).alias("taken_out"),
        _any(_is(BACKLOG_ROW)).alias("diverted"),
        F.min(F.when(accepted, F.col("at"))).alias("sent_at"),
        F.min(F.when(_is(PRIMARY), F.col("at"))).alias("arrived_at"),
        F.min(delivered_at).alias("delivered_at"),
    )
    twice = _delivered_twice_in_a_subscription(rows, delivery, in_subscription) if evidence.has_topics else None
    facts = facts.join(F.broadcast(twice), ["home", "key", "key2"], "left") if twice is not None else facts.withColumn("twice", F.lit(None))
    if evidence.has_sessions:
        facts = facts.join(_out_of_order(rows, evidence), ["home", "key", "key2"], "left")
    else:
        facts = facts.withColumn("disordered", F.lit(None))
    there = F.col("deliveries") > 0
    elsewhere = F.col("waits") | F.col("dead") | F.col("out_of_time") | F.col("taken_out")
    return facts.select(
        "home",
        "key",
        "key2",
        "sent",
        there.alias("delivered"),
        (F.col("sent") & ~there & ~elsewhere).alias("lost"),
        ((F.col("queue_deliveries") > 1) | F.col("twice").isNotNull()).alias("duplicated"),
        F.col("disordered").isNotNull().alias("out_of_order"),
        (~there & F.col("dead")).alias("dead_lettered"),
        (~there & ~F.col("dead") & F.col("out_of_time")).alias("expired"),
        (~there & ~F.col("dead") & ~F.col("out_of_time") & F.col("taken_out")).alias("removed"),
        (~there & ~F.col("dead") & F.col("waits")).alias("waiting"),
        (there & (F.col("delivered_at") - F.col("sent_at") > delayed_after_ms)).alias("delayed"),
        (there & ~F.col("sent")).alias("unexpected"),
        "diverted",
        "sent_at",
        "arrived_at",
        "delivered_at",
    )


def _delivered_twice_in_a_subscription(rows: DataFrame, delivery: Column, in_subscription: Column) -> DataFrame:
    """A topic delivers a copy to each subscription: only two to the same one are one too many."""
    return (
        rows.filter(delivery & in_subscription)
        .groupBy("home", "key", "key2", "entity")
        .count()
        .filter(F.col("count") > 1)
        .select("home", "key", "key2")
        .distinct()
        .withColumn("twice", F.lit(True))
    )


def _out_of_order(rows: DataFrame, evidence: Evidence) -> DataFrame:
    """Order is promised within a session: a message that came before one sent earlier is named.

    In a backlog queue a message has no session, so its home and id bring its copies together, not its session.
    """
    key = ["home", "key", "key2"]
    accepted = _is(PRIMARY) | _is(BACKLOG_ROW) | _is(SENT)
    arrived = F.when(_is(RECEIVED), F.coalesce("number", "at")) if evidence.has_received else F.when(_is(PRIMARY), F.col("sequence_number"))
    one = (
        rows.groupBy(*key)
        .agg(
            F.max("session_id").alias("session_id"),
            F.min(F.when(_is(SENT), F.col("number"))).alias("sent_number"),
            F.min(F.when(accepted, F.col("at"))).alias("sent_at"),
            F.min(F.when(_is(PRIMARY) | _is(BACKLOG_ROW), F.col("sequence_number"))).alias("accepted_as"),
            F.min(arrived).alias("arrived"),
        )
        .filter(F.col("session_id").isNotNull() & F.col("arrived").isNotNull())
    )
    before = (
        Window.partitionBy("home", "session_id")
        .orderBy(F.coalesce("sent_number", "sent_at"), "accepted_as")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    late = one.withColumn("before", F.max("arrived").over(before)).filter(F.col("before") > F.col("arrived"))
    return late.select(*key).distinct().withColumn("disordered", F.lit(True))


def _count(messages: DataFrame) -> list[EntityCounts]:
    sums = [F.sum(F.col(name).cast("long")).alias(name) for name in _COUNTS]
    return [
        EntityCounts(row["home"], **{name: row[name] for name in _COUNTS})
        for row in messages.groupBy("home").agg(*sums).orderBy("home").collect()
    ]


def _find(evidence: Evidence, messages: DataFrame, findings_max: int) -> tuple[Finding, ...]:
    problem = F.coalesce(*[F.when(F.col(name), F.lit(name)) for name in PROBLEMS])
    rank = F.array_position(F.array(*[F.lit(name) for name in PROBLEMS]), F.col("problem"))
    wrong = messages.select("home", "key", "key2", problem.alias("problem"), "sent_at", "delivered_at").filter(F.col("problem").isNotNull())
    listed = wrong.orderBy(rank, "home", "sent_at").limit(findings_max)
    named = (
        evidence.rows.select("home", "message_id", F.xxhash64("message_id").alias("key"), F.hash("message_id", F.lit(7)).alias("key2"))
        .join(F.broadcast(listed), ["home", "key", "key2"])
        .dropDuplicates(["home", "message_id"])
        .orderBy(rank, "home", "sent_at")
    )
    return tuple(Finding(r["home"], r["message_id"], r["problem"], r["sent_at"], r["delivered_at"]) for r in named.collect())


def _latency(messages: DataFrame) -> dict[str, float]:
    waited = F.col("delivered_at") - F.col("sent_at")
    row = messages.select(
        F.percentile_approx(waited, [0.5, 0.9, 0.99], 1_000).alias("parts"), F.max(waited).alias("max"), F.count(waited).alias("count")
    ).first()
    if row is None or not row["count"]:
        return {}
    p50, p90, p99 = row["parts"]
    return {"p50": p50, "p90": p90, "p99": p99, "max": row["max"]}
