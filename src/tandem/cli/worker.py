"""One worker of `tandem serve --workers`: a broker without a port that is handed its connections. `python -m tandem.cli.worker`."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import signal
import socket
import sys
import threading
from dataclasses import replace
from typing import Any, Final

from tandem.cli import running
from tandem.cli.configuration.settings import Configuration
from tandem.cli.log_output import LINES, OUTPUT, note
from tandem.cli.reloading import Reloader
from tandem.cli.served_certificate import ServedCertificate
from tandem.cli.service_manager import ServiceManager
from tandem.cli.workers import BEAT, BEAT_SECONDS, NOT_RELOADED, READY, RELOADED, WorkerStart
from tandem.cluster.workers import worker_name
from tandem.model.errors import BusError, ConfigurationError
from tandem.server.audit import Audit
from tandem.server.server import Server
from tandem.server.settings import ServerSettings

_EXIT_USAGE: Final = 2


def main() -> None:
    start: WorkerStart = pickle.load(sys.stdin.buffer)
    OUTPUT.who = worker_name(start.number)
    OUTPUT.configure(start.log_format, start.log_level)
    running.allow_files(start.settings.limits)
    try:
        with asyncio.Runner(loop_factory=running.loop_factory()) as runner, running.audit_log(start.settings.data_dir) as audit:
            runner.run(_serve(start, audit))
    except ConfigurationError as error:
        print(f"tandem: {error}", file=sys.stderr)
        sys.exit(_EXIT_USAGE)
    except MemoryError:
        running.out_of_memory()


async def _serve(start: WorkerStart, audit: Audit) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(running.on_loop_error)
    threading.excepthook = running.on_thread_error
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    beside = [loop.create_task(running.tell_what_was_left_out())]
    server = running.make_server(audit, start.settings, start.plan.node(start.number))
    channel = socket.socket(fileno=start.channel)
    channel.setblocking(False)
    try:
        await server.start()
    except BusError as error:
        raise ConfigurationError(f"the broker cannot start: {error.description}") from error
    except OSError as error:
        raise ConfigurationError(f"the broker cannot start: {error}") from error
    try:
        running.settle_garbage_collector()
        if start.read is not None:
            reloader = _WorkerReloader(server, start, channel)
            beside.append(loop.create_task(reloader.certificate.keep()))
            loop.add_signal_handler(signal.SIGHUP, reloader.on_signal)
            server.on_reload = reloader.reload if start.number == 0 else None
        handed = _Handed(server, channel, stopping)
        loop.add_reader(channel, handed.look)
        channel.send(READY)
        beside.append(loop.create_task(_beat(channel)))
        await stopping.wait()
        loop.remove_reader(channel)
        note(str(await server.drain()))
    finally:
        began = loop.time()
        await server.stop()
        for task in beside:
            task.cancel()
        note(f"stopped in {loop.time() - began:.2f} s")
        LINES.close()


class _WorkerReloader(Reloader):
    """On SIGHUP, which whoever started us sends on; at the first worker for clients that may ask for it, too."""

    def __init__(self, server: Server, start: WorkerStart, channel: socket.socket) -> None:
        assert start.read is not None
        self.certificate = ServedCertificate(start.settings.tls, server.use_certificate, leads=start.number == 0)
        super().__init__(start.read, self._prepared, server, ServiceManager({}), self.certificate)
        self._start = start
        self._channel = channel
        self._of_all: list[str] = []
        """What was changed, and needs a restart of all of us."""

    def _prepared(self, configuration: Configuration, now: int) -> ServerSettings:
        start, own = self._start, self._start.settings
        assert own.data_dir is not None
        found = running.prepare(configuration, own.data_dir, now)
        wanted = (("listeners", found.listeners, start.listeners), ("workers", configuration.workers, start.plan.count))
        self._of_all = [name for name, new, old in wanted if new != old]
        unchanged = f"{found.node}-{start.number}" == own.node
        beside = tuple(
            trust for trust in own.trusted_issuers if trust.jwks_file is not None and trust.jwks_file.parent == start.plan.sockets
        )
        trusted = (*found.trusted_issuers, *beside)  # the issuer of `[issuer]`, if there is one
        return replace(found, listeners=(), trusted_issuers=trusted, node=own.node if unchanged else found.node)

    async def reload(self) -> dict[str, Any]:
        """The first one tells the others, and whoever started us."""
        if self._start.number:
            return await super().reload()
        came = NOT_RELOADED
        try:
            found = await super().reload()
            found["needs_restart"] += self._of_all
            if self._of_all:
                LINES.warn(f"reload: needs a restart: {', '.join(self._of_all)}")
            came = RELOADED
            return found
        finally:
            self._channel.send(came)


async def _beat(channel: socket.socket) -> None:
    """From the event loop itself: one that hangs is silent, and whoever started us ends it."""
    while True:
        await asyncio.sleep(BEAT_SECONDS)
        with contextlib.suppress(OSError):  # nobody is there: the other direction has told it
            channel.send(BEAT)


class _Handed:
    """Takes connections from the channel; its end is the end of whoever started us."""

    def __init__(self, server: Server, channel: socket.socket, stopping: asyncio.Event) -> None:
        self._server = server
        self._channel = channel
        self._stopping = stopping
        self._taking: set[asyncio.Task[None]] = set()

    def look(self) -> None:
        try:
            said, descriptors, _, _ = socket.recv_fds(self._channel, 64, 64)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            said, descriptors = b"", []
        if not said:
            self._stopping.set()
        for descriptor in descriptors:
            accepted = socket.socket(fileno=descriptor)
            accepted.setblocking(False)
            task = asyncio.get_running_loop().create_task(self._server.take(accepted))
            self._taking.add(task)
            task.add_done_callback(self._taking.discard)


if __name__ == "__main__":
    main()
