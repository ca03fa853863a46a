"""Runs seeds, one or many of them, and says whether every promise held.

python -m tandem.simulator --seed 7                                one story, told as it happens with --verbose
python -m tandem.simulator --seeds 1-500 --processes 2 --seconds 80
"""

from __future__ import annotations

import argparse
import gc
import itertools
import logging
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any

from tandem.simulator.checker import CheckResult
from tandem.simulator.simulate import STORIES, STORY_SECONDS, SeedOutcome, simulate

_TELL_SECONDS = 30.0
_SEEDS_AT_ONCE = 8
"""What a process takes at a time."""


class SeedTotals:
    """What became of many seeds."""

    def __init__(self, seeds: range) -> None:
        self._seeds = seeds
        self._began = time.monotonic()
        self.done = 0
        self.broken: list[int] = []
        self._simulated = self._cpu = 0.0
        self._counts = Counter[str]()
        self._faults = Counter[str]()

    def add(self, outcome: SeedOutcome) -> None:
        self.done += 1
        self._simulated += outcome.simulated_seconds
        self._cpu += outcome.cpu_seconds
        self._faults.update(outcome.faults)
        counts = {
            "deliveries": outcome.verdict.seen,
            "events": outcome.events,
            "checks": outcome.checks,
            "replays": outcome.replays_compared,
        }
        self._counts.update(counts)
        if outcome.broken:
            self.broken.append(outcome.seed)

    def __str__(self) -> str:
        speed = self._simulated / max(self._cpu, 1e-9)
        rate = self.done / max(time.monotonic() - self._began, 1e-9)
        return (
            f"{self.done} of the seeds {self._seeds.start}-{self._seeds.stop - 1}: {len(self.broken)} broken, "
            f"{self._simulated / 3600:.1f} hours at {speed:.0f}x, {self._cpu / self.done:.2f} s of CPU a seed, {rate:.2f} seeds/s"
        )

    def summary(self) -> str:
        """What all of it was, so that nobody takes a quiet run for a thorough one."""
        counts = self._counts
        faults = ", ".join(f"{count} {kind}" for kind, count in sorted(self._faults.items()))
        looks = f"{counts['checks']} looks inside a broker, {counts['replays']} stores compared with a replay"
        return (
            f"{counts['deliveries']} deliveries, {counts['events']} events; {looks}\n"
            f"{self._faults.total()} faults: {faults}\nbroken: {sorted(self.broken) or 'none'}"
        )


class ProcessDied(Exception):
    """Of a seed: not even a broken promise was told."""


def outcomes(seeds: range, story: str, story_seconds: float, processes: int) -> Iterator[SeedOutcome]:
    """In no order if there are several processes: a seed's story does not depend on the process that tells it.

    A process tells a few and ends: that is cheaper than to collect what they leave behind, a fifth of the whole.
    """
    context = multiprocessing.get_context("fork")
    simulate(seeds[0], story=story, story_seconds=1.0)  # whatever is loaded late is loaded now, once
    gc.collect()
    gc.freeze()
    batches = iter([seeds[at : at + _SEEDS_AT_ONCE] for at in range(0, len(seeds), _SEEDS_AT_ONCE)])
    going: dict[Connection, tuple[ForkProcess, list[int]]] = {}
    try:
        while True:
            for batch in itertools.islice(batches, processes - len(going)):
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_tell, args=(theirs, batch, story, story_seconds), daemon=True)
                process.start()
                theirs.close()
                going[ours] = process, list(batch)
            if not going:
                return
            for ready in wait(list(going)):
                assert isinstance(ready, Connection)
                process, left = going[ready]
                try:
                    told: dict[str, Any] = ready.recv()
                except EOFError:
                    process.join()
                    del going[ready]
                    if left:
                        raise ProcessDied(f"the process that told seed {left[0]} ended with {process.exitcode}") from None
                else:
                    left.remove(told["seed"])
                    yield SeedOutcome(**(told | {"verdict": CheckResult(**told["verdict"])}))
    finally:
        for process, _ in going.values():
            process.kill()


def _tell(to: Connection, seeds: range, story: str, story_seconds: float) -> None:
    gc.disable()
    for seed in seeds:
        to.send(asdict(simulate(seed, story=story, story_seconds=story_seconds)))  # what is compiled cannot be unpickled
    to.close()
    os._exit(0)  # nothing of it is worth being taken apart


def seeds_of(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1, help="how many seeds, counting up")
    parser.add_argument("--seeds", type=seeds_of, metavar="FIRST-LAST", help="these instead: a long run may be done in pieces")
    parser.add_argument("--processes", type=int, default=1, help="how many tell stories at the same time")
    parser.add_argument("--seconds", type=float, default=STORY_SECONDS, help="virtual seconds before the last fault ends")
    parser.add_argument(
        "--story", choices=tuple(STORIES), default="outage", help="what else goes wrong: a namespace, or the issuer of tokens"
    )
    parser.add_argument("--verbose", action="store_true", help="print every event of one seed with its virtual instant")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    logging.disable(logging.CRITICAL)  # the client layer's warnings are events of the story already
    seeds: range = arguments.seeds or range(arguments.seed, arguments.seed + arguments.count)
    if len(seeds) == 1:
        outcome = simulate(seeds[0], story_seconds=arguments.seconds, verbose=arguments.verbose, story=arguments.story)
        if outcome.broken:
            print(*outcome.last_events, sep="\n")
        print(outcome, flush=True)
        return 1 if outcome.broken else 0
    totals = SeedTotals(seeds)
    told = time.monotonic()
    for outcome in outcomes(seeds, arguments.story, arguments.seconds, arguments.processes):
        totals.add(outcome)
        if outcome.broken:
            print(*outcome.last_events, outcome, sep="\n", flush=True)
        if time.monotonic() - told > _TELL_SECONDS or totals.done == len(seeds):
            told = time.monotonic()
            print(totals, flush=True)
    print(totals.summary())
    return 1 if totals.broken else 0
