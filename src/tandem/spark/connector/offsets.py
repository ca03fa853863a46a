"""Where a query stands: which messages of which entity make up a batch, as JSON that Spark keeps in its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

VERSION = 1


@dataclass(frozen=True, slots=True)
class BatchShare:
    """The messages of one entity in one batch. `ranges` are their sequence numbers, `cuts` the places where tasks begin."""

    entity: str
    lease: str
    """Empty when the messages are deferred instead."""
    count: int
    ranges: str
    cuts: tuple[int, ...]
    enqueued_by: int = 0
    """When the last of them came, 0 if the broker does not say. A later message of the same number is one of a queue that was made anew."""
    entity_created_at: int = 0
    """When the entity was made, 0 if the broker does not say. One made at another time numbers other messages."""

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {"lease": self.lease, "count": self.count, "ranges": self.ranges, "cuts": list(self.cuts)}
        return said | {"by": self.enqueued_by, "made": self.entity_created_at}

    @classmethod
    def from_json(cls, entity: str, value: Mapping[str, Any]) -> BatchShare:
        cuts = tuple(int(cut) for cut in value["cuts"])
        last_came, made = int(value.get("by", 0)), int(value.get("made", 0))
        return cls(entity, str(value["lease"]), int(value["count"]), str(value["ranges"]), cuts, last_came, made)

    @property
    def fragments(self) -> list[tuple[int, int]]:
        """(first place, place behind the last) of each task."""
        return list(zip(self.cuts, (*self.cuts[1:], self.count), strict=True)) if self.cuts else []


@dataclass(frozen=True, slots=True)
class Offset:
    """The end of a batch. `query` names the checkpoint's leases for ever, `number` counts batches that held something."""

    query: str
    number: int
    shares: Mapping[str, BatchShare] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        shares = {entity: share.to_json() for entity, share in self.shares.items()}
        return {"v": VERSION, "query": self.query, "number": self.number, "entities": shares}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Offset:
        if value.get("v") != VERSION:
            raise ValueError(f"the checkpoint holds an offset of version {value.get('v')!r}, this reader knows {VERSION}")
        shares = {entity: BatchShare.from_json(entity, share) for entity, share in value["entities"].items()}
        return cls(str(value["query"]), int(value["number"]), shares)


def cut(count: int, per_task: int, runs: Sequence[int] | None = None) -> tuple[int, ...]:
    """Places where tasks begin: about `per_task` messages each, in equal parts; `runs` (whole sessions) are never cut apart."""
    if count <= 0:
        return ()
    tasks = -(-count // per_task)
    if runs is None:
        return tuple(count * task // tasks for task in range(tasks))
    cuts = [0]
    at = 0
    for run in runs:
        if at - cuts[-1] >= per_task or (at > cuts[-1] and at - cuts[-1] + run > per_task):
            cuts.append(at)
        at += run
    return tuple(cuts)
