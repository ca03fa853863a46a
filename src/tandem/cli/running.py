"""A broker from its settings to the end of the process: makes what is missing, says how to reach it, stops it cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn, Protocol

from tandem.cli.configuration import keyring
from tandem.cli.configuration.keyring import endpoint_host
from tandem.cli.configuration.settings import Configuration, Flags, load
from tandem.cli.service_manager import ServiceManager
from tandem.model.errors import BusError, ConfigurationError
from tandem.server.log_lines import LogHandler, LogLines
from tandem.server.settings import ServerSettings, TlsSettings

TLS_PORT: Final = 5671
STALLS_VARIABLE: Final = "TANDEM_STALLS"
"""Environment variable with the name of a file: measure how long the event loop keeps anybody waiting, for benchmarks."""
_FILES_BESIDE_CONNECTIONS: Final = 1_024
"""Journals, listeners, connections that are just being refused."""
EXIT_OUT_OF_MEMORY: Final = 71
_OUT_OF_MEMORY: Final = (
    b"tandem: out of memory: the process ends, everything accepted is on disk; start it again, with more memory or lower limits\n"
)
_GC_THRESHOLDS: Final = (50_000, 20, 50)
"""Messages are freed by reference counting; the collector only has to look for rare cycles, so it may look rarely."""


class RunnableBroker(Protocol):
    """What serving needs of a server."""

    ports: list[int]
    """Of every listener, in order, as they were really bound."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


def serve_with(flags: Flags) -> None:
    """`tandem serve`, once its flags are known."""
    run(load(flags, os.environ, Path.cwd()))


def run(configuration: Configuration, make: Callable[[ServerSettings], RunnableBroker] | None = None) -> None:
    """Everything between the decided settings and the end of the process."""
    with workplace(configuration) as directory:
        settings = prepare(configuration, directory, time.time_ns() // 1_000_000)
        _allow_files(settings.limits.connections_max, 3 * settings.limits.relay_connections_max)
        keys = "the root key is the one given" if configuration.root_key else _keys_command(configuration, directory)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            try:
                runner.run(_serve(settings, make or _make_server, keys))
            except MemoryError:
                _out_of_memory()


def _keys_command(configuration: Configuration, directory: Path) -> str:
    """How to see the keys; the directory is a temporary one when nothing else is kept."""
    file = configuration.file
    return f"tandem keys --data {directory}{f' --config {file}' if file is not None else ''}"


def _allow_files(connections_max: int, relay_sockets: int) -> None:
    """A connection is an open file, and the usual soft limit is a thousand: ask for as many as the system lets us have.

    `relay_sockets`: what relays may need beside, two for each of their connections and some for listeners; nobody is warned for them.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + _FILES_BESIDE_CONNECTIONS
    most = wanted + relay_sockets
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        _note(
            f"the system allows {allowed} open files, too few for {connections_max} connections (limits.connections_max); raise ulimit -n"
        )


def prepare(configuration: Configuration, directory: Path, now: int) -> ServerSettings:
    """Keys and certificates found or made: the settings as the server gets them."""
    import socket

    from tandem.wire.tls import TlsError, ensure_certificates, server_context

    settings = configuration.server
    ring = keyring.KeyRing(directory / keyring.FILE_NAME)
    namespaces = keyring.fill(settings.namespaces, ring, configuration.root_key, settings.dev)
    tls = settings.tls
    try:
        ring.save()
        if tls is None:
            files = ensure_certificates(directory, (socket.gethostname(), *configuration.tls_names), now)
            tls = TlsSettings(certificate=files.certificate, private_key=files.private_key, ca=files.ca)
        else:
            server_context(tls.certificate, tls.private_key)
    except TlsError as error:
        raise ConfigurationError(f"tls: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"data: {directory} cannot be written: {error.strerror}") from error
    return replace(settings, namespaces=namespaces, tls=tls, known_hosts=(socket.gethostname(), *configuration.tls_names))


@contextlib.contextmanager
def workplace(configuration: Configuration) -> Iterator[Path]:
    """The data directory, held by us alone; or a temporary one for the certificates of a broker in memory."""
    data = configuration.server.data_dir
    if data is None:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="tandem-") as temporary:
            yield Path(temporary)
        return
    import fcntl

    from tandem.stores.disk import LocalDisk, make_directory

    try:
        make_directory(LocalDisk(), str(data))
        descriptor = os.open(data / "broker.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigurationError(f"data: {data} cannot be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(descriptor, 20).decode("ascii", "replace").strip() or "unknown"
            raise ConfigurationError(f"data: {data} is in use by another broker (process {holder})") from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode("ascii"))
        yield data
    finally:
        os.close(descriptor)


async def _serve(settings: ServerSettings, make: Callable[[ServerSettings], RunnableBroker], keys: str) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_on_loop_error)
    threading.excepthook = _on_thread_error
    logging.getLogger().addHandler(LogHandler(LINES))
    manager = ServiceManager(os.environ)
    beside = [loop.create_task(_tell_what_was_left_out()), loop.create_task(manager.keep_alive())]
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _on_signal, loop, stopping)
    server = make(settings)
    try:
        await server.start()
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
            wanted = ", ".join(f"{listener.host}:{listener.port}" for listener in settings.listeners)
            raise ConfigurationError(
                f"cannot listen on {wanted}: {error.strerror or error}; choose another with --port or --host"
            ) from error
        raise
    except BusError as error:
        raise ConfigurationError(f"the broker cannot start: {error.description}") from error
    try:
        _settle_garbage_collector()
        hosts = (listener.host for listener in settings.listeners)
        with _watched(loop, os.environ.get(STALLS_VARIABLE)):
            for line in greeting(settings, tuple(zip(hosts, server.ports, strict=True)), keys):
                print(line)
            sys.stdout.flush()
            manager.ready(line)
            await stopping.wait()
    finally:
        manager.stopping("what is under way is finished")
        began = loop.time()
        await server.stop()
        for task in beside:
            task.cancel()
        _note(f"stopped in {loop.time() - began:.2f} s")
        LINES.close()


async def _tell_what_was_left_out() -> None:
    while True:
        await asyncio.sleep(1)
        LINES.look_after()


def _on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if isinstance(context.get("exception"), MemoryError):
        _out_of_memory()
    loop.default_exception_handler(context)


def _on_thread_error(failed: threading.ExceptHookArgs) -> None:
    if isinstance(failed.exc_value, MemoryError):
        _out_of_memory()
    threading.__excepthook__(failed)


def _out_of_memory() -> NoReturn:
    """Half of something was done and nothing more can be: who supervises us starts a new process, which has what is on disk."""
    os.write(2, _OUT_OF_MEMORY)
    os._exit(EXIT_OUT_OF_MEMORY)


@contextlib.contextmanager
def _watched(loop: asyncio.AbstractEventLoop, file: str | None) -> Iterator[None]:
    """With a file: stalls and pauses go there, one line of JSON at the end and one for each SIGUSR1."""
    if not file:
        yield
        return
    from tandem.cli.stalls import StallMonitor

    monitor = StallMonitor(loop)

    def report() -> None:
        with Path(file).open("a", encoding="utf-8") as out:
            out.write(json.dumps(monitor.report()) + "\n")

    loop.add_signal_handler(signal.SIGUSR1, report)
    monitor.start()
    try:
        yield
    finally:
        monitor.stop()
        report()


def greeting(settings: ServerSettings, addresses: tuple[tuple[str, int], ...], keys: str) -> list[str]:
    """What a person, or a script, needs to connect; the last line starts with `ready`.

    Only a development broker's key, which everybody knows, is shown: output ends up in logs. Else `keys` says where they are.
    """
    lines: list[str] = []
    host, port = addresses[0]
    for namespace in settings.namespaces:
        root = next(rule for rule in namespace.authorization_rules if rule.key_name == keyring.ROOT_RULE)
        name = endpoint_host(namespace, host)
        label = f" ({namespace.name})" if len(settings.namespaces) > 1 else ""
        tls = any(bound == TLS_PORT for _, bound in addresses)
        if not settings.dev:
            lines.append(f"endpoint{label}: {keyring.endpoint(name, port)}")
            lines += [f"endpoint{label}, TLS: {keyring.endpoint(name, port, tls=True)}"] if tls else []
            continue
        lines.append(f"connection string{label}: {keyring.connection_string(name, port, root)}")
        if tls:
            lines.append(f"connection string{label}, TLS: {keyring.connection_string(name, port, root, tls=True)}")
    if not settings.dev:
        lines.append(f"keys: {keys}{f' --port {port}' if keys.startswith('tandem') else ''}")
    if settings.tls and settings.tls.ca:
        lines.append(f"CA file: {settings.tls.ca}")
    console = endpoint_host(settings.namespaces[0], host)
    lines.append(f"console: http://{f'[{console}]' if ':' in console else console}:{port}/$tandem/console/")
    listening = ", ".join(f"{h}:{p}" for h, p in addresses)
    lines.append(f"ready: listening on {listening}; {f'data in {settings.data_dir}' if settings.data_dir else 'in memory only'}")
    return lines


def _on_signal(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """The first one stops cleanly; a second one does not wait."""
    stopping.set()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)


def _settle_garbage_collector() -> None:
    """What start-up built lives as long as the process: never look at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.enable()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _make_server(settings: ServerSettings) -> RunnableBroker:
    """The composition root: which clock, which engines, which certificates."""
    from tandem.model.clock import SystemClock
    from tandem.server.server import Server
    from tandem.stores.engines import DiskEngines, MemoryEngines
    from tandem.stores.settings import LogSettings
    from tandem.wire.tls import server_context

    clock = SystemClock()
    configured = settings.stores
    stores = LogSettings(
        segment_bytes=configured.segment_bytes, free_bytes_min=configured.free_bytes_min, audit_retention_ms=configured.audit_retention_ms
    )
    faults = settings.faults or settings.dev
    isolated = settings.stores.isolation == "process"
    engines = (
        DiskEngines(settings.data_dir, stores, clock, faults=faults, isolated=isolated, note=_note)
        if settings.data_dir
        else MemoryEngines()
    )
    tls = server_context(settings.tls.certificate, settings.tls.private_key) if settings.tls else None
    keep = EventFile(settings.data_dir / "events.jsonl" if settings.data_dir else None, settings.node)
    return Server(settings, engines, clock=clock, log=_note, on_event=keep, tls=tls)


class EventFile:
    """State changes as lines of JSON beside the journals, for `tandem availability`. They are rare, so each is written at once."""

    def __init__(self, path: Path | None, who: str) -> None:
        self._path = path
        """None: a broker in memory leaves nothing behind."""
        self._who = who

    def __call__(self, event: dict[str, Any]) -> None:
        if self._path is None:
            return
        about = next((one for one in ("store", "clock") if str(event["subject"]).startswith(one)), "broker")
        kind = f"{about}-{event['state']}"
        line = {
            "at_ms": event["at_ms"],
            "source": "broker",
            "who": self._who,
            "kind": kind,
            "path": event["subject"],
            "detail": event["cause"],
        }
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            _note(f"{self._path} cannot be written: {error.strerror}")


def _note(text: str) -> None:
    """One line for the operator."""
    LINES.say(text)


def _write(text: str) -> None:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(f"{at} {text}", file=sys.stderr, flush=True)


LINES: Final = LogLines(_write, time.monotonic)
