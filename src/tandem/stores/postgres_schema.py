"""What a cluster keeps in PostgreSQL: made once by `tandem cluster init`, checked by every node before it starts."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from tandem.model.clock import SystemClock
from tandem.model.errors import ConfigurationError, EngineAway
from tandem.stores.postgres_connection import EngineConnection, Hosts, sqlstate_of, without_password
from tandem.stores.postgres_ledger import FORMAT

SCHEMA_VERSION: Final = 2
"""2: the stores of a namespace may be with several nodes, each with its own."""
ENGINES_VERSION: Final = 3
"""Of clusters with several engines only: nodes that do not know of them would make the stores of the others a second time."""
CLOCK_MS_MAX: Final = 60_000
"""A node whose clock is further from the engine's than this does not start: times to live and tokens would mean nothing."""
_TABLES: Final = (
    "CREATE SCHEMA tandem",
    "CREATE TABLE tandem.cluster (version int NOT NULL, secret bytea NOT NULL)",
    "CREATE TABLE tandem.node (name text PRIMARY KEY, incarnation bigint NOT NULL, beat bigint NOT NULL, address text NOT NULL, "
    "version text NOT NULL, draining boolean NOT NULL DEFAULT false) WITH (fillfactor = 10)",
    "CREATE TABLE tandem.store (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, namespace text NOT NULL, number int NOT NULL, "
    "UNIQUE (namespace, number), journal bytea NOT NULL, format int NOT NULL, epoch bigint NOT NULL DEFAULT 0, "
    "owner text NOT NULL DEFAULT '', incarnation bigint NOT NULL DEFAULT 0, wanted text NOT NULL DEFAULT '', "
    "touched bigint NOT NULL DEFAULT 0, first_segment int NOT NULL DEFAULT 1, last_segment int NOT NULL DEFAULT 1, "
    "first_block bigint NOT NULL DEFAULT 1) WITH (fillfactor = 10)",
    "CREATE TABLE tandem.namespace (name text PRIMARY KEY, stores int NOT NULL, revision bigint NOT NULL DEFAULT 0, "
    "highest_id bigint NOT NULL DEFAULT 0, keys text NOT NULL DEFAULT '{}')",
    "CREATE TABLE tandem.entity (namespace text NOT NULL, id bigint NOT NULL, kind text NOT NULL, path text NOT NULL, topic_id bigint, "
    "store int NOT NULL, description text NOT NULL, revision bigint NOT NULL, gone boolean NOT NULL DEFAULT false, "
    "PRIMARY KEY (namespace, id))",
    "CREATE UNIQUE INDEX entity_path ON tandem.entity (namespace, path) WHERE NOT gone",
    "CREATE INDEX entity_revision ON tandem.entity (namespace, revision)",
    "CREATE TABLE tandem.named (namespace text NOT NULL, kind text NOT NULL, name text NOT NULL, description text NOT NULL, "
    "revision bigint NOT NULL, gone boolean NOT NULL DEFAULT false, PRIMARY KEY (namespace, kind, name))",
)
"""`named`: authorization rules of namespaces, and relays."""
_ADDED: Final = {
    "tandem.metered": ("CREATE TABLE tandem.metered (store int PRIMARY KEY, version bigint NOT NULL DEFAULT 0) WITH (fillfactor = 10)",),
    "tandem.meter": (
        "CREATE TABLE tandem.meter (store int NOT NULL, file bigint NOT NULL, line bigint NOT NULL, minute_ms bigint NOT NULL, "
        "entity text NOT NULL, operation text NOT NULL, outcome text NOT NULL, unit int NOT NULL, count bigint NOT NULL, "
        "bytes bigint NOT NULL)",
        "CREATE INDEX meter_line ON tandem.meter (store, file, line)",
    ),
    "tandem.follower": (
        "CREATE TABLE tandem.follower (name text PRIMARY KEY, at_ms bigint NOT NULL, lag_ms bigint NOT NULL, messages bigint NOT NULL, "
        "blocks bigint NOT NULL) WITH (fillfactor = 10)",
    ),
    "tandem.follower_of": (
        "CREATE TABLE tandem.follower_of (name text NOT NULL, engine text NOT NULL, at_ms bigint NOT NULL, lag_ms bigint NOT NULL, "
        "messages bigint NOT NULL, blocks bigint NOT NULL, PRIMARY KEY (name, engine)) WITH (fillfactor = 10)",
    ),
    "tandem.event": (
        "CREATE TABLE tandem.event (node text NOT NULL, incarnation bigint NOT NULL, number bigint NOT NULL, at_ms bigint NOT NULL, "
        "kind text NOT NULL, path text NOT NULL, detail text NOT NULL, PRIMARY KEY (node, incarnation, number))",
    ),
    "tandem.retired": (
        "CREATE TABLE tandem.retired (store int NOT NULL, segment int NOT NULL, at_ms bigint NOT NULL, PRIMARY KEY (store, segment))",
    ),
    "tandem.gathered": ("CREATE TABLE tandem.gathered (namespace text PRIMARY KEY)",),
    "tandem.engine": ("CREATE TABLE tandem.engine (name text PRIMARY KEY, dsn text NOT NULL)",),
    "tandem.this_engine": ("CREATE TABLE tandem.this_engine (name text NOT NULL)",),
    "tandem.placed": (
        "CREATE TABLE tandem.placed (namespace text NOT NULL, number int NOT NULL, engine text NOT NULL, journal bytea NOT NULL, "
        "made boolean NOT NULL DEFAULT false, PRIMARY KEY (namespace, number))",
    ),
    "tandem.numbers": ("CREATE TABLE tandem.numbers (store int PRIMARY KEY, begins_at bigint NOT NULL, entity_max bigint NOT NULL)",),
}
"""Tables that came later, each with what makes it: older nodes do not miss them, newer ones make them.

`follower`: who follows from another region; `follower_of`: how far it is with engines beside the first;
`gathered`: namespaces whose stores go together; `numbers`: where sequence numbers go on after a promotion that may have lost messages;
`engine` and `placed`, in the first engine: the others, and the stores that live there; `this_engine`, in each of those: what it is
called."""

_ENCODINGS: Final = ("UTF8", "SQL_ASCII")
"""Of databases that keep every name as it is."""
_INSUFFICIENT_PRIVILEGE: Final = "42501"
_READ_ONLY: Final = "session is read-only"
"""What libpq says of a server that is not `target_session_attrs=read-write`."""
_UNDEFINED: Final = ("42P01", "3F000")
_LABEL: Final = b"tandem cluster"
_FIRST_KEY: Final = "cluster.engine"


@dataclass(frozen=True, slots=True)
class EngineState:
    """What the engine says of itself."""

    problems: list[str] = field(default_factory=list)
    """Why a commit may not be on two machines, each with what to change."""
    clock_ahead_ms: int = 0
    """By how much its clock is ahead of ours."""


def _refused(error: EngineAway, dsn: str, key: str) -> ConfigurationError:
    state = sqlstate_of(error)
    where = without_password(dsn)
    if state == _INSUFFICIENT_PRIVILEGE:
        return ConfigurationError(
            f"{key}: {where}: {error.description}; the user needs to own the schema: "
            "GRANT CREATE ON DATABASE <database> TO <user>, or run `tandem cluster init` as its owner"
        )
    if all(_READ_ONLY in said for said in error.description.split("; ")):
        what = "it is a standby, or default_transaction_read_only is on: name the primary too, as in postgresql://user@host1,host2/database"
        return ConfigurationError(f"{key}: {where} cannot be written: {what}")
    return ConfigurationError(f"{key}: {where} cannot be used: {error.description}; is PostgreSQL up, and the user let in there?")


def fingerprint(secret: bytes) -> bytes:
    """Says whether two nodes have the same secret, and nothing about it."""
    return hmac.new(secret, _LABEL, hashlib.sha256).digest()


class Schema:
    """Asked before anything is started, and by commands. Errors are ConfigurationErrors that say what to do."""

    def __init__(self, dsn: str, connection: EngineConnection, key: str = _FIRST_KEY) -> None:
        """`key`: how its settings are called in refusals."""
        self._dsn = dsn
        self._key = key
        self._connection = connection

    def must_keep_sessions(self) -> None:
        """Before anything else: of a pooler that lends a server for one transaction only, statements would go to sessions of others."""
        asked = "SELECT pg_backend_pid()"
        beside = EngineConnection(Hosts(self._dsn), "tandem check", SystemClock())
        try:
            ours = self._connection.execute(asked, prepare=False).fetchone()
            theirs = beside.execute(asked, prepare=False).fetchone()
            again = self._connection.execute(asked, prepare=False, same=True).fetchone()
        except EngineAway as error:
            raise _refused(error, self._dsn, self._key) from error
        finally:
            beside.close()
        if ours == theirs or ours != again:
            raise ConfigurationError(
                f"{self._key}: {without_password(self._dsn)} is a pooler that keeps no sessions: connect to PostgreSQL itself, or set "
                "pool_mode = session there (pgbouncer)"
            )

    def initialize(self, secret: bytes) -> bool:
        """True if it was made now; False if it was there. Whole or not at all."""
        try:
            if self._version() is not None:
                self.check(secret)
                self.complete()
                return False
            self._must_know_all_characters()
            known = f"INSERT INTO tandem.cluster (version, secret) VALUES ({SCHEMA_VERSION}, decode('{fingerprint(secret).hex()}', 'hex'))"
            self._connection.execute("; ".join(("BEGIN", *_TABLES, known, "COMMIT")), prepare=False, text=True)
            self.complete()
        except EngineAway as error:
            raise _refused(error, self._dsn, self._key) from error
        return True

    def _must_know_all_characters(self) -> None:
        found = self._connection.execute("SELECT current_setting('server_encoding')").fetchone()
        if found is not None and found[0] not in _ENCODINGS:
            raise ConfigurationError(
                f"{self._key}: {without_password(self._dsn)} has the encoding {found[0]}, which lacks characters that names may have; "
                "make another one: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
            )

    def complete(self) -> None:
        """Tables that a cluster of an older version lacks are made."""
        try:
            for table, statements in _ADDED.items():
                if not self._has(table):
                    self._make(table, statements)
        except EngineAway as error:
            raise _refused(error, self._dsn, self._key) from error

    def _has(self, table: str) -> bool:
        found = self._connection.execute("SELECT to_regclass(%s) IS NOT NULL", (table,)).fetchone()
        return found is not None and bool(found[0])

    def _make(self, table: str, statements: tuple[str, ...]) -> None:
        try:
            self._connection.execute("; ".join(("BEGIN", *statements, "COMMIT")), prepare=False, text=True)
        except EngineAway:
            if not self._has(table):
                raise
            # another node was faster

    def check(self, secret: bytes | None) -> None:
        """`secret` None: only whether this version can read what is there."""
        try:
            found = self._version()
        except EngineAway as error:
            raise _refused(error, self._dsn, self._key) from error
        if found is None:
            raise ConfigurationError(
                f"{self._key}: {without_password(self._dsn)} has no cluster yet; make one: tandem cluster init --engine …"
            )
        version, kept = found
        if version > ENGINES_VERSION:
            raise ConfigurationError(
                f"{self._key}: its schema has version {version}, made by a newer Tandem; this one knows versions up to "
                f"{ENGINES_VERSION}. Start that version"
            )
        newest = self._newest_format()
        if newest > FORMAT:
            raise ConfigurationError(
                f"{self._key}: its stores are written in format {newest} since `tandem cluster upgrade`; this Tandem writes "
                f"format {FORMAT}. Start the newer version, which all other nodes run"
            )
        if secret is not None and not hmac.compare_digest(kept, fingerprint(secret)):
            if self._key != _FIRST_KEY:
                raise ConfigurationError(f"{self._key}: {without_password(self._dsn)} belongs to a cluster with another secret")
            raise ConfigurationError(
                "cluster.secret_file: it is not the secret of this cluster; copy the file that `tandem cluster init` was given"
            )

    def is_of_cluster(self, other: Schema) -> bool:
        """The same secret was used for both."""
        one, two = self._version(), other._version()
        return one is not None and two is not None and hmac.compare_digest(one[1], two[1])

    def _newest_format(self) -> int:
        """Of all stores; 0 if there are none."""
        try:
            found = self._connection.execute("SELECT coalesce(max(format), 0) FROM tandem.store").fetchone()
        except EngineAway as error:
            raise _refused(error, self._dsn, self._key) from error
        return int(found[0]) if found is not None else 0

    def has_several_engines(self) -> None:
        """Older versions, which do not know that, are refused from now on."""
        sql = "UPDATE tandem.cluster SET version = %s WHERE version < %s"
        self._connection.execute(sql, (ENGINES_VERSION, ENGINES_VERSION))

    def must_be_upgraded(self) -> None:
        """Before it gets more engines: nodes of older versions would not know what that means."""
        found = self._version()
        if found is not None and found[0] < SCHEMA_VERSION:
            raise ConfigurationError("cluster.more_engines: the cluster was made by an older version: first, tandem cluster upgrade")

    def upgrade(self) -> bool:
        """Stores are written in our format from their next opening on, and nodes that do not know it are refused. False: they were."""
        try:
            self.complete()
            changed = self._connection.execute("UPDATE tandem.store SET format = %s WHERE format < %s", (FORMAT, FORMAT)).rowcount
            raised = self._connection.execute(
                "UPDATE tandem.cluster SET version = %s WHERE version < %s", (SCHEMA_VERSION, SCHEMA_VERSION)
            ).rowcount
        except EngineAway as error:
            raise _refused(error, self._dsn, self._key) from error
        return bool(changed or raised)

    def _version(self) -> tuple[int, bytes] | None:
        try:
            found = self._connection.execute("SELECT version, secret FROM tandem.cluster").fetchone()
        except EngineAway as error:
            if sqlstate_of(error) in _UNDEFINED:
                return None
            raise
        return (found[0], bytes(found[1])) if found is not None else None

    def state(self, now_ms: Callable[[], int]) -> EngineState:
        sql = (
            "SELECT (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'), "  # not what our own sessions set
            "current_setting('synchronous_standby_names'), current_setting('fsync'), "
            "current_setting('full_page_writes'), (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')), "
            "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        )
        try:
            self._connection.execute("SELECT 1")
            before = now_ms()
            found = self._connection.execute(sql).fetchone()
            after = now_ms()
        except EngineAway as error:
            raise _refused(error, self._dsn, self._key) from error
        assert found is not None
        commit, standbys, fsync, full_pages, synchronous, theirs = found
        problems = []
        if commit not in ("on", "remote_apply"):
            problems.append(f"synchronous_commit is {commit}: set it to on, for the database and for the user")
        if not standbys:
            problems.append("synchronous_standby_names is empty: name the standbys, as in 'ANY 1 (*)'")
        elif not synchronous:
            problems.append("no standby replicates synchronously now: start one (pg_stat_replication shows them)")
        problems += [
            f"{name} is off: set it to on" for name, value in (("fsync", fsync), ("full_page_writes", full_pages)) if value != "on"
        ]
        return EngineState(problems, int(theirs) - (before + after) // 2)

    def must_be_durable(self, durability: str, now_ms: Callable[[], int]) -> EngineState:
        """Before a node starts: nothing is accepted that one machine alone has, unless somebody said that this is known."""
        state = self.state(now_ms)
        if state.problems and durability == "quorum":
            raise ConfigurationError(
                f"{self._key}: {without_password(self._dsn)} does not commit on two machines: {'; '.join(state.problems)}. "
                'A service that does not show how it replicates: durability = "assumed"'
            )
        if abs(state.clock_ahead_ms) > CLOCK_MS_MAX:
            off = f"{abs(state.clock_ahead_ms) // 1000} s {'behind' if state.clock_ahead_ms > 0 else 'ahead of'}"
            raise ConfigurationError(f"the clock of this machine is {off} the engine's: set both by NTP, then start again")
        return state

    def ensure_stores(self, namespace: str, count: int, elsewhere: Collection[int] = ()) -> None:
        """The namespace and its stores are there; ConfigurationError if it was made with another number of them. `elsewhere`: numbers of
        those that live in other engines."""
        connection = self._connection
        try:
            connection.execute("INSERT INTO tandem.namespace (name, stores) VALUES (%s, %s) ON CONFLICT DO NOTHING", (namespace, count))
            found = connection.execute("SELECT stores FROM tandem.namespace WHERE name = %s", (namespace,)).fetchone()
            there = found[0] if found is not None else count
            if there != count:
                raise ConfigurationError(f"stores.count: found {count}; namespace {namespace} has {there} stores in this cluster, for good")
            for number in (one for one in range(count) if one not in elsewhere):
                connection.execute(
                    # in the format of the others, which all nodes know until somebody says that all are new
                    "INSERT INTO tandem.store (namespace, number, journal, format) "
                    "SELECT %s, %s, %s, coalesce(max(format), %s) FROM tandem.store ON CONFLICT DO NOTHING",
                    (namespace, number, secrets.token_bytes(16), FORMAT),
                )
        except EngineAway as error:
            raise _refused(error, self._dsn, self._key) from error

    def shared_keys(self, namespace: str, ours: str) -> str:
        """The keys that were made for this namespace by whichever node came first: ours, if nobody has any."""
        try:
            self._connection.execute("UPDATE tandem.namespace SET keys = %s WHERE name = %s AND keys = '{}'", (ours, namespace))
            found = self._connection.execute("SELECT keys FROM tandem.namespace WHERE name = %s", (namespace,)).fetchone()
        except EngineAway as error:
            raise _refused(error, self._dsn, self._key) from error
        return str(found[0]) if found is not None else ours
