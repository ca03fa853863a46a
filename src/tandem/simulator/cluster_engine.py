"""The engine of a simulated cluster: the rows of its nodes, its catalog and its stores, and the line that each node reaches it by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any, Final, Protocol, TypeVar

from tandem.model.catalog import Changes, Snapshot, StoredEntity
from tandem.model.entity import AuthorizationRule, HybridConnectionDescription, RuleDescription, SubscriptionDescription
from tandem.model.entity_json import EntityDescription
from tandem.model.errors import CatalogBehind, EngineAway, EntityAlreadyExists, EntityNotFound
from tandem.model.follower_row import FollowerRow
from tandem.model.store_row import StoreRow
from tandem.simulator.agenda import Agenda
from tandem.simulator.engine import EngineFate, LedgerState, Replicated, ReplicatedState, SimEngine, SimLedger
from tandem.simulator.stores import DiskFaults

NAMESPACE: Final = "tandem"
_FATES: Final = (EngineFate.BROKEN, EngineFate.UNTOLD, EngineFate.LOCAL, EngineFate.LATE)
_S = TypeVar("_S", bound=ReplicatedState)
NodeFields = tuple[str, int, int, str, str, bool]
"""Name, incarnation, beat, address, version, draining."""


@dataclass
class Registry:
    """What an engine has beside the stores."""

    nodes: dict[str, NodeFields] = field(default_factory=dict)
    entities: dict[str, tuple[int, StoredEntity, bool]] = field(default_factory=dict)
    """By path: the revision of the last change, what it is, and whether it is gone."""
    rules: dict[str, AuthorizationRule] = field(default_factory=dict)
    revision: int = 1
    highest_id: int = 0

    def change(self) -> int:
        """The number of the change that is being made."""
        self.revision += 1
        return self.revision

    def put(self, path: str, description: EntityDescription, id_: int, store: int) -> StoredEntity:
        """`id_`: 0 for the next one."""
        id_ = id_ or self.highest_id + 1
        self.highest_id = max(self.highest_id, id_)
        stored = StoredEntity(id=id_, description=description, store=store)
        self.entities[path] = (self.revision, stored, False)
        return stored

    def copy(self) -> Registry:
        return Registry(dict(self.nodes), dict(self.entities), dict(self.rules), self.revision, self.highest_id)


class ClusterEngine:
    """One server with its standby. It lies about a few of all writes until it calms down."""

    def __init__(self, stores: int, dice: Random, troubled: float) -> None:
        """`troubled`: the part of all writes that have another fate than they should."""
        self._dice = dice
        self._troubled = troubled
        self.registry = Replicated(Registry(), self._draw, self._before_a_call)
        self.stores = [SimEngine(self._draw, self._before_a_call, number) for number in range(stores)]
        self.owners: dict[tuple[int, int], str] = {}
        """By store and epoch which process has served under it."""

    def _all(self) -> list[Replicated[Any]]:
        return [self.registry, *self.stores]

    def _draw(self) -> EngineFate:
        return self._dice.choice(_FATES) if self._troubled and self._dice.random() < self._troubled else EngineFate.DONE

    def _before_a_call(self) -> None:
        """Statements that were given up arrive after all, or the standby is promoted."""
        if not self._troubled:
            return
        chance = self._dice.random()
        if chance < 0.01:
            for one in self._all():
                one.run_late()
        elif chance < 0.012:
            self.fail_over()

    @contextmanager
    def in_peace(self) -> Iterator[None]:
        """Nothing happens between these calls, and they have the fate they should."""
        before, self._troubled = self._troubled, 0.0
        try:
            yield
        finally:
            self._troubled = before

    def fail_over(self) -> None:
        for one in self._all():
            one.fail_over()

    def reach(self, reachable: bool) -> None:
        for one in self._all():
            one.reach(reachable)

    def calm_down(self) -> None:
        """For good."""
        self._troubled = 0.0
        self.reach(True)
        for one in self._all():
            one.run_late()

    def takeovers(self) -> int:
        """How often a store went from one node to another."""
        served = [(store, process.partition("#")[0]) for (store, _), process in sorted(self.owners.items())]
        return sum(one[0] == other[0] and one[1] != other[1] for one, other in pairwise(served))

    def broken_orders(self) -> list[str]:
        """Where the blocks of a store have a gap, or an epoch fell."""
        wrong: list[str] = []
        for number, engine in enumerate(self.stores):
            rows = [(block, row[0]) for segment in sorted(engine.kept) for block, row in sorted(engine.kept[segment].items())]
            blocks, epochs = [row[0] for row in rows], [row[1] for row in rows]
            if blocks != list(range(blocks[0], blocks[0] + len(blocks)) if blocks else ()):
                wrong.append(f"store-{number}: the numbers of its blocks have a gap")
            if epochs != sorted(epochs):
                wrong.append(f"store-{number}: an epoch fell")
        return wrong


class EngineLine:
    """Between one node and the engine. Outlives the processes of its node."""

    def __init__(self, agenda: Agenda, dice: Random) -> None:
        self._agenda = agenda
        self._dice = dice
        self.cut = False
        """Whoever calls is told that nobody answers."""
        self.beats_cut = False
        """The same for beats alone: what is written still comes through."""
        self.leads_back = False
        """To a primary that was replaced: reads show what was, writes hang."""
        self.faults = DiskFaults()
        """Of which it only knows stalls: calls that take long."""

    def latency(self) -> float:
        return self._dice.uniform(0.000_5, 0.006)

    @property
    def hangs(self) -> bool:
        return self.faults.stalled_until > self._agenda.time()

    def must_answer(self, beats: bool = False) -> None:
        if self.cut or (beats and self.beats_cut):
            raise EngineAway("the engine cannot be reached")
        if self.hangs:
            raise EngineAway("the engine has not answered in time")

    def must_write(self, beats: bool = False) -> None:
        self.must_answer(beats)
        if self.leads_back:
            raise EngineAway("no answer: this was the primary once")

    def read(self, engine: Replicated[_S], look: Callable[[_S], object]) -> object:
        self.must_answer()
        return engine.read_old(look) if self.leads_back else engine.read(look)

    def lead_back(self, back: bool) -> None:
        self.leads_back = back

    def set_cut(self, cut: bool) -> None:
        self.cut = cut

    def set_beats_cut(self, cut: bool) -> None:
        self.beats_cut = cut

    def heal(self) -> None:
        self.cut = self.beats_cut = self.leads_back = False
        self.faults.heal()


class ReachedStore:
    """The engine of one store, over the line of one node; to a worker, a disk that takes its time."""

    def __init__(self, engine: SimEngine, line: EngineLine) -> None:
        self._engine = engine
        self._line = line
        self.faults = line.faults
        self.latency = line.latency

    @property
    def row(self) -> StoreRow:
        return self._engine.row

    @property
    def fail_overs(self) -> int:
        return self._engine.fail_overs

    def write(self, change: Callable[[LedgerState], object], connection: int = -1) -> object:
        self._line.must_write()
        return self._engine.write(change, connection)

    def read(self, look: Callable[[LedgerState], object]) -> object:
        return self._line.read(self._engine, look)

    def wait(self, seconds: float) -> None:
        """In a call that is made again: no time passes within one, so whoever is away is given up."""
        self._line.must_write()
        if not self._engine.reachable:
            raise EngineAway("the engine does not answer")


class LedgerJudge(Protocol):
    """Whoever looks whether promises hold."""

    def acquired(self, row: StoreRow) -> None: ...

    def broken(self, what: str) -> None: ...


class NodeLedger(SimLedger):
    """Of one process of one node: looks at the beat of the owner, as its engine shows it, and says under which epochs it serves."""

    def __init__(
        self,
        cluster: ClusterEngine,
        store: ReachedStore,
        node: str,
        process: str,
        may_take: Callable[[StoreRow], bool],
        judge: LedgerJudge,
    ) -> None:
        super().__init__(store, node, may_take)
        self._cluster = cluster
        self._process = process
        self._judge = judge

    def _look(self) -> StoreRow:
        seen = super()._look()
        owner = self._cluster.registry.read(lambda registry: registry.nodes.get(seen.owner))
        return seen if not isinstance(owner, tuple) else replace(seen, owner_beat=(owner[1], owner[2]))

    def acquire(self) -> StoreRow:
        row = super().acquire()
        other = self._cluster.owners.setdefault((row.number, row.epoch), self._process)
        if other != self._process:
            self._judge.broken(f"store-{row.number}: {other} and {self._process} both have epoch {row.epoch}")
        self._judge.acquired(row)
        return row

    def append(self, segment: int, number: int, at: int, entry: bytes, block: bytes) -> None:
        super().append(segment, number, at, entry, block)
        newest = self._engine.row
        if newest.epoch != self._epoch:
            self._judge.broken(
                f"store-{newest.number} took a block under epoch {self._epoch} from {self._process}, and epoch {newest.epoch} is given"
            )


class SimNodes:
    """The engine, for the beats of one node."""

    def __init__(self, cluster: ClusterEngine, line: EngineLine, now_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._line = line
        self._now_ms = now_ms

    def drain(self, node: str, draining: bool) -> None:
        """An operator's wish."""

        def do(registry: Registry) -> None:
            known = registry.nodes.get(node)
            if known is not None:
                registry.nodes[node] = (*known[:5], draining)

        self._cluster.registry.write(do)

    def join(self, node: str, address: str) -> int:
        def do(registry: Registry) -> int:
            _, before, beat, _, _, draining = registry.nodes.get(node, (node, 0, 0, "", "", False))
            registry.nodes[node] = (node, before + 1, beat, address, "1", draining)
            return before + 1

        self._line.must_write(beats=True)
        joined = self._cluster.registry.write(do)
        assert isinstance(joined, int)
        return joined

    def beat(self, node: str, incarnation: int) -> bool:
        def do(registry: Registry) -> bool:
            known = registry.nodes.get(node)
            if known is None or known[1] != incarnation:
                return False
            registry.nodes[node] = (*known[:2], known[2] + 1, *known[3:])
            return True

        self._line.must_write(beats=True)
        return bool(self._cluster.registry.write(do))

    def look(self) -> tuple[list[NodeFields], list[StoreRow], dict[str, int], int, frozenset[str]]:
        def nodes(registry: Registry) -> tuple[list[NodeFields], int]:
            return [registry.nodes[name] for name in sorted(registry.nodes)], registry.revision

        self._line.must_answer(beats=True)
        seen = self._cluster.registry.read(nodes)
        assert isinstance(seen, tuple)
        stores = [engine.look()[1] for engine in self._cluster.stores]
        return seen[0], stores, {NAMESPACE: seen[1]}, self._now_ms(), frozenset({NAMESPACE})

    def followers(self) -> list[FollowerRow]:
        return []

    def wait(self, seconds: float) -> bool:
        """Nobody is told before a beat."""
        return False

    def give_up_after(self, milliseconds: int) -> None:
        """Whoever beats decides when."""

    def close(self) -> None:
        """Nothing is open."""


class SimCatalog:
    """The catalog in that engine, as one process of one node knows it."""

    def __init__(self, cluster: ClusterEngine, line: EngineLine) -> None:
        self._cluster = cluster
        self._line = line
        self._known: dict[str, StoredEntity] = {}
        self.revision = 0

    def load(self) -> Snapshot:
        self._known, self.revision = {}, 0
        found = self._changes()
        self.applied(found)
        return Snapshot(entities=found.entities, authorization_rules=found.authorization_rules, highest_id=found.highest_id)

    def changes(self) -> Changes | None:
        found = self._changes()
        return found if found.revision != self.revision else None

    def applied(self, changes: Changes) -> None:
        if changes.revision < self.revision:
            return
        self._known.update({_path_of(stored.description): stored for stored in changes.entities})
        self._known = {path: stored for path, stored in self._known.items() if stored.id not in changes.gone}
        self.revision = changes.revision

    def _changes(self) -> Changes:
        def look(registry: Registry) -> Changes:
            new = sorted(
                ((stored, gone) for at, stored, gone in registry.entities.values() if at > self.revision), key=lambda one: one[0].id
            )
            return Changes(
                revision=registry.revision,
                entities=tuple(stored for stored, gone in new if not gone),
                gone=tuple(stored.id for stored, gone in new if gone),
                authorization_rules=tuple(registry.rules.values()),
                relays=(),
                relays_gone=(),
                highest_id=registry.highest_id,
            )

        found = self._line.read(self._cluster.registry, look)
        assert isinstance(found, Changes)
        return found

    def _change(self, change: Callable[[Registry], object]) -> object:
        """CatalogBehind if another node has changed something meanwhile."""
        seen = self.revision

        def do(registry: Registry) -> tuple[int, object] | None:
            if registry.revision != seen:
                return None
            return registry.change(), change(registry)

        self._line.must_write()
        done = self._cluster.registry.write(do)
        if done is None:
            raise CatalogBehind("Another node has just changed this namespace. Try again.")
        assert isinstance(done, tuple)
        self.revision = done[0]
        return done[1]

    def put_entity(self, description: EntityDescription, *, store: int) -> StoredEntity:
        path = _path_of(description)
        known = self._known.get(path)
        id_, store = (known.id, known.store) if known is not None else (0, store)
        stored = self._change(lambda registry: registry.put(path, description, id_, store))
        assert isinstance(stored, StoredEntity)
        self._known[path] = stored
        return stored

    def delete_entity(self, id_: int) -> None:
        raise EntityNotFound(f"nobody deletes entity {id_} here")

    def put_rule(self, subscription_id: int, rule: RuleDescription) -> None:
        raise EntityAlreadyExists(f"rule {rule.name!r} is kept with its subscription {subscription_id}")

    def delete_rule(self, subscription_id: int, name: str) -> None:
        raise EntityNotFound(f"rule {name!r} is kept with its subscription {subscription_id}")

    def put_authorization_rule(self, rule: AuthorizationRule) -> None:
        self._change(lambda registry: registry.rules.update({rule.key_name: rule}))

    def put_relay(self, description: HybridConnectionDescription) -> None:
        raise EntityAlreadyExists("nobody has relays here")

    def delete_relay(self, name: str) -> None:
        raise EntityNotFound("nobody has relays here")

    def give_up_after(self, milliseconds: int) -> None:
        """No call takes long."""

    def close(self) -> None:
        """Nothing is open."""


def _path_of(description: EntityDescription) -> str:
    if isinstance(description, SubscriptionDescription):
        return f"{description.topic.casefold()}/subscriptions/{description.name.casefold()}"
    return description.name.casefold()
