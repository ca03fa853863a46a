"""The jobs on a cluster: its journals and meters are in its engine, through the death of a node, and nothing is missing or twice."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tandem.cli.analytics import report
from tandem.model.errors import ConfigurationError
from tandem.spark.analytics.journal_source import JournalDataSource
from tandem.testing.postgres import PostgresEngine
from tests.cluster.nodes import Cluster, receive_all, sender_of, try_send, until
from tests.stores.test_postgres_reading import Writer

MESSAGES = 20


@pytest.fixture
def cluster(tmp_path: Path, cluster_dsn: str, postgres: PostgresEngine) -> Iterator[Cluster]:
    """With its standby in its connection string."""
    made = Cluster(tmp_path, postgres.dsn(cluster_dsn.rpartition("/")[2]))
    yield made
    made.close()


def operations(dsn: str) -> Counter[tuple[str, str]]:
    """What was counted and is in rows."""
    with psycopg.connect(dsn, target_session_attrs="read-write") as connection:
        rows = connection.execute("SELECT operation, outcome, count FROM tandem.meter WHERE entity = 'q'").fetchall()
    found: Counter[tuple[str, str]] = Counter()
    for operation, outcome, count in rows:
        found[operation, outcome] += count
    return found


def lived(cluster: Cluster) -> list[str]:
    """Two nodes, the first of which dies before its minute is over; all that was sent is received, and the second one ends in order."""
    first, second = cluster.start("a"), cluster.start("b")
    sent = [f"m{number}" for number in range(MESSAGES)]
    with sender_of(first.connection_string) as send:
        for body in sent:
            send(body)
    first.process.kill()
    sent.append("after")
    until(lambda: try_send(second.connection_string, "after"))
    assert sorted(receive_all(second.connection_string)) == sorted(sent)
    second.process.terminate()
    assert second.process.wait(60) == 0, "what it counted last is written when it stops"
    return sent


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_journals_and_meters_of_a_cluster_of_which_a_node_was_killed(
    cluster: Cluster, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tandem.spark.analytics.availability import availability
    from tandem.spark.analytics.cost import add_up

    sent = lived(cluster)
    rows = spark.read.format("tandem_journal").option("dsn", cluster.dsn).option("kinds", "enqueued,settled").load().collect()
    assert Counter((row["kind"], row["entity"]) for row in rows) == {("enqueued", "q"): len(sent), ("settled", "q"): len(sent)}
    assert {row["message_id"] for row in rows if row["kind"] == "enqueued"} == set(sent)
    assert {row["journal"].rpartition(" ")[2] for row in rows} <= {f"tandem/store-{number}" for number in range(4)}
    counted = {
        (row["operation"], row["outcome"]): row["count"] for row in add_up(spark, [cluster.dsn]).rows.to_pylist() if row["entity"] == "q"
    }
    assert counted["send", "ok"] == len(sent), "the one that was killed had not written its minute down"
    assert counted["settle", "completed"] == len(sent)
    assert counted == dict(operations(cluster.dsn))

    healed = [(one.path, one.healed_ms is not None) for one in availability(spark, events=[cluster.dsn]).stores]
    assert sorted(healed) == [(f"store-{number}", True) for number in range(4)], (
        "nobody served them from one node's death to the other's turn"
    )
    (tmp_path / "sent.jsonl").write_text("".join(json.dumps({"message_id": body, "path": "q", "at_ms": 0}) + "\n" for body in sent))
    with monkeypatch.context() as patched:
        patched.setattr(
            "tandem.spark.session.open_session", lambda *given: nullcontext(spark)
        )  # one more would take longer than all the rest
        report(out=tmp_path / "page.html", sent=tmp_path / "sent.jsonl", engine=[cluster.dsn], as_json=True)
    total = json.loads(capsys.readouterr().out.splitlines()[-1])["total"]
    assert (total["sent"], total["delivered"], total["lost"], total["duplicated"]) == (len(sent), len(sent), 0, 0)
    assert "What it costs" in (tmp_path / "page.html").read_text(encoding="utf-8"), "what the engine counted is on the bill"


@pytest.mark.slow
@pytest.mark.spark
def test_a_segment_that_goes_between_planning_and_reading_is_told_by_the_job_in_words_that_the_commands_know(
    cluster_dsn: str, spark: Any
) -> None:
    from tandem.cli.analytics import _GIVEN_UP
    from tandem.spark.analytics.journal_rows import read_segment

    writer = Writer(cluster_dsn)
    writer.append(1, 3)
    writer.append(2, 1)
    given_up, _ = [one.value for one in JournalDataSource({"dsn": cluster_dsn}).reader(None).partitions()]
    assert writer.retire(2, 4)
    writer.held.close()
    rows = spark.sparkContext.parallelize([given_up], 1).flatMap(lambda task: [batch.num_rows for batch in read_segment(task)])
    with pytest.raises(Exception, match=_GIVEN_UP):
        rows.collect()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dsn": "mysql://somewhere"}, "option dsn: number 1 is not of the form"),
        ({}, "in dsn a cluster's engine"),
    ],
)
def test_options_that_lead_nowhere_are_refused_at_once(options: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        JournalDataSource(options).reader(None)


def test_a_database_without_a_cluster_is_one_line_without_its_password(tmp_path: Path, database: str) -> None:
    from tandem.spark.analytics.engines import must_answer

    with pytest.raises(ConfigurationError, match="has it a cluster") as refused:
        must_answer([database.replace("tandem@", "tandem:not-for-you@")])
    assert "not-for-you" not in str(refused.value)
