"""The monitor sees what kept the loop, and the collector's pauses; and it leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import json
import random
import signal
import time
from pathlib import Path

import pytest

from tandem.cli.stalls import StallHistogram, StallMonitor
from tests.cli.broker_process import BrokerProcess


def burn(seconds: float) -> None:
    """Use so much processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_a_callback_that_keeps_the_loop_shows_as_late_and_as_busy() -> None:
    monitor = StallMonitor(asyncio.get_running_loop())
    monitor.start()
    await asyncio.sleep(0.02)
    burn(0.05)
    await asyncio.sleep(0.02)
    monitor.stop()
    found = monitor.report()
    assert found["late"]["max_ms"] >= 45
    assert found["busy"]["max_ms"] >= 45
    assert found["late"]["count"] == found["busy"]["count"] > 5
    assert monitor.report()["late"]["count"] == 0, "a report starts afresh"


async def test_waiting_is_not_being_busy() -> None:
    monitor = StallMonitor(asyncio.get_running_loop())
    monitor.start()
    await asyncio.sleep(0.005)
    await asyncio.to_thread(time.sleep, 0.05)
    monitor.stop()
    assert monitor.report()["busy"]["total_ms"] < 50


@pytest.mark.slow
async def test_pauses_of_the_collector_are_counted_until_stopped() -> None:
    before = len(gc.callbacks)
    monitor = StallMonitor(asyncio.get_running_loop())
    monitor.start()
    gc.collect()
    assert monitor.report()["gc"]["count"] == 1
    monitor.stop()
    gc.collect()
    assert monitor.report()["gc"]["count"] == 0
    assert len(gc.callbacks) == before


@pytest.mark.parametrize("percent", [0.1, 50, 90, 99, 99.9, 100])
def test_percentiles_are_right_to_within_an_eighth(percent: float) -> None:
    dice = random.Random(1)
    samples = sorted(round(10 ** dice.uniform(0, 10)) for _ in range(5000))
    histogram = StallHistogram()
    for sample in samples:
        histogram.add(sample)
    exact = samples[max(round(len(samples) * percent / 100) - 1, 0)] / 1e6
    assert exact * 0.87 <= histogram.percentile(percent) <= exact * 1.15 + 1e-6


def test_an_empty_histogram_says_zero() -> None:
    assert StallHistogram().summary()["p99.9_ms"] == 0


def test_a_broker_writes_its_stalls_where_it_is_told_to(tmp_path: Path) -> None:
    stalls = tmp_path / "stalls.jsonl"
    with BrokerProcess(tmp_path, "--memory", "--dev", "--port", "0", environ={"TANDEM_STALLS": str(stalls)}) as broker:
        broker.process.send_signal(signal.SIGUSR1)
        code, error = broker.stop()
    assert code == 0, error
    reports = [json.loads(line) for line in stalls.read_text().splitlines()]
    assert reports[-1].keys() == {"seconds", "late", "busy", "gc"}
    assert len(reports) <= 2
