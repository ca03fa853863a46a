"""What several processes of one broker say of themselves, joined into what the broker says: stores, samples, and the last hour of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, Final

ELSEWHERE: Final = "elsewhere"
Sample = Mapping[str, float]
Columns = Mapping[str, Sequence[float]]
_INSTANT: Final = "at_ms"
_LARGEST: Final = frozenset({"oldest_ms", "loop_lag_ms", "disk_bytes"})
_SMALLEST: Final = frozenset({"disk_free_bytes"})
"""All others are added up: workers share a disk, and each has an event loop of its own."""
_SAME_INSTANT_MS: Final = 500
_OLD_MS: Final = 3_000
"""A sample that is older belongs to no instant of another worker: it was away."""


def joined_stores(own: Sequence[dict[str, Any]], theirs: Mapping[str, Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Each as the worker, or node, tells it that has it."""
    found: list[dict[str, Any]] = []
    for number, store in enumerate(own):
        if store["state"] == ELSEWHERE:
            told = [{**stores[number], "worker": worker} for worker, stores in theirs.items() if stores[number]["state"] != ELSEWHERE]
            gone = {**store, "state": "down", "cause": "nobody who has it answers", "notes": []}
            store = told[0] if told else gone
        found.append(store)
    return found


def joined_sample(own: Sample, theirs: Sequence[Sample]) -> dict[str, float]:
    """As of the instant of our own."""
    found = dict(own)
    for other in theirs:
        for name, value in other.items():
            if name != _INSTANT:
                found[name] = _joined(name, found[name], value) if name in found else value
    return found


def _joined(name: str, one: float, other: float) -> float:
    return max(one, other) if name in _LARGEST else min(one, other) if name in _SMALLEST else one + other


def joined_columns(own: Columns, theirs: Sequence[Columns]) -> dict[str, list[float]]:
    """By the instants of whoever remembers most: a worker that was started again has forgotten its own."""
    several = sorted((own, *theirs), key=lambda columns: -len(columns[_INSTANT]))
    found = {name: list(column) for name, column in several[0].items()}
    for other in several[1:]:
        places = _places(found[_INSTANT], other[_INSTANT])
        for name, column in other.items():
            if name != _INSTANT:
                joined = found[name]
                for at, place in places:
                    joined[at] = _joined(name, joined[at], column[place])
    return found


def _places(instants: Sequence[float], others: Sequence[float]) -> list[tuple[int, int]]:
    """For each instant its place, and that of the other's sample that goes with it."""
    found: list[tuple[int, int]] = []
    for at, instant in enumerate(instants):
        place = bisect_right(others, instant + _SAME_INSTANT_MS) - 1
        if place >= 0 and others[place] > instant - _OLD_MS:
            found.append((at, place))
    return found
