"""Connections to PostgreSQL that never cancel, because a cancelled commit says success: a call is given up by closing its socket."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import conninfo

from tandem.model.clock import Clock
from tandem.model.errors import ConfigurationError, EngineAway

UNDEFINED_TABLE: Final = "42P01"
_CONNECT_SECONDS: Final = 3
_DEFAULTS: Final[dict[str, str]] = {
    "connect_timeout": str(_CONNECT_SECONDS),
    "target_session_attrs": "read-write",
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
}
"""Unless the DSN says otherwise. A machine that vanished is noticed within five seconds."""
_SESSION: Final = {
    "client_min_messages": "warning",
    "default_transaction_isolation": "read committed",
    "idle_session_timeout": "0",
    "lock_timeout": "0",
    "statement_timeout": "0",
    "synchronous_commit": "on",
    "transaction_timeout": "0",
}
"""Whatever was set for the user or the database, also since the node began. Without warnings a cancelled commit would be taken for one that
the quorum has. Older versions of PostgreSQL do not know all of these."""
_SET_SESSION: Final = (
    "SELECT set_config(name, value, false) FROM pg_settings JOIN (VALUES "
    + ", ".join(f"('{name}', '{value}')" for name, value in _SESSION.items())
    + ") AS wanted(name, value) USING (name) WHERE (name, setting) <> ('synchronous_commit', 'remote_apply')"
)
_UNKNOWN_OPTION: Final = ("invalid URI query parameter", "invalid connection option")
_ODD_PASSWORDS: Final = "In a password @ : / ? # % are written %40 %3A %2F %3F %23 %25; better keep it in ~/.pgpass"
_OF_ONE_HOST: Final = "- host: "
"""How psycopg begins what it says of each, when it has tried several."""


def parameters_of(dsn: str) -> dict[str, Any]:
    """What a DSN says. ConfigurationError if it says nothing that PostgreSQL understands."""
    try:
        found = conninfo.conninfo_to_dict(dsn)
    except (psycopg.Error, UnicodeError) as error:
        raise ConfigurationError(
            f"cluster.engine: not a connection string of PostgreSQL ({_without_values(first_line(error))}); "
            f"allowed is postgresql://user@host1,host2/database. {_ODD_PASSWORDS}"
        ) from None
    hosts, ports = (str(found.get(key, "")).split(",") for key in ("host", "port"))
    if any("@" in host[1:] for host in hosts) or not all(port.isdecimal() for port in ports if port):
        raise ConfigurationError(f"cluster.engine: a host with @, or a port that is no number; {_ODD_PASSWORDS}")
    if not found.get("host") or not found.get("dbname"):
        raise ConfigurationError("cluster.engine: names no host or no database; allowed is postgresql://user@host1,host2/database")
    return dict(found)


def _without_values(said: str) -> str:
    """What the parser quotes may be a password, or part of one."""
    if said.startswith(_UNKNOWN_OPTION):
        return said
    return said.partition(': "')[0].partition(' after "')[0]


def without_password(dsn: str) -> str:
    """For people."""
    found = parameters_of(dsn)
    ports = str(found.get("port", "5432"))
    return f"postgresql://{found.get('user', '')}@{found['host']}:{ports}/{found['dbname']}"


def first_line(error: BaseException) -> str:
    """What it says; of several hosts that were tried, what it says of each."""
    lines = str(error).strip().splitlines()
    each = [line.removeprefix("- ").rpartition("connection failed: ")[2] for line in lines if line.startswith(_OF_ONE_HOST)]
    return "; ".join(each) or (lines[0] if lines else type(error).__name__)


class Hosts:
    """The hosts of a DSN, in the order in which they are tried. One that hangs goes to the end. Callable from every thread."""

    def __init__(self, dsn: str, session: str = "", label: str = "the engine") -> None:
        """`session`: what kind of server is wanted, if not one that can be written; as libpq's `target_session_attrs`."""
        found = parameters_of(dsn)
        self.label = label
        """What it is called in errors."""
        if session:
            found.setdefault("target_session_attrs", session)
        names = str(found["host"]).split(",")
        ports = str(found.get("port", "5432")).split(",")
        ports = ports * len(names) if len(ports) == 1 else ports
        addresses = str(found["hostaddr"]).split(",") if found.get("hostaddr") else [""] * len(names)
        if not len(names) == len(ports) == len(addresses):
            raise ConfigurationError(
                f"cluster.engine: has {len(names)} hosts, {len(ports)} ports and {len(addresses)} addresses; allowed is one of each"
            )
        self._places = list(zip(names, ports, addresses, strict=True))
        self._rest = {key: value for key, value in found.items() if key not in ("host", "port", "hostaddr")}
        self._mutex = threading.Lock()

    def parameters(self, application: str) -> dict[str, Any]:
        with self._mutex:
            hosts, ports, addresses = (",".join(parts) for parts in zip(*self._places, strict=True))
        ours = {"host": hosts, "port": ports, "application_name": application, "client_encoding": "UTF8"}
        if addresses.strip(","):
            ours["hostaddr"] = addresses
        return {**_DEFAULTS, **self._rest, **ours}

    def hangs(self, host: str, port: int) -> None:
        with self._mutex:
            for place in self._places:
                if place[:2] == (host, str(port)):
                    self._places.remove(place)
                    self._places.append(place)
                    return


class EngineConnection:
    """Used by one thread, and given up from any. Opened with the first call; after a failure the next call opens it anew."""

    def __init__(self, hosts: Hosts, application: str, clock: Clock) -> None:
        self._hosts = hosts
        self.application = application
        """Seen in `pg_stat_activity`; a change holds from the next connection on."""
        self._clock = clock
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._notices: list[str] = []
        self._since = 0
        """When the call under way began; 0: there is none."""
        self._shut = False
        self._listening: set[str] = set()
        self._prepared: dict[str, bytes] = {}
        """Statements that this connection knows, and under which name."""

    def execute(
        self, sql: str, values: Sequence[object] = (), *, prepare: bool = True, text: bool = False, same: bool = False
    ) -> psycopg.Cursor[tuple[Any, ...]]:
        """One statement, one transaction. EngineAway if the engine did not answer, refused, or said anything beside the answer:
        a commit whose wait for the quorum was cancelled succeeds with a warning. `text`: several statements at once, without values.
        `same`: only on the connection of the statement before it, because the two belong together."""
        if same and (self._connection is None or self._connection.closed):
            raise EngineAway("the connection broke between two statements")
        self._since = self._clock.steady_ms()
        try:
            connection = self._opened()
            self._notices.clear()
            cursor = connection.execute(sql) if text else connection.execute(sql, values, prepare=prepare, binary=True)
        except psycopg.Error as error:
            self.close()
            raise engine_away(error, self._hosts.label) from error
        finally:
            self._since = 0
        self._must_be_silent()
        return cursor

    def rows_if_there(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """From a table that came later: none, in a cluster of an older version."""
        try:
            found: list[tuple[Any, ...]] = self.execute(sql, values).fetchall()
            return found
        except EngineAway as error:
            if sqlstate_of(error) == UNDEFINED_TABLE:
                return []
            raise

    def change(self, sql: str, values: list[bytes]) -> int:
        """As `execute`, for what is done all the time: `$1` for a value, each in PostgreSQL's own binary form. How many rows it changed."""
        self._since = self._clock.steady_ms()
        try:
            connection = self._opened()
            self._notices.clear()
            wire = connection.pgconn
            name = self._prepared.get(sql)
            if name is None:
                name = b"tandem_" + hashlib.sha256(sql.encode()).hexdigest()[:32].encode()  # never that of another statement
                _succeeded(wire.prepare(name, sql.encode(), None))
                self._prepared[sql] = name
            rows = _succeeded(wire.exec_prepared(name, values, [1] * len(values), 1))
        except psycopg.Error as error:
            self.close()
            raise engine_away(error, self._hosts.label) from error
        finally:
            self._since = 0
        self._must_be_silent()
        return rows

    def _must_be_silent(self) -> None:
        if self._notices:
            said = "; ".join(self._notices)
            self.close()
            raise EngineAway(f"{self._hosts.label} has a reservation: {said}")

    def notices_of(self, channel: str, seconds: float) -> list[str]:
        """Waits so long for the first one. A channel that was lost with its connection is listened to again."""
        try:
            connection = self._opened()
            if channel not in self._listening:
                connection.execute(f"LISTEN {channel}")
                self._listening.add(channel)
            return [notice.payload for notice in connection.notifies(timeout=seconds, stop_after=1)]
        except psycopg.Error as error:
            self.close()
            raise engine_away(error, self._hosts.label) from error

    def _opened(self) -> psycopg.Connection[tuple[Any, ...]]:
        connection = self._connection
        if connection is None or connection.closed:
            parameters = self._hosts.parameters(self.application)
            connection = psycopg.connect(**parameters, autocommit=True)
            connection.add_notice_handler(lambda said: self._notices.append(f"{said.severity} {said.sqlstate} {said.message_primary}"))
            self._connection = connection
            self._shut = False
            self._listening.clear()
            self._prepared.clear()
            connection.execute(_SET_SESSION, prepare=False)
        return connection

    def close(self) -> None:
        """On the thread that uses it. Nothing is cancelled: what the engine is doing it may finish."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                connection.close()

    def shut(self) -> None:
        """On any thread: the call under way fails."""
        connection = self._connection
        if connection is None or connection.closed or self._shut:
            return
        self._shut = True
        try:
            with socket.socket(fileno=os.dup(connection.fileno())) as double:
                double.shutdown(socket.SHUT_RDWR)
        except (OSError, psycopg.Error):
            return  # it is gone already

    def shut_if_slow(self, milliseconds: int) -> None:
        """On any thread."""
        since, connection = self._since, self._connection
        if since and self._clock.steady_ms() - since > milliseconds and connection is not None and not connection.closed:
            with contextlib.suppress(psycopg.Error):
                self._hosts.hangs(connection.info.host, connection.info.port)
            self.shut()


def _succeeded(result: Any) -> int:
    """Rows that were changed; the engine's error otherwise."""
    if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
        raise psycopg.errors.error_from_result(result)
    return int(result.command_tuples or 0)


def engine_away(error: psycopg.Error, label: str = "the engine") -> EngineAway:
    away = EngineAway(f"{label}: {first_line(error)}")
    away.__cause__ = error
    return away


def sqlstate_of(error: BaseException) -> str:
    """Of the error of the engine behind ours; empty if there is none."""
    cause = error.__cause__
    return (cause.sqlstate or "") if isinstance(cause, psycopg.Error) else ""
