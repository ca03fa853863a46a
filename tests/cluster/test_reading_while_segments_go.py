"""Journals are read while a node writes them and gives segments up: what is read is whole or refused, and nobody waits for a reader."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from tandem.model.errors import StoreUnavailable
from tandem.stores.blocks import RECORD_BYTES
from tandem.stores.postgres_reading import EngineReader, look_at, ranges_of, read_range, stores_in_engine
from tandem.testing.postgres import PostgresEngine
from tests.cluster.nodes import Cluster
from tests.spark.house import messages, send, take_all

SEGMENTS = int(os.environ.get("TANDEM_SEGMENTS_READ", "4"))
"""Given up while readers read; hundreds in the long form."""
SECONDS = int(os.environ.get("TANDEM_SECONDS_READ", "0"))
"""At least so long; an hour in the long form."""
_SLOWER_MAX = 3.0
"""By so much an append may cost the engine more at the end than it did at the beginning; beside a rotting row it was many times that."""
CONFIG = '[cluster]\nlease = "{lease}ms"\n[stores]\ncount = 1\nsegment_bytes = 1048576\n[[queue]]\nname = "q"\n'


class _Stopped(Exception):
    """It is not wanted any more, whatever it has read."""


class Appends:
    """What they cost the process of the engine that takes them, in processor time."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._process = self._find()
        self._before = 0
        """What earlier ones of those processes took."""
        self._seen: list[tuple[int, int]] = []

    def _find(self) -> int:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while True:
                found = connection.execute("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'tandem 1 %'").fetchall()
                if found:
                    return int(found[0][0])
                time.sleep(0.01)  # it is just connecting again

    def look(self, blocks: int) -> None:
        """`blocks`: the number of the last one; 0 in a segment that has just been begun."""
        spent, written = self._seen[-1] if self._seen else (0, 0)
        process = self._find()
        if process != self._process:  # the node connected again
            self._process, self._before = process, spent
        spent = self._before + int(Path(f"/proc/{process}/schedstat").read_text().split()[0])
        self._seen.append((spent, max(blocks, written)))

    def slower(self) -> float:
        """The last third against the first."""
        third = max(len(self._seen) // 3, 1)
        first, last = ((self._seen[at], self._seen[at + third]) for at in (0, len(self._seen) - 1 - third))
        early, late = ((end[0] - begin[0]) / max(end[1] - begin[1], 1) for begin, end in (first, last))
        return late / early


class Reader:
    """Reads everything, again and again."""

    def __init__(self, dsn: str, bodies: bool, pause: float = 0.0) -> None:
        """`pause`: after each block, as a job does that has more to do than to read."""
        self._dsn = dsn
        self._bodies = bodies
        self._pause = pause
        self.reads: Counter[str] = Counter()
        self.trouble: list[BaseException] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.reads["records"] += self._read()
                self.reads["whole"] += 1
            except _Stopped:
                return
            except StoreUnavailable as error:
                self.reads["refused" if "given up" in str(error) else str(error)] += 1
            except BaseException as error:
                self.trouble.append(error)
                raise

    def _read(self) -> int:
        place = look_at(self._dsn)
        reader = EngineReader(place)
        ranges = [one for row in stores_in_engine(reader) for one in ranges_of(place, reader, row)]
        reader.close()
        records = 0
        for one in ranges:
            lost: list[tuple[int, str]] = []
            blocks = 0
            for _, heads, _, _ in read_range(one, self._bodies, lost):
                blocks += 1
                records += len(heads) // RECORD_BYTES
                if self._pause and self._stopping.wait(self._pause):
                    raise _Stopped
            assert blocks == one.last - one.first + 1
            assert lost == []
        return records

    def stop(self) -> Counter[str]:
        self._stopping.set()
        self._thread.join(60)
        assert self.trouble == []
        return self.reads


@pytest.mark.slow
@pytest.mark.timeout(200 + 20 * SEGMENTS + SECONDS)
def test_readers_get_all_or_a_refusal_and_keep_nobody_from_writing_and_dropping(
    tmp_path: Path, cluster_dsn: str, postgres: PostgresEngine
) -> None:
    both = postgres.dsn(cluster_dsn.rpartition("/")[2])
    cluster = Cluster(tmp_path, both, config=CONFIG)
    try:
        node: Any = SimpleNamespace(connection_string=cluster.start("a").connection_string)
        with psycopg.connect(cluster_dsn) as forgotten:
            forgotten.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            forgotten.execute("SELECT count(*) FROM tandem.store")  # somebody's snapshot, open all the time
            readers = [Reader(cluster_dsn, bodies=False), Reader(both, bodies=True)]
            slow = Reader(cluster_dsn, bodies=False, pause=0.2)
            ends = time.monotonic() + SECONDS
            deadline = ends + 150 + 15 * SEGMENTS
            rounds, first, dropped = 0, 1, False
            appends: Appends | None = None
            while (
                first <= SEGMENTS
                or time.monotonic() < ends
                or min(reader.reads["whole"] for reader in readers) < 2
                or not slow.reads["refused"] + slow.reads["whole"]
            ):
                assert time.monotonic() < deadline, (first, [reader.reads for reader in readers])
                send(node, "q", messages(1_000, f"r{rounds}-", 1_000))
                assert len(take_all(node, "q").column("message_id") or ()) == 1_000
                rounds += 1
                with psycopg.connect(cluster_dsn) as connection:
                    first, last = connection.execute("SELECT first_segment, last_segment FROM tandem.store").fetchall()[0]
                    appends = appends or Appends(cluster_dsn)
                    appends.look(connection.execute(f"SELECT coalesce(max(number), 0) FROM tandem.b_1_{last}").fetchall()[0][0])
                    dropped = connection.execute("SELECT to_regclass('tandem.b_1_1') IS NULL").fetchall()[0][0]
            found = [reader.stop() for reader in (*readers, slow)]
        assert all(set(reads) <= {"whole", "refused", "records"} for reads in found), found
        assert dropped, "what was given up was dropped while others read"
        assert appends is not None
        assert appends.slower() < _SLOWER_MAX, "appends keep their speed"
    finally:
        cluster.close()
