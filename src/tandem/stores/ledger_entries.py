"""What a ledger keeps beside each block: its index entry with a checksum of its own, so that a takeover reads no bodies."""

from __future__ import annotations

from struct import Struct
from typing import Final

from tandem.broker.ports import Tenant
from tandem.model.errors import Corrupt
from tandem.model.store_row import StoreRow
from tandem.stores.blocks import BLOCK_BYTES, RECORD, RECORD_BYTES, SEGMENT_HEADER_BYTES, parse_block_header, payload_is_whole
from tandem.stores.checksum import crc32
from tandem.stores.ledger import BlockLedger
from tandem.stores.recovery import RecoveryReport, SegmentStats, feed
from tandem.stores.segment_index import ENTRY, ENTRY_BYTES, columns_of, pack_entry

_U32: Final = Struct("<I")
_BATCH: Final = 256
"""Entries read at a time: about 18 KB each in a busy store."""
_BODY_BYTES_AT: Final = 34
"""Where a record's header says how long its body is."""


def seal_entry(entry: bytes, seed: int) -> bytes:
    return entry + _U32.pack(crc32(entry, seed))


def is_whole(entry: bytes, seed: int) -> bool:
    return len(entry) >= ENTRY_BYTES + 4 and _U32.unpack_from(entry, len(entry) - 4)[0] == crc32(entry[:-4], seed)


def entry_from_block(ledger: BlockLedger, segment: int, number: int, seed: int) -> bytes:
    """The entry is damaged; all that it says is in the block."""
    for found, at, raw in ledger.read_blocks(segment, number - 1, 1):
        header, payload = parse_block_header(raw[:BLOCK_BYTES], seed), raw[BLOCK_BYTES:]
        if found == number and header is not None and payload_is_whole(header, payload, seed):
            heads, keys, _, _ = columns_of(payload, header.count)
            return seal_entry(pack_entry(number, at, header.count, len(payload), header.crc, heads, keys), seed)
    raise Corrupt(f"{ledger.where}: segment {segment}: block {number}: fails its checksums; restore the database from a backup")


class Columns:
    """What a whole entry says of its block; Corrupt if it is that of another."""

    __slots__ = ("count", "crc", "end", "heads_and_keys", "keys_at", "payload_bytes")

    def __init__(self, entry: bytes, number: int, at: int, where: str) -> None:
        found, offset, self.count, self.payload_bytes, key_bytes, self.crc = ENTRY.unpack_from(entry)
        self.heads_and_keys = entry[ENTRY_BYTES:-4]
        self.keys_at: int = self.count * RECORD_BYTES
        self.end: int = at + BLOCK_BYTES + self.payload_bytes
        if found != number or offset != at or len(self.heads_and_keys) != self.keys_at + key_bytes:
            raise Corrupt(f"{where}: its index entry is of block {found} at offset {offset}")


def _bodies_in(heads: bytes) -> int:
    """Records whose body is not empty, without a loop over them."""
    columns = [heads[_BODY_BYTES_AT + byte :: RECORD_BYTES] for byte in range(4)]
    joined = 0
    for column in columns:
        joined |= int.from_bytes(column, "little")
    count = len(columns[0])
    return count - joined.to_bytes(count, "little").count(0)


class LedgerRecovery:
    """Everything that an acquired ledger holds, told to a tenant in order; anything that is not as it was written is Corrupt."""

    def __init__(self, ledger: BlockLedger, row: StoreRow, seed: int, tenant: Tenant, stats: dict[int, SegmentStats]) -> None:
        self._ledger = ledger
        self._row = row
        self._seed = seed
        self._tenant = tenant
        self.report = RecoveryReport()
        self.stats = stats
        self.offsets: dict[int, list[int]] = {}
        """By segment: where each block begins."""
        self.number = row.first_block
        """Of the next block."""
        self._epoch = 0

    def run(self) -> None:
        row = self._row
        for segment in range(row.first_segment, row.last_segment + 1):
            stats = self.stats[segment] = SegmentStats()
            self.offsets[segment] = []
            while rows := self._ledger.read_entries(segment, self.number - 1, _BATCH):
                for number, epoch, at, entry in rows:
                    self._take(segment, stats, number, epoch, at, entry)
            if not stats.totals.blocks and segment != row.last_segment:
                raise Corrupt(f"{self._ledger.where}: segment {segment} is empty, and {row.last_segment} follows")
            self.report.count(stats.totals, False)

    def _take(self, segment: int, stats: SegmentStats, number: int, epoch: int, at: int, entry: bytes) -> None:
        where = f"{self._ledger.where}: segment {segment}: block {number}"
        if number != self.number:
            raise Corrupt(f"{where}: block {self.number} is missing")
        if epoch < self._epoch or epoch > self._row.epoch:
            raise Corrupt(f"{where}: written under epoch {epoch}, after blocks of epoch {self._epoch}")
        if at != stats.totals.segment_bytes:
            raise Corrupt(f"{where}: stands at offset {at}; the one before it ends at {stats.totals.segment_bytes}")
        if not is_whole(entry, self._seed):
            entry = entry_from_block(self._ledger, segment, number, self._seed)
            self.report.notes.append(f"{where}: its index entry fails its checksum; the block was read instead")
        columns = Columns(entry, number, at, where)
        heads, keys = columns.heads_and_keys[: columns.keys_at], columns.heads_and_keys[columns.keys_at :]
        guard_bytes = RECORD.unpack_from(heads, len(heads) - RECORD_BYTES)[7]
        body_bytes = columns.payload_bytes - len(heads) - len(keys) - guard_bytes
        bodies = _bodies_in(heads) - (guard_bytes > 0)
        stats.totals.add(number, at, columns.end, columns.crc, columns.count, bodies, body_bytes)
        self.offsets[segment].append(at)
        feed(self._tenant, segment << 32 | at + BLOCK_BYTES, heads, keys)
        self.number = number + 1
        self._epoch = epoch

    @property
    def end(self) -> int:
        """Offset behind the last block of the last segment."""
        stats = self.stats.get(self._row.last_segment)
        return stats.totals.segment_bytes if stats is not None else SEGMENT_HEADER_BYTES
