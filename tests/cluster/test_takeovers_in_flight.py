"""Three owners steal a store from each other while all of them append: one journal, no gap, nothing acknowledged lost."""

from __future__ import annotations

import os
import threading

import psycopg
import pytest

from tandem.model.errors import EngineAway
from tandem.stores.ledger import Deposed, InDoubt, NotOurs
from tests.stores.ledgers import ledger

TAKEOVERS = int(os.environ.get("TANDEM_CLUSTER_TAKEOVERS", "60"))
"""1000 in the long form."""


class Thief:
    """Acquires, appends a few blocks, is deposed, and again."""

    def __init__(self, dsn: str, name: str, left: list[int], acknowledged: dict[int, bytes]) -> None:
        self._dsn = dsn
        self.name = name
        self._left = left
        self._acknowledged = acknowledged
        self.refused = 0
        self.trouble: list[BaseException] = []
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            held = ledger(self._dsn, self.name)
            while self._left[0] > 0:
                try:
                    row = held.acquire()
                    held.begin_segment(1)
                    last = held.confirm(1)
                except (NotOurs, Deposed, InDoubt, EngineAway):
                    continue
                self._left[0] -= 1
                self._append(held, row.epoch, last)
            held.close()
        except BaseException as error:
            self.trouble.append(error)
            raise

    def _append(self, held: object, epoch: int, last: int) -> None:
        for number in range(last + 1, last + 4):
            block = b"%s %d %d" % (self.name.encode(), epoch, number)
            try:
                held.append(1, number, number, b"entry", block)  # type: ignore[attr-defined]
            except InDoubt:
                self.refused += 1
                try:
                    landed = held.confirm(1)  # type: ignore[attr-defined]
                except (Deposed, EngineAway):
                    return
                if landed < number:
                    return
            self._acknowledged[number] = block


@pytest.mark.slow
@pytest.mark.timeout(120 + 2 * TAKEOVERS)
def test_takeovers_with_appends_in_flight_leave_one_journal(cluster_dsn: str) -> None:
    ledger(cluster_dsn).close()
    left, acknowledged = [TAKEOVERS], dict[int, bytes]()
    thieves = [Thief(cluster_dsn, name, left, acknowledged) for name in "abc"]
    for thief in thieves:
        thief.thread.join(60 + 2 * TAKEOVERS)
        assert thief.trouble == []
    with psycopg.connect(cluster_dsn) as connection:
        rows = connection.execute("SELECT number, epoch, block FROM tandem.b_1_1 ORDER BY number").fetchall()
    assert [row[0] for row in rows] == list(range(1, len(rows) + 1)), "numbers are contiguous"
    epochs = [row[1] for row in rows]
    assert epochs == sorted(epochs), "epochs never fall"
    stored = {number: bytes(block) for number, _, block in rows}
    assert {number: stored.get(number) for number in acknowledged} == acknowledged, "acknowledged means stored"
    assert sum(thief.refused for thief in thieves) > 0, "somebody was deposed in the middle"
