"""What a namespace consists of, in PostgreSQL, shared by all nodes: changes are numbered, and nobody changes what he has not seen."""

from __future__ import annotations

import json
import threading
from typing import Final

from tandem.model.catalog import Changes, Snapshot, StoredEntity
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
from tandem.model.errors import CatalogBehind, Corrupt, EntityAlreadyExists, EntityNotFound, QuotaExceeded
from tandem.stores.metadata import ENTITY_ID_MAX
from tandem.stores.postgres_connection import EngineConnection

CHANNEL: Final = "tandem_meta"
_RULE: Final = "authorization rule"
_RELAY: Final = "relay"
_RAISE: Final = "r AS (UPDATE tandem.namespace SET revision = revision + 1 WHERE name = %s AND revision = %s RETURNING revision)"
_TOLD: Final = f"SELECT r.revision, pg_notify('{CHANNEL}', %s || ' ' || r.revision) FROM r"


class PostgresCatalog:
    """One namespace. Calls block: call them from threads. `revision` is the last change that the living registry has seen."""

    def __init__(self, connection: EngineConnection, namespace: str) -> None:
        self._connection = connection
        self._namespace = namespace
        self._mutex = threading.Lock()
        self._paths: dict[int, tuple[str, int]] = {}
        """By id: path and store, of everything that there is."""
        self._ids: dict[str, int] = {}
        self.revision = 0

    def load(self) -> Snapshot:
        with self._mutex:
            self._paths.clear()
            self._ids.clear()
            self.revision = 0
            found = self._changes()
            self._seen(found)
        return Snapshot(
            entities=found.entities, authorization_rules=found.authorization_rules, highest_id=found.highest_id, relays=found.relays
        )

    def changes(self) -> Changes | None:
        """What others have changed and we have not applied yet; None if there is nothing. `applied` says when it is."""
        with self._mutex:
            found = self._changes()
        return found if found.revision != self.revision else None

    def applied(self, changes: Changes) -> None:
        """On the loop, once the registry is as `changes` say."""
        with self._mutex:
            self._seen(changes)

    def _seen(self, changes: Changes) -> None:
        if changes.revision < self.revision:
            return  # we have written since
        for stored in changes.entities:
            path = _path_of(stored.description)
            self._paths[stored.id] = (path, stored.store)
            self._ids[path] = stored.id
        for id_ in changes.gone:
            self._forget(id_)
        self.revision = changes.revision

    def _forget(self, id_: int) -> None:
        path, _ = self._paths.pop(id_, ("", 0))
        if self._ids.get(path) == id_:
            del self._ids[path]

    def _changes(self) -> Changes:
        """One statement, so one moment: the revision and the rows are of it."""
        rows = self._connection.execute(
            "SELECT n.revision, n.highest_id, e.id, e.kind, e.path, e.store, e.description, e.gone FROM tandem.namespace n "
            "LEFT JOIN (SELECT namespace, id, kind, path, store, description, revision, gone FROM tandem.entity UNION ALL "
            "SELECT namespace, 0, kind, name, 0, description, revision, gone FROM tandem.named) e "
            "ON e.namespace = n.name AND e.revision > %s WHERE n.name = %s ORDER BY e.id",
            (self.revision, self._namespace),
        ).fetchall()
        if not rows:
            raise Corrupt(f"namespace {self._namespace} is gone from the engine; restore the database from a backup")
        entities: list[StoredEntity] = []
        gone: list[int] = []
        rules: list[AuthorizationRule] = []
        relays: list[HybridConnectionDescription] = []
        relays_gone: list[str] = []
        for _, _, id_, kind, path, store, text, is_gone in rows:
            if id_ is None:
                continue
            try:
                if kind == _RULE:
                    rules += [] if is_gone else [load_authorization_rule(text)]
                elif kind == _RELAY:
                    relays += [] if is_gone else [load_relay(text)]
                    relays_gone += [path] if is_gone else []
                elif is_gone:
                    gone.append(id_)
                else:
                    entities.append(StoredEntity(id=id_, description=_load(kind, text), store=store))
            except (NotADescription, ValueError, KeyError, TypeError) as error:
                raise Corrupt(f"{kind} {path} of namespace {self._namespace} cannot be read from the engine: {error}") from error
        return Changes(
            revision=rows[0][0],
            entities=tuple(entities),
            gone=tuple(gone),
            authorization_rules=tuple(rules),
            relays=tuple(relays),
            relays_gone=tuple(relays_gone),
            highest_id=rows[0][1],
        )

    # -- changes -----------------------------------------------------------------------------

    def _change(self, rest: str, values: tuple[object, ...]) -> None:
        """`rest` may use `r`: the namespace's row with its new revision. CatalogBehind if another node has changed something meanwhile."""
        row = self._connection.execute(
            f"WITH {_RAISE}, c AS ({rest}) {_TOLD}", (self._namespace, self.revision, *values, self._namespace), prepare=False
        ).fetchone()
        if row is None:
            raise CatalogBehind("Another node has just changed this namespace. Try again.")
        self.revision = int(row[0])

    def put_entity(self, description: EntityDescription, *, store: int) -> StoredEntity:
        """Insert, or replace the description of the same name. The store of an entity never changes."""
        path, kind, text = _path_of(description), kind_of(description).value, _dump(description)
        with self._mutex:
            id_ = self._ids.get(path)
            if id_ is not None:
                store = self._paths[id_][1]
                self._change(
                    "UPDATE tandem.entity SET description = %s, revision = r.revision FROM r WHERE namespace = %s AND id = %s",
                    (text, self._namespace, id_),
                )
            else:
                topic_id = self._topic_id(description)
                id_ = self._new_id()
                self._change(
                    "INSERT INTO tandem.entity (namespace, id, kind, path, topic_id, store, description, revision) "
                    "SELECT %s, %s, %s, %s, %s, %s, %s, r.revision FROM r",
                    (self._namespace, id_, kind, path, topic_id, store, text),
                )
            self._paths[id_] = (path, store)
            self._ids[path] = id_
        return StoredEntity(id=id_, description=description, store=store)

    def _topic_id(self, description: EntityDescription) -> int | None:
        if not isinstance(description, SubscriptionDescription):
            return None
        found = self._ids.get(description.topic.casefold())
        if found is None:
            raise EntityNotFound(f"there is no topic {description.topic!r} for the subscription {description.name!r}")
        return found

    def _new_id(self) -> int:
        """Ids are given once, whatever becomes of what they were given for."""
        row = self._connection.execute(
            "UPDATE tandem.namespace SET highest_id = highest_id + 1 WHERE name = %s RETURNING highest_id", (self._namespace,)
        ).fetchone()
        if row is None or row[0] > ENTITY_ID_MAX:
            raise QuotaExceeded(f"the namespace has used up all {ENTITY_ID_MAX} entity ids")
        return int(row[0])

    def delete_entity(self, id_: int) -> None:
        """With the subscriptions of a topic."""
        with self._mutex:
            if id_ not in self._paths:
                raise EntityNotFound(f"no entity has the id {id_}")
            self._change(
                "UPDATE tandem.entity SET gone = true, revision = r.revision FROM r WHERE namespace = %s AND (id = %s OR topic_id = %s)",
                (self._namespace, id_, id_),
            )
            path = self._paths[id_][0]
            for other in [key for key, (one, _) in self._paths.items() if key == id_ or one.startswith(f"{path}/subscriptions/")]:
                self._forget(other)

    def put_rule(self, subscription_id: int, rule: RuleDescription) -> None:
        raise EntityAlreadyExists(f"rule {rule.name!r} is kept with its subscription {subscription_id}")

    def delete_rule(self, subscription_id: int, name: str) -> None:
        raise EntityNotFound(f"rule {name!r} is kept with its subscription {subscription_id}")

    def put_authorization_rule(self, rule: AuthorizationRule) -> None:
        self._put_named(_RULE, rule.key_name, dump_authorization_rule(rule))

    def put_relay(self, description: HybridConnectionDescription) -> None:
        self._put_named(_RELAY, description.name.casefold(), dump_relay(description))

    def _put_named(self, kind: str, name: str, text: str) -> None:
        with self._mutex:
            self._change(
                "INSERT INTO tandem.named (namespace, kind, name, description, revision) SELECT %s, %s, %s, %s, r.revision FROM r "
                "ON CONFLICT (namespace, kind, name) DO UPDATE "
                "SET description = excluded.description, revision = excluded.revision, gone = false",
                (self._namespace, kind, name, text),
            )

    def delete_relay(self, name: str) -> None:
        with self._mutex:
            self._change(
                "UPDATE tandem.named SET gone = true, revision = r.revision FROM r WHERE namespace = %s AND kind = %s AND name = %s",
                (self._namespace, _RELAY, name.casefold()),
            )

    def give_up_after(self, milliseconds: int) -> None:
        """On any thread: a call that takes longer fails."""
        self._connection.shut_if_slow(milliseconds)

    def close(self) -> None:
        self._connection.close()


def _path_of(description: EntityDescription) -> str:
    if isinstance(description, SubscriptionDescription):
        return f"{description.topic.casefold()}/subscriptions/{description.name.casefold()}"
    return description.name.casefold()


def _dump(description: EntityDescription) -> str:
    """A subscription with its rules."""
    rules = [dump_rule(rule) for rule in description.rules] if isinstance(description, SubscriptionDescription) else []
    return json.dumps({"entity": dump_entity(description), "rules": rules})


def _load(kind: str, text: str) -> EntityDescription:
    kept = json.loads(text)
    return load_entity(EntityKind(kind), kept["entity"], tuple(load_rule(rule) for rule in kept["rules"]))
