"""How far the asynchronous standby of another region is behind its cluster: in time, in blocks and in messages."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tandem.broker import facts
from tandem.model.errors import EngineAway
from tandem.model.store_row import FIRST_ENGINE
from tandem.stores.blocks import RECORD, RECORD_BYTES
from tandem.stores.postgres_connection import UNDEFINED_TABLE, EngineConnection, sqlstate_of
from tandem.stores.segment_index import ENTRY, ENTRY_BYTES

_ENTRIES_AT_ONCE: Final = 256
_ENTRIES_PER_LOOK: Final = 16_384
"""More than that a standby is not behind without somebody having been told long ago; the rest is counted with the next looks."""
_ENTRIES_MAX: Final = 500_000
"""Of which it is remembered how many messages are in them."""
_PATIENCE_SECONDS: Final = 10.0
"""For an engine that hangs: its commits may wait for a standby that is gone."""
_STORES: Final = "SELECT id, namespace, number, first_segment, last_segment, first_block FROM tandem.store ORDER BY namespace, number"
_NOW: Final = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"


@dataclass(frozen=True, slots=True)
class StoreHead:
    """The end of one store's journal."""

    namespace: str
    number: int
    segment: int
    block: int
    """Number of the last block; one less than the first if there is none."""


@dataclass(frozen=True, slots=True)
class Lag:
    """What a follower knows after one look."""

    at_ms: int
    """By the clock of the engine that was followed; by the standby's own while that is away."""
    lag_ms: int
    messages: int
    """Accepted, and not replayed here: at least, while not all is counted yet."""
    blocks: int
    counted: bool
    """All missing blocks were looked into: there may be too many, or they may have been given up there already."""
    away: str
    """Why the followed engine could not be asked; empty: it was. Then messages and blocks are of the last time it was."""
    heads: dict[int, StoreHead] = field(default_factory=dict)
    """By store: how far the followed engine was known to be."""
    missing: dict[tuple[int, int], int] = field(default_factory=dict)
    """By store and block that are not replayed here: messages in it, as far as they are counted."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "at_ms": self.at_ms,
            "lag_seconds": self.lag_ms / 1000,
            "lag_messages": self.messages,
            "lag_blocks": self.blocks,
            "counted": self.counted,
            "primary": self.away or "followed",
        }

    def kept(self) -> dict[str, Any]:
        """What is worth knowing when the followed engine is lost."""
        return {
            "at_ms": self.at_ms,
            "stores": [
                {
                    "namespace": head.namespace,
                    "store": head.number,
                    "block": head.block,
                    "missing": [[block, count] for (id_, block), count in self.missing.items() if id_ == store],
                }
                for store, head in self.heads.items()
            ],
        }


def messages_in(entry: bytes) -> int:
    """Accepted with this block; what compaction wrote again is not new."""
    count = ENTRY.unpack_from(entry)[2]
    found = 0
    for kind, flags, *_ in RECORD.iter_unpack(entry[ENTRY_BYTES : ENTRY_BYTES + count * RECORD_BYTES]):
        if kind in (facts.ENQUEUED, facts.PUBLISHED) and not facts.is_relocated(flags):
            found += 1
    return found


def heads_of(connection: EngineConnection) -> dict[int, StoreHead]:
    found: dict[int, StoreHead] = {}
    for id_, namespace, number, first, last, first_block in connection.execute(_STORES).fetchall():
        segment, block = last, None
        while block is None and segment >= first:
            block = _last_block(connection, id_, segment)
            segment -= block is None
        found[id_] = StoreHead(namespace, number, max(segment, first), first_block - 1 if block is None else block)
    return found


def _last_block(connection: EngineConnection, store: int, segment: int) -> int | None:
    try:
        row = connection.execute(f"SELECT max(number) FROM tandem.b_{store}_{segment}").fetchone()
    except EngineAway as error:
        if sqlstate_of(error) == UNDEFINED_TABLE:
            return None
        raise
    return int(row[0]) if row is not None and row[0] is not None else None


class Follower:
    """Looks at both ends, and says in the followed engine what it saw. Used by one thread; calls block."""

    def __init__(self, name: str, primary: EngineConnection, standby: EngineConnection) -> None:
        self._name = name
        self._primary = primary
        self._standby = standby
        self._counted: dict[tuple[int, int], int] = {}
        """By store and block: messages in it."""
        self._known: dict[int, StoreHead] = {}
        self._messages = self._blocks = 0
        self._all_counted = True

    def look(self, others: Mapping[str, Lag] | None = None) -> Lag:
        """EngineAway if the standby itself cannot be asked. `others`: of engines beside the first, which is this one; they are told too.
        None: this is not the first, and nothing is told."""
        here = self._standby.execute(
            f"SELECT {_NOW}, (extract(epoch FROM pg_last_xact_replay_timestamp()) * 1000)::bigint, pg_last_wal_replay_lsn()::text, "
            "pg_is_in_recovery()"
        ).fetchone()
        assert here is not None
        now_ms, replayed_ms, position, follows = here
        if not follows:
            raise EngineAway("this engine follows nobody: it is a primary, or was promoted")
        heads = heads_of(self._standby)
        patience = threading.Timer(_PATIENCE_SECONDS, self._primary.shut)
        patience.daemon = True
        patience.start()
        try:
            there = self._primary.execute(f"SELECT {_NOW}, %s::pg_lsn >= pg_current_wal_lsn()", (position or "0/0",)).fetchone()
            assert there is not None
            lag_ms = 0 if there[1] or replayed_ms is None else max(there[0] - replayed_ms, 0)
            self._known = heads_of(self._primary)
            self._count(heads)
            lag = Lag(there[0], lag_ms, self._messages, self._blocks, self._all_counted, "", self._known, dict(self._counted))
            if others is not None:
                self._tell(lag, others)
        except EngineAway as error:
            lag_ms = max(now_ms - replayed_ms, 0) if replayed_ms is not None else 0
            self._forget_replayed(heads)
            self._add_up(heads)
            return Lag(now_ms, lag_ms, self._messages, self._blocks, self._all_counted, error.description, self._known)
        finally:
            patience.cancel()
        return lag

    def _count(self, heads: dict[int, StoreHead]) -> None:
        self._forget_replayed(heads)
        room = min(_ENTRIES_PER_LOOK, _ENTRIES_MAX - len(self._counted))
        for store, head in self._known.items():
            begin = heads[store] if store in heads else StoreHead(head.namespace, head.number, 1, 0)
            after, segment = begin.block, begin.segment
            while (store, after + 1) in self._counted:
                after += 1
            while segment <= head.segment and room > 0:
                rows = self._entries(store, segment, after, head.block)
                for number, entry in rows:
                    self._counted[store, number] = messages_in(entry)
                    after = number
                room -= len(rows)
                segment += not rows
        self._add_up(heads)

    def _forget_replayed(self, heads: dict[int, StoreHead]) -> None:
        self._counted = {key: count for key, count in self._counted.items() if key[0] in heads and key[1] > heads[key[0]].block}

    def _add_up(self, heads: dict[int, StoreHead]) -> None:
        self._messages = sum(self._counted.values())
        self._blocks = sum(max(head.block - (heads[store].block if store in heads else 0), 0) for store, head in self._known.items())
        self._all_counted = len(self._counted) == self._blocks

    def _entries(self, store: int, segment: int, after: int, last: int) -> list[tuple[int, bytes]]:
        sql = (
            f"SELECT number, entry FROM tandem.b_{store}_{segment} WHERE number > %s AND number <= %s "
            f"ORDER BY number LIMIT {_ENTRIES_AT_ONCE}"
        )
        try:
            return [(row[0], row[1]) for row in self._primary.execute(sql, (after, last), prepare=False).fetchall()]
        except EngineAway as error:
            if sqlstate_of(error) == UNDEFINED_TABLE:
                return []
            raise

    def _tell(self, lag: Lag, others: Mapping[str, Lag]) -> None:
        self._primary.execute(
            f"INSERT INTO tandem.follower (name, at_ms, lag_ms, messages, blocks) VALUES (%s, {_NOW}, %s, %s, %s) ON CONFLICT (name) DO "
            "UPDATE SET at_ms = excluded.at_ms, lag_ms = excluded.lag_ms, messages = excluded.messages, blocks = excluded.blocks",
            (self._name, lag.lag_ms, lag.messages, lag.blocks),
        )
        for engine, other in others.items():
            self._primary.execute(
                f"INSERT INTO tandem.follower_of (name, engine, at_ms, lag_ms, messages, blocks) VALUES (%s, %s, {_NOW}, %s, %s, %s) "
                "ON CONFLICT (name, engine) DO UPDATE SET at_ms = excluded.at_ms, lag_ms = excluded.lag_ms, messages = excluded.messages, "
                "blocks = excluded.blocks",
                (self._name, engine, other.lag_ms, other.messages, other.blocks),
            )

    def close(self) -> None:
        self._primary.close()
        self._standby.close()


class ClusterFollower:
    """Followers of all engines of a cluster, by name."""

    def __init__(self, followers: Mapping[str, Follower]) -> None:
        self._followers = followers
        self._kept: dict[str, dict[str, Any]] = {}
        """What was last known of each engine."""

    def look(self) -> tuple[dict[str, Lag], dict[str, str]]:
        """How far each standby is, and which of them could not be asked, and why."""
        lags: dict[str, Lag] = {}
        troubles: dict[str, str] = {}
        for engine in sorted(self._followers, key=lambda name: name == FIRST_ENGINE):  # which is told of all
            try:
                lag = self._followers[engine].look(dict(lags) if engine == FIRST_ENGINE else None)
            except EngineAway as error:
                troubles[engine] = error.description
                continue
            lags[engine] = lag
            if not lag.away:
                self._kept[engine] = lag.kept()
        return lags, troubles

    def kept(self) -> dict[str, Any]:
        """What is worth knowing when what is followed is lost; nothing before every engine has answered."""
        if self._kept.keys() != self._followers.keys():
            return {}
        kept = self._kept.values()
        return {"at_ms": min(one["at_ms"] for one in kept), "stores": [store for one in kept for store in one["stores"]]}

    def close(self) -> None:
        for follower in self._followers.values():
            follower.close()


def together(lags: Mapping[str, Lag]) -> dict[str, Any]:
    """For people and programs: the worst of all engines, and each."""
    all_ = list(lags.values())
    away = "; ".join(lag.away for lag in all_ if lag.away)
    return {
        "at_ms": min(lag.at_ms for lag in all_),
        "lag_seconds": max(lag.lag_ms for lag in all_) / 1000,
        "lag_messages": sum(lag.messages for lag in all_),
        "lag_blocks": sum(lag.blocks for lag in all_),
        "counted": all(lag.counted for lag in all_),
        "primary": away or "followed",
        "engines": {engine: lag.as_dict() for engine, lag in lags.items()},
    }
