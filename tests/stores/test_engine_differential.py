"""The simulated engine against PostgreSQL: the same random calls of two nodes, the same answers."""

from __future__ import annotations

import os
from random import Random

import pytest

from tandem.simulator.engine import SimEngine, SimLedger
from tandem.stores.ledger import BlockLedger, Deposed, InDoubt, NotOurs
from tests.stores.ledgers import ledger

STEPS = int(os.environ.get("TANDEM_DIFFERENTIAL_STEPS", "150"))


def call(held: BlockLedger, operation: str, segment: int, number: int) -> object:
    """What it answers, or what it raises."""
    try:
        if operation == "acquire":
            row = held.acquire()
            return (row.epoch, row.owner, row.first_segment, row.last_segment, row.first_block)
        if operation == "append":
            return held.append(segment, number, 64 * number, b"entry %d" % number, b"block %d" % number)
        if operation == "confirm":
            return held.confirm(segment)
        if operation == "begin":
            return held.begin_segment(segment)
        if operation == "entries":
            return [(number, epoch, at, bytes(entry)) for number, epoch, at, entry in held.read_entries(segment, 0, 100)]
        if operation == "parts":
            return [bytes(part) for part in held.read_parts(segment, [(number, 2, 4), (1, 0, 3)])]
        if operation == "blocks":
            return [(number, at, bytes(block)) for number, at, block in held.read_blocks(segment, 0, 2)]
        held.release()
    except (InDoubt, Deposed, NotOurs) as error:
        return type(error).__name__
    return None


@pytest.mark.parametrize("seed", [1, 2])
def test_both_engines_answer_alike(cluster_dsn: str, seed: int) -> None:
    random = Random(seed)
    engine = SimEngine()
    pairs = [(ledger(cluster_dsn, name), SimLedger(engine, name)) for name in "ab"]
    for real, simulated in pairs:
        for one in (real, simulated):
            one.acquire()
            one.begin_segment(1)
            one.begin_segment(2)
    numbers = {1: 1, 2: 1}
    history: list[str] = []
    for _ in range(STEPS):
        real, simulated = random.choice(pairs)
        segment = random.choice((1, 2))
        number = max(1, numbers[segment] + random.choice((0, 0, 0, -1)))
        names = ("acquire", "append", "append", "append", "append", "confirm", "begin", "entries", "parts", "blocks", "release")
        operation = random.choice(names)
        answers = call(real, operation, segment, number), call(simulated, operation, segment, number)
        history.append(f"{simulated._node} {operation} {segment} {number}: {answers}")
        assert answers[0] == answers[1], "\n".join(history[-20:])
        if operation == "append" and answers[0] is None:
            numbers[segment] = number + 1
    for real, _ in pairs:
        real.close()
