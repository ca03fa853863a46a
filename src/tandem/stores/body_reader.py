"""Bodies read back by location: neighbours with one call, each checked against its checksum before anybody sees it."""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import closing
from typing import Final

from tandem.model.errors import Corrupt
from tandem.stores.blocks import BLOCK_BYTES, RECORD, RECORD_BYTES
from tandem.stores.checksum import crc32
from tandem.stores.salvage import REPAIR, lost_body, substitute, walk_segment
from tandem.stores.scan import read_exactly
from tandem.stores.segment_files import SegmentFiles
from tandem.stores.settings import LogSettings

TAIL_BYTES: Final = 4_096
"""Read with the last record of a run, whose length is not known yet."""


class BodyReader:
    """Runs on the reader's thread only."""

    def __init__(self, files: SegmentFiles, settings: LogSettings) -> None:
        self._files = files
        self._disk = files.disk
        self._settings = settings
        self._open: OrderedDict[int, int] = OrderedDict()

    def read(self, locations: list[int], damaged: list[str]) -> list[bytes]:
        """In the order asked for. One that fails its checksum is replaced by what says so, and a line is added to `damaged`."""
        bodies: list[bytes] = []
        count = len(locations)
        begin = 0
        bytes_max = self._settings.read_bytes_max
        gap_max = self._settings.read_gap_bytes_max
        while begin < count:
            start = locations[begin]
            previous = start
            end = begin + 1
            while end < count:
                location = locations[end]
                # another segment is at least 4 GiB away, so this also keeps a run inside one
                if location < previous or location - previous > gap_max or location - start > bytes_max:
                    break
                previous = location
                end += 1
            self._read_run(locations, begin, end, bodies, damaged)
            begin = end
        return bodies

    def _read_run(self, locations: list[int], begin: int, end: int, bodies: list[bytes], damaged: list[str]) -> None:
        start = locations[begin]
        segment, offset = start >> 32, start & 0xFFFF_FFFF
        descriptor = self._descriptor(segment)
        disk = self._disk
        raw = read_exactly(disk, descriptor, locations[end - 1] - start + TAIL_BYTES, offset)
        size = len(raw)
        unpack = RECORD.unpack_from
        for i in range(begin, end):
            at = locations[i] - start
            if at + RECORD_BYTES > size:
                raise Corrupt(f"{self._files.path(segment)}: offset {offset + at}: the record is cut off")
            kind, _, _, _, _, _, key_bytes, body_bytes, crc = unpack(raw, at)
            body_at = at + RECORD_BYTES + key_bytes
            body = raw[body_at : body_at + body_bytes]
            if len(body) < body_bytes and offset + body_at + body_bytes <= disk.size(descriptor):
                body = read_exactly(disk, descriptor, body_bytes, offset + body_at)
            if kind == 0 or crc32(body) != crc or len(body) != body_bytes:
                body = self._restored(segment, offset + at, damaged)
            bodies.append(body)

    def _restored(self, segment: int, offset: int, damaged: list[str]) -> bytes:
        """The record's head may be what is damaged: its block is looked for, and what proves it. Damage is rare, so this may take time."""
        with closing(walk_segment(self._files, segment)) as blocks:
            for block_at, block in blocks:
                at = offset - block_at - BLOCK_BYTES
                if not 0 <= at < len(block.payload):
                    continue
                kind, _, entity, seq, _, _, key_bytes, body_bytes, _ = RECORD.unpack_from(block.payload, at)
                body_at = at + RECORD_BYTES + key_bytes
                if at not in block.damaged:
                    damaged += [block.told] if block.told else []
                    return block.payload[body_at : body_at + body_bytes]
                key = block.payload[at + RECORD_BYTES : body_at]
                where = f"{self._files.path(segment)}: offset {offset}"
                damaged.append(lost_body(where, kind, entity, seq, key))
                return substitute(kind, key, where)
        raise Corrupt(f"{self._files.path(segment)}: offset {offset}: no record. {REPAIR}")

    def _descriptor(self, segment: int) -> int:
        descriptor = self._open.get(segment)
        if descriptor is not None:
            self._open.move_to_end(segment)
            return descriptor
        try:
            descriptor = self._files.open_segment(segment, os.O_RDONLY)
        except FileNotFoundError as error:
            raise Corrupt(f"{self._files.path(segment)}: missing, but a message is in it") from error
        self._open[segment] = descriptor
        if len(self._open) > self._settings.reader_files_max:
            _, oldest = self._open.popitem(last=False)
            self._disk.close(oldest)
        return descriptor

    def drop(self, segment: int) -> None:
        descriptor = self._open.pop(segment, None)
        if descriptor is not None:
            self._disk.close(descriptor)

    def close(self) -> None:
        while self._open:
            self.drop(next(iter(self._open)))
