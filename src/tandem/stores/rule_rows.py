"""The rules of a subscription as rows of the metadata."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable

from tandem.model.entity import RuleDescription
from tandem.model.entity_json import dump_rule


def row_checksum(*columns: object) -> int:
    return zlib.crc32("\x00".join(map(str, columns)).encode("utf-8", "surrogatepass"))


def put_rules(db: sqlite3.Connection, subscription_id: int, rules: Iterable[RuleDescription]) -> None:
    """Writes those that changed: one more of thousands is one row. In another order they are all written again."""
    wanted = {rule.name.casefold(): dump_rule(rule) for rule in rules}
    sql = "SELECT name, description, checksum FROM rules WHERE subscription_id = ? ORDER BY rowid"
    kept = {name: (text, checksum) for name, text, checksum in db.execute(sql, (subscription_id,))}
    staying = [name for name in kept if name in wanted]
    if staying != list(wanted)[: len(staying)]:
        staying = []
    for name in kept.keys() - set(staying):
        db.execute("DELETE FROM rules WHERE subscription_id = ? AND name = ?", (subscription_id, name))
        del kept[name]
    for name, text in wanted.items():
        if kept.get(name) != (text, row_checksum(subscription_id, name, text)):
            put_rule(db, subscription_id, name, text)


def put_rule(db: sqlite3.Connection, subscription_id: int, name: str, text: str) -> None:
    db.execute(
        "INSERT INTO rules VALUES (?1, ?2, ?3, ?4) ON CONFLICT (subscription_id, name) DO UPDATE SET description = ?3, checksum = ?4",
        (subscription_id, name, text, row_checksum(subscription_id, name, text)),
    )
