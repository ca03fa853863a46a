"""The compiled package against its source: the same bytes to both, the same answers from both, nothing escapes from either.

`make fuzz FRAMES=100000000` for hours; `test_differential.py` plays a fixed number of frames with every run of the tests.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src"
BLOCK_FRAMES = 4_000
BATCH_BLOCKS = 250
"""Blocks one process plays before a new one takes over."""


def compiled_place() -> Path | str:
    """Where the compiled package is; or why there is none to compare with."""
    place = os.environ.get("TANDEM_COMPILED")
    if place is None:
        bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        ask = "import tandem, pathlib; print(pathlib.Path(tandem.__file__).parent.parent)"
        found = subprocess.run([sys.executable, "-P", "-c", ask], env=bare, capture_output=True, text=True, cwd="/", check=False)
        if found.returncode:
            return "tandem is not installed"
        place = found.stdout.strip()
    package = Path(place) / "tandem"
    if not list(package.rglob("*.so")):
        return f"the tandem in {place} is not compiled"
    for path in sorted(SOURCE.rglob("*.py")):
        installed = package / path.relative_to(SOURCE / "tandem")
        if not installed.exists() or installed.read_bytes() != path.read_bytes():
            return f"the tandem in {place} was built from another source: {path.relative_to(SOURCE)} differs"
    return Path(place)


@dataclass
class Difference:
    block: int
    frame: str
    source: str
    compiled: str

    def __str__(self) -> str:
        return f"block {self.block}, frame {self.frame}:\n  source   {self.source}\n  compiled {self.compiled}"


def _run(place: Path, first: int, count: int, frames: int, *options: str) -> subprocess.Popen[str]:
    environ = os.environ | {"PYTHONPATH": f"{place}{os.pathsep}{ROOT}", "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-P", "-m", "tests.differential.answers", str(first), str(count), str(frames), *options]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True, cwd="/")


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:
        yield line.rstrip("\n")
    if process.wait():
        yield f"ended with {process.returncode}"


def _narrow(compiled: Path, block: int, frames: int) -> Difference:
    """Which frame of a block is answered differently."""
    runs = [_run(place, block, 1, frames, "--each") for place in (SOURCE, compiled)]
    for number, (ours, theirs) in enumerate(zip(*map(_lines, runs), strict=False)):
        if number and ours != theirs:
            for run in runs:
                run.kill()
            return Difference(block, ours[:4000], ours[-4000:], theirs[-4000:])
    return Difference(block, "none alone", "only together with the frames before it", "")


def compare(compiled: Path, first: int, blocks: int, frames: int = BLOCK_FRAMES) -> Iterator[Difference | str | None]:
    """After each block: None, a difference, or what escaped."""
    runs = [_run(place, first, blocks, frames) for place in (SOURCE, compiled)]
    try:
        for number, (ours, theirs) in enumerate(zip(*map(_lines, runs), strict=False)):
            if number == 0:
                assert (ours, theirs) == ("source", "compiled"), f"compared {ours} with {theirs}"
            elif ours != theirs:
                yield _narrow(compiled, first + number - 1, frames)
            elif len(ours.split(" ")) != 3:
                yield ours
            else:
                yield None
    finally:
        for run in runs:
            run.kill()
            run.communicate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=int(os.environ.get("TANDEM_FUZZ_FRAMES", "1000000")))
    parser.add_argument("--seed", type=int, default=1, help="the first block")
    chosen = parser.parse_args()
    compiled = compiled_place()
    if isinstance(compiled, str):
        print(compiled)
        return 2
    began, played, found = time.monotonic(), 0, 0
    blocks = -(-chosen.frames // BLOCK_FRAMES)
    for first in range(chosen.seed, chosen.seed + blocks, BATCH_BLOCKS):
        for outcome in compare(compiled, first, min(BATCH_BLOCKS, chosen.seed + blocks - first)):
            played += BLOCK_FRAMES
            if outcome is not None:
                found += 1
                print(outcome, flush=True)
        rate = played / (time.monotonic() - began)
        print(f"{played} frames, {found} differences, {rate:.0f} frames/s", flush=True)
        if found > 20:
            break
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
