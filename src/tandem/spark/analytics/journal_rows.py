"""The facts of one segment as Arrow record batches: headers are taken as columns, only what varies in length is looked at one by one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from tandem import amqp
from tandem.broker import facts
from tandem.model.message import decode_body
from tandem.spark.analytics.journal_files import SegmentPlace
from tandem.stores.blocks import BLOCK_BYTES, GUARD, RECORD_BYTES, BadBlock
from tandem.stores.disk import LocalDisk
from tandem.stores.journal_dump import DAMAGED
from tandem.stores.segment_index import BadIndex, IndexReader
from tandem.stores.segment_reader import SegmentReader

if TYPE_CHECKING:
    from tandem.stores.postgres_reading import BlockRange

DDL: Final = (
    "namespace string, store string, journal string, segment int, offset long, kind string, entity string, sub_queue string, "
    "sequence_number long, at timestamp, message_id string, session_id string, reason string, delivery_count int, expires_at timestamp, "
    "scheduled_at timestamp, lease_id string, relocated boolean, body_bytes int, destination string"
)
"""One row per message and fact: what was delivered, leased or published together is taken apart. Documented in the reconcile guide."""

_INSTANT: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        ("namespace", pa.string()),
        ("store", pa.string()),
        ("journal", pa.string()),
        ("segment", pa.int32()),
        ("offset", pa.int64()),
        ("kind", pa.string()),
        ("entity", pa.string()),
        ("sub_queue", pa.string()),
        ("sequence_number", pa.int64()),
        ("at", _INSTANT),
        ("message_id", pa.string()),
        ("session_id", pa.string()),
        ("reason", pa.string()),
        ("delivery_count", pa.int32()),
        ("expires_at", _INSTANT),
        ("scheduled_at", _INSTANT),
        ("lease_id", pa.string()),
        ("relocated", pa.bool_()),
        ("body_bytes", pa.int32()),
        ("destination", pa.string()),
    ]
)

_RECORD: Final = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("entity", "<u4"),
        ("seq", "<u8"),
        ("at", "<u8"),
        ("aux", "<u8"),
        ("key", "<u4"),
        ("body", "<u4"),
        ("crc", "<u4"),
    ]
)
BACKLOG: Final = "/x-servicebus-transfer/"
"""In the path of every backlog queue."""
_PATH: Final = "x-ms-path"
"""The property of a diverted message that says where it is meant to go. Not imported: the whole SDK would come with it."""
_KEY: Final = Struct("<IQHH")
_RECORDS_PER_BATCH: Final = 65_536
_SUB_QUEUES: Final = np.array(["", "$DeadLetterQueue", "$Transfer/$DeadLetterQueue", "?"])
_FRAGMENT_BITS: Final = 26
_NO_INSTANT: Final = 1 << 53
"""Milliseconds that no calendar reaches: such instants are shown as absent."""
_STATES: Final = {1: "active", 3: "deferred", 4: "scheduled", 6: "delayed"}
_INTERNAL: Final = frozenset({facts.METERED, facts.METERS, facts.ENTITY, facts.RULE, facts.CLOCK_SET, GUARD})
_TAKEN_APART: Final = frozenset({facts.DELIVERED, facts.LEASED, facts.LEASE_PART, facts.PUBLISHED})


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """What one task reads, and how it names entities."""

    place: SegmentPlace | BlockRange
    entities: dict[int, str]
    kinds: frozenset[int]
    """Kinds to show; empty means all."""
    destinations: bool = False
    """Look into messages in backlog queues for where they are meant to go. Their bodies have to be read for it."""


def read_segment(task: SegmentTask) -> Iterator[pa.RecordBatch]:
    """Goes on past damage: what can be restored is, what cannot is a row of kind `damaged`. An unfinished block at the end of a growing
    segment just ends it."""
    gathered = _Gathered(task)
    lost: list[tuple[int, str]] = []
    wanted = {number for number, name in task.entities.items() if BACKLOG in name.casefold()} if task.destinations else set()
    place = task.place
    blocks = _blocks(place, bool(wanted), lost) if isinstance(place, SegmentPlace) else _engine_blocks(place, bool(wanted), lost)
    for offset, heads, keys, payload in blocks:
        gathered.add(offset, heads, keys, destinations_of(heads, payload, wanted) if wanted else {})
        if gathered.records >= _RECORDS_PER_BATCH:
            yield gathered.batch()
    if gathered.records:
        yield gathered.batch()
    if lost:
        yield _damage(task, lost)


_Columns = tuple[int, bytes, bytes, bytes]
"""Of a block: offset of the first record, record headers, keys, payload; without payload where the index is enough."""


def _engine_blocks(place: BlockRange, bodies: bool, lost: list[tuple[int, str]]) -> Iterator[_Columns]:
    from tandem.stores.postgres_reading import read_range  # only a cluster needs the client of PostgreSQL

    return read_range(place, bodies, lost)


def _blocks(place: SegmentPlace, bodies: bool, lost: list[tuple[int, str]]) -> Iterator[_Columns]:
    path, index = place.find()
    disk = LocalDisk()
    if bodies:
        index = None
    if index is not None:
        try:
            file = SegmentReader(disk, path)
            file.close()
            reader = IndexReader(disk, index, place.segment, file.header.store_id)
        except (BadIndex, FileNotFoundError):
            index = None  # the segment itself has it all
        else:
            try:
                for _, offset, _, heads, keys in reader.entries():
                    yield offset + BLOCK_BYTES, heads, keys, b""
            finally:
                reader.close()
    if index is None:
        file = SegmentReader(disk, place.find()[0])
        try:
            for offset, _, payload, heads, keys in file.blocks_past_damage(lambda offset, reason: lost.append((offset, reason))):
                yield offset + BLOCK_BYTES, heads, keys, payload
        except BadBlock:
            pass  # a tail that a crash, or a writer at work, may leave
        finally:
            file.close()


def _damage(task: SegmentTask, lost: list[tuple[int, str]]) -> pa.RecordBatch:
    """A row for each block that cannot be read: a table that is shorter than it should be says so itself."""
    place = task.place
    where = {"namespace": place.namespace, "store": place.store, "segment": place.segment, "kind": DAMAGED}
    return pa.RecordBatch.from_pylist([{**where, "offset": offset, "reason": reason} for offset, reason in lost], schema=SCHEMA)


class _Gathered:
    """Blocks put together until they are worth a batch."""

    def __init__(self, task: SegmentTask) -> None:
        self._task = task
        self._heads: list[bytes] = []
        self._keys: list[bytes] = []
        self._starts: list[tuple[int, int]] = []
        self._destinations: dict[int, str] = {}
        self.records = 0

    def add(self, offset: int, heads: bytes, keys: bytes, destinations: dict[int, str]) -> None:
        count = len(heads) // RECORD_BYTES
        for record, destination in destinations.items():
            self._destinations[self.records + record] = destination
        self._heads.append(heads)
        self._keys.append(keys)
        self._starts.append((offset, count))
        self.records += count

    def batch(self) -> pa.RecordBatch:
        heads = np.frombuffer(b"".join(self._heads), dtype=_RECORD)
        keys = b"".join(self._keys)
        rows = _Rows(heads, keys, self._offsets(heads), self._destinations)
        kinds = self._task.kinds
        for kind in np.unique(heads["kind"]):
            if int(kind) not in _INTERNAL and (not kinds or int(kind) in kinds):
                rows.take(int(kind))
        self._heads, self._keys, self._starts, self._destinations, self.records = [], [], [], {}, 0
        return rows.batch(self._task.place, self._task.entities)

    def _offsets(self, heads: Any) -> Any:
        sizes = RECORD_BYTES + heads["key"].astype(np.int64) + heads["body"]
        ends = np.cumsum(sizes)
        offsets = ends - sizes
        at = 0
        for start, count in self._starts:
            offsets[at : at + count] += start - (offsets[at] if count else 0)
            at += count
        return offsets


class _Rows:
    """Rows gathered kind by kind; put in the order of the log at the end."""

    def __init__(self, heads: Any, keys: bytes, offsets: Any, destinations: dict[int, str]) -> None:
        self._destinations = destinations
        self._heads = heads
        self._keys = keys
        self._offsets = offsets
        lengths = heads["key"].astype(np.int64)
        self._key_at = np.cumsum(lengths) - lengths
        count = len(heads)
        self._message_ids: list[bytes | None] = [None] * count
        self._session_ids: list[str | None] = [None] * count
        self._lease_ids: list[str | None] = [None] * count
        self._counts = np.zeros(count, dtype=np.int32)
        self._has_count = np.zeros(count, dtype=bool)
        self._scheduled = np.zeros(count, dtype=np.int64)
        self._expires = np.zeros(count, dtype=np.int64)
        self._records: list[Any] = []
        self._entities: list[Any] = []
        self._seqs: list[Any] = []
        self._row_expires: list[Any] = []

    def take(self, kind: int) -> None:
        records = np.nonzero(self._heads["kind"] == kind)[0]
        if kind in (facts.ENQUEUED, facts.PUBLISHED):
            self._read_keys(records)
        if kind == facts.ENQUEUED:
            self._expires[records] = np.minimum(self._heads["aux"][records], _NO_INSTANT).astype(np.int64)
        if kind in (facts.LEASED, facts.LEASE_RENEWED, facts.LEASE_ENDED, facts.LEASE_PART):
            self._read_leases(records)
        if kind == facts.STATE:
            self._counts[records] = self._heads["aux"][records]
            self._has_count[records] = True
        if kind in _TAKEN_APART:
            self._take_apart(kind, records)
        else:
            self._add(records, self._heads["entity"][records], self._heads["seq"][records], self._expires[records])

    def _add(self, records: Any, entities: Any, seqs: Any, expires: Any) -> None:
        self._records.append(records)
        self._entities.append(entities)
        self._seqs.append(seqs)
        self._row_expires.append(expires)

    def _read_keys(self, records: Any) -> None:
        keys, unpack, size = self._keys, _KEY.unpack_from, _KEY.size
        ids, sessions = self._message_ids, self._session_ids
        flags = self._heads["flags"]
        for record, start in zip(records.tolist(), self._key_at[records].tolist(), strict=True):
            count, scheduled_at, id_bytes, session_bytes = unpack(keys, start)
            at = start + size
            ids[record] = keys[at : at + id_bytes]
            if flags[record] & facts.HAS_SESSION:
                sessions[record] = keys[at + id_bytes : at + id_bytes + session_bytes].decode(errors="replace")
            self._counts[record] = 0 if self._heads["kind"][record] == facts.PUBLISHED else count
            self._scheduled[record] = min(scheduled_at, _NO_INSTANT)
        self._has_count[records] = True

    def _read_leases(self, records: Any) -> None:
        for record in records.tolist():
            start = int(self._key_at[record])
            self._lease_ids[record], _ = facts.read_lease(self._keys[start : start + int(self._heads["key"][record])])

    def _take_apart(self, kind: int, records: Any) -> None:
        """One row for each message that a fact is about."""
        numbers: list[int] = []
        entities: list[int] = []
        seqs: list[int] = []
        expires: list[int] = []
        for record in records.tolist():
            start = int(self._key_at[record])
            key = self._keys[start : start + int(self._heads["key"][record])]
            if kind == facts.PUBLISHED:
                targets = facts.read_targets(key)
                entities.extend(target[0] for target in targets)
                seqs.extend(target[1] for target in targets)
                expires.extend(min(target[2], _NO_INSTANT) for target in targets)
                numbers.extend([record] * len(targets))
                continue
            packed = key if kind == facts.DELIVERED else facts.read_lease(key)[1]
            found = np.frombuffer(packed, dtype="<u8").tolist()
            seqs.extend(found)
            entities.extend([int(self._heads["entity"][record])] * len(found))
            expires.extend([0] * len(found))
            numbers.extend([record] * len(found))
        self._add(
            np.array(numbers, dtype=np.int64),
            np.array(entities, dtype=np.uint32),
            np.array(seqs, dtype=np.uint64),
            np.array(expires, dtype=np.int64),
        )

    def batch(self, place: SegmentPlace | BlockRange, names: dict[int, str]) -> pa.RecordBatch:
        if not self._records:
            return pa.RecordBatch.from_arrays([pa.array([], type=field.type) for field in SCHEMA], schema=SCHEMA)
        records = np.concatenate(self._records)
        order = np.argsort(records, kind="stable")
        records = records[order].astype(np.int64)
        entities = np.concatenate(self._entities)[order]
        seqs = np.concatenate(self._seqs)[order].astype(np.int64)
        expires = np.concatenate(self._row_expires)[order]
        heads, rows = self._heads, len(records)
        kinds, flags = heads["kind"][records], heads["flags"][records]
        ids = (entities & ((1 << _FRAGMENT_BITS) - 1)) >> 2
        relocated = np.isin(kinds, (facts.ENQUEUED, facts.PUBLISHED)) & (flags & facts.RELOCATED != 0)
        columns = [
            pa.array([place.namespace]).take(pa.array(np.zeros(rows, dtype=np.int32))),
            pa.array([place.store]).take(pa.array(np.zeros(rows, dtype=np.int32))),
            pa.array([place.directory]).take(pa.array(np.zeros(rows, dtype=np.int32))),
            pa.array(np.full(rows, place.segment, dtype=np.int32)),
            pa.array(self._offsets[records]),
            _looked_up(kinds, facts.KIND_NAMES),
            _looked_up(ids, names, "#"),
            pa.array(_SUB_QUEUES[entities & 3]),
            pa.array(seqs),
            _instants(heads["at"][records].astype(np.int64), absent=-1),
            _ids([self._message_ids[record] for record in records.tolist()]),
            pa.array([self._session_ids[record] for record in records.tolist()], type=pa.string()),
            _reasons(kinds, flags),
            pa.array(self._counts[records], mask=~self._has_count[records]),
            _instants(expires, absent=0),
            _instants(self._scheduled[records], absent=0),
            pa.array([self._lease_ids[record] for record in records.tolist()], type=pa.string()),
            pa.array(relocated),
            pa.array(heads["body"][records].astype(np.int32)),
            pa.array([self._destinations.get(record) for record in records.tolist()], type=pa.string()),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def destinations_of(heads: bytes, payload: bytes, backlog: set[int]) -> dict[int, str]:
    """Number of each record in a block that holds a message of a backlog queue, and the path that message is meant for."""
    found: dict[int, str] = {}
    at = 0
    for number, record in enumerate(np.frombuffer(heads, dtype=_RECORD)):
        body_at = at + RECORD_BYTES + int(record["key"])
        at = body_at + int(record["body"])
        if record["kind"] == facts.ENQUEUED and (int(record["entity"]) & ((1 << _FRAGMENT_BITS) - 1)) >> 2 in backlog:
            bare = decode_body(payload[body_at:at]).bare
            destination = amqp.decode_message(bare).application_properties.get(_PATH)
            if isinstance(destination, str):
                found[number] = destination
    return found


def _instants(milliseconds: Any, absent: int) -> pa.Array:
    missing = (milliseconds == absent) | (milliseconds >= _NO_INSTANT)
    return pa.array(np.where(missing, 0, milliseconds) * 1000, mask=missing).cast(_INSTANT)


def _looked_up(numbers: Any, names: dict[int, str], unknown: str = "") -> pa.Array:
    found, where = np.unique(numbers, return_inverse=True)
    return pa.array([names.get(int(number), f"{unknown}{number}") for number in found], type=pa.string()).take(pa.array(where))


def _reasons(kinds: Any, flags: Any) -> pa.Array:
    """Why a message left, what state it took, how a lease ended; nothing for other facts."""
    found, where = np.unique(kinds.astype(np.int32) << 8 | flags, return_inverse=True)
    words: list[str | None] = []
    for pair in found.tolist():
        kind, flag = pair >> 8, pair & 0xFF
        if kind == facts.SETTLED:
            words.append(facts.REASON_NAMES.get(flag, str(flag)))
        elif kind == facts.STATE:
            words.append(_STATES.get(flag, str(flag)))
        elif kind == facts.LEASE_ENDED:
            words.append("completed" if flag else "returned")
        elif kind == facts.ENQUEUED:
            words.append("deferred" if flag & facts.AS_DEFERRED else "scheduled" if flag & facts.AS_SCHEDULED else None)
        else:
            words.append(None)
    return pa.array(words, type=pa.string()).take(pa.array(where))


def _ids(encoded: list[bytes | None]) -> pa.Array:
    """Message ids as an application writes them: text as it is, numbers in digits, UUIDs with hyphens, other bytes in hexadecimal."""
    plain = [one if one is None else one[2:] if one[:1] == b"\xa1" else text_of_id(one).encode() for one in encoded]
    try:
        return pa.array(plain, type=pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if one is None else one.decode(errors="replace") for one in plain], type=pa.string())


def text_of_id(encoded: bytes) -> str:
    """Of an AMQP message id of any of its types."""
    code, rest = (encoded[0], encoded[1:]) if encoded else (0x40, b"")
    if code == 0xA1:
        return rest[1:].decode(errors="replace")
    if code == 0xB1:
        return rest[4:].decode(errors="replace")
    if code in (0x80, 0x53, 0x44):
        return str(int.from_bytes(rest, "big"))
    if code == 0x98:
        return str(uuid.UUID(bytes=rest))
    if code in (0xA0, 0xB0):
        return rest[1 if code == 0xA0 else 4 :].hex()
    return encoded.hex()
