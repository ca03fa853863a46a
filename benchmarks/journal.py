"""What the append log costs: CPU per record at several group sizes, syncs, replay, reading back.

    python benchmarks/journal.py [--directory DIR] [--records N] [--json]

CPU is the process's, all threads. Half of the records are 1 KB messages, half are settlements, as in a queue that keeps up.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import tandem.stores.segment as segment_module
from tandem.broker.facts import ENQUEUED, SETTLED, pack_key
from tandem.broker.ports import Effect, FetchEffect
from tandem.model.clock import SystemClock
from tandem.stores import LogSettings, SegmentStore

BODY = bytes(range(256)) * 4 + b"some more of it " * 4
KEY = pack_key(b"\xa1\x24" + b"0123456789abcdef0123456789abcdef0123", None, 0, 0)


class Loop:
    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.crossings = 0

    def call(self, function: Callable[[], None]) -> None:
        self._calls.put(function)

    def run_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._calls.get()()
            self.crossings += 1


class Done(Effect):
    def __init__(self) -> None:
        self.count = 0

    def done(self, error: BaseException | None) -> None:
        if error is not None:
            raise error
        self.count += 1


class Bodies(FetchEffect):
    def __init__(self) -> None:
        self.count = 0

    def fetched(self, bodies: list[bytes], error: BaseException | None) -> None:
        if error is not None:
            raise error
        self.count += len(bodies)


class Nobody:
    """A tenant that only counts."""

    def __init__(self) -> None:
        self.count = 0
        self.locations: list[int] = []

    def replayed(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, location: int, body_bytes: int) -> None:
        self.count += 1

    def relocate(
        self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes | None, location: int
    ) -> bool:
        return False

    def segment_leaving(self, entities: set[int]) -> None: ...

    def numbers_begin_at(self, seq: int, entity_max: int) -> None:
        """Its numbers begin at one."""


def open_store(directory: Path, loop: Loop, tenant: Nobody) -> SegmentStore:
    store = SegmentStore(directory, loop.call, LogSettings(), SystemClock())
    store.replay(tenant)
    return store


def measure_groups(directory: Path, size: int, records: int) -> dict[str, float]:
    """`size` records per group, and one effect per group; the next group is appended when the last one is durable."""
    loop = Loop()
    store = open_store(directory, loop, Nobody())
    done = Done()
    groups = max(1, min(records // size, 3_000))
    seq = 0
    cpu, wall, appending = time.process_time(), time.perf_counter(), 0.0
    for group in range(groups):
        began = time.thread_time()
        for _ in range((size + 1) // 2):
            seq += 1
            store.append(ENQUEUED, 0, 4, seq, 1_700_000_000_000, 1_700_000_900_000, KEY, BODY)
        for _ in range(size // 2):
            store.append(SETTLED, 0, 4, seq, 1_700_000_000_000, 0, b"", b"")
        appending += time.thread_time() - began
        store.when_durable(done)
        store.flush()
        loop.run_until(lambda group=group: done.count > group)  # type: ignore[misc]
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    syncs = store.sync_count
    store.close()
    total = groups * size
    return {
        "group": size,
        "records": total,
        "append_us": appending / total * 1e6,
        "cpu_us": cpu / total * 1e6,
        "commit_ms": wall / groups * 1e3,
        "records_per_s": total / wall,
        "syncs": syncs,
        "loop_calls_per_commit": loop.crossings / syncs,
    }


def measure_append(directory: Path, body: bytes, records: int) -> float:
    """Microseconds per append alone, the committer idle."""
    loop = Loop()
    store = open_store(directory, loop, Nobody())
    best = 1e9
    append = store.append
    for _ in range(5):
        done = Done()
        began = time.thread_time()
        for seq in range(records // 5):
            append(ENQUEUED, 0, 4, seq, 1_700_000_000_000, 1_700_000_900_000, KEY, body)
        best = min(best, time.thread_time() - began)
        store.when_durable(done)
        store.flush()
        loop.run_until(lambda done=done: done.count > 0)  # type: ignore[misc]
    store.close()
    return best / (records // 5) * 1e6


def measure_backlog(directory: Path, records: int) -> dict[str, float]:
    """Fill with messages, open again (indexes), read everything back in order."""
    loop = Loop()
    store = open_store(directory, loop, Nobody())
    locations: list[int] = []
    done = Done()
    waited = 0
    for seq in range(records):
        locations.append(store.append(ENQUEUED, 0, 4, seq, 1_700_000_000_000, 1_700_000_900_000, KEY, BODY))
        if seq % 512 == 511:
            store.when_durable(done)
            store.flush()
            waited += 1
            loop.run_until(lambda waited=waited: done.count >= waited - 1)  # type: ignore[misc]
    store.close()
    tenant = Nobody()
    began = time.perf_counter()
    store = open_store(directory, loop, tenant)
    replay = time.perf_counter() - began
    bodies = Bodies()
    cpu, began = time.process_time(), time.perf_counter()
    for at in range(0, records, 256):
        store.fetch(locations[at : at + 256], bodies)
        loop.run_until(lambda at=at: bodies.count >= min(at + 256, records))  # type: ignore[misc]
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    read_in_full = store.recovery.segments_read_in_full
    store.close()
    return {
        "messages": records,
        "replayed": tenant.count,
        "replay_s": replay,
        "replay_us": replay / records * 1e6,
        "segments_read_in_full": read_in_full,
        "fetch_us": wall / records * 1e6,
        "fetch_cpu_us": cpu / records * 1e6,
        "fetch_mb_per_s": records * len(BODY) / wall / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, help="on the disk to measure; a temporary one below it is used")
    parser.add_argument("--records", type=int, default=200_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="journal-", dir=arguments.directory))
    compiled = not str(segment_module.__file__).endswith(".py")
    try:
        result = {
            "compiled": compiled,
            "python": sys.version.split()[0],
            "append_1k_us": measure_append(base / "append", BODY, arguments.records),
            "append_empty_us": measure_append(base / "empty", b"", arguments.records),
            "groups": [measure_groups(base / f"group-{size}", size, arguments.records) for size in (1, 16, 128, 1024)],
            "backlog": measure_backlog(base / "backlog", arguments.records),
        }
    finally:
        shutil.rmtree(base)
    if arguments.json:
        print(json.dumps(result))
        return
    print(f"{'compiled' if compiled else 'uncompiled'}, Python {result['python']}")
    print(f"append alone: {result['append_1k_us']:.2f} us with 1 KB, {result['append_empty_us']:.2f} us without a body")
    for row in result["groups"]:  # type: ignore[attr-defined]
        print(
            f"group {row['group']:>5}: append {row['append_us']:.2f} us, CPU {row['cpu_us']:.2f} us/record,"
            f" commit {row['commit_ms']:.2f} ms, {row['records_per_s']:,.0f} records/s, {row['syncs']} syncs,"
            f" {row['loop_calls_per_commit']:.2f} loop calls/commit"
        )
    backlog: dict[str, float] = result["backlog"]  # type: ignore[assignment]
    print(
        f"backlog of {backlog['messages']:,} messages: replay {backlog['replay_s']:.2f} s ({backlog['replay_us']:.2f} us each,"
        f" {backlog['segments_read_in_full']} segments read in full),"
        f" read back in order {backlog['fetch_us']:.2f} us each ({backlog['fetch_cpu_us']:.2f} us CPU,"
        f" {backlog['fetch_mb_per_s']:.0f} MB/s)"
    )


if __name__ == "__main__":
    main()
