"""`tandem serve --workers N`: one port, N processes behind it. This process accepts, hands connections over, and keeps the others alive."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandem.cli.configuration.settings import Configuration
from tandem.cli.listening import listen
from tandem.cli.lobby import Lobby, is_port_of_http
from tandem.cli.log_output import LINES, greet, note
from tandem.cli.running import greeting, loop_factory, prepare
from tandem.cli.served_certificate import ServedCertificate
from tandem.cli.service_manager import ServiceManager
from tandem.cluster.workers import WorkerPlan, assign_stores, worker_name
from tandem.model.errors import ConfigurationError
from tandem.server.settings import Listener, ServerSettings

if TYPE_CHECKING:
    from tandem.cli.issuer_beside import IssuerBeside

READY: Final = b"R"
RELOADED: Final = b"L"
"""From the first worker: it has read the configuration again, and others may."""
NOT_RELOADED: Final = b"N"
BEAT: Final = b"B"
CONNECTION: Final = b"C"
BEAT_SECONDS: Final = 1.0
"""So often a worker says that its event loop goes round."""
_SILENT_BEATS: Final = 3
"""Silent for so long, it is given no new connections."""
_HUNG_BEATS: Final = 30
"""Silent for so long, it hangs: it is killed, and started again."""
_HUNG_BEATS_AT_THE_END: Final = 10
STAY_VARIABLE: Final = "TANDEM_CONNECTIONS_STAY"
"""Environment variable: 1 leaves every connection with the worker that it came to, for benchmarks of carried links."""
_SECRET_BYTES: Final = 32
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
_STEADY_SECONDS: Final = 30.0
"""Alive for so long, a worker that dies is started again at once."""
_EXIT_USAGE: Final = 2
_ISSUER_KEYS: Final = "issuer.json"
_PUBLISH_SECONDS: Final = 0.5
_SOCKET_DIRECTORY_BYTES_MAX: Final = 90
"""The system allows 107 bytes for the path of a socket."""
_SHORT_DIRECTORY: Final = "/tmp"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    """What one worker is told when it starts, over its standard input."""

    number: int
    plan: WorkerPlan
    settings: ServerSettings
    log_format: str
    log_level: str
    channel: int
    """File descriptor: connections come in, readiness goes out. It ends with whoever started the worker."""
    listeners: tuple[Listener, ...] = ()
    """Of the process that accepts for all."""
    read: Callable[[], Configuration] | None = None
    """How the configuration is read again."""


def serve_workers(
    configuration: Configuration, settings: ServerSettings, keys: str, lock: int, read: Callable[[], Configuration] | None = None
) -> None:
    """Until told to stop. `lock`: the descriptor that holds the data directory; workers hold it too."""
    count, apart = configuration.workers, configuration.relays_apart
    if settings.data_dir is None:
        what = "relay_isolation" if apart else "workers"
        raise ConfigurationError(f"{what}: they share a data directory; leave out --memory, or run without {what}")
    if count > settings.stores.count:
        raise ConfigurationError(
            f"workers: found {count}, but each needs a store and there are {settings.stores.count}; raise stores.count, or use fewer"
        )
    with _sockets() as sockets, asyncio.Runner(loop_factory=loop_factory()) as runner:
        plan = WorkerPlan(
            count=count + apart,
            sockets=sockets,
            secret=os.urandom(_SECRET_BYTES),
            broker=settings.node,
            moves=os.environ.get(STAY_VARIABLE) != "1",
            relays_apart=apart,
            stores=_plan_stores(settings, count, int(apart)),
        )
        issuer: IssuerBeside | None = None
        if configuration.issuer is not None:
            from tandem.cli.issuer_beside import IssuerBeside

            issuer = IssuerBeside(configuration.issuer, settings, settings.data_dir)
            settings = replace(settings, trusted_issuers=(*settings.trusted_issuers, issuer.in_file(plan.sockets / _ISSUER_KEYS)))
        runner.run(Supervisor(configuration, settings, plan, keys, lock, read, issuer).run())


@contextlib.contextmanager
def _sockets() -> Iterator[Path]:
    """Where workers listen for each other: nobody else may look in."""
    directory = Path(tempfile.mkdtemp(prefix="tandem-"))
    if len(os.fsencode(directory)) > _SOCKET_DIRECTORY_BYTES_MAX and os.access(_SHORT_DIRECTORY, os.W_OK):
        directory.rmdir()
        directory = Path(tempfile.mkdtemp(prefix="tandem-", dir=_SHORT_DIRECTORY))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


# -- which worker has which store --------------------------------------------------------------


def _plan_stores(settings: ServerSettings, workers: int, first: int) -> dict[str, tuple[int, ...]]:
    """`first`: the number of the first worker that has any."""
    owners = tuple(first + worker for worker in assign_stores(settings.stores.count, workers))
    return {namespace.name: owners for namespace in settings.namespaces}


# -- the processes -----------------------------------------------------------------------------


class _Worker:
    def __init__(self, number: int) -> None:
        self.number = number
        self.name = worker_name(number)
        self.process: asyncio.subprocess.Process | None = None
        self.channel: socket.socket | None = None
        self.ready = asyncio.Event()
        self.taking = False
        self.heard = False
        """It is up, or was: from then on it is not silent unless it hangs."""
        self.silent_beats = 0
        """How many times we looked since it was heard; our own pauses do not count."""
        self.pause = _FIRST_PAUSE

    def started(self, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self.process, self.channel = process, channel
        self.heard, self.silent_beats = False, 0

    def spoke(self, said: bytes) -> None:
        """Nothing, if it has hung up."""
        self.heard = True
        if said:
            self.silent_beats = 0

    def serves(self) -> None:
        """It has said so."""
        self.taking = True
        self.ready.set()

    def ended(self) -> None:
        self.channel, self.process, self.taking = None, None, False

    def pause_after(self, seconds: float) -> float:
        """How long to wait before it is started again, since it has run for so long."""
        self.pause = _FIRST_PAUSE if seconds > _STEADY_SECONDS else min(self.pause * 2, _LONGEST_PAUSE)
        return self.pause


class Supervisor:
    """Binds, starts, hands over, restarts, and ends with everything it started."""

    def __init__(
        self,
        configuration: Configuration,
        settings: ServerSettings,
        plan: WorkerPlan,
        keys: str,
        lock: int,
        read: Callable[[], Configuration] | None,
        issuer: IssuerBeside | None = None,
    ) -> None:
        self._configuration = configuration
        self._read = read
        self._issuer = issuer
        self._issuer_shows: ServedCertificate | None = None
        self._manager = ServiceManager(os.environ)
        self._settings = settings
        self._plan = plan
        self._keys = keys
        self._lock = lock
        self._workers = [_Worker(number) for number in range(plan.count)]
        self._listeners: list[socket.socket] = []
        self._lobby = Lobby(self._recognised)
        self._stopping = asyncio.Event()
        self._turn = 0
        self._exit = 0
        self._reading: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._told_to_stop)
        loop.add_signal_handler(signal.SIGHUP, self._told_to_reload)
        manager = self._manager
        alive = loop.create_task(manager.keep_alive())
        self._bind()
        tasks: list[asyncio.Task[None]] = []
        publishing = await self._begin_issuing()
        watching = loop.create_task(self._watch())
        try:
            for worker in self._workers:
                # The first makes what the others read: metadata, and what the configuration asks for.
                tasks.append(loop.create_task(self._keep(worker)))
                if not await self._is_ready(worker):
                    break
            else:
                self._greet(manager)
                for listener in self._listeners:
                    loop.add_reader(listener, self._accept, listener)
            await self._stopping.wait()
        finally:
            manager.stopping("what is under way is finished")
            for listener in self._listeners:
                loop.remove_reader(listener)
                listener.close()
            self._lobby.close()
            await self._stop(tasks)
            alive.cancel()
            if self._issuer is not None and publishing is not None:
                publishing.cancel()
                await self._issuer.stop()
            watching.cancel()
            LINES.close()
        if self._exit:
            sys.exit(self._exit)

    async def _begin_issuing(self) -> asyncio.Task[None] | None:
        """The issuer of `[issuer]` is in this process; workers find its keys in a file."""
        issuer, tls, file = self._issuer, self._settings.tls, self._plan.sockets / _ISSUER_KEYS
        if issuer is None or tls is None:
            return None
        issuer.publish(file)
        await issuer.start(tls)
        shown = self._issuer_shows = ServedCertificate(tls, issuer.use_certificate, leads=False)

        async def keep() -> None:
            while True:
                await asyncio.sleep(_PUBLISH_SECONDS)
                issuer.publish(file)
                await shown.look()

        return asyncio.get_running_loop().create_task(keep())

    async def _is_ready(self, worker: _Worker) -> bool:
        waits = [asyncio.ensure_future(worker.ready.wait()), asyncio.ensure_future(self._stopping.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        return not self._stopping.is_set()

    def _bind(self) -> None:
        for wanted in self._settings.listeners:
            listener = listen(wanted.host, wanted.port, backlog=4096)
            listener.setblocking(False)
            self._listeners.append(listener)

    def _greet(self, manager: ServiceManager) -> None:
        addresses = [
            (wanted.host, listener.getsockname()[1]) for wanted, listener in zip(self._settings.listeners, self._listeners, strict=True)
        ]
        processes = ", ".join(f"{worker.name} {worker.process.pid}" for worker in self._workers if worker.process is not None)
        said = self._issuer.greeting() if self._issuer is not None else []
        lines = [f"workers: {processes}", *said, *greeting(self._settings, tuple(addresses), self._keys)]
        greet(lines)
        manager.ready(lines[-1])

    # -- connections -------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(64):
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                note(f"a connection could not be accepted: {error.strerror or error}")
                return
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._plan.relays_apart:
                    ports = [one.getsockname()[1] for one in self._listeners]
                    self._lobby.wait(connection.dup(), is_port_of_http(listener.getsockname()[1], ports))
                else:
                    self._hand_over(connection, self._workers)

    def _recognised(self, connection: socket.socket, speaks_http: bool) -> None:
        self._hand_over(connection, self._workers[:1] if speaks_http else self._workers[1:])

    def _hand_over(self, connection: socket.socket, workers: list[_Worker]) -> None:
        """To the workers in turn; past one that is starting, or so busy that it does not take what it was given."""
        for _ in workers:
            self._turn = (self._turn + 1) % len(workers)
            worker = workers[self._turn]
            if worker.channel is None or not worker.taking:
                continue
            try:
                socket.send_fds(worker.channel, [CONNECTION], [connection.fileno()])
                return
            except OSError:
                continue

    # -- life --------------------------------------------------------------------------------

    async def _keep(self, worker: _Worker) -> None:
        """Start it, and start it again whenever it ends before it was told to."""
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            began = loop.time()
            code = await self._run_worker(worker)
            if self._stopping.is_set():
                return
            if not worker.ready.is_set():
                self._exit = code if code == _EXIT_USAGE else 1  # it has said why
                self._stopping.set()
                return
            pause = worker.pause_after(loop.time() - began)
            how = f"signal {-code}" if code < 0 else f"code {code}"
            note(f"{worker.name} ended with {how}: its stores are away until it is back, in {pause:g} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    async def _run_worker(self, worker: _Worker) -> int:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        settings = replace(self._settings, listeners=(), node=f"{self._settings.node}-{worker.number}")
        start = WorkerStart(
            number=worker.number,
            plan=self._plan,
            settings=settings,
            log_format=self._configuration.log_format,
            log_level=self._configuration.log_level,
            channel=theirs.fileno(),
            listeners=self._settings.listeners,
            read=self._read,
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tandem.cli.worker",
            stdin=asyncio.subprocess.PIPE,
            pass_fds=(theirs.fileno(), self._lock),
        )
        theirs.close()
        worker.started(process, ours)
        loop = asyncio.get_running_loop()
        loop.add_reader(ours, self._heard, worker)
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(pickle.dumps(start))
            process.stdin.close()
        try:
            return await process.wait()
        finally:
            loop.remove_reader(ours)
            ours.close()
            worker.ended()

    def _heard(self, worker: _Worker) -> None:
        if worker.channel is None:
            return
        try:
            said = worker.channel.recv(64)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            said = b""
        worker.spoke(said)
        if not said:
            asyncio.get_running_loop().remove_reader(worker.channel)
            return
        if READY in said or (BEAT in said and not worker.taking):
            if worker.ready.is_set():
                note(f"{worker.name} is back")
            worker.serves()
        if RELOADED in said:
            self._others_reload()
        if RELOADED in said or NOT_RELOADED in said:
            self._manager.ready("configuration was read again")

    # -- the configuration read again --------------------------------------------------------

    def _told_to_reload(self) -> None:
        """The first worker does so, and says what came of it; the others follow."""
        first = self._workers[0]
        if self._read is None or first.process is None or not first.taking:
            note(f"reload: {first.name} is not there; nothing was changed, try again when it is back")
            return
        self._manager.reloading()
        first.process.send_signal(signal.SIGHUP)

    def _others_reload(self) -> None:
        for worker in self._workers[1:]:
            if worker.process is not None and worker.taking:
                worker.process.send_signal(signal.SIGHUP)
        task = asyncio.get_running_loop().create_task(self._use_for_those_to_come())
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    async def _use_for_those_to_come(self) -> None:
        """A worker that is started again starts with what the others have."""
        from tandem.server.reloading import Reloaded, split_settings

        assert self._read is not None and self._settings.data_dir is not None
        try:
            configuration = await asyncio.to_thread(self._read)
            found = await asyncio.to_thread(prepare, configuration, self._settings.data_dir, time.time_ns() // 1_000_000)
        except ConfigurationError as error:
            note(f"reload: a worker that is started again would start as before: {error}")
            return
        self._configuration = replace(self._configuration, log_format=configuration.log_format, log_level=configuration.log_level)
        self._settings = split_settings(self._settings, found, Reloaded())
        if self._issuer_shows is not None:
            self._issuer_shows.follow(self._settings.tls)

    async def _watch(self) -> None:
        """A worker that does not answer takes its connections and stores along for as long as it lives: not longer than half a minute."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            for worker in self._workers:
                if worker.process is None or not (worker.heard or self._stopping.is_set()):
                    continue  # gone, or on its way up: reading journals takes what it takes
                worker.silent_beats += 1
                if worker.silent_beats == _SILENT_BEATS:
                    worker.taking = False
                    note(f"{worker.name} does not answer: it is given no new connections")
                elif worker.silent_beats == (_HUNG_BEATS_AT_THE_END if self._stopping.is_set() else _HUNG_BEATS):
                    note(f"{worker.name} has not answered for {worker.silent_beats} s and is killed")
                    worker.process.kill()

    def _told_to_stop(self) -> None:
        """The first time everybody finishes what is under way; the second time nobody does."""
        if self._stopping.is_set():
            for worker in self._workers:
                if worker.process is not None:
                    worker.process.kill()
        self._stopping.set()

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        self._stopping.set()
        for worker in self._workers:
            if worker.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    worker.process.terminate()
        await asyncio.gather(*tasks)
