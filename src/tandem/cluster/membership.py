"""Who lives, who serves what, and what this node should do about it: decided from beats that are counted, never from clocks."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final

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
class View:
    """Everything that one beat shows."""

    nodes: tuple[NodeRow, ...]
    stores: tuple[StoreRow, ...]
    revisions: dict[str, int] = field(default_factory=dict)
    """By namespace: the last change of what it consists of."""
    engine_clock_ms: int = 0


def _weight(namespace: str, node: str) -> bytes:
    return hashlib.sha256(f"{namespace}\0{node}".encode()).digest()


class Membership:
    """What one node believes. `beat` is told what each beat of its own has shown."""

    def __init__(self, node: str) -> None:
        self.node = node
        self._beats = 0
        """Of our own, since we joined."""
        self._heard: dict[str, tuple[int, int, int]] = {}
        """By node: incarnation, its beat, and ours when that was new."""
        self.view = View((), ())
        self._free_since: dict[str, int] = {}
        """By namespace: our beat at which nobody living served it."""
        self._rows: dict[tuple[str, int], StoreRow] = {}

    def beat(self, view: View) -> None:
        self._beats += 1
        self.view = view
        for node in view.nodes:
            known = self._heard.get(node.name)
            if known is None or known[:2] != (node.incarnation, node.beat):
                self._heard[node.name] = (node.incarnation, node.beat, self._beats)
        self._rows = {(row.namespace, row.number): row for row in view.stores}
        for row in view.stores:
            if row.number == 0:
                if self._lives(row.owner):
                    self._free_since.pop(row.namespace, None)
                else:
                    self._free_since.setdefault(row.namespace, self._beats)

    def _lives(self, name: str) -> bool:
        if name == self.node:
            return True
        heard = self._heard.get(name)
        return heard is not None and self._beats - heard[2] < BEATS_PER_LEASE

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
        return row.owner if row is not None and row.owner and self._lives(row.owner) else None

    def _draining(self, name: str) -> bool:
        row = self.node_row(name)
        return row is not None and row.draining

    def _candidates(self, namespace: str) -> list[str]:
        """Who should have a free namespace, in order."""
        living = self.living() or [self.node]
        fit = [name for name in living if not self._draining(name)] or living
        return sorted(fit, key=lambda name: _weight(namespace, name))

    def may_take(self, row: StoreRow) -> bool:
        """Whether this store, as the engine has it now, is ours or free. The stores of a namespace go together: the first one decides."""
        first = self._rows.get((row.namespace, 0))
        if row.number and first is not None:
            return first.owner == self.node
        if row.owner == self.node and (not row.wanted or row.wanted == self.node):
            return True
        if row.owner and self._lives(row.owner):
            return False
        return not row.wanted or row.wanted == self.node or not self._lives(row.wanted)

    def took(self, row: StoreRow) -> None:
        """We have just acquired it."""
        self._rows[row.namespace, row.number] = row

    def should_open(self, namespace: str, number: int) -> bool:
        """Whether to try now. When a namespace is free the best candidate tries at once, the others one beat later each."""
        row = self._rows.get((namespace, number))
        if row is None or not self.may_take(row):
            return False
        if number or row.owner == self.node or row.wanted == self.node:
            return True
        candidates = self._candidates(namespace)
        if self.node not in candidates:
            return False
        waited = self._beats - self._free_since.get(namespace, self._beats)
        return waited >= candidates.index(self.node)

    def should_leave(self, namespace: str) -> str:
        """The node that a namespace of ours should go to; empty: it stays. A node that drains looks for somebody else itself."""
        row = self._rows.get((namespace, 0))
        if row is None or row.owner != self.node:
            return ""
        if row.wanted and row.wanted != self.node and self._lives(row.wanted):
            return row.wanted
        if self._draining(self.node):
            others = [name for name in self._candidates(namespace) if name != self.node and not self._draining(name)]
            return others[0] if others else ""
        return ""

    def lost(self, namespace: str, number: int, epoch: int) -> str:
        """Who has taken a store that we hold under this epoch; empty: it is still ours."""
        row = self._rows.get((namespace, number))
        if row is None or row.epoch <= epoch:
            return ""
        return row.owner or "nobody"
