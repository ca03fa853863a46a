"""Journals name entities by number; these facts say which entity a number means, before anything else does with that number.

So a journal is never read with the metadata of others, and metadata that is lost can be rebuilt from the journals. Keys are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.broker import facts
from tandem.model.entity import RuleDescription, SubscriptionDescription
from tandem.model.entity_json import EntityDescription, dump_rule, dump_without_keys, kind_and_path_in, kind_of, path_of
from tandem.model.errors import Corrupt, StoresCountChanged, StoreUnavailable

if TYPE_CHECKING:
    from tandem.broker.ports import Journal

_Word = tuple[bytes, int]
"""What the journal says, and where it says so."""
UNKNOWN: Final = -1
_MISSING_TOLD: Final = 20
_WHAT_TO_DO: Final = (
    "put the right metadata.sqlite back from a backup, or move this one away and run: tandem store recover-metadata; "
    "in a cluster, restore its engines from one backup"
)


class Entry:
    """One entity, as the metadata has it."""

    __slots__ = ("_described", "key", "kind", "path", "rules", "store")

    def __init__(self, store: int, description: EntityDescription, before: Entry | None = None) -> None:
        """`before`: of the same entity; of thousands of rules it may have, those that have not changed are not written out again."""
        self.store = store
        """Negative for a partitioned entity: it is in all of them."""
        self.kind: str = kind_of(description).value
        self.path: str = path_of(description)
        self.key: bytes = dump_without_keys(description).encode()
        self.rules: dict[str, bytes] = {}
        self._described: dict[str, RuleDescription] = {}
        if isinstance(description, SubscriptionDescription):
            self._described = {rule.name.casefold(): rule for rule in description.rules}
            for name, rule in self._described.items():
                known = before is not None and before._described.get(name) is rule
                self.rules[name] = before.rules[name] if before is not None and known else dump_rule(rule).encode()


class Roll:
    """Every entity of a namespace by its id."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}
        self.highest_id: int = UNKNOWN
        """The highest id that was ever given. UNKNOWN in a namespace without metadata."""

    def enter(self, id_: int, store: int, description: EntityDescription) -> None:
        self.entries[id_] = Entry(store, description, self.entries.get(id_))
        if self.highest_id != UNKNOWN:
            self.highest_id = max(self.highest_id, id_)

    def leave(self, id_: int) -> None:
        self.entries.pop(id_, None)

    def must_have_given(self, id_: int, what: str) -> None:
        """An id that the journal has and the metadata has never given: the metadata is older than the journal, and would give it again."""
        if self.highest_id != UNKNOWN and id_ > self.highest_id:
            raise StoreUnavailable(
                f"the journal holds {what} as number {id_}, but the metadata has given numbers up to {self.highest_id} only: "
                f"it is older than the journal; {_WHAT_TO_DO}"
            )


class EntityFacts:
    """What one journal has been told of the entities in it."""

    def __init__(self, journal: Journal, roll: Roll, store: int) -> None:
        self._journal = journal
        self._roll = roll
        self._store = store
        self._told: dict[int, _Word] = {}
        """The last fact of each entity that is in the journal."""
        self._rules: dict[int, dict[str, _Word]] = {}
        self._replay_ended = False
        """What the journal knows is known here: from now on changes are told as they come."""
        self._behind = False
        self._unclaimed: dict[int, int] = {}
        """Messages that were told of entities that the metadata does not have, until the replay has ended."""
        self.missing: tuple[str, ...] = ()
        """Entities with messages that the journal has, and the metadata had not when it was read: a line each."""

    # -- writing -----------------------------------------------------------------------------

    def tell_all(self, now: int) -> None:
        """Whatever the journal does not know, or knows differently: entities made or changed while the store was down, or before
        journals were told of them; and the end of those that are gone."""
        gone = [id_ for id_ in self._told if id_ not in self._roll.entries]
        if not self._replay_ended:
            self._note_missing(gone)
        self._replay_ended = True
        self._behind = False
        for id_ in [*gone, *self._roll.entries]:
            self._tell(id_, now)
            if self._behind:
                return

    def tell(self, id_: int, now: int) -> None:
        """What has changed of this entity. A store that has stopped is told when it is back."""
        if not self._replay_ended:
            return
        if self._behind:
            self.tell_all(now)
        else:
            self._tell(id_, now)

    def _tell(self, id_: int, now: int) -> None:
        entry = self._roll.entries.get(id_)
        try:
            if entry is None:
                self._tell_end(id_, now)
            elif entry.store < 0 or entry.store == self._store:
                self._tell_entry(id_, entry, now)
        except StoreUnavailable:
            self._behind = True

    def _tell_entry(self, id_: int, entry: Entry, now: int) -> None:
        journal = self._journal
        last = self._told.get(id_)
        if last is None or last[0] != entry.key:
            self._told[id_] = entry.key, facts.write_entity(journal, id_, self._store, entry.key, now)
        told = self._rules.setdefault(id_, {}) if entry.rules or id_ in self._rules else {}
        for name in [name for name in told if name not in entry.rules]:
            facts.write_rule_ended(journal, id_, name, now)
            del told[name]
        for name, key in entry.rules.items():
            last = told.get(name)
            if last is None or last[0] != key:
                told[name] = key, facts.write_rule(journal, id_, name, key, now)

    def _tell_end(self, id_: int, now: int) -> None:
        if id_ in self._told:
            facts.write_entity_ended(self._journal, id_, self._store, now)
            del self._told[id_]
            self._rules.pop(id_, None)

    def _note_missing(self, gone: list[int]) -> None:
        """Of those that were deleted while the store could not hear it, too: nobody can tell them apart from rows that were lost."""
        lines = []
        for id_ in gone:
            count = self._unclaimed.get(id_, 0)
            if count > 0:
                kind, path = kind_and_path_in(self._told[id_][0].decode())
                lines.append(
                    f"{count} messages of the {kind} '{path}', number {id_}, which the metadata does not have, are dropped: it was deleted "
                    "while the store was away, or its row was lost; if it was lost, stop the broker and put metadata.sqlite back "
                    "(in a cluster: restore the engine)"
                )
        if len(lines) > _MISSING_TOLD:
            lines[_MISSING_TOLD:] = [f"and messages of {len(lines) - _MISSING_TOLD} more entities that the metadata does not have"]
        self.missing = tuple(lines)
        self._unclaimed = {}

    # -- replay and compaction ---------------------------------------------------------------

    def must_be_gone(self, entity: int) -> None:
        """The journal tells of an entity that this store does not keep. One that the metadata has is kept in another one: it is
        partitioned, and which store has a fragment follows from how many there are."""
        entry = self._roll.entries.get(facts.id_of(entity))
        if entry is not None:
            raise StoresCountChanged(
                f"store-{self._store} has messages of fragment {entity >> facts.FRAGMENT_BITS} of '{entry.path}', which belongs in another "
                "store now: the number of stores has changed; set stores.count to what it was when the entity was made"
            )

    def unclaimed(self, entity: int, count: int) -> None:
        """So many messages more, or fewer, of an entity that the metadata does not have."""
        id_ = facts.id_of(entity)
        self._unclaimed[id_] = self._unclaimed.get(id_, 0) + count

    def replayed(self, kind: int, flags: int, entity: int, key: bytes, location: int) -> None:
        id_ = facts.id_of(entity)
        if kind == facts.RULE:
            told = self._rules.setdefault(id_, {})
            name, text = facts.read_rule(flags, key)
            if facts.has_ended(flags):
                told.pop(name, None)
            else:
                told[name] = text, location
        elif kind != facts.ENTITY:
            raise Corrupt(f"the journal holds a fact of unknown kind {kind}: it was written by a newer version")
        elif facts.has_ended(flags):
            self._told.pop(id_, None)
            self._rules.pop(id_, None)
        else:
            self._compare(id_, key)
            self._told[id_] = key, location

    def _compare(self, id_: int, key: bytes) -> None:
        entry = self._roll.entries.get(id_)
        if entry is not None and entry.key == key:
            return
        try:
            kind, path = kind_and_path_in(key.decode())
        except ValueError as error:
            raise Corrupt(f"the journal's word on entity {id_} cannot be read: {error}") from error
        if entry is None:
            self._roll.must_have_given(id_, f"the {kind} '{path}'")
        elif (kind, path.casefold()) != (entry.kind, entry.path.casefold()):
            raise StoreUnavailable(
                f"the journal holds the {kind} '{path}' as number {id_}, but in the metadata that is the {entry.kind} "
                f"'{entry.path}': it is not the metadata of this store; {_WHAT_TO_DO}"
            )

    def relocate(self, kind: int, flags: int, entity: int, seq: int, at: int, key: bytes, location: int) -> None:
        """The last word on something is written again; older ones, and the end of it, have nothing left to say."""
        id_ = facts.id_of(entity)
        if facts.has_ended(flags):
            return
        if kind == facts.ENTITY:
            last = self._told.get(id_)
            if last is not None and last[1] == location:
                self._told[id_] = last[0], facts.write_again(self._journal, kind, flags, entity, seq, at, 0, key, b"")
            return
        name, _ = facts.read_rule(flags, key)
        last = self._rules.get(id_, {}).get(name)
        if last is not None and last[1] == location:
            self._rules[id_][name] = last[0], facts.write_again(self._journal, kind, flags, entity, seq, at, 0, key, b"")
