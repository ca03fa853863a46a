"""The compiled package against its source: the same bytes to both, the same answers from both, nothing escapes from either.

`make fuzz FRAMES=100000000 ARGS="--source-every 10 --processes 2"` for an hour; `test_differential.py` plays a fixed number of frames with
every run of the tests, all of them to both.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src"
BLOCK_FRAMES = 4_000
WARM_BLOCKS = 20
"""Until then a process is still filling its caches."""
GROWTH_KB_MAX = 65_536
FOUND_MAX = 20
TELL_SECONDS = 30.0


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


class Failed(Exception):
    """A process ended before its time."""


@dataclass
class Tally:
    """What was played so far."""

    compiled: int = 0
    """Frames that the compiled package was sent."""
    both: int = 0
    """Those among them that its source was sent too, and the answers compared."""
    connections: int = 0
    found: int = 0
    warm_kb: int = 0
    """Memory of the compiled process when it was warm, and now; with several, of the one that grew the most."""
    now_kb: int = 0

    def __str__(self) -> str:
        memory = f"RSS {self.warm_kb // 1024} MB when warm, {self.now_kb // 1024} MB now" if self.warm_kb else "not warm yet"
        return (
            f"{self.compiled} frames to the compiled package, {self.both} of them to its source too, "
            f"on {self.connections} connections; {self.found} found; {memory}"
        )


@dataclass(frozen=True)
class Share:
    """The blocks of one pair of processes: every `step`th. Those whose number is a multiple of `every` go to the source too."""

    first: int
    end: int
    step: int = 1
    every: int = 1
    frames: int = BLOCK_FRAMES

    def blocks(self) -> list[int]:
        return list(range(self.first, self.end, self.step))

    def both(self) -> list[int]:
        return [block for block in self.blocks() if block % self.every == 0]


class Side:
    """A process that plays blocks, and what it says of them."""

    def __init__(self, place: Path, name: str, blocks: list[int], frames: int, *options: str) -> None:
        environ = os.environ | {"PYTHONPATH": f"{place}{os.pathsep}{ROOT}", "PYTHONHASHSEED": "0"}
        step = blocks[1] - blocks[0] if len(blocks) > 1 else 1
        numbers = (blocks[0], blocks[-1] + 1, step, frames)
        command = [sys.executable, "-P", "-m", "tests.differential.answers", *map(str, numbers), *options]
        self.process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True, cwd="/")
        self.rss_kb = 0
        self.connections = 0
        said = self.line()
        assert said == name, f"compared {said} with {name}"

    def line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"ended with {self.process.wait()}")
        return line.rstrip("\n")

    def block(self) -> str:
        """The next one: its number, its digest, and what broke."""
        while not (line := self.line()).startswith("block "):
            _, rss_kb, connections = line.split(" ")
            self.rss_kb = int(rss_kb)
            self.connections = int(connections)
        return line

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def _narrow(compiled: Path, block: int, frames: int) -> Difference:
    """Which frame of a block is answered differently. Of a connection's, one of the last few: they are not looked at one by one."""
    sides = [Side(place, name, [block], frames, "--each") for place, name in ((SOURCE, "source"), (compiled, "compiled"))]
    try:
        for _ in range(frames):
            ours, theirs = (side.line() for side in sides)
            if ours != theirs:
                return Difference(block, ours[:4000], ours[-4000:], theirs[-4000:])
    except Failed as ended:
        return Difference(block, "at which a process ended", str(ended), "")
    finally:
        for side in sides:
            side.end()
    return Difference(block, "none alone", "only together with the frames before it", "")


def play(compiled: Path, share: Share, tally: Tally) -> Iterator[Difference | str | None]:
    """After each block: None, a difference, or what escaped."""
    fast = Side(compiled, "compiled", share.blocks(), share.frames)
    slow = Side(SOURCE, "source", share.both(), share.frames) if share.both() else None
    warm_kb = 0
    try:
        for number, block in enumerate(share.blocks()):
            theirs = fast.block()
            ours = slow.block() if slow is not None and block % share.every == 0 else theirs
            tally.compiled += share.frames
            tally.both += share.frames if ours is not theirs else 0
            tally.connections += fast.connections
            if number == WARM_BLOCKS:
                warm_kb = fast.rss_kb
            if warm_kb and fast.rss_kb - warm_kb >= tally.now_kb - tally.warm_kb:
                tally.warm_kb, tally.now_kb = warm_kb, fast.rss_kb
            if ours != theirs:
                yield _narrow(compiled, block, share.frames)
            elif len(ours.split(" ")) != 3:
                yield ours
            elif warm_kb and fast.rss_kb - warm_kb > GROWTH_KB_MAX:
                yield f"block {block}: the compiled process has grown from {warm_kb} to {fast.rss_kb} kB"
                warm_kb = fast.rss_kb
            else:
                yield None
    except Failed as ended:
        yield f"a process {ended} in block {block} or soon after it"
    finally:
        for side in (fast, slow):
            if side is not None:
                side.end()


def compare(compiled: Path, first: int, blocks: int) -> Iterator[Difference | str | None]:
    """Every frame to both."""
    return play(compiled, Share(first, first + blocks), Tally())


def _play_all(compiled: Path, shares: list[Share], tally: Tally) -> None:
    """Each share with processes of its own; a thread for each only waits for lines."""
    began = told = time.monotonic()
    outcomes: SimpleQueue[Difference | str | type[StopIteration] | None] = SimpleQueue()

    def follow(share: Share) -> None:
        for outcome in play(compiled, share, tally):
            outcomes.put(outcome)
        outcomes.put(StopIteration)

    for share in shares:
        Thread(target=follow, args=(share,), daemon=True).start()
    going = len(shares)
    while going and tally.found <= FOUND_MAX:
        outcome = outcomes.get()
        if outcome is StopIteration:
            going -= 1
        elif outcome is not None:
            tally.found += 1
            print(outcome, flush=True)
        if time.monotonic() - told > TELL_SECONDS or not going:
            told = time.monotonic()
            print(f"{tally}; {tally.compiled / (told - began):.0f} frames/s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=int(os.environ.get("TANDEM_FUZZ_FRAMES", "1000000")))
    parser.add_argument(
        "--seed", type=int, default=1, help=f"the first block; each has {BLOCK_FRAMES} frames, and a long run may be done in pieces"
    )
    parser.add_argument(
        "--source-every", type=int, default=1, metavar="N", help="one block in N goes to the source too, which is the slower half"
    )
    parser.add_argument("--processes", type=int, default=1, help="pairs of processes")
    chosen = parser.parse_args()
    compiled = compiled_place()
    if isinstance(compiled, str):
        print(compiled)
        return 2
    end = chosen.seed - (-chosen.frames // BLOCK_FRAMES)
    shares = [Share(chosen.seed + n, end, chosen.processes, chosen.source_every) for n in range(chosen.processes)]
    tally = Tally()
    _play_all(compiled, [share for share in shares if share.blocks()], tally)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"blocks {chosen.seed} to {end - 1} in {used.ru_utime + used.ru_stime:.0f} s of CPU; the next piece: --seed {end}")
    return 1 if tally.found else 0


if __name__ == "__main__":
    sys.exit(main())
