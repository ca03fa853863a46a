"""A broker from its settings to the end of the process: makes what is missing, says how to reach it, stops it cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, Protocol

from tandem.cli.audit_file import FILE_NAME, AuditWriter
from tandem.cli.configuration import keyring
from tandem.cli.configuration.keyring import endpoint_host
from tandem.cli.configuration.settings import Configuration, Flags, load
from tandem.cli.event_file import EventFile
from tandem.cli.listening import cannot_listen, is_about_address, shown_address
from tandem.cli.log_output import LINES, OUTPUT, greet, note
from tandem.cli.reloading import Reloader
from tandem.cli.served_certificate import ServedCertificate
from tandem.cli.service_manager import ServiceManager
from tandem.model.errors import BusError, ConfigurationError
from tandem.model.limits import Limits
from tandem.server.audit import Audit, no_audit
from tandem.server.settings import ServerSettings, TlsSettings

if TYPE_CHECKING:  # loaded by the brokers that need it
    import ssl

    from tandem.cli.issuer_beside import IssuerBeside
    from tandem.cluster.peers import ClusterNode
    from tandem.server.reloading import Reloaded
    from tandem.server.server import Server
    from tandem.tokens.trust import TrustedIssuer
    from tandem.tracing import MessageSpans

TLS_PORT: Final = 5671
STALLS_VARIABLE: Final = "TANDEM_STALLS"
"""Environment variable with the name of a file: measure how long the event loop keeps anybody waiting, for benchmarks."""
_FILES_BESIDE_CONNECTIONS: Final = 1_024
"""Journals, listeners, connections that are just being refused."""
_FILES_MIN: Final = 64
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

    fetch_keys: Callable[[TrustedIssuer], Awaitable[bytes]] | None
    """Before `start`: how the keys of issuers are had, if not as their settings say."""

    async def start(self) -> None: ...

    on_reload: Callable[[], Awaitable[dict[str, Any]]] | None
    """How a client with Manage has the configuration read again."""

    async def reload(self, settings: ServerSettings, tls: ssl.SSLContext | None) -> Reloaded: ...

    def use_certificate(self, tls: ssl.SSLContext) -> None:
        """For connections from now on."""

    async def drain(self) -> object:
        """Finish what is under way, for `drain_seconds` at most; what comes back says in words how that went."""

    async def stop(self) -> None: ...


def serve_with(flags: Flags) -> None:
    """`tandem serve`, once its flags are known."""
    environ, directory = dict(os.environ), Path.cwd()
    first = load(flags, environ, directory)
    run(first, read=functools.partial(_read_again, first.file, flags, environ, directory))


def _read_again(file: Path | None, flags: Flags, environ: dict[str, str], directory: Path) -> Configuration:
    found = load(flags, environ, directory)
    if file is not None and found.file is None:
        raise ConfigurationError(f"{file} is gone")  # an empty configuration would take keys away
    return found


def run(
    configuration: Configuration,
    make: Callable[[ServerSettings], RunnableBroker] | None = None,
    read: Callable[[], Configuration] | None = None,
) -> None:
    """Everything between the decided settings and the end of the process. `read`: how to decide them again."""
    OUTPUT.configure(configuration.log_format, configuration.log_level)
    with held_workplace(configuration) as (directory, lock):
        settings = prepare(configuration, directory, time.time_ns() // 1_000_000)
        allow_files(settings.limits)
        if settings.data_dir is not None and settings.cluster is None:
            allow_file_size(settings.stores.segment_bytes)
            _tell_unserved(settings.data_dir, {namespace.name for namespace in settings.namespaces})
        keys = "the root key is the one given" if configuration.root_key else _keys_command(configuration, directory)
        if configuration.is_several:
            from tandem.cli.workers import serve_workers

            serve_workers(configuration, settings, keys, lock, read)
            return
        issuer: IssuerBeside | None = None
        if configuration.issuer is not None:
            from tandem.cli.issuer_beside import IssuerBeside

            issuer = IssuerBeside(configuration.issuer, settings, directory)
            settings = issuer.believed_by(settings)
        with audit_log(settings.data_dir) as audit, asyncio.Runner(loop_factory=loop_factory()) as runner:
            try:
                runner.run(_serve(settings, make or functools.partial(make_server, audit), keys, directory, read, issuer))
            except MemoryError:
                out_of_memory()


def _tell_unserved(data: Path, served: set[str]) -> None:
    """A namespace whose name was changed in the configuration begins empty: whoever looks for its messages hears where they are."""
    from tandem.stores.engines import METADATA

    for place in sorted(path.parent for path in data.glob(f"*/{METADATA}")):
        if place.name not in served:
            note(f"{place} is not served: the configuration has no namespace of this name. Its entities and messages stay as they are")


def _keys_command(configuration: Configuration, directory: Path) -> str:
    """How to see the keys; the directory is a temporary one when nothing else is kept."""
    file = configuration.file
    return f"tandem keys --data {directory}{f' --config {file}' if file is not None else ''}"


def allow_files(limits: Limits) -> None:
    """A connection is an open file, and the usual soft limit is a thousand: ask for as many as the system lets us have."""
    import resource

    connections_max = limits.connections_max
    relay_sockets = 3 * limits.relay_connections_max
    """What relays may need beside, two for each of their connections and some for listeners; nobody is warned for them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + _FILES_BESIDE_CONNECTIONS
    most = wanted + relay_sockets
    if soft == resource.RLIM_INFINITY or soft >= most:
        return
    allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
    if allowed < _FILES_MIN:
        raise ConfigurationError(f"the system allows {allowed} open files; a broker needs at least {_FILES_MIN}; raise ulimit -n")
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        note(f"the system allows {allowed} open files, too few for {connections_max} connections (limits.connections_max); raise ulimit -n")


def allow_file_size(segment_bytes: int) -> None:
    """A segment ends with the block that fills it, and blocks are as large as messages: twice its size is enough."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    wanted = 2 * segment_bytes
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise ConfigurationError(
            f"the system allows files of {hard:,} bytes; segments of a journal need {wanted:,}; "
            "raise ulimit -f, or lower stores.segment_bytes"
        )
    resource.setrlimit(resource.RLIMIT_FSIZE, (wanted, hard))


def prepare(configuration: Configuration, directory: Path, now: int) -> ServerSettings:
    """Keys and certificates found or made: the settings as the server gets them."""
    import socket

    from tandem.wire.tls import TlsError, ensure_certificates, server_context

    settings = configuration.server
    ring = keyring.KeyRing(directory / keyring.FILE_NAME)
    if settings.cluster is not None:
        from tandem.cli.cluster_node import check_engine, share_keys

        check_engine(settings, lambda: time.time_ns() // 1_000_000, note)
        keyring.fill(settings.namespaces, ring, configuration.root_key, settings.dev)
        share_keys(settings, ring)
    namespaces = keyring.fill(settings.namespaces, ring, configuration.root_key, settings.dev)
    tls = settings.tls
    try:
        ring.save()
        if tls is None:
            names = (socket.gethostname(), *configuration.tls_names)
            files = ensure_certificates(directory, names, now)
            tls = TlsSettings(certificate=files.certificate, private_key=files.private_key, ca=files.ca, made_for=names)
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
    with held_workplace(configuration) as (directory, _):
        yield directory


@contextlib.contextmanager
def held_workplace(configuration: Configuration) -> Iterator[tuple[Path, int]]:
    """The same, and the file descriptor by which it is held: a process that inherits it holds it too. -1: nothing is held."""
    data = configuration.server.data_dir
    if data is None:
        import tempfile

        with tempfile.TemporaryDirectory(prefix="tandem-") as temporary:
            yield Path(temporary), -1
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
        yield data, descriptor
    finally:
        os.close(descriptor)


async def _serve(
    settings: ServerSettings,
    make: Callable[[ServerSettings], RunnableBroker],
    keys: str,
    directory: Path,
    read: Callable[[], Configuration] | None,
    issuer: IssuerBeside | None = None,
) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(on_loop_error)
    threading.excepthook = on_thread_error
    manager = ServiceManager(os.environ)
    beside = [loop.create_task(tell_what_was_left_out()), loop.create_task(manager.keep_alive())]
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _on_signal, loop, stopping)
    hung_up = asyncio.Event()
    if read is not None and not _at_a_terminal():
        loop.add_signal_handler(signal.SIGHUP, hung_up.set)  # while journals are read: it is done when it can be
    server = make(settings)
    try:
        if issuer is not None and settings.tls is not None:
            server.fetch_keys = issuer.fetch_keys
            await issuer.start(settings.tls)
        await server.start()
    except OSError as error:
        if is_about_address(error):
            raise cannot_listen(", ".join(shown_address(one.host, one.port) for one in settings.listeners), error) from error
        raise ConfigurationError(f"the broker cannot start: {error}") from error
    except BusError as error:
        raise ConfigurationError(f"the broker cannot start: {error.description}") from error
    try:
        settle_garbage_collector()
        if read is not None:

            def prepared(configuration: Configuration, now: int) -> ServerSettings:
                found = prepare(configuration, directory, now)
                return issuer.believed_by(found) if issuer is not None else found

            def show(certificate: ssl.SSLContext) -> None:
                server.use_certificate(certificate)
                if issuer is not None:
                    issuer.use_certificate(certificate)

            shown = ServedCertificate(settings.tls, show)
            beside.append(loop.create_task(shown.keep()))
            reloader = Reloader(read, prepared, server, manager, shown)
            server.on_reload = reloader.reload
            if not _at_a_terminal():
                loop.add_signal_handler(signal.SIGHUP, reloader.on_signal)
                if hung_up.is_set():
                    reloader.on_signal()
        hosts = (listener.host for listener in settings.listeners)
        with _watched(loop, os.environ.get(STALLS_VARIABLE)):
            lines = [*(issuer.greeting() if issuer else ()), *greeting(settings, tuple(zip(hosts, server.ports, strict=True)), keys)]
            greet(lines)
            manager.ready(lines[-1])
            await stopping.wait()
            manager.stopping("what is under way is finished")
            note(str(await server.drain()))
    finally:
        manager.stopping("what was accepted is written down")
        began = loop.time()
        if issuer is not None:
            await issuer.stop()
        await server.stop()
        for task in beside:
            task.cancel()
        note(f"stopped in {loop.time() - began:.2f} s")
        LINES.close()


async def tell_what_was_left_out() -> None:
    while True:
        await asyncio.sleep(1)
        LINES.look_after()


def on_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if isinstance(context.get("exception"), MemoryError):
        out_of_memory()
    loop.default_exception_handler(context)


def on_thread_error(failed: threading.ExceptHookArgs) -> None:
    if isinstance(failed.exc_value, MemoryError):
        out_of_memory()
    threading.__excepthook__(failed)


def out_of_memory() -> NoReturn:
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
    listening = ", ".join(shown_address(h, p) for h, p in addresses)
    lines.append(f"ready: listening on {listening}; {f'data in {settings.data_dir}' if settings.data_dir else 'in memory only'}")
    return lines


def _at_a_terminal() -> bool:
    """There SIGHUP means that the terminal is gone, and the broker goes with it."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def _on_signal(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """The first one stops cleanly; a second one does not wait."""
    stopping.set()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)


def settle_garbage_collector() -> None:
    """What start-up built lives as long as the process: never look at it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
    gc.enable()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


@contextlib.contextmanager
def audit_log(data: Path | None) -> Iterator[Audit]:
    """A broker in memory leaves none behind."""
    if data is None:
        yield no_audit
        return
    with contextlib.closing(AuditWriter(data / FILE_NAME, note)) as writer:
        yield writer


def make_server(audit: Audit, settings: ServerSettings, cluster: ClusterNode | None = None) -> Server:
    """The composition root: which clock, which engines, which certificates."""
    from tandem.model.clock import SystemClock
    from tandem.server.server import Server
    from tandem.stores.engines import DiskEngines, MemoryEngines
    from tandem.stores.settings import LogSettings
    from tandem.wire.tls import server_context

    tls = server_context(settings.tls.certificate, settings.tls.private_key) if settings.tls else None
    keep = EventFile(settings.data_dir / "events.jsonl" if settings.data_dir else None, settings.node)
    if settings.cluster is not None:
        from tandem.cli.cluster_node import make_node_server

        node: Server = make_node_server(settings, note, warn=LINES.warn, audit=audit, on_event=keep, tls=tls, tracing=_tracing(settings))
        return node
    clock = SystemClock()
    configured = settings.stores
    stores = LogSettings(
        segment_bytes=configured.segment_bytes, free_bytes_min=configured.free_bytes_min, audit_retention_ms=configured.audit_retention_ms
    )
    faults = settings.faults or settings.dev
    isolated = settings.stores.isolation == "process"
    engines = (
        DiskEngines(settings.data_dir, stores, clock, faults=faults, isolated=isolated, note=note) if settings.data_dir else MemoryEngines()
    )
    return Server(
        settings,
        engines,
        clock=clock,
        log=note,
        warn=LINES.warn,
        audit=audit,
        on_event=keep,
        tls=tls,
        tracing=_tracing(settings),
        cluster=cluster,
    )


def _tracing(settings: ServerSettings) -> MessageSpans | None:
    if not settings.tracing:
        return None
    from tandem.tracing import MessageSpans, exporting_provider

    provider = exporting_provider("tandem", settings.node)
    return MessageSpans(provider, **{"tandem.node": settings.node})
