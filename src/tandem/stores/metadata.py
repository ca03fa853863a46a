"""What a namespace consists of, on disk: entities with ids that are never reused, their rules, and keys. SQLite.

Every call is on disk when it returns, or without any trace. Calls that wait at the same time share one transaction, each
in a savepoint of its own, and so one wait for the disk. Every row carries a checksum, because SQLite would hand out a
flipped bit inside a text as it found it. Calls block: call them from threads.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, cast

from tandem.model.catalog import Snapshot, StoredEntity
from tandem.model.entity import AuthorizationRule, HybridConnectionDescription, RuleDescription, SubscriptionDescription
from tandem.model.entity_json import (
    EntityDescription,
    EntityKind,
    NotADescription,
    dump_authorization_rule,
    dump_entity,
    dump_relay,
    dump_rule,
    kind_of,
    load_authorization_rule,
    load_entity,
    load_relay,
    load_rule,
)
from tandem.model.errors import ConfigurationError, Corrupt, EntityAlreadyExists, EntityNotFound, QuotaExceeded, StoreUnavailable
from tandem.stores.disk import sync_name
from tandem.stores.migrations import MIGRATIONS, statements
from tandem.stores.overwritten import PUT_RIGHT, OverwrittenFile
from tandem.stores.relay_copy import RelayCopy
from tandem.stores.rule_rows import put_rule, put_rules, row_checksum
from tandem.stores.sqlite_errors import UNREADABLE, WHAT_TO_DO, translated

_T = TypeVar("_T")

APPLICATION_ID: Final = 0x544E444D
"""`TNDM` in the file's header: nobody else's database is ever taken for ours."""

ENTITY_ID_MAX: Final = (1 << 30) - 1
"""Journals write four times the id, plus the sub-queue, in 32 bits."""


@dataclass(frozen=True, slots=True)
class KnownStore:
    """What the namespace knows of one of its stores."""

    store_id: bytes = b""
    """Empty: it has to be there, but which one it is was not kept yet; or, with `begins_at`, it may be begun anew."""
    begins_at: int = 0
    """Its sequence numbers go on above this, when it is begun anew."""
    entity_max: int = 0
    """The highest id of the entities to which that applies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What stands beside a metadata file that says nothing of it: one that is missing, or from before stores were kept in it."""

    found: frozenset[int] = frozenset()
    """Numbers of the stores that are there."""
    count: int = 0
    """How many there should be: partitioned entities are spread over that many."""


class Metadata:
    """Open with a path, or None to keep it in memory. Raises Corrupt when the file is damaged.

    `look_beside` is asked when the file is new, or older than the identities of stores: metadata that begins anew beside stores that hold
    messages would hand those to the wrong entities, so that is refused.
    """

    identity: str
    """Of this metadata, for ever: its stores know it. 16 random bytes in hexadecimal."""

    def __init__(
        self,
        path: Path | None,
        *,
        migrations: tuple[str, ...] = MIGRATIONS,
        look_beside: Callable[[], Beside] = Beside,
        new_identity: Callable[[], bytes] = lambda: os.urandom(16),
    ) -> None:
        self.where = self._where = str(path) if path is not None else "memory"
        self._look_beside = look_beside
        self._new_identity = new_identity
        self._lock = threading.Lock()
        self._waiting_lock = threading.Lock()
        self._waiting: list[_Change] = []
        self._relay_copy: RelayCopy | None = None
        if path is not None:
            if not path.exists():
                self._must_be_alone()  # before the file is made
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # it holds keys: nobody else's to read
        try:
            self._db = sqlite3.connect(path if path is not None else ":memory:", isolation_level=None, check_same_thread=False)
        except sqlite3.OperationalError as error:
            raise OSError(errno.EIO, f"{error}; SQLite opens no path of more than 512 bytes", str(path)) from error
        self._file = os.stat(path) if path is not None else None
        self._content: OverwrittenFile | None = None
        try:
            self.schema_found = self._open(migrations)
            """Of the file as it was found; 0 if it was begun just now."""
            if self.schema_found == 0 and path is not None:
                sync_name(path)
            self.identity = self._load_identity()
            if path is not None:
                if self.schema_found == 0:
                    self._db.execute("PRAGMA wal_checkpoint(PASSIVE)")  # into the file itself
                self._content = OverwrittenFile(str(path), self.identity)
        except BaseException:
            self._db.close()
            raise

    def load(self) -> Snapshot:
        with self._lock, self._reading():
            rules: dict[int, list[RuleDescription]] = {}
            for owner, name, text, checksum in self._db.execute(
                "SELECT subscription_id, name, description, checksum FROM rules ORDER BY subscription_id, rowid"
            ):
                self._verify(checksum, f"rule {name}", owner, name, text)
                rules.setdefault(owner, []).append(load_rule(text))
            entities: list[StoredEntity] = []
            for id_, kind, path, topic_id, store, text, checksum in self._db.execute(
                "SELECT id, kind, path, topic_id, store, description, checksum FROM entities ORDER BY id"
            ):
                self._verify(checksum, f"{kind} {path}", id_, kind, path, topic_id, store, text)
                description = load_entity(EntityKind(kind), text, tuple(rules.get(id_, ())))
                entities.append(StoredEntity(id=id_, description=description, store=store))
            authorization_rules: list[AuthorizationRule] = []
            for name, text, checksum in self._db.execute("SELECT name, description, checksum FROM authorization_rules ORDER BY name"):
                self._verify(checksum, f"authorization rule {name}", name, text)
                authorization_rules.append(load_authorization_rule(text))
            return Snapshot(
                entities=tuple(entities),
                authorization_rules=tuple(authorization_rules),
                highest_id=self._highest_id(),
                relays=tuple(self._load_relays()),
            )

    def put_entity(self, description: EntityDescription, *, store: int) -> StoredEntity:
        """Insert, or replace the description of the same name. The store of an entity never changes."""
        return self.put_entities([(description, store)])[0]

    def put_entities(self, items: Iterable[tuple[EntityDescription, int]]) -> list[StoredEntity]:
        """As `put_entity`, for many: all or none. Topics must come before, or exist before, their subscriptions."""
        wanted = list(items)
        return self._write(lambda: [self._put(description, store) for description, store in wanted])

    def delete_entity(self, id_: int) -> None:
        """With the subscriptions of a topic and the rules of a subscription."""
        self._delete("entities WHERE id = ?", (id_,), f"no entity has the id {id_}")

    def put_rule(self, subscription_id: int, rule: RuleDescription) -> None:
        """Insert, or replace the rule of the same name."""

        def put() -> None:
            row = self._db.execute("SELECT kind FROM entities WHERE id = ?", (subscription_id,)).fetchone()
            if row is None or row[0] != EntityKind.SUBSCRIPTION.value:
                raise EntityNotFound(f"no subscription has the id {subscription_id}")
            put_rule(self._db, subscription_id, rule.name.casefold(), dump_rule(rule))

        self._write(put)

    def delete_rule(self, subscription_id: int, name: str) -> None:
        self._delete("rules WHERE subscription_id = ? AND name = ?", (subscription_id, name.casefold()), f"there is no rule {name!r}")

    def put_authorization_rule(self, rule: AuthorizationRule) -> None:
        """A rule on the namespace itself: insert, or replace the one of the same name."""
        text = dump_authorization_rule(rule)
        sql = "INSERT INTO authorization_rules VALUES (?1, ?2, ?3) ON CONFLICT (name) DO UPDATE SET description = ?2, checksum = ?3"
        self._write(lambda: self._db.execute(sql, (rule.key_name, text, row_checksum(rule.key_name, text))))

    def delete_authorization_rule(self, key_name: str) -> None:
        self._delete("authorization_rules WHERE name = ?", (key_name,), f"the namespace has no authorization rule {key_name!r}")

    def put_relay(self, description: HybridConnectionDescription) -> None:
        """Insert, or replace the one of the same name."""
        name, text = description.name.casefold(), dump_relay(description)
        sql = "INSERT INTO relays VALUES (?1, ?2, ?3) ON CONFLICT (name) DO UPDATE SET description = ?2, checksum = ?3"

        def put() -> None:
            self._db.execute(sql, (name, text, row_checksum(name, text)))
            if self._relay_copy is not None:
                self._relay_copy.put(description)

        self._write(put)

    def delete_relay(self, name: str) -> None:
        def delete() -> None:
            if self._db.execute("DELETE FROM relays WHERE name = ?", (name.casefold(),)).rowcount != 1:
                raise EntityNotFound(f"there is no relay {name!r}")
            if self._relay_copy is not None:
                self._relay_copy.gone(name)

        self._write(delete)

    def copy_relays(self, copy: RelayCopy) -> None:
        """From now on they are kept there too. Raises StoreUnavailable, and keeps them here only."""
        with self._lock, self._reading():
            relays = list(self._load_relays())
        copy.begin(relays)
        self._relay_copy = copy

    def _load_relays(self) -> Iterator[HybridConnectionDescription]:
        for name, text, checksum in self._db.execute("SELECT name, description, checksum FROM relays ORDER BY name"):
            self._verify(checksum, f"relay {name}", name, text)
            yield load_relay(text)

    def close(self) -> None:
        with self._lock:
            self._db.close()
            if self._content is not None:
                self._content.close()
                self._content = None

    # --- stores

    def known_store(self, number: int) -> KnownStore | None:
        """None: the namespace has never had a store of this number."""
        with self._lock, self._reading():
            row = self._db.execute("SELECT store_id, begins_at, entity_max, checksum FROM stores WHERE number = ?", (number,)).fetchone()
            if row is None:
                return None
            self._verify(row[3], f"store {number}", number, *row[:3])
            return KnownStore(bytes.fromhex(row[0]), row[1], row[2])

    def keep_store(self, number: int, store_id: bytes) -> None:
        """From now on store `number` is this one."""
        self._write(lambda: self._put_store(number, KnownStore(store_id)))

    def give_up_store(self, number: int, begins_at: int) -> None:
        """The store is lost: it is begun anew when it is opened next, unless it is found again before."""
        self._write(lambda: self._put_store(number, KnownStore(b"", begins_at, self._highest_id())))

    def rebuild(self, entities: list[StoredEntity], stores: dict[int, bytes], highest_id: int) -> None:
        """In a new file: what journals know of one that was lost, under the ids they know it by. Topics come before their subscriptions."""

        def put_all() -> None:
            for stored in entities:
                self._give_ids_from(stored.id)
                self._put(stored.description, stored.store)
            self._give_ids_from(max(highest_id, max((stored.id for stored in entities), default=0)) + 1)
            for number, store_id in stores.items():
                self._put_store(number, KnownStore(store_id))

        self._write(put_all)

    def _give_ids_from(self, id_: int) -> None:
        self._db.execute("DELETE FROM sqlite_sequence WHERE name = 'entities'")
        self._db.execute("INSERT INTO sqlite_sequence VALUES ('entities', ?)", (id_ - 1,))

    def _put_store(self, number: int, known: KnownStore) -> None:
        values = (number, known.store_id.hex(), known.begins_at, known.entity_max)
        self._db.execute("INSERT OR REPLACE INTO stores VALUES (?, ?, ?, ?, ?)", (*values, row_checksum(*values)))

    def _load_identity(self) -> str:
        with self._reading():
            row = self._db.execute("SELECT id, checksum FROM identity").fetchone()
            if row is None:
                raise Corrupt(f"{self._where}: has no identity; {WHAT_TO_DO}")
            self._verify(row[1], "its identity", row[0])
            identity: str = row[0]
            return identity

    def _introduce(self) -> None:
        """Once per file: it gets an identity, and knows from now on which stores have to be there."""
        identity = self._new_identity().hex()
        self._db.execute("INSERT INTO identity VALUES (1, ?, ?)", (identity, row_checksum(identity)))
        rows = self._db.execute("SELECT store, description FROM entities").fetchall()
        if not rows:
            return
        beside = self._look_beside()
        stores = set(beside.found)
        for store, text in rows:
            stores |= set(range(beside.count)) if json.loads(text).get("partition_count", 0) > 1 else {store}
        for number in sorted(stores):
            self._put_store(number, KnownStore())

    # --- rows

    def _delete(self, what: str, values: tuple[object, ...], otherwise: str) -> None:
        def delete() -> None:
            if self._db.execute(f"DELETE FROM {what}", values).rowcount != 1:
                raise EntityNotFound(otherwise)

        self._write(delete)

    def _put(self, description: EntityDescription, store: int) -> StoredEntity:
        kind = kind_of(description)
        path, topic_id = self._place(description)
        text = dump_entity(description)
        row = self._db.execute("SELECT id, kind, store FROM entities WHERE path = ?", (path,)).fetchone()
        if row is None:
            id_ = self._next_id()
            checksum = row_checksum(id_, kind.value, path, topic_id, store, text)
            values = (id_, kind.value, path, topic_id, store, text, checksum)
            self._db.execute("INSERT INTO entities VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        else:
            id_, old_kind, store = row
            if old_kind != kind.value:
                raise EntityAlreadyExists(f"{path!r} is a {old_kind} already and cannot become a {kind.value}")
            checksum = row_checksum(id_, kind.value, path, topic_id, store, text)
            self._db.execute("UPDATE entities SET description = ?, checksum = ? WHERE id = ?", (text, checksum, id_))
        if isinstance(description, SubscriptionDescription):
            put_rules(self._db, id_, description.rules)
        return StoredEntity(id=id_, description=description, store=store)

    def _place(self, description: EntityDescription) -> tuple[str, int | None]:
        """The unique path, and the topic's id for a subscription."""
        if not isinstance(description, SubscriptionDescription):
            return description.name.casefold(), None
        topic = description.topic.casefold()
        row = self._db.execute("SELECT id FROM entities WHERE path = ? AND kind = 'topic'", (topic,)).fetchone()
        if row is None:
            raise EntityNotFound(f"there is no topic {description.topic!r} for the subscription {description.name!r}")
        return f"{topic}/subscriptions/{description.name.casefold()}", row[0]

    def _next_id(self) -> int:
        # AUTOINCREMENT remembers the highest id ever given, also across deletes; asked here because the checksum needs it.
        id_ = self._highest_id() + 1
        if id_ > ENTITY_ID_MAX:
            raise QuotaExceeded(f"the namespace has used up all {ENTITY_ID_MAX} entity ids")
        return id_

    def _highest_id(self) -> int:
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'entities'").fetchone()
        return int(row[0]) if row is not None else 0

    def _verify(self, stored: int, what: str, *columns: object) -> None:
        if stored != row_checksum(*columns):
            raise Corrupt(f"{self._where}: {what} does not match its checksum; {WHAT_TO_DO}")

    # --- the file

    def _open(self, migrations: tuple[str, ...]) -> int:
        """The version it had; 0 if it was begun just now."""
        with self._reading():
            application, version = self._pragma("application_id"), self._pragma("user_version")
            tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if tables and application != APPLICATION_ID:
                raise ConfigurationError(f"{self._where}: a database, but not one of ours (application id {application:#x})")
            if version > len(migrations):
                raise ConfigurationError(
                    f"{self._where}: written by a newer version (schema {version}; this one knows schemas up to {len(migrations)}). "
                    "Start that one again, or restore a backup; nothing was changed"
                )
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            problems = [row[0] for row in self._db.execute("PRAGMA integrity_check(3)")]
            if problems != ["ok"]:
                raise Corrupt(f"{self._where}: {'; '.join(problems)}; {WHAT_TO_DO}")
        if version == 0:
            self._must_be_alone()
        for number in range(version, len(migrations)):
            self._migrate(number + 1, migrations[number])
        return version

    def _must_be_alone(self) -> None:
        found = self._look_beside().found
        if not found:
            return
        names = ", ".join(f"store-{number}" for number in sorted(found))
        raise ConfigurationError(
            f"{self._where} is missing or empty, and there is {names} beside it: what it holds would reach the wrong entities. Put the "
            f"file back from a backup, or rebuild it from the journals: tandem store recover-metadata {os.path.dirname(self._where) or '.'}"
        )

    def _migrate(self, version: int, script: str) -> None:
        def migrate() -> None:
            for statement in statements(script):
                self._db.execute(statement)
            if version == 2:
                self._introduce()
            self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self._db.execute(f"PRAGMA user_version = {version}")

        with self._reading():
            self._write(migrate)

    def _pragma(self, name: str) -> int:
        value: int = self._db.execute(f"PRAGMA {name}").fetchone()[0]
        return value

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """What SQLite or a decoder cannot read is damage, and says so."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise translated(error, self._where, UNREADABLE) from error
        except (NotADescription, ValueError) as error:
            raise Corrupt(f"{self._where}: {error}; {WHAT_TO_DO}") from error

    def _write(self, work: Callable[[], _T]) -> _T:
        """Do `work` durably. Whoever gets the lock commits for everybody who has come to wait meanwhile."""
        change = _Change(work)
        with self._waiting_lock:
            self._waiting.append(change)
        with self._lock:
            if not change.settled:
                with self._waiting_lock:
                    group, self._waiting = self._waiting, []
                self._commit(group)
        if change.error is not None:
            raise change.error
        return cast(_T, change.value)

    def _commit(self, group: list[_Change]) -> None:
        committed = False
        failure = sqlite3.DatabaseError("interrupted")
        if trouble := self._trouble("nothing was changed"):
            for change in group:
                change.settle(StoreUnavailable(trouble))
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for change in group:
                self._attempt(change)
            self._db.execute("COMMIT")
            committed = True
        except sqlite3.DatabaseError as error:
            failure = error
        finally:
            if not committed and self._db.in_transaction:
                self._db.execute("ROLLBACK")
            for change in group:
                change.settle(None if committed else translated(failure, self._where))

    def trouble(self) -> str:
        """Why nothing can be changed, and what to do: the file is gone, or another one. Empty: it can."""
        with self._lock:
            return self._trouble("it takes no changes")

    def _trouble(self, so: str) -> str:
        if self._is_elsewhere():
            return f"{self._where}: is not the file that was opened; {so}. Put it back, or start again"
        lost = self._content is not None and self._content.has_lost_it()
        return f"{self._where}: was overwritten with something else; {so}. {PUT_RIGHT}" if lost else ""

    def _is_elsewhere(self) -> bool:
        """Removed, moved away or replaced: SQLite would go on writing, and nobody would ever read it."""
        try:
            return self._file is not None and not os.path.samestat(self._file, os.stat(self._where))
        except OSError:
            return True

    def _attempt(self, change: _Change) -> None:
        """One change of a group: what it did is undone if it fails, the others go on."""
        self._db.execute("SAVEPOINT change")
        try:
            change.do()
        except Exception as error:
            change.fail(translated(error, self._where) if isinstance(error, sqlite3.DatabaseError) else error)
            if not self._db.in_transaction:
                raise  # SQLite has given up the whole transaction, as it does when the disk is full
            self._db.execute("ROLLBACK TO change")
        self._db.execute("RELEASE change")


class _Change:
    """Something to be written, and what became of it."""

    __slots__ = ("error", "settled", "value", "work")

    def __init__(self, work: Callable[[], object]) -> None:
        self.work = work
        self.value: object = None
        self.error: Exception | None = None
        self.settled = False

    def do(self) -> None:
        self.value = self.work()

    def fail(self, error: Exception) -> None:
        self.error = error

    def settle(self, error: Exception | None) -> None:
        """`error`: why nothing of its group was kept; its own goes before that."""
        self.error = self.error or error
        self.settled = True
