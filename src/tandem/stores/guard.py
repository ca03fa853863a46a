"""The last record of every block: enough of the others once more to restore what a rotten byte or sector took from their heads and keys."""

from __future__ import annotations

from struct import Struct
from typing import Final

from tandem.broker.facts import ENQUEUED, PUBLISHED
from tandem.stores.blocks import BLOCK_BYTES, GUARD, RECORD, RECORD_BYTES, SCAN_BYTES
from tandem.stores.checksum import crc32
from tandem.stores.disk import Disk
from tandem.stores.scan import read_exactly

_GROUP_BYTES: Final = 1_024
"""Records are guarded in groups of at least so many bytes: damage of one sector meets at most two neighbours."""
_GROUP: Final = Struct("<IIII")
"""Where it begins in the payload, bytes guarded, records, CRC of the bytes guarded."""
_MAGIC: Final = b"TGRD"
_FOOT: Final = Struct("<4sIIQIIIII")
"""magic, CRC of the guard's body without these eight bytes, segment, block number, records of the block without this one, bytes of the
payload with it, groups, bytes of the parity of groups 0, 2, 4 …, of groups 1, 3, 5 …"""
_pack_group: Final = _GROUP.pack
_pack_foot: Final = Struct("<IQIIIII").pack
"""What its CRC covers of it."""
_pack_crc: Final = Struct("<4sI").pack
_pack_record: Final = RECORD.pack
_crc32: Final = crc32
_FOOT_BYTES: Final = 40
_CRC_AT: Final = 8
"""Bytes of the foot that its CRC does not cover."""


def _parity(groups: list[bytes], side: int) -> bytes:
    """Every second group, one upon the other; short ones end in zeros. A single one is its own parity."""
    count = len(groups)
    if count <= side + 2:
        return groups[side] if count > side else b""
    parity = longest = 0
    for i in range(side, count, 2):
        raw = groups[i]
        parity ^= int.from_bytes(raw, "little")
        if len(raw) > longest:
            longest = len(raw)
    return parity.to_bytes(longest, "little")


def guard_of(seed: int, segment: int, number: int, parts: list[bytes]) -> tuple[bytes, bytes]:
    """Head and body of the record that guards the others. `parts` are head, key and body of each, in turn."""
    table: list[bytes] = []
    groups: list[bytes] = []
    guarded: list[bytes] = []
    size = count = begin = at = 0
    last = len(parts) - 3
    for i in range(0, len(parts), 3):
        head = parts[i]
        key = parts[i + 1]
        body = parts[i + 2]
        guarded.append(head)
        size += RECORD_BYTES
        at += RECORD_BYTES
        count += 1
        if key:
            guarded.append(key)
            size += len(key)
            at += len(key)
        if body:
            at += len(body)
            kind = head[0]
            if kind != ENQUEUED and kind != PUBLISHED:
                guarded.append(body)
                size += len(body)
        if size >= _GROUP_BYTES or i == last:
            raw = b"".join(guarded)
            groups.append(raw)
            table.append(_pack_group(begin, size, count, _crc32(raw)))
            guarded = []
            size = count = 0
            begin = at
    even_bytes, odd_bytes = _parity(groups, 0), _parity(groups, 1)
    table.append(even_bytes)
    table.append(odd_bytes)
    content = b"".join(table)
    payload_bytes = at + RECORD_BYTES + len(content) + _FOOT_BYTES
    foot = _pack_foot(segment, number, len(parts) // 3, payload_bytes, len(groups), len(even_bytes), len(odd_bytes))
    body = b"".join((content, _pack_crc(_MAGIC, _crc32(content + foot, seed)), foot))
    return _head_of(number, body), body


def _head_of(number: int, body: bytes) -> bytes:
    return _pack_record(GUARD, 0, 0, number, 0, 0, 0, len(body), _crc32(body))


def parts_of(payload: bytes, count: int) -> list[bytes]:
    """Head, key and body of each record but the guard, in turn."""
    parts: list[bytes] = []
    at = 0
    for _ in range(count):
        record = RECORD.unpack_from(payload, at)
        key_at = at + RECORD_BYTES
        body_at = key_at + record[6]
        after = body_at + record[7]
        if record[0] != GUARD:
            parts += [payload[at:key_at], payload[key_at:body_at], payload[body_at:after]]
        at = after
    return parts


class Foot:
    """A guard whose checksum was right."""

    __slots__ = ("_body", "_even", "_groups", "_odd", "count", "number", "payload_bytes")

    def __init__(self, number: int, count: int, payload_bytes: int, groups: int, even: int, odd: int, body: bytes) -> None:
        self.number = number
        self.count = count
        self.payload_bytes = payload_bytes
        self._groups = groups
        self._even = even
        self._odd = odd
        self._body = body

    def restore(self, payload: bytes) -> bytes | None:
        """The payload as it was written, but for bodies of messages, which prove themselves; None if more is lost than can be restored."""
        head_at = self.payload_bytes - len(self._body) - RECORD_BYTES
        groups = [_GROUP.unpack_from(self._body, 16 * number) for number in range(self._groups)]
        ends = [*(group[0] for group in groups[1:]), head_at]
        found = [_guarded(payload, begin, end, count, crc) for (begin, _, count, crc), end in zip(groups, ends, strict=True)]
        table_bytes = 16 * self._groups
        for side, length in ((0, self._even), (1, self._odd)):
            bad = [number for number in range(side, self._groups, 2) if found[number] is None]
            if len(bad) > 1:
                return None
            if bad:
                at = table_bytes + (self._even if side else 0)
                restored = int.from_bytes(self._body[at : at + length], "little")
                for number in range(side, self._groups, 2):
                    restored ^= int.from_bytes(found[number] or b"", "little")
                _, size, _, crc = groups[bad[0]]
                raw = restored.to_bytes(length, "little")[:size]
                if crc32(raw) != crc:
                    return None
                found[bad[0]] = raw
        parts: list[bytes] = []
        for (begin, _, _, _), end, restored_bytes in zip(groups, ends, found, strict=True):
            if not _rebuild(parts, restored_bytes or b"", payload, begin, end):
                return None
        return b"".join([*parts, _head_of(self.number, self._body), self._body])


def _is_guarded(kind: int) -> bool:
    return kind not in (ENQUEUED, PUBLISHED)


def _guarded(payload: bytes, begin: int, end: int, count: int, crc: int) -> bytes | None:
    """The guarded bytes of a group, if they are as they were."""
    pieces: list[bytes] = []
    at = begin
    for _ in range(count):
        if at + RECORD_BYTES > end:
            return None
        record = RECORD.unpack_from(payload, at)
        body_at = at + RECORD_BYTES + record[6]
        after = body_at + record[7]
        if after > end:
            return None
        pieces.append(payload[at : after if _is_guarded(record[0]) else body_at])
        at = after
    raw = b"".join(pieces)
    return raw if at == end and crc32(raw) == crc else None


def _rebuild(parts: list[bytes], raw: bytes, payload: bytes, begin: int, end: int) -> bool:
    """Guarded bytes, with the bodies of messages between them taken from where they stand."""
    at, position = 0, begin
    while at < len(raw):
        record = RECORD.unpack_from(raw, at)
        after = at + RECORD_BYTES + record[6]
        body_at = position + RECORD_BYTES + record[6]
        position = body_at + record[7]
        if _is_guarded(record[0]):
            after += record[7]
            parts.append(raw[at:after])
        else:
            parts += [raw[at:after], payload[body_at:position]]
        at = after
    return at == len(raw) and position == end


def find_foot(disk: Disk, descriptor: int, seed: int, segment: int, number: int, offset: int, payload_bytes: int) -> Foot | None:
    """Of block `number` (0: of any) at `offset`: where its header says that it ends, or if that cannot be believed (0), wherever it is."""
    if payload_bytes:
        return _foot_at(disk, descriptor, seed, segment, number, offset, offset + BLOCK_BYTES + payload_bytes - _FOOT_BYTES)
    at, size = offset, disk.size(descriptor)
    while at < size:
        chunk = read_exactly(disk, descriptor, SCAN_BYTES, at)
        found = chunk.find(_MAGIC)
        while found >= 0:
            foot = _foot_at(disk, descriptor, seed, segment, number, offset, at + found)
            if foot is not None:
                return foot
            found = chunk.find(_MAGIC, found + 1)
        if len(chunk) < _FOOT_BYTES:
            return None
        at += len(chunk) - len(_MAGIC) + 1  # one that straddles two chunks is looked at again
    return None


def _foot_at(disk: Disk, descriptor: int, seed: int, segment: int, number: int, offset: int, at: int) -> Foot | None:
    raw = read_exactly(disk, descriptor, _FOOT_BYTES, at)
    if len(raw) < _FOOT_BYTES or raw[:4] != _MAGIC:
        return None
    _, crc, of_segment, of_number, count, payload_bytes, groups, even, odd = _FOOT.unpack(raw)
    content_bytes = 16 * groups + even + odd
    whole = of_segment == segment and number in (0, of_number) and offset + BLOCK_BYTES + payload_bytes == at + _FOOT_BYTES
    if not whole or content_bytes + _FOOT_BYTES + RECORD_BYTES > payload_bytes:
        return None
    content = read_exactly(disk, descriptor, content_bytes, at - content_bytes)
    if crc32(raw[_CRC_AT:], crc32(content, seed)) != crc:
        return None
    return Foot(of_number, count, payload_bytes, groups, even, odd, content + raw)
