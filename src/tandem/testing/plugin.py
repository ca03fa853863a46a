"""The pytest plug-in: whoever has Tandem installed has the fixture `tandem_bus`, without any configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tandem.testing.bus import Bus


@pytest.fixture
def tandem_bus() -> Iterator[Bus]:
    """A broker of its own for this test, empty, in memory, on a clock that `tandem_bus.advance(seconds)` moves."""
    from tandem.testing.bus import Bus  # here: a test run that does not use it should not pay for it

    with Bus() as bus:
        yield bus
