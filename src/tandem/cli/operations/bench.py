"""`tandem bench`: how many messages a broker takes and gives in a second, and how long each is under way; any broker with AMQP 1.0."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tandem.cli.operations.output import JsonFlag
from tandem.cli.operations.target import CaFile, ConnectionString, ContextName, target_of
from tandem.cli.stalls import StallHistogram
from tandem.engine_client.blocking import BlockingClient, Endpoint, TransportError
from tandem.engine_client.measuring import STAMP_BYTES, StampedReceiving, send_stamped
from tandem.model.errors import ConfigurationError

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Event

_SILENT_SECONDS_MAX: Final = 60
_SENT, _RECEIVED, _FAILED, _DONE = "sent", "received", "failed", "done"


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of the broker."""

    path: str
    messages: int
    size: int
    senders: int
    receivers: int
    in_flight: int
    run: bytes = field(default_factory=lambda: os.urandom(16))


def bench(
    entity: Annotated[str, typer.Argument(help="An empty queue, as the broker names it.")],
    messages: Annotated[int, typer.Option("--messages", "-n", min=1, help="So many.")] = 100_000,
    size: Annotated[int, typer.Option(min=STAMP_BYTES, max=1_000_000, help="Bytes of each body.")] = 1_024,
    senders: Annotated[int, typer.Option(min=1, max=64, help="Processes that send.")] = 1,
    receivers: Annotated[int, typer.Option(min=0, max=64, help="Processes that receive; with 0 the messages stay there.")] = 1,
    in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Sends of one process that wait for their answer at a time.")] = 500,
    url: Annotated[str | None, typer.Option(help="Another broker: amqp://user:password@host:5672 or amqps://….", metavar="URL")] = None,
    connection_string: ConnectionString = None,
    context: ContextName = None,
    ca_file: CaFile = None,
    as_json: JsonFlag = False,
) -> None:
    """Send and receive messages at full speed; say the rate, and the percentiles of how long they took.

    The entity must be empty: messages of others are left alone.

    Example: tandem bench orders --messages 200000 --size 512
    """
    if url is not None:
        endpoint = _endpoint_of(url, str(ca_file) if ca_file is not None else None)
    else:
        target = target_of(connection_string, context, ca_file)
        try:
            endpoint = Endpoint.parse(target.connection_string, target.ca_file)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
    figures = _measure(endpoint, Load(entity, messages, size, senders, receivers, in_flight))
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    for side in (_SENT, _RECEIVED):
        if side in figures:
            found = figures[side]
            waited = ", ".join(f"{name.removesuffix('_ms')} {found[name]:.2f} ms" for name in ("p50_ms", "p99_ms", "p99.9_ms", "max_ms"))
            print(f"{side:9} {found['count']:,} messages, {found['per_second']:,.0f}/s, {found['megabytes_per_second']:.1f} MB/s; {waited}")
    print(
        "sent: from the send to the answer; received: from the send to the receiver" if receivers else "sent: from the send to the answer"
    )


def _endpoint_of(url: str, ca_file: str | None) -> Endpoint:
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url)
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
        raise ConfigurationError("--url: write amqp://user:password@host:5672, or amqps:// for TLS")
    tls = parts.scheme == "amqps"
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    port = parts.port or (5671 if tls else 5672)
    return Endpoint(host=parts.hostname, port=port, tls=tls, key_name=user, key=password, ca_file=ca_file, claims=False)


class _Side:
    """What all senders, or all receivers, have told."""

    def __init__(self) -> None:
        self.times = StallHistogram()
        self.began = 0.0
        self.ended = 0.0

    def take(self, durations: list[int], now: float) -> None:
        if durations and not self.began:
            self.began = now
        for one in durations:
            self.times.add(one)
        if durations:
            self.ended = now

    def figures(self, since: float, size: int) -> dict[str, Any]:
        rate = self.times.count / max(self.ended - since, 1e-9)
        named = {name: value for name, value in self.times.summary().items() if name != "total_ms"}
        return named | {"per_second": round(rate, 1), "megabytes_per_second": round(rate * size / 1e6, 3)}


def _measure(endpoint: Endpoint, load: Load) -> dict[str, Any]:
    import multiprocessing
    import queue

    spawn: SpawnContext = multiprocessing.get_context("spawn")
    news: Queue[Any] = spawn.Queue()
    enough, go = spawn.Event(), spawn.Event()
    shares = [load.messages // load.senders + (number < load.messages % load.senders) for number in range(load.senders)]
    workers = [spawn.Process(target=_receive, args=(endpoint, load, news, enough), daemon=True) for _ in range(load.receivers)]
    workers += [spawn.Process(target=_send, args=(endpoint, load, share, news, go), daemon=True) for share in shares]
    for worker in workers:
        worker.start()
    sides = {_SENT: _Side(), _RECEIVED: _Side()}
    began = 0.0
    ready = 0
    try:
        with _progress(load) as tell:
            while sides[_SENT].times.count < load.messages or (load.receivers and sides[_RECEIVED].times.count < load.messages):
                kind, what = news.get(timeout=_SILENT_SECONDS_MAX)
                if kind == _FAILED:
                    raise ConfigurationError(what)
                if kind == _DONE:
                    ready += 1
                    if ready == len(workers):
                        began = time.monotonic()
                        go.set()
                    continue
                sides[kind].take(what, time.monotonic())
                tell(kind, sides[kind].times.count)
    except queue.Empty:
        raise ConfigurationError(f"nothing was heard of the load for {_SILENT_SECONDS_MAX} s; is the broker running?") from None
    finally:
        enough.set()
        for worker in workers:
            worker.join(5)
            if worker.is_alive():
                worker.terminate()
    found: dict[str, Any] = {"entity": load.path, "body_bytes": load.size, "senders": load.senders, "receivers": load.receivers}
    return found | {name: side.figures(began, load.size) for name, side in sides.items() if side.times.count}


def _send(endpoint: Endpoint, load: Load, count: int, news: Queue[Any], go: Event) -> None:
    try:
        with BlockingClient(endpoint) as client:
            client.authorize(load.path)
            news.put((_DONE, ""))
            go.wait()
            send_stamped(client, load.path, load.run, count, load.size, load.in_flight, lambda times: news.put((_SENT, times)))
    except TransportError as error:
        news.put((_FAILED, error.description or error.condition))


def _receive(endpoint: Endpoint, load: Load, news: Queue[Any], enough: Event) -> None:
    try:
        with BlockingClient(endpoint) as client:
            receiving = StampedReceiving(client, load.path, load.run, lambda times: news.put((_RECEIVED, times)))
            news.put((_DONE, ""))
            receiving.receive_until(enough.is_set)
    except TransportError as error:
        if not enough.is_set():
            news.put((_FAILED, error.description or error.condition))


class _progress:
    """A bar for each side, where somebody looks."""

    def __init__(self, load: Load) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._bars = Progress(console=Console(stderr=True), transient=True)
        self._tasks = {_SENT: self._bars.add_task(_SENT, total=load.messages)}
        if load.receivers:
            self._tasks[_RECEIVED] = self._bars.add_task(_RECEIVED, total=load.messages)

    def __enter__(self) -> Any:
        self._bars.start()
        return lambda side, count: self._bars.update(self._tasks[side], completed=count)

    def __exit__(self, *exc: object) -> None:
        self._bars.stop()
