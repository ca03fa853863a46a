"""The last hour of a namespace: sampled by a steady clock, bounded, and a part of the broker's time that is small whatever it holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tandem.server.history import COLUMNS, KEPT_MS, SAMPLES_MAX, NamespaceHistory, disk_bytes
from tandem.testing import Bus
from tandem.testing.clock import ManualClock


@pytest.fixture(scope="module")
def bus() -> Iterator[Bus]:
    with Bus() as running:
        running.create_queue("orders")
        yield running


def history_of(bus: Bus, clock: ManualClock) -> NamespaceHistory:
    server = bus._server
    assert server is not None
    found = NamespaceHistory(server.contexts[0], None, server.loop_lag)
    found._clock = clock
    return found


def test_an_hour_is_kept_and_no_more(bus: Bus) -> None:
    clock = ManualClock()
    history = history_of(bus, clock)
    for _ in range(SAMPLES_MAX + 100):
        clock.advance(1)
        history.look_after(clock.now_ms())
    kept = history.columns()
    assert set(kept) == set(COLUMNS) and {len(column) for column in kept.values()} == {SAMPLES_MAX}
    for _ in range(100):
        clock.advance(60)
        history.look_after(clock.now_ms())
    at = history.columns()["at_ms"]
    assert at[0] >= at[-1] - KEPT_MS


def test_samples_come_once_a_second_however_often_it_is_asked(bus: Bus) -> None:
    clock = ManualClock()
    history = history_of(bus, clock)
    for _ in range(40):
        clock.advance(0.25)
        history.look_after(clock.now_ms())
    assert len(history.columns()["at_ms"]) == 10


def test_a_directory_that_is_gone_costs_nobody_anything(tmp_path: object) -> None:
    from pathlib import Path

    assert disk_bytes(Path(str(tmp_path)) / "gone") == (0, 0) and disk_bytes(Path(str(tmp_path)))[1] > 0
