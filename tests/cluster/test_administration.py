"""Queues are made, changed and deleted at any node while nodes are killed: what was answered holds at every node, and for messages too.

`TANDEM_CLUSTER_KILLS=20` makes it longer."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cluster.administrators import Administrator
from tests.cluster.nodes import Cluster, receive_all, until
from tests.cluster.test_any_node import administration_of
from tests.cluster.test_stores_apart import spread_over

KILLS = int(os.environ.get("TANDEM_CLUSTER_KILLS", "2"))
SEED = int(os.environ.get("TANDEM_CRASH_SEED", "0")) or random.SystemRandom().randrange(1 << 30)
CONFIG = '[cluster]\nlease = "{lease}ms"\n'


@pytest.fixture
def cluster(tmp_path: Path, spread_dsn: str) -> Iterator[Cluster]:
    made = Cluster(tmp_path, spread_dsn, config=CONFIG, peers=True)
    yield made
    made.close()


def goes_on(administrators: list[Administrator], count: int) -> None:
    """They have done so many things more since now."""

    def done() -> int:
        return sum(administrator.did.total() for administrator in administrators)

    wanted = done() + count
    until(lambda: done() >= wanted or any(administrator.wrong for administrator in administrators), 90, f"{count} things more")


@pytest.mark.slow
@pytest.mark.timeout(240 + 40 * KILLS)
def test_what_administrators_were_told_holds_whichever_node_is_killed(cluster: Cluster) -> None:
    print(f"TANDEM_CRASH_SEED={SEED}")
    dice = random.Random(SEED)
    nodes = {name: cluster.start(name) for name in "abc"}
    administrators = [Administrator(f"of-{number}", nodes, SEED + number) for number in range(3)]
    for administrator in administrators:
        administrator.start()
    for _ in range(KILLS):
        goes_on(administrators, dice.randint(20, 60))
        killed = dice.choice(sorted(nodes))
        nodes.pop(killed).process.kill()
        goes_on(administrators, 10)
        nodes[killed] = cluster.start(killed)
    for administrator in administrators:
        administrator.ending.set()
    for administrator in administrators:
        administrator.join(120)
        print(administrator.name, dict(administrator.did), dict(administrator.troubles))
        assert administrator.wrong == []
        assert not administrator.is_alive()
    for node in nodes.values():
        with administration_of(node) as client:
            shown = {queue.name: queue.max_delivery_count for queue in client.list_queues()}
        assert shown == {name: kept.deliveries for one in administrators for name, kept in one.queues.items()}
    until(lambda: spread_over(cluster, *nodes), what="an even share for each node")
    kept = {name: queue for administrator in administrators for name, queue in administrator.queues.items()}
    with ThreadPoolExecutor(6) as pool:
        received = dict(zip(kept, pool.map(lambda name: receive_all(nodes[dice.choice("abc")].connection_string, name), kept), strict=True))
    for name, found in received.items():
        assert len(found) == len(set(found)), f"{name}: nothing comes twice"
        assert kept[name].accepted - set(found) == set(), f"{name}: what was accepted is there"
        assert set(found) - kept[name].accepted - kept[name].doubtful == set(), f"{name}: and nothing that an older queue of its name had"
