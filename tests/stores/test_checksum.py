"""Whoever computes it, the number is the same: a journal may move between machines."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.stores import checksum


@given(st.binary(max_size=3_000), st.integers(0, 0xFFFF_FFFF))
def test_it_is_the_crc_of_zlib(data: bytes, start: int) -> None:
    assert checksum.crc32(data, start) == zlib.crc32(data, start)
    assert checksum.crc32(memoryview(data)[1:]) == zlib.crc32(data[1:])


def test_the_processor_computes_it_where_that_is_possible() -> None:
    pytest.importorskip("isal")
    assert checksum.crc32 is not zlib.crc32
