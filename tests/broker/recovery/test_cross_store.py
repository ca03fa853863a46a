"""What one store remembers about others outlives compaction for as long as it matters, and no longer."""

from __future__ import annotations

from typing import Any

from tandem.broker import facts
from tandem.broker.recovery.cross_store import CrossStoreFacts
from tests.broker.stepped import Record, SteppedJournal

TRANSACTION = bytes(range(16))


class Store:
    def __init__(self, disk: list[list[Record]]) -> None:
        self.journal = SteppedJournal(disk)
        journal: Any = self.journal
        self.memory = CrossStoreFacts(journal, 0)
        for block in disk:
            for kind, flags, _, seq, _, aux, key, body in block:
                location = self.journal._next
                self.journal._next += 1
                self.journal._bodies[location] = body
                assert self.memory.replay_cross_store(kind, flags, seq, aux, key, location)

    def compacted(self) -> Store:
        """A store that holds only what this one would write again."""
        before = len(self.journal._pending)
        location = 0
        for block in self.journal.disk:
            for kind, flags, entity, seq, at, aux, key, body in block:
                location += 1
                if kind == facts.PREPARED:
                    written = len(self.journal._pending)
                    wanted = self.memory.relocate_prepared(flags, entity, seq, at, aux, key, None, location)
                    assert len(self.journal._pending) == written, "nothing is written for the question"
                    assert not self.memory.relocate_prepared(flags, entity, seq, at, aux, key, body, location)
                    assert (len(self.journal._pending) > written) is wanted
                else:
                    assert self.memory.relocate_cross_store(kind, flags, entity, seq, at, aux, key)
        return Store([self.journal._pending[before:]])

    def restarted(self) -> Store:
        return Store([*self.journal.disk, self.journal._pending])


def test_transfers_are_kept_until_they_are_over() -> None:
    first = Store([])
    first.memory.note_transfer((8, 5), 4, 0)
    first.memory.note_transfer((8, 6), 4, 0)
    first.memory.transfers_arrived([(8, 5)])
    assert first.memory.transfers == {(8, 5): True, (8, 6): False}
    second = first.restarted()
    assert second.memory.transfers == {(8, 5): True, (8, 6): True}
    second.memory.end_transfers([(8, 5)])
    assert second.compacted().memory.transfers == {(8, 6): True}
    assert second.restarted().memory.transfers == {(8, 6): True}


def test_shares_are_kept_with_what_to_do_until_they_are_over() -> None:
    first = Store([])
    first.memory.prepare(TRANSACTION, 2, [(4, 7, 0)], b"what to do", 0)
    second = first.restarted()
    share = second.memory.prepared[TRANSACTION]
    assert (share.decider, share.rows, share.in_doubt) == (2, [(4, 7, 0)], True)
    third = second.compacted()
    share = third.memory.prepared[TRANSACTION]
    assert (share.decider, share.rows, third.journal._bodies[share.location]) == (2, [(4, 7, 0)], b"what to do")
    third.memory.end_prepared(TRANSACTION)
    third.memory.end_prepared(TRANSACTION)
    assert [record[0] for record in third.journal._pending] == [facts.TRANSACTION_ENDED]
    assert third.compacted().memory.prepared == {}, "written again after its end it would come to life"
    assert third.restarted().memory.prepared == {}


def test_decisions_are_kept_until_nobody_can_ask() -> None:
    first = Store([])
    first.memory.decide(TRANSACTION, 1, 0)
    assert first.memory.committed == {TRANSACTION: False}
    second = first.restarted()
    assert second.memory.committed == {TRANSACTION: True}
    assert second.compacted().memory.committed == {TRANSACTION: True}
    second.memory.end_committed(TRANSACTION)
    assert second.restarted().memory.committed == {}
    assert second.compacted().memory.committed == {}
