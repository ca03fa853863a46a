"""Every kind of fact a journal holds: one writer and one reader each, and nobody else knows its flags, aux and key.

Numbers are on disk: never reuse one.
"""

from __future__ import annotations

from struct import Struct, pack
from typing import TYPE_CHECKING, Final

from tandem.broker.queue.index import DEFERRED, READY, SCHEDULED

if TYPE_CHECKING:
    from tandem.broker.ports import Journal

ENQUEUED: Final = 1
SETTLED: Final = 2
STATE: Final = 3
DELIVERED: Final = 4
SESSION_STATE: Final = 5
SEEN: Final = 6
COUNTER: Final = 7
PUBLISHED: Final = 8
"""One message of a topic, its body once, and the rows it became in all subscriptions that matched."""

LEASED: Final = 9
"""A batch set aside: aux = expires at, key = lease id and sequence numbers."""
LEASE_RENEWED: Final = 10
LEASE_ENDED: Final = 11
"""flags 1: completed, all its messages are gone; 0: returned."""

TRANSFERRED: Final = 12
"""A message came from a queue in another store: entity = where it went, aux = the queue it came from, seq = its number there."""
TRANSFER_ENDED: Final = 13
"""The source has forgotten these messages, so this store need not remember them: key = (queue, number) of each."""

LEASE_PART: Final = 14
"""Messages given back out of a living lease: key = lease id and sequence numbers. What was settled out of it is SETTLED."""

PREPARED: Final = 17
"""One store's share of a transaction over several: aux = the store that decides, key = transaction id and the rows it will touch,
body = what to do (`broker/recovery/operations.py`)."""
COMMITTED: Final = 18
"""The transaction is decided, in the block that holds the deciding store's own share: aux = how many stores prepared, key = its id."""
TRANSACTION_ENDED: Final = 19
"""Nobody needs its PREPARED (flags 0) or COMMITTED (flags 1) any more: key = its id."""

METERED: Final = 20
"""Operations of one turn: key = (what, count, bytes) of each. See broker/meters.py."""
METERS: Final = 21
"""All that was counted and is in no file yet, in place of every METERED before it: seq = file number, aux = bytes of that file."""

ENTITY: Final = 22
"""Which entity a number means: entity = four times its id, seq = the store, key = what it is, without keys. Before any other fact of it."""
RULE: Final = 23
"""A rule of a subscription: key = its folded name and its text."""
ENDED: Final = 1
"""Flag of ENTITY and RULE: it is gone; the key of a RULE is its folded name alone."""

CLOCK_SET: Final = 24
"""The machine's clock was set: in facts before this one the ends of what lasts for a time move by aux milliseconds; flags 1: back."""

KIND_NAMES: Final = {
    CLOCK_SET: "clock-set",
    ENQUEUED: "enqueued",
    SETTLED: "settled",
    STATE: "state",
    DELIVERED: "delivered",
    SESSION_STATE: "session-state",
    SEEN: "seen",
    COUNTER: "counter",
    PUBLISHED: "published",
    LEASED: "leased",
    LEASE_RENEWED: "lease-renewed",
    LEASE_ENDED: "lease-ended",
    METERED: "metered",
    METERS: "meters",
    LEASE_PART: "lease-part",
    TRANSFERRED: "transferred",
    TRANSFER_ENDED: "transfer-ended",
    PREPARED: "prepared",
    COMMITTED: "committed",
    TRANSACTION_ENDED: "transaction-ended",
    ENTITY: "entity",
    RULE: "rule",
}

# flags of ENQUEUED and PUBLISHED
HAS_SESSION: Final = 1
AS_DEFERRED: Final = 2
AS_SCHEDULED: Final = 4
RELOCATED: Final = 8
"""Written again, by compaction or with other properties: no duplicate of itself."""


def has_ended(flags: int) -> bool:
    """Of ENTITY and RULE."""
    return flags & ENDED != 0


# flags of SETTLED: why the message left
COMPLETED: Final = 0
RECEIVED: Final = 1
EXPIRED: Final = 2
PURGED: Final = 3
DEAD_LETTERED: Final = 4
CANCELLED: Final = 5
FORWARDED: Final = 6
ACTIVATED: Final = 7
"""A scheduled message became active under a new sequence number."""

REASON_NAMES: Final = {
    COMPLETED: "completed",
    RECEIVED: "received",
    EXPIRED: "expired",
    PURGED: "purged",
    DEAD_LETTERED: "dead-lettered",
    CANCELLED: "cancelled",
    FORWARDED: "forwarded",
    ACTIVATED: "activated",
}

FRAGMENT_BITS: Final = 26
"""The number of a fragment of a partitioned entity stands above these in the entity's number."""

Target = tuple[int, int, int]
"""Entity, sequence number and instant of expiry of one row of a published message."""

_NONE: Final = b""
_KEY: Final = Struct("<IQHH")
_pack_key: Final = _KEY.pack
_LENGTH: Final = Struct("<H")
_TARGET: Final = Struct("<IQQ")
_pack_target: Final = _TARGET.pack
_ROW: Final = Struct("<IQ")
_U64: Final = Struct("<Q")
_DELTA: Final = Struct("<QIQ")
_pack_delta: Final = _DELTA.pack
"""Slot, count, bytes."""
_PENDING: Final = Struct("<IQQQ")
"""Minute, slot, count, bytes."""
TRANSACTION_ID_BYTES: Final = 16


def id_of(entity: int) -> int:
    """The id that metadata gave the entity of a fact; below it stands the sub-queue, above it the fragment."""
    return (entity & (1 << FRAGMENT_BITS) - 1) >> 2


def text_of(message_id: bytes) -> str:
    """For people: AMQP strings as text, anything else in hexadecimal."""
    start = {0xA1: 2, 0xB1: 5}.get(message_id[0] if message_id else 0, 0)
    return message_id[start:].decode(errors="replace") if start else message_id.hex()


def write_again(journal: Journal, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes) -> int:
    """A fact as it was: its segment is about to leave."""
    return journal.append(kind, flags, entity, seq, at, aux, key, body)


# --- messages


def pack_key(message_id: bytes, session_id: str | None, delivery_count: int, scheduled_at: int) -> bytes:
    """What a replay needs to know of a message without reading its body."""
    if session_id is None:
        return _pack_key(delivery_count, scheduled_at, len(message_id), 0) + message_id
    session = session_id.encode()
    return _pack_key(delivery_count, scheduled_at, len(message_id), len(session)) + message_id + session


def write_enqueued(
    journal: Journal,
    entity: int,
    seq: int,
    state: int,
    relocated: bool,
    message_id: bytes,
    session_id: str | None,
    scheduled_at: int,
    at: int,
    expires_at: int,
    count: int,
    body: bytes,
) -> int:
    """A message and where it stands; returns its location."""
    flags = 0 if session_id is None else HAS_SESSION
    if relocated:
        flags |= RELOCATED
    if state == DEFERRED:
        flags |= AS_DEFERRED
    elif state == SCHEDULED:
        flags |= AS_SCHEDULED
    return journal.append(ENQUEUED, flags, entity, seq, at, expires_at, pack_key(message_id, session_id, count, scheduled_at), body)


def read_enqueued(flags: int, key: bytes) -> tuple[bytes, str | None, int, int]:
    """(message id, session id, delivery count, scheduled at)."""
    count, scheduled_at, id_len, session_len = _KEY.unpack_from(key)
    at: int = _KEY.size
    message_id = key[at : at + id_len]
    session = key[at + id_len : at + id_len + session_len].decode() if flags & HAS_SESSION else None
    return message_id, session, count, scheduled_at


def state_of(flags: int) -> int:
    """Where the message of an ENQUEUED stands."""
    return DEFERRED if flags & AS_DEFERRED else SCHEDULED if flags & AS_SCHEDULED else READY


def is_relocated(flags: int) -> bool:
    return flags & RELOCATED != 0


def write_published(
    journal: Journal,
    topic: int,
    number: int,
    relocated: bool,
    message_id: bytes,
    session_id: str | None,
    at: int,
    targets: list[Target],
    body: bytes,
) -> int:
    flags = (0 if session_id is None else HAS_SESSION) | (RELOCATED if relocated else 0)
    key = pack_key(message_id, session_id, len(targets), 0)
    key += b"".join([_pack_target(entity, seq, expires_at) for entity, seq, expires_at in targets])
    return journal.append(PUBLISHED, flags, topic, number, at, 0, key, body)


def read_targets(key: bytes) -> list[Target]:
    """The rows of a PUBLISHED; its id and session are read as those of ENQUEUED."""
    count, _, id_len, session_len = _KEY.unpack_from(key)
    start: int = _KEY.size + id_len + session_len
    return list(_TARGET.iter_unpack(key[start : start + count * _TARGET.size]))


def write_settled(journal: Journal, entity: int, seq: int, reason: int, now: int) -> None:
    journal.append(SETTLED, reason, entity, seq, now, 0, _NONE, _NONE)


def write_settled_run(journal: Journal, entity: int, seqs: list[int], reason: int, now: int) -> int:
    """As `write_settled`, for several; returns how many the store took."""
    return journal.append_run(SETTLED, reason, entity, seqs, now)


def write_state(journal: Journal, entity: int, seq: int, state: int, count: int, until: int, now: int) -> None:
    """Given back, deferred, or (`until`) delayed, with a delivery count of its own."""
    journal.append(STATE, state, entity, seq, now, count, _U64.pack(until) if until else _NONE, _NONE)


def read_until(key: bytes) -> int:
    """Of a STATE; 0 when it waits for no instant."""
    return int(_U64.unpack(key)[0]) if key else 0


def pack_seqs(seqs: list[int]) -> bytes:
    return pack(f"<{len(seqs)}Q", *seqs)


def read_seqs(packed: bytes) -> list[int]:
    return [seq for (seq,) in _U64.iter_unpack(packed)]


def write_delivered(journal: Journal, entity: int, seqs: list[int], now: int) -> None:
    journal.append(DELIVERED, 0, entity, 0, now, 0, pack_seqs(seqs), _NONE)


def write_counter(journal: Journal, entity: int, next_seq: int, now: int) -> None:
    journal.append(COUNTER, 0, entity, 0, now, next_seq, _NONE, _NONE)


def write_seen(journal: Journal, entity: int, message_id: bytes, at: int) -> None:
    journal.append(SEEN, 0, entity, 0, at, 0, message_id, _NONE)


def write_session_state(journal: Journal, entity: int, session_id: str, state: bytes | None, now: int) -> None:
    journal.append(SESSION_STATE, 0 if state is None else 1, entity, 0, now, 0, _named(session_id, state or _NONE), _NONE)


def read_session_state(flags: int, key: bytes) -> tuple[str, bytes | None]:
    session_id, state = _read_named(key)
    return session_id, state if flags else None


def _named(name: str, rest: bytes) -> bytes:
    encoded = name.encode()
    return _LENGTH.pack(len(encoded)) + encoded + rest


def _read_named(key: bytes) -> tuple[str, bytes]:
    (length,) = _LENGTH.unpack_from(key)
    return key[2 : 2 + length].decode(), key[2 + length :]


# --- leases


def write_leased(journal: Journal, entity: int, lease_id: str, seqs: list[int], expires_at: int, now: int) -> None:
    journal.append(LEASED, 0, entity, 0, now, expires_at, _named(lease_id, pack_seqs(seqs)), _NONE)


def write_lease_renewed(journal: Journal, entity: int, lease_id: str, expires_at: int, now: int) -> None:
    journal.append(LEASE_RENEWED, 0, entity, 0, now, expires_at, _named(lease_id, _NONE), _NONE)


def write_lease_part(journal: Journal, entity: int, lease_id: str, seqs: list[int], now: int) -> None:
    journal.append(LEASE_PART, 0, entity, 0, now, 0, _named(lease_id, pack_seqs(seqs)), _NONE)


def write_lease_ended(journal: Journal, entity: int, lease_id: str, completed: bool, seqs: list[int], now: int) -> None:
    """`seqs`: what is left of it. A completed one names what left the queue with it: its LEASED may go with an older segment, while a copy
    of a message that compaction had written before the end stands in a younger one."""
    flags, packed = (1, pack_seqs(seqs)) if completed else (0, _NONE)
    journal.append(LEASE_ENDED, flags, entity, 0, now, len(seqs), _named(lease_id, packed), _NONE)


def read_lease(key: bytes) -> tuple[str, bytes]:
    """(lease id, packed sequence numbers)."""
    return _read_named(key)


# --- several stores


def write_transferred(journal: Journal, target: int, source: int, seq: int, enqueued_at: int, now: int) -> None:
    """`enqueued_at` < 0: its source is there to be asked; else it left a store that failed, and was enqueued there at this instant."""
    journal.append(TRANSFERRED, 0, target, seq, now, source, _NONE if enqueued_at < 0 else _U64.pack(enqueued_at), _NONE)


def read_transferred(key: bytes) -> int:
    """When it was enqueued at its source; -1: not said."""
    return int(_U64.unpack(key)[0]) if key else -1


def write_transfer_ended(journal: Journal, ids: list[tuple[int, int]], now: int) -> None:
    journal.append(TRANSFER_ENDED, 0, ids[0][0], 0, now, 0, _pack_rows(ids), _NONE)


def _pack_rows(rows: list[tuple[int, int]]) -> bytes:
    return b"".join([_ROW.pack(queue, seq) for queue, seq in rows])


def read_transfer_ended(key: bytes) -> list[tuple[int, int]]:
    """(queue, sequence number) of each."""
    return list(_ROW.iter_unpack(key))


def write_prepared(journal: Journal, transaction: bytes, decider: int, rows: list[tuple[int, int]], share: bytes, now: int) -> int:
    return journal.append(PREPARED, 0, 0, 0, now, decider, transaction + _pack_rows(rows), share)


def read_prepared(key: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """(transaction, (queue, sequence number) of every row that it settles)."""
    return key[:TRANSACTION_ID_BYTES], read_transfer_ended(key[TRANSACTION_ID_BYTES:])


def write_committed(journal: Journal, transaction: bytes, shares: int, now: int) -> None:
    journal.append(COMMITTED, 0, 0, 0, now, shares, transaction, _NONE)


def write_transaction_ended(journal: Journal, transaction: bytes, decided: bool, now: int) -> None:
    """`decided`: its COMMITTED is needed no more, else its PREPARED."""
    journal.append(TRANSACTION_ENDED, 1 if decided else 0, 0, 0, now, 0, transaction, _NONE)


# --- the store itself


def write_metered(journal: Journal, deltas: list[tuple[int, int, int]], now: int) -> None:
    journal.append(METERED, 0, 0, 0, now, 0, b"".join([_pack_delta(slot, count, size) for slot, count, size in deltas]), _NONE)


def read_metered(key: bytes) -> list[tuple[int, int, int]]:
    """(slot, count, bytes)."""
    return list(_DELTA.iter_unpack(key))


def write_meters(journal: Journal, rows: list[tuple[int, int, int, int]], file_number: int, file_bytes: int, now: int) -> None:
    key = b"".join([_PENDING.pack(minute, slot, count, size) for minute, slot, count, size in rows])
    journal.append(METERS, 0, 0, file_number, now, file_bytes, key, _NONE)


def read_meters(key: bytes) -> list[tuple[int, int, int, int]]:
    """(minute, slot, count, bytes)."""
    return list(_PENDING.iter_unpack(key))


def write_entity(journal: Journal, id_: int, store: int, key: bytes, now: int) -> int:
    return journal.append(ENTITY, 0, 4 * id_, store, now, 0, key, _NONE)


def write_entity_ended(journal: Journal, id_: int, store: int, now: int) -> None:
    journal.append(ENTITY, ENDED, 4 * id_, store, now, 0, _NONE, _NONE)


def write_rule(journal: Journal, id_: int, name: str, text: bytes, now: int) -> int:
    return journal.append(RULE, 0, 4 * id_, 0, now, 0, _named(name, text), _NONE)


def write_rule_ended(journal: Journal, id_: int, name: str, now: int) -> None:
    journal.append(RULE, ENDED, 4 * id_, 0, now, 0, name.encode(), _NONE)


def read_rule(flags: int, key: bytes) -> tuple[str, bytes]:
    """(folded name, text); of one that has ended, the name alone."""
    return (key.decode(), _NONE) if flags & ENDED else _read_named(key)


def write_clock_set(journal: Journal, by_ms: int, now: int) -> None:
    journal.append(CLOCK_SET, 1 if by_ms < 0 else 0, 0, 0, now, abs(by_ms), _NONE, _NONE)


def read_clock_set(flags: int, aux: int) -> int:
    """By how many milliseconds."""
    return -aux if flags else aux
