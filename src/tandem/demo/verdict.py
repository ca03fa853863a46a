"""What the demo proves at its end."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DemoVerdict:
    sent: int
    delivered: int
    lost: int
    duplicated: int
    diverted: int
    operations: int
    failed: int
    seconds_to_failover: float | None
    seconds_to_heal: float | None
    seconds_to_drain: float
    """From healing until the backlog was home."""
    report: str

    @property
    def held(self) -> bool:
        return self.lost == 0 and self.duplicated == 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"held": self.held}
