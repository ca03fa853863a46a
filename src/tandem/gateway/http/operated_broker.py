"""A broker as its operator sees it over HTTP: what the pages and the metrics are made from."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from tandem.broker.turn import Turn
from tandem.cluster.node import Node
from tandem.cluster.peers import ClusterNode
from tandem.cluster.wishes import ClusterWishes
from tandem.gateway.http.onward import Onward
from tandem.model.histogram import Histogram
from tandem.server.administration import NamespaceAdmin
from tandem.server.client_reports import ClientReports
from tandem.server.context import NamespaceContext
from tandem.server.history import NamespaceHistory
from tandem.server.meter_roller import MeterRoller
from tandem.server.settings import ServerSettings
from tandem.server.state_changes import StateChanges
from tandem.server.store_supervisor import StoreSupervisor


class OperatedBroker(Protocol):
    """Lists go by the number of the namespace."""

    settings: ServerSettings
    node: Node | None
    cluster: ClusterNode | None
    wishes: ClusterWishes | None
    """None: nobody is told to move anything."""
    turn: Turn
    contexts: list[NamespaceContext]
    admins: list[NamespaceAdmin]
    supervisors: list[StoreSupervisor]
    meters: list[MeterRoller]
    histories: list[NamespaceHistory]
    reports: list[ClientReports]
    events: StateChanges
    clock_jumps: int
    loop_lag: Histogram
    onward: Onward | None
    """Where other nodes, or workers, are asked; None: there are none."""
    on_reload: Callable[[], Awaitable[dict[str, Any]]] | None
    entropy: Callable[[int], bytes]

    def namespace_of(self, host: str) -> int:
        """By the name of a host."""
        ...
