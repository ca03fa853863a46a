"""Options of the data source, read and checked once: every mistake names its option, what was found and what is allowed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tandem.engine_client.blocking import Endpoint

MODES: Final = ("auto", "lease", "defer", "peek")
SUB_QUEUES: Final = {"": "", "deadletter": "/$DeadLetterQueue", "transferdeadletter": "/$PendingTransfer/$DeadLetterQueue"}


class OptionError(ValueError):
    """An option is missing or wrong."""

    def __init__(self, option: str, text: str) -> None:
        super().__init__(f"option {option!r}: {text}")
        self.option = option


class Options:
    """Case-insensitive access that remembers what was asked for."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {str(key).casefold(): str(value) for key, value in options.items()}
        self._known: set[str] = set()

    def text(self, name: str, default: str | None = None) -> str:
        self._known.add(name.casefold())
        value = self._values.get(name.casefold())
        if value is None or value == "":
            if default is None:
                raise OptionError(name, "is needed")
            return default
        return value

    def number(self, name: str, default: int, low: int, high: int) -> int:
        value = self.text(name, str(default))
        try:
            number = int(value)
        except ValueError:
            raise OptionError(name, f"expected a whole number from {low} to {high}, found {value!r}") from None
        if not low <= number <= high:
            raise OptionError(name, f"expected a whole number from {low} to {high}, found {number}")
        return number

    def flag(self, name: str, default: bool) -> bool:
        value = self.text(name, "true" if default else "false").casefold()
        if value not in ("true", "false"):
            raise OptionError(name, f"expected true or false, found {value!r}")
        return value == "true"

    def choice(self, name: str, default: str, allowed: tuple[str, ...]) -> str:
        value = self.text(name, default).casefold()
        if value not in allowed:
            raise OptionError(name, f"expected one of {', '.join(allowed)}, found {value!r}")
        return value

    def refuse_unknown(self, spark_own: frozenset[str]) -> None:
        unknown = sorted(set(self._values) - self._known - spark_own)
        if unknown:
            raise OptionError(unknown[0], "is not known; see the reference page of the data source for those that are")


_SPARK_OWN: Final = frozenset({"path", "checkpointlocation", "queryname"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """A namespace and how to reach it. Pickled into every task."""

    connection_string: str
    ca_file: str | None
    timeout_seconds: int

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint.parse(self.connection_string, self.ca_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    where: Where
    entities: tuple[str, ...]
    """Paths as they stand on the wire: "orders", "events/Subscriptions/audit", "orders/$DeadLetterQueue"."""
    mode: str
    max_messages: int
    """Per trigger and entity."""
    max_bytes: int
    lease_seconds: int
    wait_seconds: int
    """How long one long poll waits in the broker for a first message."""
    poll_ms: int
    """How long planning waits for it before Spark gets its thread back."""
    fragment_messages: int
    """A task reads about this many, sessions whole."""
    rows_per_batch: int
    include_payload: bool
    return_wait_seconds: int
    """Available-now waits so long for messages in the hands of others (locked, leased) to return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    where: Where
    entity: str
    """Fixed destination; empty: the column `entity` of each row says it."""
    max_in_flight: int
    batch_messages: int
    failure_policy: str
    failure_path: str
    id_prefix: str


def _where(options: Options) -> Where:
    connection_string = options.text("connectionString")
    ca_file = options.text("caFile", "") or None
    try:
        Endpoint.parse(connection_string, ca_file)
    except ValueError as error:
        raise OptionError("connectionString", str(error)) from None
    return Where(
        connection_string=connection_string, ca_file=ca_file, timeout_seconds=options.number("operationTimeoutSeconds", 30, 1, 3_600)
    )


def _entities(options: Options) -> tuple[str, ...]:
    """queue, topic + subscription, or entities (a JSON list or a comma-separated one), each with the chosen sub-queue."""
    queue, topic, subscription = options.text("queue", ""), options.text("topic", ""), options.text("subscription", "")
    several = options.text("entities", "")
    given = [name for name, value in (("queue", queue), ("topic", topic), ("entities", several)) if value]
    if len(given) != 1:
        found = ", ".join(given) or "none"
        raise OptionError("queue", f"name what to read by exactly one of queue, topic (with subscription), entities; found {found}")
    if bool(topic) != bool(subscription):
        raise OptionError("subscription" if topic else "topic", "topic and subscription go together")
    if queue:
        paths = [queue]
    elif topic:
        paths = [f"{topic}/Subscriptions/{subscription}"]
    else:
        paths = _list("entities", several)
    sub_queue = options.choice("subQueue", "", tuple(SUB_QUEUES))
    paths = [path.strip("/ ") for path in paths]
    if not paths or not all(paths) or len({path.casefold() for path in paths}) != len(paths):
        raise OptionError(given[0], "an entity is empty or named twice")
    return tuple(path + SUB_QUEUES[sub_queue] for path in paths)


def _list(name: str, text: str) -> list[str]:
    if not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",")]
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OptionError(name, f"not a JSON list: {error}") from None
    if not all(isinstance(part, str) for part in value):
        raise OptionError(name, "a JSON list of strings is needed")
    return list(value)


def source_options(given: Mapping[str, str]) -> SourceOptions:
    options = Options(given)
    found = SourceOptions(
        where=_where(options),
        entities=_entities(options),
        mode=options.choice("mode", "auto", MODES),
        max_messages=options.number("maxMessagesPerTrigger", 50_000, 1, 100_000),
        max_bytes=options.number("maxBytesPerTrigger", 134_217_728, 1, 268_435_456),
        lease_seconds=options.number("leaseSeconds", 300, 5, 3_600),
        wait_seconds=options.number("waitSeconds", 900, 1, 900),
        poll_ms=options.number("pollMs", 1_000, 0, 60_000),
        fragment_messages=options.number("messagesPerTask", 25_000, 1, 100_000),
        rows_per_batch=options.number("rowsPerBatch", 1_000, 1, 100_000),
        include_payload=options.flag("includePayload", False),
        return_wait_seconds=options.number("returnWaitSeconds", 600, 0, 7_200),
    )
    options.refuse_unknown(_SPARK_OWN)
    return found


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    options = Options(given)
    queue, topic = options.text("queue", ""), options.text("topic", "")
    if queue and topic:
        raise OptionError("topic", "queue and topic are given; one destination is needed, or neither and a column `entity`")
    found = SinkOptions(
        where=_where(options),
        entity=(queue or topic).strip("/ "),
        max_in_flight=options.number("maxInFlight", 1_000, 1, 5_000),
        batch_messages=options.number("messagesPerTransfer", 100, 1, 4_500),
        failure_policy=options.choice("onFailure", "fail", ("fail", "table")),
        failure_path=options.text("failurePath", ""),
        id_prefix=options.text("idPrefix", ""),
    )
    if (found.failure_policy == "table") != bool(found.failure_path):
        raise OptionError("failurePath", "goes together with onFailure=table: the directory for rows that were refused, as Parquet")
    options.refuse_unknown(_SPARK_OWN)
    return found
