"""What became of the messages of `tandem demo --cluster`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

LEASE_SECONDS: Final = 3


@dataclass(slots=True)
class ClusterVerdict:
    sent: int = 0
    delivered: int = 0
    lost: int = 0
    duplicated: int = 0
    failed: int = 0
    """Sends that the SDK gave up and the application made again, under the same id."""
    seconds_without_node: float = 0.0
    """The longest time in which no send to one of the queues was answered, after the node had been killed."""
    seconds_without_engine: float = 0.0
    lease: int = LEASE_SECONDS
    killed: str = ""
    """The node."""

    @property
    def held(self) -> bool:
        return self.lost == 0 and self.duplicated == 0 and self.sent > 0

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"held": self.held}
