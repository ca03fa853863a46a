"""`/$tandem/metrics`: what a broker counts, as families that Prometheus reads; in the OpenMetrics format for those who ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder

from tandem.broker.entities.queue_entity import QueueEntity
from tandem.broker.ports import StoreState
from tandem.model.histogram import BOUNDS_MS, Histogram

if TYPE_CHECKING:
    from tandem.gateway.http.operated_broker import OperatedBroker
    from tandem.server.context import NamespaceContext

ENTITIES_MAX: Final = 2_000
"""With lines of their own; those behind them are added up as `other`: a scrape stays small whatever was created."""
_OTHER: Final = "other"
_STATE_NUMBERS: Final = {
    StoreState.UP: 1,
    StoreState.DEGRADED: 2,
    StoreState.RECOVERING: 3,
    StoreState.DOWN: 0,
    StoreState.CORRUPT: -1,
}
_MESSAGE_STATES: Final = ("active", "locked", "deferred", "scheduled", "leased")


def exposition(server: OperatedBroker, readable: list[int], accept: str) -> tuple[bytes, str]:
    """The page, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(server, readable))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


@runtime_checkable
class _Timed(Protocol):
    """A journal that measures how long the disk takes; one in memory has no disk."""

    commit_times: Histogram


class _Collector:
    """Everything of the namespaces that the reader may know."""

    def __init__(self, server: OperatedBroker, readable: list[int]) -> None:
        self._server = server
        self._readable = readable

    def collect(self) -> Iterator[Metric]:
        yield from self._of_the_process()
        yield from self._of_stores()
        yield from self._of_entities()
        yield from self._of_relays()
        yield self._operations()

    def _contexts(self) -> Iterator[tuple[int, NamespaceContext]]:
        for place in self._readable:
            yield place, self._server.contexts[place]

    def _of_the_process(self) -> Iterator[Metric]:
        yield CounterMetricFamily("tandem_clock_jumps", "How often the machine's clock was set.", value=self._server.clock_jumps)
        lag = HistogramMetricFamily("tandem_loop_lag_seconds", "How late the event loop came to what was due.", unit="seconds")
        _add(lag, [], self._server.loop_lag)
        yield lag
        connections = GaugeMetricFamily("tandem_connections", "AMQP connections that are open.", labels=["namespace"])
        faults = GaugeMetricFamily("tandem_faults_active", "Faults on purpose that are in force.", labels=["namespace"])
        for _, context in self._contexts():
            connections.add_metric([context.namespace.name], len(context.connections))
            if context.fault_points is not None:
                faults.add_metric([context.namespace.name], len(context.fault_points.faults.active))
        yield connections
        yield faults

    def _of_stores(self) -> Iterator[Metric]:
        labels = ["namespace", "store"]
        up = GaugeMetricFamily("tandem_store_up", "1 up, 2 degraded, 3 recovering, 0 down, -1 corrupt.", labels=labels)
        notes = GaugeMetricFamily("tandem_store_notes", "What was found and mended when the store was opened.", labels=labels)
        commits = HistogramMetricFamily(
            "tandem_commit_seconds", "From handing a group to the disk until it was durable.", labels=labels, unit="seconds"
        )
        for place, context in self._contexts():
            space = context.namespace.name
            for number, health in enumerate(self._server.supervisors[place].health()):
                up.add_metric([space, str(number)], _STATE_NUMBERS[health.state])
                notes.add_metric([space, str(number)], len(health.notes))
            for number, tenant in enumerate(context.namespace.stores):
                if isinstance(tenant.journal, _Timed):
                    _add(commits, [space, str(number)], tenant.journal.commit_times)
        yield up
        yield notes
        yield commits

    def _of_entities(self) -> Iterator[Metric]:
        labels = ["namespace", "entity"]
        messages = GaugeMetricFamily("tandem_messages", "Messages in an entity, by what they are.", labels=[*labels, "state"])
        size = GaugeMetricFamily("tandem_size_bytes", "Bytes of the messages in an entity.", labels=labels, unit="bytes")
        for _, context in self._contexts():
            space = context.namespace.name
            found: dict[str, list[int]] = {}
            for entity in context.namespace.entities.values():
                queues = (
                    list(entity.queues.values()) if isinstance(entity, QueueEntity) else [s.queue for s in entity.subscriptions.values()]
                )
                for queue in queues:
                    counts = queue.counts()
                    row = [getattr(counts, state) for state in _MESSAGE_STATES] + [counts.size_bytes]
                    name = queue.path if len(found) < ENTITIES_MAX else _OTHER
                    found[name] = [a + b for a, b in zip(found.get(name, [0] * len(row)), row, strict=True)]
            for name, row in found.items():
                for state, count in zip(_MESSAGE_STATES, row, strict=False):
                    messages.add_metric([space, name, state], count)
                size.add_metric([space, name], row[-1])
        yield messages
        yield size

    def _of_relays(self) -> Iterator[Metric]:
        labels = ["namespace", "relay"]
        listeners = GaugeMetricFamily("tandem_relay_listeners", "Listeners of a relay.", labels=labels)
        open_now = GaugeMetricFamily("tandem_relay_connections", "Connections of senders that are open.", labels=labels)
        connections = CounterMetricFamily("tandem_relay_connections_made", "Connections of senders since the broker began.", labels=labels)
        requests = CounterMetricFamily("tandem_relay_requests", "HTTP requests to a relay since the broker began.", labels=labels)
        relayed = CounterMetricFamily("tandem_relay_bytes", "Bytes of messages relayed over WebSockets.", labels=labels, unit="bytes")
        for _, context in self._contexts():
            for number, entity in enumerate(context.relays.entities.values()):
                if number >= ENTITIES_MAX:
                    break
                label = [context.namespace.name, entity.name]
                listeners.add_metric(label, len(entity.listeners))
                open_now.add_metric(label, len(entity.connections))
                connections.add_metric(label, entity.connections_total)
                requests.add_metric(label, entity.requests_total)
                relayed.add_metric(label, entity.bytes_total + sum(one.bytes_relayed for one in entity.connections))
        yield from (listeners, open_now, connections, requests, relayed)

    def _operations(self) -> Metric:
        family = CounterMetricFamily(
            "tandem_operations", "Operations since the broker began.", labels=["namespace", "entity", "operation", "outcome"]
        )
        for place, context in self._contexts():
            totals = self._server.meters[place].totals()
            paths = sorted({path for path, _, _ in totals})
            named = set(paths[:ENTITIES_MAX])
            found: dict[tuple[str, str, str], int] = {}
            for (path, operation, outcome), count in sorted(totals.items()):
                key = (path if path in named else _OTHER, operation, outcome)
                found[key] = found.get(key, 0) + count
            for key, count in found.items():
                family.add_metric([context.namespace.name, *key], count)
        return family


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*(str(ms / 1000) for ms in BOUNDS_MS), "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    family.add_metric(labels, buckets, sum_value=histogram.sum_ms / 1000)
