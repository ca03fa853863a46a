"""Kinds of facts a journal holds, and how their keys are packed. Numbers are on disk: never reuse one."""

from __future__ import annotations

from struct import Struct
from typing import Final

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

# flags of ENQUEUED
HAS_SESSION: Final = 1
DEFERRED: Final = 2
SCHEDULED: Final = 4
RELOCATED: Final = 8

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


def id_of(entity: int) -> int:
    """The id that metadata gave the entity of a fact; below it stands the sub-queue, above it the fragment."""
    return (entity & (1 << FRAGMENT_BITS) - 1) >> 2


_KEY: Final = Struct("<IQHH")


def pack_key(message_id: bytes, session_id: str | None, delivery_count: int, scheduled_at: int) -> bytes:
    """The key of ENQUEUED: what a replay needs to know of a message without reading its body."""
    if session_id is None:
        return _KEY.pack(delivery_count, scheduled_at, len(message_id), 0) + message_id
    session = session_id.encode()
    return _KEY.pack(delivery_count, scheduled_at, len(message_id), len(session)) + message_id + session


def unpack_key(key: bytes, has_session: bool) -> tuple[bytes, str | None, int, int]:
    """(message id, session id, delivery count, scheduled at)."""
    count, scheduled_at, id_len, session_len = _KEY.unpack_from(key)
    at: int = _KEY.size
    message_id = key[at : at + id_len]
    session = key[at + id_len : at + id_len + session_len].decode() if has_session else None
    return message_id, session, count, scheduled_at


def text_of(message_id: bytes) -> str:
    """For people: AMQP strings as text, anything else in hexadecimal."""
    start = {0xA1: 2, 0xB1: 5}.get(message_id[0] if message_id else 0, 0)
    return message_id[start:].decode(errors="replace") if start else message_id.hex()


_LENGTH: Final = Struct("<H")


def pack_session_state(session_id: str, state: bytes | None) -> bytes:
    encoded = session_id.encode()
    return _LENGTH.pack(len(encoded)) + encoded + (state or b"")


def unpack_session_state(key: bytes, flags: int) -> tuple[str, bytes | None]:
    (length,) = _LENGTH.unpack_from(key)
    return key[2 : 2 + length].decode(), key[2 + length :] if flags else None


def pack_rule(name: str, text: bytes) -> bytes:
    """The key of RULE."""
    encoded = name.encode()
    return _LENGTH.pack(len(encoded)) + encoded + text


def unpack_rule(key: bytes) -> tuple[str, bytes]:
    """(folded name, text)."""
    (length,) = _LENGTH.unpack_from(key)
    return key[2 : 2 + length].decode(), key[2 + length :]


_TARGET: Final = Struct("<IQQ")


def pack_targets(message_id: bytes, session_id: str | None, targets: list[tuple[int, int, int]]) -> bytes:
    """The key of PUBLISHED: the key of ENQUEUED, then (entity, sequence number, expires at) of every subscription that got it."""
    key = pack_key(message_id, session_id, len(targets), 0)
    return key + b"".join([_TARGET.pack(entity, seq, expires_at) for entity, seq, expires_at in targets])


def unpack_targets(key: bytes) -> list[tuple[int, int, int]]:
    count, _, id_len, session_len = _KEY.unpack_from(key)
    start: int = _KEY.size + id_len + session_len
    return list(_TARGET.iter_unpack(key[start : start + count * _TARGET.size]))


def pack_lease(lease_id: str, seqs: bytes) -> bytes:
    encoded = lease_id.encode()
    return _LENGTH.pack(len(encoded)) + encoded + seqs


def unpack_lease(key: bytes) -> tuple[str, bytes]:
    """(lease id, packed sequence numbers)."""
    (length,) = _LENGTH.unpack_from(key)
    return key[2 : 2 + length].decode(), key[2 + length :]


_TRANSFER: Final = Struct("<IQ")
_INSTANT: Final = Struct("<Q")


def pack_instant(at: int) -> bytes:
    """The key of TRANSFERRED, if the message left a store that failed: when it was enqueued there."""
    return _INSTANT.pack(at)


def unpack_instant(key: bytes) -> int:
    (at,) = _INSTANT.unpack(key)
    return int(at)


def pack_transfers(ids: list[tuple[int, int]]) -> bytes:
    """The key of TRANSFER_ENDED: (queue, sequence number) of each."""
    return b"".join([_TRANSFER.pack(queue, seq) for queue, seq in ids])


def unpack_transfers(key: bytes) -> list[tuple[int, int]]:
    return list(_TRANSFER.iter_unpack(key))


TRANSACTION_ID_BYTES: Final = 16


def pack_prepared(transaction: bytes, rows: list[tuple[int, int]]) -> bytes:
    """The key of PREPARED: the transaction, then (queue, sequence number) of every row that it settles."""
    return transaction + pack_transfers(rows)


def unpack_prepared(key: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    return key[:TRANSACTION_ID_BYTES], unpack_transfers(key[TRANSACTION_ID_BYTES:])
