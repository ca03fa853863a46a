"""Delivery states: how a delivery ended, read once per distinct encoding and written from constants where possible."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from tandem.amqp.codec import skip_value
from tandem.amqp.encoder import FALSE, NULL, TRUE, compound, described_list, encode_binary, encode_uint, encode_ulong, encode_value
from tandem.amqp.errors import AmqpError, DecodeError
from tandem.amqp.fields import Fields, read_descriptor

NONE: Final = 0
RECEIVED: Final = 0x23
ACCEPTED_CODE: Final = 0x24
REJECTED_CODE: Final = 0x25
RELEASED_CODE: Final = 0x26
MODIFIED_CODE: Final = 0x27
DECLARED: Final = 0x33
TRANSACTIONAL: Final = 0x34

ACCEPTED: Final = b"\x00\x53\x24\x45"
RELEASED: Final = b"\x00\x53\x26\x45"
REJECTED: Final = b"\x00\x53\x25\x45"
"""Rejected without an error: the answer to a dead-letter request."""

_NAMES: Final = {
    REJECTED_CODE: "rejected",
    MODIFIED_CODE: "modified",
    RECEIVED: "received",
    DECLARED: "declared",
    TRANSACTIONAL: "transactional-state",
}
_CACHE_MAX: Final = 256


class Outcome:
    """A delivery state as read. `code` is its descriptor, 0 when the peer gave none."""

    def __init__(self, code: int, error: AmqpError | None = None) -> None:
        self.code = code
        self.error = error
        self.delivery_failed = False
        self.undeliverable_here = False
        self.message_annotations: dict[object, object] | None = None
        self.txn_id: bytes | None = None
        self.inner: Outcome | None = None
        self.section_number = 0
        self.section_offset = 0

    def read(self, f: Fields, depth: int) -> None:
        """The fields of its kind."""
        code = self.code
        if code == REJECTED_CODE:
            self.error = f.error("error")
        elif code == MODIFIED_CODE:
            self.delivery_failed = f.boolean("delivery-failed", False)
            self.undeliverable_here = f.boolean("undeliverable-here", False)
            self.message_annotations = f.map("message-annotations")
        elif code == RECEIVED:
            self.section_number = f.uint("section-number", 0, True)
            self.section_offset = f.ulong("section-offset", 0)
        elif code == DECLARED:
            self.txn_id = f.binary("txn-id", True)
        elif code == TRANSACTIONAL:
            self.txn_id = f.binary("txn-id", True)
            inner = f.raw("outcome")
            if depth:
                raise DecodeError("transactional-state: one inside another")
            if inner:
                self.inner = _decode(inner, 0, len(inner), depth + 1)
        else:
            raise DecodeError(f"state: expected a delivery state, found descriptor 0x{int(code):02x}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and encode_outcome(self) == encode_outcome(other)

    def __hash__(self) -> int:
        return hash(self.code)

    def __repr__(self) -> str:
        return f"Outcome(0x{self.code:02x}, {self.error!r})"


NO_OUTCOME: Final = Outcome(NONE)

_cache: Final[dict[bytes, Outcome]] = {b"": NO_OUTCOME}


def decode_outcome(state: bytes) -> Outcome:
    """The outcome in an encoded state. Equal bytes may give the same object: treat it as frozen."""
    found = _cache.get(state)
    if found is not None:
        return found
    outcome = _decode(state, 0, len(state), 0)
    if skip_value(state, 0) != len(state):
        raise DecodeError("state is followed by bytes that belong to nothing")
    # bare outcomes repeat for ever; those with errors or ids do not, and must not pile up
    if len(state) <= 16 and len(_cache) < _CACHE_MAX:
        _cache[state] = outcome
    return outcome


def _decode(buf: bytes, at: i64, end: i64, depth: int) -> Outcome:
    code, list_at = read_descriptor(buf, at, end)
    outcome = Outcome(code)
    if code in (ACCEPTED_CODE, RELEASED_CODE):
        Fields("outcome", buf, list_at, end).finish()
        return outcome
    f = Fields(_NAMES.get(int(code), "state"), buf, list_at, end)
    try:
        outcome.read(f, depth)
        f.finish()
    except DecodeError as error:
        raise f.explain(error) from None
    return outcome


def encode_rejected(error: AmqpError | None) -> bytes:
    if error is None:
        return REJECTED
    return b"\x00\x53\x25" + compound(0xC0, error.encode(), 1)


def encode_modified(delivery_failed: bool, undeliverable_here: bool, message_annotations: dict[object, object] | None = None) -> bytes:
    annotations = NULL if message_annotations is None else encode_value(message_annotations)
    return described_list(MODIFIED_CODE, [TRUE if delivery_failed else FALSE, TRUE if undeliverable_here else FALSE, annotations])


def encode_declared(txn_id: bytes) -> bytes:
    return described_list(DECLARED, [encode_binary(txn_id)])


def encode_transactional(txn_id: bytes, outcome: bytes = b"") -> bytes:
    """`outcome` is encoded, empty for none."""
    return described_list(TRANSACTIONAL, [encode_binary(txn_id), outcome or NULL])


def encode_outcome(outcome: Outcome) -> bytes:
    code = outcome.code
    if code == ACCEPTED_CODE:
        return ACCEPTED
    if code == RELEASED_CODE:
        return RELEASED
    if code == REJECTED_CODE:
        return encode_rejected(outcome.error)
    if code == MODIFIED_CODE:
        return encode_modified(outcome.delivery_failed, outcome.undeliverable_here, outcome.message_annotations)
    if code == RECEIVED:
        return described_list(RECEIVED, [encode_uint(outcome.section_number), encode_ulong(outcome.section_offset)])
    if code == DECLARED:
        return encode_declared(outcome.txn_id or b"")
    if code == TRANSACTIONAL:
        inner = b"" if outcome.inner is None else encode_outcome(outcome.inner)
        return encode_transactional(outcome.txn_id or b"", inner)
    return b""
