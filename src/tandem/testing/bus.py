"""A whole broker inside a test process, on a clock the test moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from tandem.broker.entities.queue_entity import QueueEntity
from tandem.gateway.waiting import Durable
from tandem.model import address as addresses
from tandem.model.address import SubQueue
from tandem.model.clock import SystemClock
from tandem.model.entity import (
    AuthorizationRule,
    QueueDescription,
    Right,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from tandem.model.errors import StoreUnavailable
from tandem.model.limits import Limits
from tandem.server.fault_points import FaultPoints
from tandem.server.faults import FaultRequest
from tandem.server.server import Server
from tandem.server.settings import Listener, NamespaceSettings, ServerSettings, StoresSettings
from tandem.stores.engines import DiskEngines, MemoryEngines
from tandem.stores.settings import LogSettings
from tandem.testing.clock import ManualClock, ShiftedClock
from tandem.testing.entity_arguments import describe
from tandem.testing.idle_engines import WatchedEngines
from tandem.tracing import MessageSpans

KEY_NAME: Final = "RootManageSharedAccessKey"
KEY: Final = "SAS_KEY_VALUE"
_CALL_SECONDS_MAX: Final = 60.0
_PATIENCE_SECONDS: Final = 0.02

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Messages of one entity at this moment."""

    active: int
    """To be delivered, now or after a lock: locked ones are counted here too."""
    locked: int
    deferred: int
    scheduled: int
    dead_lettered: int
    total: int
    """Everything above that is in the entity itself; dead letters are in their own."""
    size_bytes: int


class Bus:
    """`with Bus() as bus:` runs a broker in a thread of this process, reachable under `bus.connection_string`.

    Its clock stands still until `advance` moves it. `real_time=True` lets it run with the system's.
    Messages live in memory, or with `data_dir` on disk exactly as `tandem serve` keeps them; both survive `restart`.
    All methods block, are quick, and may be called from any thread, from inside an event loop too.
    """

    def __init__(
        self,
        *,
        real_time: bool = False,
        data_dir: Path | None = None,
        port: int = 0,
        store_count: int = 1,
        limits: Limits | None = None,
        tracer_provider: Any = None,
    ) -> None:
        """`tracer_provider`: of OpenTelemetry; messages that carry a trace context are traced with it."""
        self._tracing = MessageSpans(tracer_provider) if tracer_provider is not None else None
        self.notes: list[str] = []
        """What the broker would have told its operator."""
        self._real_time = real_time
        self._clock: SystemClock | ManualClock = SystemClock() if real_time else ManualClock()
        self._connection_clock = ShiftedClock()
        root = AuthorizationRule(key_name=KEY_NAME, primary_key=KEY, secondary_key=KEY, rights=frozenset(Right))
        self._port = port
        self._namespace = NamespaceSettings(authorization_rules=(root,))
        self._limits = limits or Limits()
        self._stores = StoresSettings(count=store_count)
        self._data_dir = data_dir
        inner = DiskEngines(data_dir, LogSettings(), self._clock, faults=True) if data_dir is not None else MemoryEngines()
        self._engines = WatchedEngines(inner)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: Server | None = None
        self._stopping: asyncio.Event | None = None

    # -- life --------------------------------------------------------------------------------

    def __enter__(self) -> Bus:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when the broker serves. After `stop` it finds everything as it was, on the same port."""
        if self._thread is not None:
            raise RuntimeError("the bus is running already")
        ready = _Startup()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="tandem-bus", daemon=True)
        self._thread.start()
        ready.event.wait()
        if ready.error is not None:
            self._thread.join()
            self._thread = None
            raise ready.error

    def stop(self) -> None:
        """An orderly end: clients lose their connections, messages stay. Idempotent."""
        thread, loop, stopping = self._thread, self._loop, self._stopping
        if thread is None or loop is None or stopping is None:
            return
        loop.call_soon_threadsafe(stopping.set)
        thread.join(_CALL_SECONDS_MAX)
        if thread.is_alive():
            raise TimeoutError("the broker did not stop in time")
        self._thread = self._loop = self._server = self._stopping = None

    def restart(self) -> None:
        """Stop and start again: locks are released, everything else is found again; clients have to reconnect."""
        self.stop()
        self.start()

    @property
    def port(self) -> int:
        """Chosen by the system at the first start and kept."""
        if not self._port:
            raise RuntimeError("the bus has not been started yet: use it as a context manager, or call start()")
        return self._port

    @property
    def connection_string(self) -> str:
        """For every client of the official SDKs, messaging and administration."""
        return f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName={KEY_NAME};SharedAccessKey={KEY};UseDevelopmentEmulator=true;"

    # -- time --------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """The broker's time. Compute schedules from it, not from the system's clock."""
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)

    def advance(self, seconds: float) -> None:
        """Jump ahead: as if everybody had been asleep for so long. Locks, times to live, schedules, session locks and
        duplicate windows that ended meanwhile end now; when this returns, what follows from that has happened."""
        if not isinstance(self._clock, ManualClock):
            raise RuntimeError("this bus runs in real time; make it without real_time=True to move its clock")
        if seconds < 0:
            raise ValueError(f"time moves forwards; {seconds} seconds would move it back")
        self._call(self._advance(self._clock, self._clock.now_ms() + round(seconds * 1000)))

    def age_connections(self, seconds: float) -> None:
        """Let tokens, heartbeats and silence of the connected clients grow older; `advance` leaves them alone."""
        self._connection_clock.advance(seconds)
        self._call(self._run_housekeeping())

    # -- entities ----------------------------------------------------------------------------

    def create_queue(self, name: str, **properties: Any) -> QueueDescription:
        """Properties as the administration client names them: `lock_duration=30`, `requires_session=True`, …"""
        description = describe(QueueDescription, {"name": name}, properties)
        return self._call(self._running().admins[0].create_queue(description))

    def create_topic(self, name: str, **properties: Any) -> TopicDescription:
        description = describe(TopicDescription, {"name": name}, properties)
        return self._call(self._running().admins[0].create_topic(description))

    def create_subscription(
        self, topic: str, name: str, *, rules: Sequence[RuleDescription] = (), **properties: Any
    ) -> SubscriptionDescription:
        """Without rules everything sent to the topic arrives."""
        description = describe(SubscriptionDescription, {"topic": topic, "name": name}, properties | {"rules": tuple(rules)})
        return self._call(self._running().admins[0].create_subscription(description))

    def delete(self, name: str) -> None:
        """A queue or a topic, with its messages and its receivers."""
        self._call(self._running().admins[0].delete_entity(name))

    def counts(self, name: str) -> Counts:
        """Of a queue, a topic, `topic/Subscriptions/name`, or one of these with `/$DeadLetterQueue` behind it."""
        return self._call(self._counts(name))

    def inject(self, kind: str, *, for_seconds: float = 0.0, **arguments: Any) -> int:
        """A fault on purpose, as `tandem fault inject` makes it (`entity`, `store`, `condition`, `delay_ms`, `fraction`, `count`).

        Returns its number. It lasts until its count is used up, the broker's clock has moved on by `for_seconds`, or it is healed.
        """
        asked = FaultRequest(kind=kind, for_ms=round(for_seconds * 1000), **arguments)
        return self.inside(lambda server: _fault_points(server).inject(asked).id)

    def heal(self, number: int | None = None) -> None:
        """End one fault, or all of them."""
        self.inside(lambda server: _fault_points(server).heal(number))

    def inside(self, work: Callable[[Server], _T]) -> _T:
        """For tests of Tandem itself: do something with the server in its own thread, and let what follows from it happen."""
        return self._call(self._inside(work))

    # -- inside the thread -------------------------------------------------------------------

    def _running(self) -> Server:
        if self._server is None:
            raise RuntimeError("the bus is not running: use it as a context manager, or call start()")
        return self._server

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._loop is None or self._server is None:
            work.close()
            self._running()
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_CALL_SECONDS_MAX)

    def _run(self, ready: _Startup) -> None:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(self._serve(ready))

    async def _serve(self, ready: _Startup) -> None:
        settings = ServerSettings(
            listeners=(Listener(port=self._port),),
            data_dir=self._data_dir,
            namespaces=(self._namespace,),
            limits=self._limits,
            stores=self._stores,
            faults=True,
            dev=True,
        )
        server = Server(
            settings,
            self._engines.as_engines(),
            clock=self._clock,
            real_time=self._real_time,
            connection_clock=None if self._real_time else self._connection_clock,
            log=self.notes.append,
            tracing=self._tracing,
        )
        try:
            await server.start()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that wanted the broker
            await server.stop()
            ready.error = error
            ready.event.set()
            return
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._server = server
        self._port = server.ports[0]
        ready.event.set()
        patience = None if self._real_time else asyncio.create_task(self._end_long_waits(server))
        await self._stopping.wait()
        if patience is not None:
            patience.cancel()
        await server.stop()

    async def _counts(self, name: str) -> Counts:
        namespace = self._running().contexts[0].namespace
        address = addresses.parse(name)
        entity = namespace.find(address.path)
        is_topic = entity is not None and not isinstance(entity, QueueEntity)
        queue = entity if entity is not None and not isinstance(entity, QueueEntity) else namespace.resolve(address)
        own = queue.counts()
        dead = 0
        if not is_topic and address.sub_queue is SubQueue.MAIN:
            dead = namespace.resolve(addresses.parse(f"{name}/$DeadLetterQueue")).counts().total
        return Counts(
            active=own.active,
            locked=own.locked,
            deferred=own.deferred,
            scheduled=own.scheduled,
            dead_lettered=dead,
            total=own.total,
            size_bytes=own.size_bytes,
        )

    async def _inside(self, work: Callable[[Server], _T]) -> _T:
        try:
            return work(self._running())
        finally:
            await self._come_to_rest()

    async def _run_housekeeping(self) -> None:
        self._running().driver.run_housekeeping()
        await self._come_to_rest()

    async def _advance(self, clock: ManualClock, until: int) -> None:
        await self._come_to_rest()
        clock.move_to(until)
        await self._come_to_rest()
        while self._overdue(clock.now_ms()):
            # Long work is cut into pieces, each planned for the next millisecond: that has to come by itself.
            clock.advance(0.001)
            await self._come_to_rest()

    def _overdue(self, now: int) -> bool:
        for store in self._running().contexts[0].namespace.stores:
            for queue in store.queues.values():
                expiry = queue.index.next_expiry()
                if (0 < expiry <= now) or (queue.rows.scheduled and queue.rows.scheduled[0][0] <= now):
                    return True
        return False

    async def _come_to_rest(self) -> None:
        """Run turns until nothing follows from anything any more: all is on disk, read back and delivered."""
        server = self._running()
        while True:
            server.driver.run_turn()
            number = server.turn.number
            await self._disks_are_idle()
            await asyncio.sleep(0)
            if server.turn.number == number and not self._engines.reading:
                return

    async def _disks_are_idle(self) -> None:
        for journal in self._engines.journals:
            effect = Durable()
            try:
                journal.when_durable(effect)
            except StoreUnavailable:
                continue  # nothing more will come of this one
            journal.flush()
            await asyncio.wait([effect.future])
            effect.future.exception()  # a store that failed has nothing more to do either
        await self._engines.bodies_read()

    async def _end_long_waits(self, server: Server) -> None:
        """A client that waits for the next session waits in its own time, which nobody holds still."""
        waiting: dict[object, float] = {}
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_PATIENCE_SECONDS)
            seen: dict[object, float] = {}
            for store in server.contexts[0].namespace.stores:
                for queue in store.queues.values():
                    sessions = queue.sessions.table
                    if sessions is None:
                        continue
                    for waiter in sessions.waiters:
                        now = server.turn.clock.now_ms()
                        end = waiting.get(waiter) or loop.time() + (waiter.deadline - now) / 1000
                        seen[waiter] = end
                        if loop.time() >= end:
                            waiter.shift(now - waiter.deadline)
                            sessions.expect(waiter)
                            queue.slot.wake(now)
                            server.turn.schedule()
            waiting = seen


def _fault_points(server: Server) -> FaultPoints:
    points = server.contexts[0].fault_points
    assert points is not None, "a bus is always started with faults allowed"
    return points


class _Startup:
    def __init__(self) -> None:
        self.event = threading.Event()
        self.error: BaseException | None = None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
