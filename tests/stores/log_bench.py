"""A log without the store around it: blocks are written to it one by one, and read again."""

from __future__ import annotations

from tandem.broker.facts import ENQUEUED
from tandem.stores.block_log import BlockLog, Continuation, Replayed
from tandem.stores.blocks import RECORD
from tandem.stores.checksum import crc32
from tandem.stores.committer import Group
from tandem.stores.recovery import SegmentStats
from tests.stores.harness import Sink


class LogBench:
    """What a store would be told is written down."""

    def __init__(self, log: BlockLog) -> None:
        self.log = log
        self.announced = 0
        self.stopped: list[Exception] = []
        self.room_changes = 0
        self.stats: dict[int, SegmentStats] = {}
        self.seed = 0
        self.found: Replayed
        self.next: Continuation
        log.serve(lambda call: call(), self._announce, self.stopped.append)
        log.when_room_changes(self._count_change)

    def _announce(self) -> None:
        self.announced += 1

    def _count_change(self) -> None:
        self.room_changes += 1

    def open(self, trusted: int = 0, trusted_number: int = 0) -> list[bytes]:
        """The keys that were found."""
        sink = Sink()
        self.stats = {}
        self.found = self.log.replay(sink, self.stats, trusted, trusted_number)
        self.seed = self.found.seed
        self.next = self.log.begin_writing()
        return [fact[6] for fact in sink.replayed_facts]

    def write(self, key: bytes) -> Group:
        """A block of one record; the next one stands behind it."""
        after, body = self.next, b"body"
        parts = [RECORD.pack(ENQUEUED, 0, 4, 1, 0, 0, len(key), len(body), crc32(body)), key, body]
        group = Group(after.segment, after.offset, after.number)
        group.parts.extend(parts)
        end = after.offset + group.seal([], 0, self.seed, sum(map(len, parts)), 1, len(body))
        self.found.write(group, self.stats[after.segment].totals)
        self.next = Continuation(after.segment, end, after.number + 1)
        return group
