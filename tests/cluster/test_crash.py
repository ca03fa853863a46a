"""Two nodes, of which the one that serves is killed in a loop under load, with every kind of entity and operation at once; and the same
seen through the node that carries, with the line between the two cut as well.

`TANDEM_CLUSTER_KILLS=100` makes an evening of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.acceptance.crash_everything import EVERYTHING, crash_again_and_again
from tests.acceptance.crash_journeys import Transactional
from tests.acceptance.crash_stories import Deferred
from tests.cluster.crashing_nodes import CarryingPair, Pair, SpreadPair

KILLS = int(os.environ.get("TANDEM_CLUSTER_KILLS", "3"))


@pytest.mark.slow
@pytest.mark.timeout(240 + 20 * KILLS)
async def test_nothing_confirmed_is_lost_doubled_or_changed_however_often_the_serving_node_is_killed(
    tmp_path: Path, cluster_dsn: str
) -> None:
    await crash_again_and_again(Pair(tmp_path, cluster_dsn), KILLS, mercy=0.8)


@pytest.mark.slow
@pytest.mark.timeout(240 + 20 * KILLS)
async def test_nothing_is_lost_or_doubled_by_links_that_were_carried_when_either_node_or_the_line_between_them_went(
    tmp_path: Path, cluster_dsn: str
) -> None:
    pair = CarryingPair(tmp_path, cluster_dsn)
    # a deferred message that a lost answer brought stays locked at its owner, which lives on: that story is told with deaths only
    await crash_again_and_again(pair, KILLS, mercy=0.8, stories_told=[story for story in EVERYTHING if story is not Deferred])
    assert {"cut", "carrying", "serving"} <= set(pair.done)


@pytest.mark.slow
@pytest.mark.timeout(300 + 30 * KILLS)
async def test_nothing_is_lost_or_doubled_when_the_stores_of_a_namespace_are_with_two_nodes_and_either_is_killed(
    tmp_path: Path, spread_dsn: str
) -> None:
    pair = SpreadPair(tmp_path, spread_dsn)
    # a transaction is about entities of one node
    await crash_again_and_again(
        pair, KILLS, mercy=0.8, stories_told=[story for story in EVERYTHING if story not in (Deferred, Transactional)]
    )
    assert {"cut", "carrying", "serving"} <= set(pair.done)
