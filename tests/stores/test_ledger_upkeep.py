"""Bodies read back from a ledger: neighbours together, each checked; patience while the engine is away."""

from __future__ import annotations

import pytest

from tandem.broker.facts import ENQUEUED
from tandem.model.errors import Corrupt, EngineAway
from tandem.stores import LogSettings
from tandem.stores.ledger_upkeep import LedgerReader, Patience, SegmentOffsets
from tests.stores.test_ledger_store import Bench


def reader_of(bench: Bench) -> LedgerReader:
    blocks: dict[int, SegmentOffsets] = {}
    for segment, rows in bench.ledger.rows.items():
        blocks[segment] = SegmentOffsets(min(rows), [at for _, (_, at, _, _) in sorted(rows.items())])
    return LedgerReader(bench.ledger, blocks, LogSettings(), Patience())


def filled(bench: Bench) -> list[int]:
    """Three blocks of two messages each; the second message of each is longer than what is read at first."""
    locations: list[int] = []
    for number in range(3):
        bench.store.append(ENQUEUED, 0, 1, 1, 0, 0, b"k", b"small %d" % number)
        locations.append(bench.store._next - 7 - 1 - 42)
        locations.append(bench.store.append(ENQUEUED, 0, 1, 2, 0, 0, b"k", b"%d" % number * 9_000))
        bench.put("x")
        bench.wait(number + 1)
    return locations


def test_bodies_come_in_the_order_asked_for_long_ones_whole() -> None:
    bench = Bench()
    locations = filled(bench)
    wanted = [locations[5], locations[0], locations[1], locations[2]]
    damaged: list[str] = []
    assert reader_of(bench).read(wanted, damaged) == [b"2" * 9_000, b"small 0", b"0" * 9_000, b"small 1"]
    assert damaged == []
    bench.store.close()


def test_a_body_that_fails_its_checksum_costs_that_message_alone() -> None:
    bench = Bench()
    locations = filled(bench)
    epoch, at, entry, block = bench.ledger.rows[1][2]
    bench.ledger.rows[1][2] = (epoch, at, entry, block.replace(b"small 1", b"smell 1"))
    damaged: list[str] = []
    found = reader_of(bench).read([locations[2], locations[3]], damaged)
    assert found[1] == b"1" * 9_000
    assert found[0] != b"smell 1"
    assert len(damaged) == 1
    assert "block 2" in damaged[0]
    bench.store.close()


def test_a_message_in_a_segment_that_is_gone_is_damage() -> None:
    bench = Bench()
    filled(bench)
    with pytest.raises(Corrupt, match="segment 9"):
        reader_of(bench).read([9 << 32 | 96], [])
    bench.store.close()


def test_what_the_engine_cannot_answer_is_asked_again_until_the_store_stops() -> None:
    patience = Patience()
    answers = [EngineAway("away"), EngineAway("away"), None]

    def ask() -> str:
        error = answers.pop(0)
        if error is not None:
            raise error
        return "here"

    assert patience.asked(ask) == "here"
    patience.stop()
    answers = [EngineAway("away")] * 3
    with pytest.raises(EngineAway, match="stopped"):
        patience.asked(ask)
