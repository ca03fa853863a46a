"""The syphon between a cluster and a broker, through a node that serves nothing: the node that does is killed on the way."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tandem.spark.connector.connections import drop
from tandem.spark.syphon.job import SyphonSettings, run
from tandem.spark.syphon.progress import Progress
from tests.acceptance.brokers import Broker
from tests.cluster.nodes import Cluster, until
from tests.spark.house import BACKLOG, EXACT, counts, create_queue, diverted, ids, send, take_all, verdict
from tests.waiting import wait_until

LONG = os.environ.get("TANDEM_LONG_TESTS") == "1"
ON_DEMAND = "on demand: TANDEM_LONG_TESTS=1; the backlog is what a dead node could repeat"
TOTAL = 3_000
SETTINGS = SyphonSettings(
    primary_namespace="contoso",
    queues=(f"{BACKLOG}/0",),
    poll_ms=200,
    retry_ms=200,
    operation_timeout_seconds=10,
    max_messages_per_trigger=300,
    messages_per_transfer=50,
)
CONFIG = f"""[cluster]
lease = "{{lease}}ms"
[[queue]]
name = "orders"
requires_duplicate_detection = true
[[queue]]
name = "{BACKLOG}/0"
"""


@pytest.fixture
def cluster(tmp_path: Path, cluster_dsn: str) -> Iterator[Cluster]:
    made = Cluster(tmp_path, cluster_dsn, config=CONFIG, peers=True)
    yield made
    made.close()
    from tandem.spark.connector import connections

    for one in list(connections._cached):
        drop(one)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(400)
@pytest.mark.parametrize("side", ["secondary", pytest.param("primary", marks=pytest.mark.skipif(not LONG, reason=ON_DEMAND))])
def test_a_node_dies_while_the_syphon_moves_through_another_one(side: str, spark: Any, mortal: Broker, cluster: Cluster) -> None:
    owner = cluster.start("a")
    until(lambda: cluster.owner() == "a")
    node: Any = SimpleNamespace(connection_string=cluster.start("b").connection_string)
    if side == "primary":
        create_queue(mortal, f"{BACKLOG}/0")
        primary, secondary = node, mortal
    else:
        create_queue(mortal, "orders", requires_duplicate_detection=True)
        primary, secondary = mortal, node
    send(secondary, f"{BACKLOG}/0", diverted(TOTAL, "orders"))
    found: list[Progress] = []

    def work() -> None:
        found.append(run(primary.connection_string, secondary.connection_string, once=True, spark=spark, settings=SETTINGS))

    syphon = threading.Thread(target=work)
    syphon.start()
    wait_until(lambda: counts(mortal, "orders" if side == "secondary" else f"{BACKLOG}/0")["total"] not in (0, TOTAL), "it moves", 150)
    owner.process.kill()
    syphon.join(200)
    assert cluster.owner() == "b"
    assert [(last.remaining, last.finished, last.dead_lettered) for last in found] == [(0, True, 0)]
    assert verdict((f"m{number}" for number in range(TOTAL)), ids(take_all(primary, "orders"))) == EXACT
