"""A durable queue on the sender's own disk: `send` returns once the message is there, a pump delivers it when it can."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from azure.servicebus import ServiceBusMessage

from tandem.client.errors import NamespaceClosedError, classify, describe
from tandem.client.events import Callback, EventHub
from tandem.client.outbox_store import Dead, Kept, OutboxEntry, OutboxStore, SqliteOutboxStore, enrol, insert_statement
from tandem.client.outbox_target import OutboxTarget
from tandem.client.outbox_window import Lane, Window
from tandem.client.pauses import Pauses
from tandem.client.sdk_codec import ensure_message_id, message_from_payload, payload_from_message
from tandem.client.verdicts import Verdict
from tandem.model.backoff import Backoff
from tandem.model.clock import SystemClock

if TYPE_CHECKING:
    from tandem.client.transport import Single

T = TypeVar("T")
_PATHS_MAX = 10_000
"""Entities whose pauses are remembered."""
_LOOK_SHARE = 0.05
"""Of the time, what looking at everything on the disk may take."""


class OutboxFullError(Exception):
    """The outbox holds as many messages as it may (`messages_max`): the target has been away for long, or is too slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxSettings:
    messages_max: int = 1_000_000
    pause_min: float = 0.05
    pause_max: float = 60.0
    send_timeout: float = 60.0
    window_max: int = 1_000
    """Messages read from disk and not yet delivered."""
    window_bytes_max: int = 67_108_864
    senders_max: int = 200
    """Entities that have a sender open."""
    batch_max: int = 100
    batch_bytes_max: int = 200_000
    in_flight_max: int = 16
    """Lanes delivered at the same time."""
    poll: float = 0.5
    """Seconds until messages enrolled in other transactions are looked for."""


@dataclass(slots=True)
class OutboxCounters:
    kept: int = 0
    delivered: int = 0
    dead_lettered: int = 0
    retries: int = 0

    def keep(self, count: int) -> None:
        self.kept += count

    def deliver(self, count: int) -> None:
        self.delivered += count

    def bury(self) -> None:
        self.dead_lettered += 1

    def try_again(self) -> None:
        self.retries += 1


class Outbox:
    """Messages on local disk, delivered in the background, in order per session (or `key`), with exponential back-off.

        async with Outbox("outbox.db", target) as outbox:
            await outbox.send("orders", ServiceBusMessage("…", session_id="42"))

    `target` is a connection string, an SDK client, or anything that makes senders: `PairedNamespaces`, a replication. A crash may
    deliver a message a second time under the same id: give the target entity duplicate detection.
    """

    def __init__(
        self,
        store: str | os.PathLike[str] | OutboxStore,
        target: Any,
        *,
        settings: OutboxSettings | None = None,
        on_event: Callback | None = None,
        now_ms: Callable[[], int] | None = None,
        sdk_options: dict[str, Any] | None = None,
    ) -> None:
        self._store: OutboxStore = SqliteOutboxStore(store) if isinstance(store, (str, os.PathLike)) else store
        self.settings = settings or OutboxSettings()
        self._now_ms = now_ms or SystemClock().now_ms
        self.events = EventHub(self._now_ms)
        if on_event is not None:
            self.events.subscribe(on_event)
        self.counters = OutboxCounters()
        self._target = OutboxTarget(target, sdk_options, self.settings.senders_max)
        # One thread owns the database: the loop never waits for a disk, and all that arrives during one sync shares the next.
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "tandem-outbox")
        self._incoming: list[tuple[list[OutboxEntry], asyncio.Future[list[int]]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._count = 0
        self._busy: dict[Lane, asyncio.Task[None]] = {}
        kept = self.settings
        self._pauses = Pauses(kept.pause_min, kept.pause_max, _PATHS_MAX)
        self._window = Window(self._pauses, kept.window_max, kept.window_bytes_max, kept.batch_max, kept.in_flight_max)
        self._look_again_at = 0.0
        self._opened = False
        self._closed = False
        self._thread_ended = False

    async def _on_thread(self, work: Callable[[], T]) -> T:
        if self._thread_ended:
            raise NamespaceClosedError("the outbox is closed")
        try:
            done = asyncio.get_running_loop().run_in_executor(self._thread, work)
        except RuntimeError:
            return work()  # the interpreter ends, and has ended its threads; somebody still sends, or closes
        return await done

    # -- keeping -------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._on_thread(self._store.open)
        self._count = await self._on_thread(self._store.count)
        self._opened = True
        self._pump = asyncio.ensure_future(self._run())

    async def __aenter__(self) -> Outbox:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def send(self, entity: str, message: Single | list[Single], *, key: str | None = None) -> list[int]:
        """Keep a message, or several in order, for a queue or topic. Returns once they are on disk.

        `key` orders messages that have no session id of their own.
        """
        self._check_live()
        messages = message if isinstance(message, list) else [message]
        if self._count + len(messages) > self.settings.messages_max:
            raise OutboxFullError(f"the outbox already holds {self._count} messages (messages_max)")
        entries = [self.entry(entity, one, key) for one in messages]
        self._count += len(entries)
        waiting: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        self._incoming.append((entries, waiting))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.ensure_future(self._write())
        return await waiting

    def entry(self, entity: str, message: Single, key: str | None = None) -> OutboxEntry:
        ensure_message_id(message)
        raw = message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message
        session = raw.properties.group_id if raw.properties is not None else None
        lane = key if session is None else str(session)
        message_id = raw.properties.message_id if raw.properties is not None else ""
        return OutboxEntry(entity, lane, str(message_id), payload_from_message(message), self._now_ms())

    async def _write(self) -> None:
        """Group commit: whatever came while the last transaction was being synced goes into the next one."""
        while self._incoming:
            group, self._incoming = self._incoming, []
            entries = [entry for part, _ in group for entry in part]
            try:
                ids = await self._on_thread(lambda entries=entries: self._store.insert(entries))  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001 - told to every caller whose message is not on disk
                self._count -= len(entries)
                for _, waiting in group:
                    if not waiting.done():
                        waiting.set_exception(error)
                continue
            self.counters.keep(len(entries))
            at = 0
            for part, waiting in group:
                if not waiting.done():
                    waiting.set_result(ids[at : at + len(part)])
                at += len(part)
            self.wake()

    def enrol(self, connection: Any, entity: str, message: Single, *, key: str | None = None) -> None:
        """Keep a message in the caller's own transaction: `connection` is its sqlite3 or psycopg connection to the outbox's database.

        Nothing is committed here: the message exists if and when that transaction commits. Call `wake()` afterwards, or wait for
        the next poll.
        """
        enrol(connection, self.entry(entity, message, key))

    async def enrol_async(self, connection: Any, entity: str, message: Single, *, key: str | None = None) -> None:
        """`enrol` for a psycopg `AsyncConnection`."""
        await connection.execute(insert_statement("%s"), self.entry(entity, message, key).row())

    def wake(self) -> None:
        self._wake.set()

    # -- delivering ----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Deliver for as long as the outbox is open; whatever breaks is told and tried again."""
        backoff = Backoff(self.settings.pause_min, self.settings.pause_max)
        while True:
            try:
                if not await self._on_thread(self._store.lead):
                    await self._rest(self.settings.poll)
                    continue
                await self._deliver_all()
                backoff.reset()
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - the pump must outlive a full disk
                pause = backoff.next_pause()
                self.events.tell("outbox-waiting", "", f"trying again in {pause:.3g} s: {describe(error)}", error)
                await asyncio.sleep(pause)

    async def _deliver_all(self) -> None:
        """Until another process delivers, which can be when the database was away."""
        if self._busy:
            await asyncio.wait(self._busy.values())  # of the time before
        self._window.forget()
        while await self._read():
            self._start_lanes()
            if not self._window.lanes and not self._busy and not self._window.left_out:
                self._count = await self._on_thread(self._store.count)
                if self._count == 0 and not self._incoming:
                    self._idle.set()
            await self._rest(self._until_next())

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def _until_next(self) -> float:
        now = asyncio.get_running_loop().time()
        pauses = map(self._pauses.until, self._window.entities() | self._window.left_out)
        return max(0.001, min([self.settings.poll, *(until - now for until in pauses if until)]))

    async def _read(self) -> bool:
        """Take in what was written since the last look; now and then from the start, for a transaction that commits late has early ids.
        Whether this process still delivers."""
        clock = asyncio.get_running_loop().time
        began = clock()
        window = self._window
        window.let_in(began)
        room, room_bytes = window.room()
        again = began >= self._look_again_at
        after = 0 if again else window.read_to
        count = self.settings.window_max if again else room
        size = self.settings.window_bytes_max if again else room_bytes
        found = await self._on_thread(lambda: self._look(after, count, size, sorted(window.left_out), room > 0 and room_bytes > 0))
        if found is None:
            return False
        rows, last_id = found
        if window.take(rows, last_id):
            self._idle.clear()
        if again:
            self._look_again_at = clock() + max(self.settings.poll, (clock() - began) / _LOOK_SHARE)
        return True

    def _look(self, after: int, count: int, size: int, without: list[str], room: bool) -> tuple[list[Kept], int] | None:
        """(rows, last id of all if none was left for want of room); None if this process may not deliver."""
        if not self._store.lead():
            return None
        if not room:
            return [], 0
        last_id = self._store.last_id()
        rows = self._store.read(after, count, size, without)
        whole = len(rows) < count and sum(len(row.entry.payload) for row in rows) < size
        return rows, last_id if whole else 0

    def _start_lanes(self) -> None:
        now = asyncio.get_running_loop().time()
        busy = {entity for entity, _ in self._busy}
        for lane in list(self._window.lanes):
            if len(self._busy) >= self.settings.in_flight_max:
                return
            until = self._pauses.until(lane[0])
            if lane in self._busy or now < until or (until and lane[0] in busy):
                continue  # one that failed last is tried with one lane, so that others keep theirs
            busy.add(lane[0])
            self._busy[lane] = asyncio.ensure_future(self._deliver_lane(lane))

    async def _deliver_lane(self, lane: Lane) -> None:
        """One batch of one lane, from its front."""
        try:
            batch = self._batch(self._window.lanes[lane])
            if await self._send(lane[0], batch) == len(batch):
                self._window.delivered(lane, len(batch))
            else:
                self._window.failed(lane, self._busy)
        finally:
            self._busy.pop(lane, None)
            self.wake()

    def _batch(self, kept: list[Kept]) -> list[Kept]:
        total = 0
        for count, one in enumerate(kept):
            total += len(one.entry.payload) + 8
            if count and (count >= self.settings.batch_max or total > self.settings.batch_bytes_max):
                return kept[:count]
        return list(kept)

    async def _send(self, entity: str, batch: list[Kept]) -> int:
        """How many from the front of the batch are settled now: delivered, or refused for good."""
        try:
            await self._target.deliver(entity, [message_from_payload(one.entry.payload) for one in batch], self.settings.send_timeout)
        except Exception as error:  # noqa: BLE001 - decides what becomes of the messages, which are safe on disk
            return await self._failed(entity, batch, error)
        self._pauses.end(entity)
        await self._written_down(entity, lambda: self._store.remove([one.id for one in batch]))
        self._count -= len(batch)
        self.counters.deliver(len(batch))
        return len(batch)

    async def _failed(self, entity: str, batch: list[Kept], error: BaseException) -> int:
        if classify(error) is Verdict.REFUSED:
            if len(batch) > 1:
                # One of them is the reason; singly we learn which.
                settled = 0
                for one in batch:
                    if await self._send(entity, [one]) == 0:
                        return settled
                    settled += 1
                return settled
            (one,) = batch
            self._pauses.end(entity)  # it answers
            text = describe(error)
            await self._written_down(entity, lambda: self._store.bury(one.id, self._now_ms(), text))
            self._count -= 1
            self.counters.bury()
            self.events.tell("outbox-dead-lettered", entity, f"{one.entry.message_id}: {text}", error)
            return 1
        length = self._pauses.begin(entity)
        self.counters.try_again()
        self.events.tell("outbox-path-waiting", entity, f"{len(batch)} message(s) wait {length:.3g} s: {describe(error)}", error)
        return 0

    async def _written_down(self, entity: str, what: Callable[[], None]) -> None:
        """What became of messages is certain, and they are not sent again for want of room on the disk: it is tried until it is kept."""
        backoff = Backoff(self.settings.pause_min, self.settings.pause_max)
        while True:
            try:
                return await self._on_thread(what)
            except Exception as error:  # noqa: BLE001 - whatever the database says, the messages are with the target
                pause = backoff.next_pause()
                self.events.tell(
                    "outbox-waiting", entity, f"delivered, and not crossed off yet: again in {pause:.3g} s: {describe(error)}", error
                )
            await asyncio.sleep(pause)

    # -- looking at it -------------------------------------------------------------------------------------------------

    async def pending(self) -> int:
        """Messages on disk that are not delivered yet."""
        return await self._on_thread(self._store.count)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything is delivered (or dead-lettered). TimeoutError if that takes longer."""
        self._check_live()
        async with asyncio.timeout(timeout):
            while await self.pending():
                self._idle.clear()
                self.wake()
                # Another process may be the one that delivers, so this looks again by itself as well.
                try:
                    async with asyncio.timeout(self.settings.poll):
                        await self._idle.wait()
                except TimeoutError:
                    continue

    async def dead_letters(self, limit: int = 1_000) -> list[Dead]:
        return await self._on_thread(lambda: self._store.dead(limit))

    async def retry_dead_letters(self, ids: list[int]) -> int:
        """Put dead letters back, after whatever they were refused for was mended; returns how many."""
        revived = await self._on_thread(lambda: self._store.revive(ids))
        self._count += revived
        self._idle.clear()
        self.wake()
        return revived

    def _check_live(self) -> None:
        if self._closed or not self._opened:
            raise NamespaceClosedError("the outbox is closed" if self._closed else "open the outbox first")

    async def close(self) -> None:
        """Stop delivering; what is not delivered stays on disk for the next time."""
        if self._closed:
            return
        self._closed = True
        if self._writer is not None:
            await self._writer
        tasks = [task for task in (self._pump, *self._busy.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)
        await self._target.close()
        if self._opened:
            await self._on_thread(self._store.close)
        self._thread_ended = True
        self._thread.shutdown(wait=False)
