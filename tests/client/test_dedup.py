from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.client.dedup import MemorySeenIds, SeenIds, SqliteSeenIds


@pytest.fixture(params=["memory", "sqlite"])
async def make_seen(request, tmp_path: Path):
    made: list[SeenIds] = []

    def make(**bounds) -> SeenIds:
        seen = MemorySeenIds(**bounds) if request.param == "memory" else SqliteSeenIds(tmp_path / "seen.db", **bounds)
        made.append(seen)
        return seen

    yield make
    for seen in made:
        await seen.close()


async def test_an_id_is_seen_once_it_was_remembered(make_seen):
    seen = make_seen()
    assert not await seen.seen("q", "m", 0)
    await seen.remember("q", "m", 0)
    assert await seen.seen("q", "m", 1)
    assert not await seen.seen("other", "m", 1)


async def test_an_id_is_forgotten_when_its_time_is_over(make_seen):
    seen = make_seen(window=10)
    await seen.remember("q", "m", 0)
    assert await seen.seen("q", "m", 9_999)
    assert not await seen.seen("q", "m", 10_000)


async def test_remembering_again_starts_the_time_again(make_seen):
    seen = make_seen(window=10)
    await seen.remember("q", "m", 0)
    await seen.remember("q", "m", 8_000)
    assert await seen.seen("q", "m", 17_000)


async def test_the_oldest_ids_go_when_there_are_too_many(make_seen):
    seen = make_seen(count_max=100)
    for i in range(1_001):
        await seen.remember("q", str(i), i)
    assert not await seen.seen("q", "0", 1_001)
    assert await seen.seen("q", "1000", 1_001)


@pytest.mark.parametrize("bounds", [{"window": 0}, {"count_max": 0}])
async def test_bounds_must_be_positive(make_seen, bounds):
    with pytest.raises(ValueError, match="greater than 0"):
        make_seen(**bounds)


async def test_ids_on_disk_survive_sigkill(tmp_path: Path):
    program = (
        "import asyncio, sys, os, signal\n"
        "from tandem.client.dedup import SqliteSeenIds\n"
        "async def main():\n"
        "    seen = SqliteSeenIds(sys.argv[1])\n"
        "    for i in range(20):\n"
        "        await seen.remember('q', str(i), 0)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    path = tmp_path / "seen.db"
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    seen = SqliteSeenIds(path)
    assert all([await seen.seen("q", str(i), 1) for i in range(20)])
    await seen.close()
