"""Which node should have which store: as many each, of every namespace and in all, and the same answer whoever works it out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

Place = tuple[str, int]
"""A store: namespace and number."""


def _weight(place: Place, node: str) -> bytes:
    return hashlib.sha256(f"{place[0]}\0{place[1]}\0{node}".encode()).digest()


class Loads:
    """How many stores each of some nodes has."""

    def __init__(self, nodes: Sequence[str], owned: Iterable[tuple[str, str]]) -> None:
        """`owned`: the namespace and the owner of each store that one of them has."""
        self.nodes = sorted(nodes)
        self._of_namespace: Counter[tuple[str, str]] = Counter(owned)
        self._in_all: Counter[str] = Counter()
        for (_, node), count in self._of_namespace.items():
            self._in_all[node] += count

    def of(self, namespace: str, node: str) -> int:
        return self._of_namespace[namespace, node]

    def in_all(self, node: str) -> int:
        return self._in_all[node]

    def add(self, namespace: str, node: str) -> None:
        self._of_namespace[namespace, node] += 1
        self._in_all[node] += 1

    def fittest(self, place: Place) -> list[str]:
        """Who should have it, in order: whoever has least of its namespace, then least in all, then by lot."""
        return sorted(self.nodes, key=lambda node: (self.of(place[0], node), self.in_all(node), _weight(place, node)))


def planned(loads: Loads, free: Iterable[Place], wanted: Place) -> list[str]:
    """Who should have `wanted`, in order, when each of the free stores finds its node, one after the other."""
    for place in free:
        order = loads.fittest(place)
        if place == wanted or not order:
            return order
        loads.add(place[0], order[0])
    return loads.fittest(wanted)


def next_move(loads: Loads, movable: Sequence[tuple[Place, str]]) -> tuple[Place, str] | None:
    """The store (of those that may be moved, each with its owner) that should go first, and where; None: all have about as many."""
    moves = [(place, owner, loads.fittest(place)[0]) for place, owner in movable if owner in loads.nodes]
    for place, owner, to in moves:
        if loads.of(place[0], owner) - loads.of(place[0], to) > 1:
            return place, to
    for place, owner, _ in moves:
        to = min(loads.nodes, key=lambda node: (loads.in_all(node), loads.of(place[0], node), node))
        if loads.in_all(owner) - loads.in_all(to) > 1 and loads.of(place[0], owner) > loads.of(place[0], to):
            return place, to
    return None
