"""One browser for each module that looks at the console."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.console.browser import Browser, a_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with a_browser() as running:
        yield running
