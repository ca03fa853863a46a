"""Who serves a store."""

from __future__ import annotations

from tandem.cluster.ownership import Ownership, SoleOwnership


def test_a_broker_without_a_cluster_serves_every_store_itself() -> None:
    ownership: Ownership = SoleOwnership("a")
    assert ownership.owner(0) == ownership.owner(63) == "a"
    assert ownership.here(0)
    assert ownership.here(63)
    assert ownership.address("a") is None
