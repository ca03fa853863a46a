"""The readers of `format("servicebus")`: streams that can be read again after any crash, and batches that only look."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow

from tandem.client.verdicts import Verdict, classify_condition
from tandem.engine_client.blocking import TransportError
from tandem.engine_client.message_rows import MessageRows
from tandem.spark.connector.connections import PAUSE_SECONDS, unreachable
from tandem.spark.connector.deferred_batches import DeferredBatches
from tandem.spark.connector.lease_reading import read_lease
from tandem.spark.connector.leased_batches import LeasedBatches
from tandem.spark.connector.offsets import BatchShare, Offset
from tandem.spark.connector.options import OptionError, SourceOptions
from tandem.spark.connector.peek import peek_deferred, peek_from
from tandem.spark.connector.schema import record_batch

log = logging.getLogger("tandem.spark")


class Batches(Protocol):
    """How messages are set aside for a batch: by lease, or deferred."""

    def begin(self, entities: Sequence[str], query: str, known: Sequence[BatchShare]) -> None: ...
    def take(
        self, query: str, number: int, budgets: dict[str, int], bytes_max: int, wait_seconds: float, by: int = 0
    ) -> dict[str, BatchShare]: ...
    def secure(self, shares: Sequence[BatchShare]) -> None: ...
    def complete(self, shares: Sequence[BatchShare]) -> None: ...
    def counts(self, entity: str) -> dict[str, int]: ...
    def lost(self) -> None: ...
    def close(self) -> None: ...


@dataclass
class Fragment(InputPartition):  # type: ignore[misc]
    """What one task reads."""

    share: BatchShare
    start: int
    end: int


@dataclass
class Browse(InputPartition):  # type: ignore[misc]
    entity: str


def explained(error: TransportError, options: SourceOptions) -> Exception:
    """A refusal as the option it is about."""
    verdict = classify_condition(error.condition)
    if verdict is Verdict.UNAUTHORIZED:
        return OptionError("connectionString", f"the broker does not accept the key for {', '.join(options.entities)}: {error}")
    if error.condition == "amqp:not-found":
        return OptionError("queue", f"no such entity among {', '.join(options.entities)}: {error}")
    if error.condition == "connect":
        return OptionError("connectionString", f"cannot connect: {error}")
    return error


def rows_of(entity: str, pages: Iterator[list[tuple[Any, bytes]]], options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Messages as record batches of a size that Spark moves well."""
    rows = MessageRows()
    payloads: list[bytes] | None = [] if options.include_payload else None
    for page in pages:
        for stamp, payload in page:
            rows.add(payload, stamp)
            if payloads is not None:
                payloads.append(payload)
            if len(rows) >= options.rows_per_batch:
                yield record_batch(entity, rows, payloads)
                rows = MessageRows()
                payloads = None if payloads is None else []
    if len(rows):
        yield record_batch(entity, rows, payloads)


class ServiceBusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Runs twice: planning in one process beside the driver, for the life of the query; `read` in any executor, any number of times."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._live_batches: Batches | None = None
        self._begun = False
        self._completed: set[str] = set()
        self._targets: dict[str, int] | None = None
        self._available_by = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["options"])  # type: ignore[misc]

    # -- planning ----------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return Offset(uuid.uuid4().hex, 0).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_messages * len(self.options.entities))

    def prepareForTriggerAvailableNow(self) -> None:
        self._targets = {}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offset = Offset.from_json(start)
        deadline = time.monotonic() + self.options.where.timeout_seconds
        while True:
            try:
                batches = self._batches(offset)
                self._begin(batches, offset)
                self._complete(batches, offset)
                shares = self._take(batches, offset, limit)
                return Offset(offset.query, offset.number + 1, shares).to_json() if shares else start
            except TransportError as error:
                # "Nothing new" ends a query that takes what is available now, so such a one waits.
                waits = self._targets is not None
                if not self._begun or not unreachable(error) or (waits and time.monotonic() > deadline):
                    raise explained(error, self.options) from error
                log.warning("no batch planned, the broker cannot be reached: %s", error)
                batches.lost()
                if not waits:
                    return start
            time.sleep(PAUSE_SECONDS)

    def _batches(self, *known: Offset) -> Batches:
        if self._live_batches is None:
            self._live_batches = open_batches(self.options, known)
        return self._live_batches

    def _begin(self, batches: Batches, start: Offset, end: Offset | None = None) -> None:
        """Once per run: what a driver that died had set aside and never logged is given back. `end` was logged and not committed."""
        if self._begun:
            return
        known = [] if end is None else list(end.shares.values())
        batches.begin(self.options.entities, (end or start).query, [*start.shares.values(), *known])
        self._complete(batches, start)
        batches.secure(known)
        if self._targets is not None:
            # Whatever is there now, in whoever's hands, is what "available now" means; the batch that runs again is counted already.
            for entity in self.options.entities:
                counts = batches.counts(entity)
                mine = sum(share.count for share in known if share.entity == entity)
                self._targets[entity] = counts["active"] + counts["leased"] - mine
                self._available_by = counts["at"]
        self._begun = True

    def _complete(self, batches: Batches, offset: Offset) -> None:
        """Spark has logged this offset as done before it asks for the next: settle it now, not one batch later."""
        shares = [share for share in offset.shares.values() if f"{offset.number}/{share.entity}" not in self._completed]
        if shares:
            batches.complete(shares)
            self._completed = {f"{offset.number}/{share.entity}" for share in offset.shares.values()}

    def _take(self, batches: Batches, offset: Offset, limit: ReadLimit) -> dict[str, BatchShare]:
        options = self.options
        per_entity, bytes_max = options.max_messages, options.max_bytes
        if isinstance(limit, ReadMaxRows):
            per_entity = min(per_entity, max(1, int(limit.max_rows) // len(options.entities)))
        elif isinstance(limit, ReadMaxBytes):
            bytes_max = min(bytes_max, max(1, int(limit.max_bytes) // len(options.entities)))
        if self._targets is None:
            budgets = dict.fromkeys(options.entities, per_entity)
            return batches.take(offset.query, offset.number + 1, budgets, bytes_max, options.poll_ms / 1000)
        wanted = {entity: min(per_entity, target) for entity, target in self._targets.items() if target > 0}
        if not wanted:
            return {}
        shares = self._take_available(batches, offset, wanted, bytes_max)
        for entity, share in shares.items():
            self._targets[entity] -= share.count
        return shares

    def _take_available(self, batches: Batches, offset: Offset, wanted: dict[str, int], bytes_max: int) -> dict[str, BatchShare]:
        """What is there; while it is in the hands of others, who may be dead, wait for it to return."""
        left = self.options.return_wait_seconds
        while True:
            shares = batches.take(offset.query, offset.number + 1, wanted, bytes_max, -1.0, self._available_by)
            if shares or left <= 0 or not any(counts["locked"] + counts["leased"] for counts in map(batches.counts, wanted)):
                return shares
            time.sleep(1.0)
            left -= 1

    # -- a planned batch ---------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        offset = Offset.from_json(end)
        if offset.number == Offset.from_json(start).number:
            return []
        shares = list(offset.shares.values())
        self._secure(Offset.from_json(start), offset, shares)
        return [Fragment(share, *places) for share in shares for places in share.fragments]

    def _secure(self, start: Offset, end: Offset, shares: Sequence[BatchShare]) -> None:
        """The batch is logged and must be read: a broker that is away is waited for, as long as an operation may take."""
        deadline = time.monotonic() + self.options.where.timeout_seconds
        while True:
            try:
                batches = self._batches(start, end)
                self._begin(batches, start, end)
                batches.secure(shares)
                return
            except TransportError as error:
                if not unreachable(error) or time.monotonic() > deadline:
                    raise explained(error, self.options) from error
                log.warning("the batch cannot be read yet: %s", error)
                if self._live_batches is not None:
                    self._live_batches.lost()
            time.sleep(PAUSE_SECONDS)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Fragment)
        share, where = partition.share, self.options.where
        if share.lease:
            pages: Iterator[list[tuple[Any, bytes]]] = iter(read_lease(where, share.entity, share.lease, partition.start, partition.end))
        else:
            pages = peek_deferred(where, share, partition.start, partition.end)
        return rows_of(share.entity, pages, self.options)

    def commit(self, end: dict[str, Any]) -> None:
        """Late and perhaps again: `latestOffset` has usually completed it before."""
        try:
            offset = Offset.from_json(end)
            self._complete(self._batches(offset), offset)
        except TransportError as error:
            if not unreachable(error):
                raise
            log.warning("batch not completed yet, the broker cannot be reached: %s", error)
            if self._live_batches is not None:
                self._live_batches.lost()

    def stop(self) -> None:
        if self._live_batches is not None:
            self._live_batches.close()
            self._live_batches = None


def open_batches(options: SourceOptions, known: Sequence[Offset] = ()) -> Batches:
    """As the messages of `known` offsets were set aside; else by lease where the broker knows leases, else by deferring."""
    mode = options.mode
    if mode == "peek":
        raise OptionError("mode", "a stream takes messages: lease, defer or auto")
    for before in ("lease" if share.lease else "defer" for offset in known for share in offset.shares.values()):
        if mode not in ("auto", before):
            said = f"the checkpoint was begun with {before}, and a query keeps its mode: expected {before} or auto, found {mode}"
            raise OptionError("mode", f"{said}. Another checkpointLocation begins anew")
        mode = before
    if mode != "defer":
        batches = LeasedBatches(options.where, options.lease_seconds, options.wait_seconds, options.fragment_messages)
        try:
            batches.counts(options.entities[0])
            return batches
        except TransportError as error:
            batches.close()
            if mode == "lease" or error.condition != "amqp:not-implemented":
                raise
    return DeferredBatches(options.where, options.fragment_messages)


class ServiceBusReader(DataSourceReader):  # type: ignore[misc]
    """A batch read: everything that is in the entities now, left where it is. One task per entity."""

    def __init__(self, options: SourceOptions) -> None:
        if options.mode not in ("auto", "peek"):
            raise OptionError("mode", "a batch read only looks (peek); to take messages use readStream with trigger(availableNow=True)")
        self.options = options

    def partitions(self) -> Sequence[InputPartition]:
        return [Browse(entity) for entity in self.options.entities]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Browse)
        try:
            yield from rows_of(partition.entity, peek_from(self.options.where, partition.entity), self.options)
        except TransportError as error:
            raise explained(error, self.options) from error
