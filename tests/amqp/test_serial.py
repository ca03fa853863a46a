from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tandem.amqp.serial import add, difference


def test_numbers_wrap_at_32_bits() -> None:
    assert add(0xFFFFFFFF, 1) == 0
    assert add(0xFFFFFFF0, 0x20) == 0x10
    assert difference(0, 0xFFFFFFFF) == 1
    assert difference(0xFFFFFFFF, 0) == -1
    assert difference(0x80000000, 0) == -0x80000000


@given(st.integers(0, 0xFFFFFFFF), st.integers(-0x80000000, 0x7FFFFFFF))
def test_difference_undoes_add(a: int, n: int) -> None:
    assert difference(add(a, n), a) == n
