"""A cluster whose stores live in two engines: the first of the session, and one of its own that may be stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tandem.testing.postgres import PostgresEngine
from tests.cluster.nodes import Cluster

PLAIN = [f"q{number}" for number in range(4)]
STALL_MS = 3_000
CONFIG = (
    '[cluster]\nlease = "{lease}ms"\ndurability = "assumed"\nstall_deadline = "{stall}ms"\n'
    '[[cluster.more_engines]]\nname = "second"\nengine = "{second}"\nstores = [2, 3]\n'
    '[[queue]]\nname = "p"\nenable_partitioning = true\nlock_duration = "5s"\n'
) + "".join(f'[[queue]]\nname = "{name}"\nlock_duration = "5s"\n' for name in PLAIN)


class TwoEngines(Cluster):
    """Stores 0 and 1 in the first engine, 2 and 3 in the second."""

    def __init__(self, directory: Path, first: str, second: PostgresEngine, database: str, config: str = CONFIG) -> None:
        self.engine = second
        self.second = second.primary.dsn(database)
        super().__init__(directory, first, config=config.replace("{second}", self.second).replace("{stall}", str(STALL_MS)), peers=True)

    def init(self) -> str:
        command = [sys.executable, "-m", "tandem", "cluster", "init", "--config", "tandem.toml", "--engine", self.dsn]
        done = subprocess.run(
            [*command, "--secret-file", "secret"], cwd=self.directory, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def owners(self) -> list[str]:
        """Of stores 0 to 3, by the rows in both engines."""
        found = {}
        for dsn in (self.dsn, self.second):
            with psycopg.connect(dsn, autocommit=True) as connection:
                found.update(connection.execute("SELECT number, owner FROM tandem.store").fetchall())
        return [found[number] for number in sorted(found)]

    def queue_in(self, *stores: int) -> str:
        """A plain queue that lives in one of these."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            sql = "SELECT path FROM tandem.entity WHERE store = ANY(%s) AND path LIKE 'q%%' ORDER BY path"
            rows = connection.execute(sql, (list(stores),)).fetchall()
        return str(rows[0][0])

    @contextmanager
    def second_away(self) -> Iterator[None]:
        self.engine.primary.stop(signal.SIGQUIT)
        try:
            yield
        finally:
            self.engine.primary.start()
