"""A process is killed at random instants while it writes, again and again, and what it was promised is compared with what is there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tandem.stores import SegmentStore, verify
from tests.stores.harness import Fetched, Loop, ManualClock, Shop
from tests.stores.story import Verdict
from tests.stores.torture_child import SETTINGS, body_of

ROUNDS = int(os.environ.get("TANDEM_TORTURE_ROUNDS", "12"))
ROOT = Path(__file__).resolve().parents[2]


class Promises:
    def __init__(self) -> None:
        self.put: set[tuple[int, int]] = set()
        self.settle_tried: set[tuple[int, int]] = set()
        self.settled: set[tuple[int, int]] = set()

    def read(self, line: str) -> None:
        word, *rest = line.split()
        if word == "open" or len(rest) != 2:
            return
        name = (int(rest[0]), int(rest[1]))
        {"t": self.settle_tried, "p": self.put, "s": self.settled}[word].add(name)


def one_life(directory: Path, seed: int, promises: Promises) -> int:
    """Lines read before the end."""
    random = Random(seed)
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.stores.torture_child", str(directory), str(seed)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(ROOT)])},
    )
    assert child.stdout is not None
    wanted = random.randint(1, 3_000)
    count = 0
    for line in child.stdout:
        promises.read(line)
        count += 1
        if count == wanted:
            child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    return count


def examine(directory: Path, promises: Promises) -> Verdict:
    loop = Loop()
    shop = Shop()
    store = SegmentStore(directory, loop.call, SETTINGS, ManualClock())
    shop.journal = store
    store.replay(shop)
    names = sorted(shop.messages)
    effect = Fetched()
    store.fetch([shop.messages[name][1] for name in names], effect)
    loop.run_until(lambda: effect.arrived)
    assert effect.error is None
    assert effect.bodies is not None
    there = set(names)
    verdict = Verdict(
        lost=len(promises.put - promises.settle_tried - there),
        duplicated=len(promises.settled & there),
        recovered=len(there - promises.put),
        unexpected=sum(body != body_of(*name) for name, body in zip(names, effect.bodies, strict=True)),
    )
    promises.put |= there
    promises.settle_tried -= there
    store.close()
    return verdict


@pytest.mark.slow
def test_a_process_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    promises = Promises()
    recovered = lines = 0
    for seed in range(ROUNDS):
        lines += one_life(tmp_path / "store", seed, promises)
        verdict = examine(tmp_path / "store", promises)
        assert verdict.clean, (seed, verdict)
        recovered += verdict.recovered
        assert verify(tmp_path / "store").problems == []
    assert len(promises.settled) > 100
    assert lines > ROUNDS
