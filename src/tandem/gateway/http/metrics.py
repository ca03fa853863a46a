"""`/$tandem/metrics`: what a broker counts, as families that Prometheus reads; in the OpenMetrics format for those who ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from tandem.broker.entities.partitioned import PARTITIONED, PartitionedTopic
from tandem.broker.entities.queue_entity import QueueEntity
from tandem.broker.entities.topic import Topic
from tandem.broker.ports import StoreState
from tandem.gateway.http.cluster_figures import Timed, carried_links
from tandem.model.histogram import Histogram

if TYPE_CHECKING:
    from tandem.broker.queue.entity import Entity
    from tandem.gateway.http.operated_broker import OperatedBroker
    from tandem.server.context import NamespaceContext

ENTITIES_MAX: Final = 2_000
"""With lines of their own; those behind them are added up as `other`: a scrape stays small whatever was created."""
TIMED_ENTITIES_MAX: Final = 200
"""With histograms of their own: each has a dozen lines."""
_OTHER: Final = "other"
_STATE_NUMBERS: Final = {
    StoreState.UP: 1,
    StoreState.DEGRADED: 2,
    StoreState.RECOVERING: 3,
    StoreState.SUSPENDED: 4,
    StoreState.ELSEWHERE: 5,
    StoreState.DOWN: 0,
    StoreState.CORRUPT: -1,
}
_STATES_TOLD: Final = "1 up, 2 degraded, 3 recovering, 4 suspended, 5 elsewhere, 0 down, -1 corrupt."
_MESSAGE_STATES: Final = ("active", "locked", "deferred", "scheduled", "leased")


def exposition(server: OperatedBroker, readable: list[int], accept: str) -> tuple[bytes, str]:
    """The page, and its content type."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(server, readable))
    encode, content_type = _encoder(accept)
    return encode(registry), content_type


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    try:
        return choose_encoder(accept.replace('"', ""))
    except TypeError:  # a version that is no number
        return choose_encoder("")


class _Joined:
    """The families of several pages, each sample labelled with the worker whose page it is on."""

    def __init__(self, pages: Mapping[str, bytes]) -> None:
        self._pages = pages

    def collect(self) -> Iterator[Metric]:
        answers = GaugeMetricFamily("tandem_worker_up", "1: the worker has answered.", labels=["worker"])
        for worker, page in self._pages.items():
            answers.add_metric([worker], int(bool(page)))
        yield answers
        families: dict[str, Metric] = {}
        for worker, page in self._pages.items():
            for family in text_string_to_metric_families(page.decode()):
                known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    known.add_sample(sample.name, {**sample.labels, "worker": worker}, sample.value)
        yield from families.values()


def joined_exposition(pages: Mapping[str, bytes], accept: str) -> tuple[bytes, str]:
    """The pages of several processes, in the text format, as one, and its content type. An empty page: it has not answered."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Joined(pages))
    encode, content_type = _encoder(accept)
    return encode(registry), content_type


class _Collector:
    """Everything of the namespaces that the reader may know."""

    def __init__(self, server: OperatedBroker, readable: list[int]) -> None:
        self._server = server
        self._readable = readable

    def collect(self) -> Iterator[Metric]:
        yield from self._of_the_process()
        yield from self._of_stores()
        yield from self._of_the_cluster()
        yield from self._of_entities()
        yield from self._times_of_entities()
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
        connections = GaugeMetricFamily("tandem_connections", "AMQP connections of clients that are open.", labels=["namespace"])
        faults = GaugeMetricFamily("tandem_faults_active", "Faults on purpose that are in force.", labels=["namespace"])
        for _, context in self._contexts():
            connections.add_metric([context.namespace.name], context.client_count())
            if context.fault_points is not None:
                faults.add_metric([context.namespace.name], len(context.fault_points.faults.active))
        yield connections
        yield faults

    def _of_the_cluster(self) -> Iterator[Metric]:
        node = self._server.node
        if node is None:
            return
        served = GaugeMetricFamily("tandem_cluster_serves", "1: this node serves the store.", labels=["namespace", "store"])
        for _, context in self._contexts():
            ownership = node.ownership(context.namespace.name)
            for number in range(len(context.namespace.stores)):
                served.add_metric([context.namespace.name, str(number)], int(ownership.here(number)))
        yield served
        carried = GaugeMetricFamily(
            "tandem_cluster_carried_links", "Links of clients of this node to entities of another.", labels=["namespace", "node"]
        )
        for _, context in self._contexts():
            for other, links in carried_links(context).items():
                carried.add_metric([context.namespace.name, other], links)
        yield carried
        yield GaugeMetricFamily("tandem_cluster_nodes", "Nodes that this one believes to live.", value=len(node.membership.living()))
        doubts = CounterMetricFamily(
            "tandem_cluster_doubts", "Blocks that the engine gave no answer for, and how that ended.", labels=["end"]
        )
        for end in ("landed", "sent again"):
            doubts.add_metric([end], sum(store.doubts[end] for store in node.stores.values()))
        yield doubts
        yield CounterMetricFamily("tandem_cluster_takeovers", "Stores taken over from nodes that died.", value=node.takeovers)
        yield GaugeMetricFamily("tandem_cluster_beat_seconds", "How long the last beat took the engine.", value=node.beat_ms / 1000)
        engines = node.engines()
        if engines:
            answers = GaugeMetricFamily("tandem_cluster_engine_up", "1: this node reaches the engine.", labels=["engine"])
            for engine in engines:
                answers.add_metric([str(engine["name"])], int(bool(engine["answers"])))
            yield answers
        yield GaugeMetricFamily("tandem_cluster_clock_ahead_seconds", "Of this machine, over the engine's.", value=-node.skew_ms / 1000)

        labels = ["follower", "engine"]
        seconds = GaugeMetricFamily("tandem_cluster_follower_lag_seconds", "Of a standby in another region.", labels=labels)
        messages = GaugeMetricFamily("tandem_cluster_follower_lag_messages", "Accepted, and not replayed there.", labels=labels)
        for row in node.followers:
            seconds.add_metric([row.name, row.engine], (row.lag_ms + row.silent_ms) / 1000)
            messages.add_metric([row.name, row.engine], row.lag_messages)
        yield seconds
        yield messages

    def _of_stores(self) -> Iterator[Metric]:
        labels = ["namespace", "store"]
        up = GaugeMetricFamily(
            "tandem_store_up", "1 up, 2 degraded, 3 recovering, 4 suspended, 5 elsewhere, 0 down, -1 corrupt", labels=labels
        )
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
                if isinstance(tenant.journal, Timed):
                    _add(commits, [space, str(number)], tenant.journal.commit_times)
        yield up
        yield notes
        yield commits

    def _of_entities(self) -> Iterator[Metric]:
        labels = ["namespace", "entity"]
        messages = GaugeMetricFamily("tandem_messages", "Messages in an entity, by what they are.", labels=[*labels, "state"])
        size = GaugeMetricFamily("tandem_size_bytes", "Bytes of the messages in an entity.", labels=labels, unit="bytes")
        consumers = GaugeMetricFamily("tandem_consumers", "Receivers that are attached to an entity.", labels=labels)
        oldest = GaugeMetricFamily(
            "tandem_oldest_message_seconds", "Age of the oldest message that is ready.", labels=labels, unit="seconds"
        )
        for _, context in self._contexts():
            space = context.namespace.name
            found: dict[str, list[int]] = {}
            ages: dict[str, int] = {}
            now = context.turn.now
            for queue in _queues(context):
                if isinstance(queue, Topic | PartitionedTopic):
                    continue  # its messages are in its subscriptions
                counts = queue.counts()
                row = [getattr(counts, state) for state in _MESSAGE_STATES] + [counts.size_bytes, len(queue.receivers.consumers)]
                name = queue.path if len(found) < ENTITIES_MAX else _OTHER
                found[name] = [a + b for a, b in zip(found.get(name, [0] * len(row)), row, strict=True)]
                ages[name] = max(ages.get(name, 0), queue.oldest_ms(now) or 0)
            for name, row in found.items():
                for state, count in zip(_MESSAGE_STATES, row, strict=False):
                    messages.add_metric([space, name, state], count)
                size.add_metric([space, name], row[-2])
                consumers.add_metric([space, name], row[-1])
                oldest.add_metric([space, name], ages[name] / 1000)
        yield from (messages, size, consumers, oldest)

    def _times_of_entities(self) -> Iterator[Metric]:
        labels = ["namespace", "entity"]
        sends = HistogramMetricFamily(
            "tandem_send_seconds",
            "From taking a message until it was durable and its sender could be answered.",
            labels=labels,
            unit="seconds",
        )
        ages = HistogramMetricFamily(
            "tandem_delivery_age_seconds", "How long messages had waited when they were delivered.", labels=labels, unit="seconds"
        )
        for _, context in self._contexts():
            sent: dict[str, Histogram] = {}
            waited: dict[str, Histogram] = {}
            for queue in _queues(context):
                for part in queue.parts():
                    if part.meter.send_times is not None:
                        _collect(sent, queue.path, part.meter.send_times)
                    if part.meter.ages is not None:
                        _collect(waited, queue.path, part.meter.ages.histogram())
            for family, found in ((sends, sent), (ages, waited)):
                for name, histogram in found.items():
                    _add(family, [context.namespace.name, name], histogram)
        yield sends
        yield ages

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


def _queues(context: NamespaceContext) -> Iterator[Entity]:
    """Queues, topics and subscriptions, with their dead-letter queues."""
    namespace = context.namespace
    for entity in namespace.entities.values():
        if entity.store != PARTITIONED and namespace.is_elsewhere(entity.store):
            continue  # counted by whoever has it
        if isinstance(entity, QueueEntity):
            yield from entity.queues.values()
        else:
            yield entity
            for subscription in entity.subscriptions.values():
                yield from subscription.entity.queues.values()


def _collect(found: dict[str, Histogram], path: str, observed: Histogram) -> None:
    """Under its own name, while there are few enough."""
    name = path if path in found or len(found) < TIMED_ENTITIES_MAX else _OTHER
    found.setdefault(name, Histogram(observed.bounds)).add(observed)


def _add(family: HistogramMetricFamily, labels: list[str], histogram: Histogram) -> None:
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*(str(ms / 1000) for ms in histogram.bounds), "+Inf"), histogram.counts, strict=True):
        total += count
        buckets.append((bound, total))
    family.add_metric(labels, buckets, sum_value=histogram.sum_ms / 1000)
