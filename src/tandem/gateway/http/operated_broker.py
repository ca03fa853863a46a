"""A broker as its operator sees it over HTTP: what the pages and the metrics are made from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from tandem.broker.turn import Turn
from tandem.model.histogram import Histogram
from tandem.server.administration import NamespaceAdmin
from tandem.server.context import NamespaceContext
from tandem.server.meter_roller import MeterRoller
from tandem.server.settings import ServerSettings
from tandem.server.store_supervisor import StoreSupervisor


class OperatedBroker(Protocol):
    """Lists go by the number of the namespace."""

    settings: ServerSettings
    turn: Turn
    contexts: list[NamespaceContext]
    admins: list[NamespaceAdmin]
    supervisors: list[StoreSupervisor]
    meters: list[MeterRoller]
    events: deque[dict[str, Any]]
    clock_jumps: int
    loop_lag: Histogram
    entropy: Callable[[int], bytes]

    def namespace_of(self, host: str) -> int:
        """By the name of a host."""
        ...
