"""What a pair in an application's process does, for Prometheus: paths, backlog queues and the syphon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from tandem.client.health import PathState

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from tandem.client.pairing import PairedNamespaces
    from tandem.client.syphon import QueueMeasure

PATHS_MAX: Final = 500
"""With lines of their own; those behind them are added up as `other`."""
_OTHER: Final = "other"
_STATES: Final = {PathState.HEALTHY: 0, PathState.SUSPECT: 1, PathState.FAILED_OVER: 2, PathState.POISONED: 3}
_COUNTED: Final = (
    ("failovers", "failovers", "Paths that failed over."),
    ("failbacks", "failbacks", "Paths that came back."),
    ("pings", "pings_sent", "Pings sent to a primary that was failed over."),
    ("pings_failed", "pings_failed", "Pings that were not accepted."),
    ("backlog_queue_failures", "backlog_queue_failures", "Diversions that a backlog queue did not take."),
    ("syphon_moved", "syphon_moved", "Messages carried home by the syphon of this process."),
    ("syphon_returned", "syphon_returned", "Messages that could not be carried home yet."),
    ("syphon_dead_lettered", "syphon_dead_lettered", "Messages that can never be delivered."),
)


class PairMetrics:
    """`prometheus_client.REGISTRY.register(PairMetrics(pair))`: nothing is counted for it, it reads what the pair counts anyway.

    Depth and age of the backlog queues have to be asked for: call `measure` now and then, where this process runs the syphon.
    """

    def __init__(self, pair: PairedNamespaces) -> None:
        self._pair = pair
        self._labels = ["primary"]
        self._values = [self._pair.primary_namespace]
        self._measures: list[QueueMeasure] = []

    async def measure(self) -> None:
        """Ask the secondary what is in the backlog queues."""
        syphon = self._pair.syphon
        self._measures = await syphon.measure() if syphon is not None else []

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        counters = self._pair.counters
        for name, field, about in _COUNTED:
            family = CounterMetricFamily(f"tandem_pair_{name}", about, labels=self._labels)
            family.add_metric(self._values, getattr(counters, field))
            yield family
        yield self._gauge("backlog_queues", "Backlog queues in use.", self._pair.backlog_queue_count)
        yield self._gauge("destinations_waiting", "Destinations the syphon waits for.", counters.destinations_waiting)
        yield from self._of_paths()
        yield from self._of_backlog()

    def _gauge(self, name: str, about: str, value: float) -> Metric:
        from prometheus_client.core import GaugeMetricFamily

        family = GaugeMetricFamily(f"tandem_pair_{name}", about, labels=self._labels)
        family.add_metric(self._values, value)
        return family

    def _of_paths(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = [*self._labels, "path"]
        state = GaugeMetricFamily("tandem_pair_path_state", "0 healthy, 1 suspect, 2 failed over, 3 poisoned.", labels=labels)
        sends = CounterMetricFamily("tandem_pair_sends", "Messages by where they went.", labels=[*labels, "outcome"])
        worst = 0
        rest = [0, 0, 0]
        for number, status in enumerate(self._pair.states()):
            found = self._pair.counters.path(status.path.casefold())
            counted = (found.sent_primary, found.diverted, found.failed)
            if number >= PATHS_MAX:
                worst = max(worst, _STATES[status.state])
                rest = [a + b for a, b in zip(rest, counted, strict=True)]
                continue
            state.add_metric([*self._values, status.path], _STATES[status.state])
            self._add_sends(sends, status.path, counted)
        if any(rest) or worst:
            state.add_metric([*self._values, _OTHER], worst)
            self._add_sends(sends, _OTHER, rest)
        yield state
        yield sends

    def _add_sends(self, family: Any, path: str, counted: Any) -> None:
        for outcome, count in zip(("primary", "diverted", "failed"), counted, strict=True):
            family.add_metric([*self._values, path, outcome], count)

    def _of_backlog(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        labels = [*self._labels, "queue"]
        depth = GaugeMetricFamily("tandem_pair_backlog_messages", "Messages that wait in a backlog queue.", labels=labels)
        age = GaugeMetricFamily("tandem_pair_backlog_age_seconds", "How long the oldest of them has waited.", labels=labels, unit="seconds")
        for one in self._measures:
            if one.depth is not None:
                depth.add_metric([*self._values, one.queue], one.depth)
            age.add_metric([*self._values, one.queue], one.oldest_age_seconds or 0.0)
        yield depth
        yield age
