"""Hypothesis strategies for AMQP values, and equality that sees types as well as values."""

from __future__ import annotations

import math
import uuid

from hypothesis import strategies as st

from tandem import amqp

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(["x" * 255, "x" * 256, "é" * 128])
SYMBOLS = st.text(st.characters(max_codepoint=127), max_size=40).map(amqp.Symbol)
BINARY = st.binary(max_size=40) | st.sampled_from([b"x" * 255, b"x" * 256])


def integers(kind: type[int], low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high).map(kind)


SCALARS: st.SearchStrategy[object] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-130, 130),
    st.floats(),
    st.floats(width=32).map(amqp.Float),
    TEXT,
    BINARY,
    SYMBOLS,
    st.uuids(),
    integers(amqp.UByte, 0, 255),
    integers(amqp.UShort, 0, 65535),
    integers(amqp.UInt, 0, 2**32 - 1),
    integers(amqp.UInt, 0, 300),
    integers(amqp.ULong, 0, 2**64 - 1),
    integers(amqp.ULong, 0, 300),
    integers(amqp.Byte, -128, 127),
    integers(amqp.Short, -32768, 32767),
    integers(amqp.Int, -(2**31), 2**31 - 1),
    integers(amqp.Timestamp, -(2**63), 2**63 - 1),
    st.characters(exclude_categories=["Cs"]).map(amqp.Char),
    st.binary(min_size=4, max_size=4).map(amqp.Decimal32),
    st.binary(min_size=8, max_size=8).map(amqp.Decimal64),
    st.binary(min_size=16, max_size=16).map(amqp.Decimal128),
)
ARRAYS: st.SearchStrategy[object] = st.one_of(
    st.lists(st.uuids(), max_size=20).map(lambda v: amqp.Array(0x98, v)),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40).map(lambda v: amqp.Array(0x81, v)),
    st.lists(integers(amqp.Timestamp, 0, 2**48), max_size=20).map(lambda v: amqp.Array(0x83, v)),
    st.lists(TEXT, max_size=20).map(lambda v: amqp.Array(0xB1, v)),
    st.lists(SYMBOLS, max_size=20).map(lambda v: amqp.Array(0xB3, v)),
    st.lists(st.booleans(), max_size=20).map(lambda v: amqp.Array(0x56, v)),
)
KEYS = st.one_of(TEXT, SYMBOLS, integers(amqp.ULong, 0, 2**64 - 1), st.uuids())
VALUES: st.SearchStrategy[object] = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=8),
        st.dictionaries(KEYS, inner, max_size=8),
        st.tuples(integers(amqp.ULong, 0, 2**64 - 1) | SYMBOLS, inner).map(lambda pair: amqp.Described(*pair)),
    ),
    max_leaves=30,
)


def same(a: object, b: object) -> bool:
    """Equal in value and in type, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return len(a) == len(b) and all(map(same, a.keys(), b.keys())) and all(map(same, a.values(), b.values()))
    if isinstance(a, amqp.Described) and isinstance(b, amqp.Described):
        return same(a.descriptor, b.descriptor) and same(a.value, b.value)
    if isinstance(a, amqp.Array) and isinstance(b, amqp.Array):
        return a.type_code == b.type_code and same(a.values, b.values)
    return a == b


MESSAGE_PARTS = st.fixed_dictionaries(
    {
        "header": st.dictionaries(st.sampled_from(["durable", "first-acquirer"]), st.booleans())
        | st.fixed_dictionaries({"ttl": integers(amqp.UInt, 0, 2**32 - 1), "delivery-count": integers(amqp.UInt, 0, 2**32 - 1)}),
        "delivery_annotations": st.dictionaries(SYMBOLS, VALUES, max_size=3),
        "message_annotations": st.dictionaries(SYMBOLS, VALUES, max_size=3),
        "properties": st.fixed_dictionaries(
            {},
            optional={
                "message-id": TEXT | st.uuids() | integers(amqp.ULong, 0, 2**64 - 1) | BINARY,
                "user-id": BINARY,
                "to": TEXT,
                "subject": TEXT,
                "correlation-id": TEXT,
                "content-type": SYMBOLS,
                "creation-time": integers(amqp.Timestamp, 0, 2**48),
                "group-id": TEXT,
                "group-sequence": integers(amqp.UInt, 0, 2**32 - 1),
            },
        ),
        "application_properties": st.dictionaries(TEXT, SCALARS, max_size=4),
        "footer": st.dictionaries(SYMBOLS, VALUES, max_size=2),
    }
)
BODIES = st.one_of(
    st.tuples(st.just(0x75), st.lists(BINARY, min_size=1, max_size=4)),
    st.tuples(st.just(0x76), st.lists(st.lists(VALUES, max_size=4), min_size=1, max_size=3)),
    st.tuples(st.just(0x77), VALUES),
    st.just((0, None)),
)
UUIDS = st.integers(0, 2**128 - 1).map(lambda n: uuid.UUID(int=n))
