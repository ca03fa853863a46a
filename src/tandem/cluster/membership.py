"""Who lives, who serves what, and what this node should do about it: decided from beats that are counted, never from clocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from tandem.cluster.placement import Loads, Place, next_move, planned
from tandem.model.store_row import StoreRow

BEATS_PER_LEASE: Final = 5
"""A node that makes none while another makes so many is dead for that one."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node as the engine knows it."""

    name: str
    incarnation: int
    """Goes up whenever a process starts under this name."""
    beat: int
    address: str
    """Where it listens for its peers; empty: it does not."""
    version: str
    draining: bool
    """Somebody wants it to serve nothing."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """What this node knows of an engine beside the first. Nodes beat there too: who lives and cannot reach it has no stores there."""

    beats: int = 0
    """Of our own there, since we joined."""
    nodes: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By node: its incarnation and its beat there."""
    stores: tuple[StoreRow, ...] = ()
    """As they were when it answered last."""
    answers: bool = False
    at_ms: int = 0
    """When the last beat that it has was begun; before the first one, when we began to try. On a clock that goes on while we sleep."""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that one beat shows."""

    nodes: tuple[NodeRow, ...]
    stores: tuple[StoreRow, ...]
    revisions: dict[str, int] = field(default_factory=dict)
    """By namespace: the last change of what it consists of."""
    engine_clock_ms: int = 0
    spread: frozenset[str] = frozenset()
    """Namespaces whose stores may be with several nodes; those of others go together."""
    engines: dict[str, EngineView] = field(default_factory=dict)
    """Beside the first, by name. Their stores are among `stores`."""


class Membership:
    """What one node believes. `beat` is told what each beat of its own has shown."""

    def __init__(self, node: str) -> None:
        self.node = node
        self._beats = 0
        """Of our own, since we joined."""
        self._heard: dict[str, tuple[int, int, int]] = {}
        """By node: incarnation, its beat, and ours when that was new."""
        self._heard_in: dict[tuple[str, str], tuple[int, int, int]] = {}
        """The same, by engine beside the first and node."""
        self.view = View((), ())
        self._free_since: dict[Place, int] = {}
        """By store: our beat at which nobody living served it."""
        self._rows: dict[Place, StoreRow] = {}
        self._left: dict[Place, int] = {}
        """Stores that we are giving away, by our beat: what is shown of them may be older than that."""
        self._steady: tuple[object, ...] = ()
        """Who serves what, of whom; and since which of our beats that is so."""
        self._steady_since = 0

    def beat(self, view: View) -> None:
        self._beats += 1
        self.view = view
        for node in view.nodes:
            known = self._heard.get(node.name)
            if known is None or known[:2] != (node.incarnation, node.beat):
                self._heard[node.name] = (node.incarnation, node.beat, self._beats)
        for engine, seen in view.engines.items():
            for name, (incarnation, beat) in seen.nodes.items():
                known = self._heard_in.get((engine, name))
                if known is None or known[:2] != (incarnation, beat):
                    self._heard_in[engine, name] = (incarnation, beat, seen.beats)
        self._rows = {(row.namespace, row.number): self._newest(row) for row in view.stores}
        for place, row in self._rows.items():
            if row.owner != self.node:
                self._left.pop(place, None)
            if self._lives(row.owner, row.engine):
                self._free_since.pop(place, None)
            else:
                self._free_since.setdefault(place, self._beats)
        fit = tuple(tuple(self._fit(engine)) for engine in ("", *view.engines))
        steady = (fit, tuple(row.owner for row in view.stores), tuple(row.wanted for row in view.stores))
        if steady != self._steady:
            self._steady, self._steady_since = steady, self._beats

    def _newest(self, row: StoreRow) -> StoreRow:
        """Another engine is looked at beside the beats: what it showed may be older than what we have acquired there since."""
        known = self._rows.get((row.namespace, row.number)) if row.engine else None
        return known if known is not None and known.epoch > row.epoch else row

    def _lives(self, name: str, engine: str = "") -> bool:
        """With an engine beside the first: and reaches that, as far as we know."""
        if name == self.node:
            return True
        heard = self._heard.get(name)
        if heard is None or self._beats - heard[2] >= BEATS_PER_LEASE:
            return False
        return not engine or self._reaches(name, engine)

    def _reaches(self, name: str, engine: str) -> bool:
        """By beats that are counted there, and while it is away from us nobody ages."""
        seen, heard = self.view.engines.get(engine), self._heard_in.get((engine, name))
        return seen is not None and heard is not None and seen.beats - heard[2] < BEATS_PER_LEASE

    def _answers(self, engine: str) -> bool:
        """Nothing is opened, moved or waited for where an engine does not answer."""
        seen = self.view.engines.get(engine)
        return not engine or (seen is not None and seen.answers)

    def living(self) -> list[str]:
        return sorted(row.name for row in self.view.nodes if self._lives(row.name))

    def others_to_ask(self) -> tuple[str, ...]:
        """Those that live and listen for their peers."""
        return tuple(row.name for row in self.view.nodes if row.name != self.node and row.address and self._lives(row.name))

    def node_row(self, name: str) -> NodeRow | None:
        return next((row for row in self.view.nodes if row.name == name), None)

    def store(self, namespace: str, number: int) -> StoreRow | None:
        return self._rows.get((namespace, number))

    def owner(self, namespace: str, number: int) -> str | None:
        """Who serves it; None: nobody that lives."""
        row = self._rows.get((namespace, number))
        return row.owner if row is not None and row.owner and self._lives(row.owner, row.engine) else None

    def _draining(self, name: str) -> bool:
        row = self.node_row(name)
        return row is not None and row.draining

    def _waits_for(self, row: StoreRow) -> bool:
        """Whether a store that is wanted somewhere is kept for that node."""
        return bool(row.wanted) and self._lives(row.wanted, row.engine) and not self._draining(row.wanted)

    # -- who should have what ----------------------------------------------------------------

    def _fit(self, engine: str = "") -> list[str]:
        """Who may be given stores of this engine: nobody that is drained, or does not reach it, and nobody that other nodes cannot carry
        clients to if there are others."""
        living = [name for name in self.living() if self._lives(name, engine)] or [self.node]
        ready = [name for name in living if not self._draining(name)] or living
        listening = [name for name in ready if (row := self.node_row(name)) is not None and row.address]
        return listening or ready

    def spreads(self, namespace: str) -> bool:
        """Are its stores placed one by one? Where nodes do not listen for each other a client reaches one node, which must have all."""
        return namespace in self.view.spread and any(row.address for row in self.view.nodes if self._lives(row.name))

    def _leader(self, row: StoreRow) -> StoreRow | None:
        """The store that decides for this one; None: it does so itself."""
        return self._rows.get((row.namespace, 0)) if row.number and not self.spreads(row.namespace) else None

    def _loads(self, engine: str) -> Loads:
        fit = self._fit(engine)
        return Loads(fit, [(row.namespace, row.owner) for row in self._rows.values() if row.owner in fit])

    def _candidates(self, place: Place) -> list[str]:
        """Who should have a free store, in order."""
        free = [(row.namespace, row.number) for row in self._rows.values() if not row.owner or not self._lives(row.owner, row.engine)]
        alone = [one for one in free if one[1] == 0 or self.spreads(one[0])]
        return planned(self._loads(self._rows[place].engine), sorted({*alone, place}), place)

    def may_take(self, row: StoreRow) -> bool:
        """Whether this store, as the engine has it now, is ours or free."""
        first = self._leader(row)
        if first is not None:
            return first.owner == self.node
        if row.owner == self.node:
            return True  # also if it is wanted elsewhere: nobody else takes it from one who lives, and it goes there once it is open
        if row.owner and (self._lives(row.owner, row.engine) or self._is_back(row)):
            return False
        return row.wanted == self.node or not self._waits_for(row)

    def _is_back(self, row: StoreRow) -> bool:
        """Its owner has joined or beaten since our last beat showed that it was silent."""
        heard = self._heard_in.get((row.engine, row.owner)) if row.engine else self._heard.get(row.owner)
        return row.owner_beat != (0, 0) and (heard is None or heard[:2] != row.owner_beat)

    def took(self, row: StoreRow) -> None:
        """We have just acquired it, or others have done so since: a beat may have shown that before we heard of our own."""
        known = self._rows.get((row.namespace, row.number))
        if known is None or known.epoch <= row.epoch or known.owner == self.node:
            self._rows[row.namespace, row.number] = row
        self._left.pop((row.namespace, row.number), None)

    def leaves(self, namespace: str, number: int) -> None:
        """We are about to release it."""
        self._left[namespace, number] = self._beats

    def should_open(self, namespace: str, number: int) -> bool:
        """Whether to try now. When a store is free the best candidate tries at once, the others one beat later each."""
        row = self._rows.get((namespace, number))
        if row is None or not self._answers(row.engine) or not self.may_take(row):
            return False
        if self._beats - self._left.get((namespace, number), -BEATS_PER_LEASE) < BEATS_PER_LEASE:
            return False
        if self._leader(row) is not None or row.owner == self.node or (row.wanted == self.node and not self._draining(self.node)):
            return True
        candidates = self._candidates((namespace, number))
        if self.node not in candidates:
            return False
        waited = self._beats - self._free_since.get((namespace, number), self._beats)
        return waited >= candidates.index(self.node)

    def should_leave(self, namespace: str, number: int) -> str:
        """The node that a store of ours should go to; empty: it stays. Who drains, or has more than others, looks for one itself."""
        row = self._rows.get((namespace, number))
        if row is None or row.owner != self.node or not self._answers(row.engine):
            return ""
        deciding = self._leader(row) or row
        if deciding.owner != self.node:
            return deciding.owner if self._lives(deciding.owner, row.engine) else ""
        if deciding.wanted != self.node and self._waits_for(deciding):
            return deciding.wanted
        if self._draining(self.node):
            others = [name for name in self._candidates((deciding.namespace, deciding.number)) if name != self.node]
            return "" if not others or self._draining(others[0]) or (deciding is row and not self._may_move(row)) else others[0]
        move = self._balanced()
        return move[1] if move is not None and move[0] == (namespace, number) else ""

    def _settled(self) -> bool:
        """Every store is where it is wanted, with somebody who lives: nothing is on its way."""
        return all(
            self._lives(row.owner, row.engine) and (row.wanted == row.owner or not self._waits_for(row))
            for row in self._rows.values()
            if self._answers(row.engine)
        )

    def _may_move(self, row: StoreRow) -> bool:
        """Those of a node that drains leave one at a time."""
        if not self.spreads(row.namespace):
            return True
        ours = (place for place, one in self._rows.items() if one.owner == self.node and self._answers(one.engine))
        first = min((place for place in ours if self.spreads(place[0])), default=None)
        return first == (row.namespace, row.number) and self._settled()

    def _balanced(self) -> tuple[Place, str] | None:
        """The one store that should move now so that all have about as many, and where; None: none. Where an operator put one it stays."""
        if self._beats - self._steady_since < BEATS_PER_LEASE or not self._settled():
            return None
        movable = [(place, row) for place, row in self._rows.items() if row.wanted != row.owner and self.spreads(place[0])]
        for engine in filter(self._answers, ("", *self.view.engines)):
            here = sorted((place, row.owner) for place, row in movable if row.engine == engine)
            move = next_move(self._loads(engine), here)
            if move is not None:
                return move
        return None

    def lost(self, namespace: str, number: int, epoch: int) -> str:
        """Who has taken a store that we hold under this epoch; empty: it is still ours."""
        row = self._rows.get((namespace, number))
        if row is None or row.epoch <= epoch:
            return ""
        return row.owner or "nobody"

    def doubled(self, namespace: str, number: int, epoch: int) -> str:
        """Who else has a store under our own epoch: an engine that was restored to an older state counts them again. Empty: nobody."""
        row = self._rows.get((namespace, number))
        return row.owner if row is not None and row.epoch == epoch and row.owner != self.node else ""
