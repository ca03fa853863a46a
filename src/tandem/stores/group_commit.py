"""Group commit: facts are gathered into blocks, one block is on its way at a time, and effects run once it is durable."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from tandem.broker.ports import Effect, FetchEffect, Journal, StoreHealth, StoreState, Tenant, run_effects
from tandem.model.clock import Clock
from tandem.model.errors import BusError, Corrupt, StoreUnavailable
from tandem.model.histogram import Histogram
from tandem.stores.block_log import BlockLog
from tandem.stores.blocks import BLOCK_BYTES, RECORD_BYTES, SEGMENT_HEADER_BYTES
from tandem.stores.checksum import crc32
from tandem.stores.committer import Group
from tandem.stores.compaction import Compaction
from tandem.stores.fetching import Fetch
from tandem.stores.recovery import RecoveryReport, SegmentStats
from tandem.stores.segment_index import SegmentTotals
from tandem.stores.settings import LogSettings
from tandem.stores.upkeep import Upkeep
from tandem.stores.worker import Worker

_crc32: Final = crc32
_COMMON: Final = Struct("<IQ")
"""The upper half of the sequence number, and the instant: the same for nearly all records of a turn, and what takes longest to pack."""
_pack_head: Final = Struct(f"<BBII{_COMMON.size}sQIII").pack
"""A record (`RECORD`), its common part packed before."""
_RUN_BEGIN: Final = Struct("<BBI")
_RUN_END: Final = Struct(f"<{_COMMON.size}sQIII")
_pack_run: Final = Struct(f"<{_RUN_BEGIN.size}sI{_RUN_END.size}s").pack
"""The same in three parts, of which only the lower half of the sequence number differs within a run."""
_LOWER: Final = 0xFFFF_FFFF
STOPPED: Final = -1
_BLOCK_END_MAX: Final = 0x8000_0000
"""A pending block that reaches this offset takes no more records: locations have 32 bits for the offset."""
_STOP_SECONDS: Final = 10.0
_REOPEN_SECONDS: Final = 1.0
"""Reopening is tried again soon anyway; the loop must not wait long for a thread that hangs in a call."""


class GroupCommitStore(Journal):
    """One failure domain. Where its blocks are kept is its log's business. All methods are called on the loop's thread."""

    def __init__(
        self,
        name: str,
        log: BlockLog,
        loop_call: Callable[[Callable[[], None]], None],
        settings: LogSettings,
        clock: Clock,
        new_worker: Callable[[str], Worker],
    ) -> None:
        self._name = name
        """In what clients are told."""
        self._log = log
        self._loop_call = loop_call
        self._settings = settings
        self._clock = clock
        self._new_worker = new_worker
        self._state = StoreState.RECOVERING
        self._cause = ""
        self.recovery = RecoveryReport()
        self._seed: int = 0
        """Of the checksums of this store's blocks."""
        # the pending block
        self._pending = Group(0, 0, 0)
        self._parts: list[bytes] = self._pending.parts
        self._next: int = 0
        """Location of the next record."""
        self._limit: int = STOPPED
        """Records begin below this location; lower than any location while the store takes none."""
        self._start: int = 0
        """Location of the first record of the pending block."""
        self._bodies: int = 0
        """How many of its records have one."""
        self._body_bytes: int = 0
        self._flushed: int = 0
        """`_next` at the last flush: records beyond it belong to a turn that is not over."""
        self._number: int = 1
        self._common: bytes = _COMMON.pack(0, 0)
        self._common_upper: int = 0
        self._common_at: int = 0
        self._waiters: list[Effect] = []
        self._lazy_since: int = 0
        # the block in flight
        self._group: Group | None = None
        self._trusted: int = 0
        """Location behind the last durable block."""
        self._trusted_number: int = 0
        self._stats: dict[int, SegmentStats] = {}
        self._workers_made = False
        self.commit_times = Histogram()
        self._write: Callable[[Group, SegmentTotals], None]
        self._short: dict[int, int] = {}
        self._committer: Worker
        self._maintenance: Upkeep
        self._compaction: Compaction
        log.serve(self._call_loop, lambda: self._call_loop(self._completed), self.compaction_failed)

    # ── hot ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, kind: int, flags: int, entity: int, seq: int, at: int, aux: int, key: bytes, body: bytes) -> int:
        location = self._next
        if location > self._limit:
            raise self._refusal()
        key_bytes = len(key)
        body_bytes = len(body)
        upper = seq >> 32
        if at != self._common_at or upper != self._common_upper:
            self._common = _COMMON.pack(upper, at)
            self._common_upper = upper
            self._common_at = at
        head = _pack_head(kind, flags, entity, seq & _LOWER, self._common, aux, key_bytes, body_bytes, _crc32(body) if body_bytes else 0)
        if body_bytes:
            self._bodies += 1
            self._body_bytes += body_bytes
        parts = self._parts
        parts.append(head)
        parts.append(key)
        parts.append(body)
        self._next = location + RECORD_BYTES + key_bytes + body_bytes
        return location

    def append_run(self, kind: int, flags: int, entity: int, seqs: list[int], at: int) -> int:
        begin = _RUN_BEGIN.pack(kind, flags, entity)
        end = b""
        upper = -1
        parts = self._parts
        location = self._next
        done = 0
        for seq in seqs:
            if location > self._limit:
                break
            if seq >> 32 != upper:
                upper = seq >> 32
                end = _RUN_END.pack(_COMMON.pack(upper, at), 0, 0, 0, 0)
            parts.append(_pack_run(begin, seq & _LOWER, end))
            parts.append(b"")
            parts.append(b"")
            location += RECORD_BYTES
            done += 1
        self._next = location
        return done

    def when_durable(self, effect: Effect) -> None:
        if self._limit == STOPPED:
            raise self._refusal()
        self._waiters.append(effect)

    def forget(self, location: int) -> None:
        stats = self._stats.get(location >> 32)
        if stats is not None:
            stats.forget_one()

    def flush(self) -> None:
        self._flushed = self._next
        if self._group is not None or self._limit == STOPPED:
            return
        if self._waiters:
            self._hand_over()
        elif self._next != self._start:
            self._flush_lazy()

    def _flush_lazy(self) -> None:
        """Nobody waits: gather, but neither without limit nor for ever."""
        now = self._clock.steady_ms()
        if self._lazy_since == 0:
            self._lazy_since = now
        if self._next - self._start >= self._settings.lazy_bytes_max or now - self._lazy_since >= self._settings.lazy_ms_max:
            self._hand_over()

    def _hand_over(self) -> None:
        """The pending block goes to the committer; where the next one will stand is known from here on."""
        group, effects = self._pending, self._waiters
        segment = group.segment
        size = group.seal(effects, self._clock.steady_ms(), self._seed, self._next - self._start, self._bodies, self._body_bytes)
        self._group = group
        self._waiters = []
        self._lazy_since = 0
        if not size:
            self._begin_block(segment, group.offset)
            group.finish(None)
            self._loop_call(self._completed)
            return
        totals = self._stats[segment].totals
        end = group.offset + size
        self._number += 1
        if end >= self._short.get(segment, self._settings.segment_bytes):
            group.fill_segment()
            segment += 1
            end = SEGMENT_HEADER_BYTES
            self._stats[segment] = SegmentStats()
        self._begin_block(segment, end)
        self._flushed = self._next
        self._committer.submit(lambda: self._write(group, totals))

    def _begin_block(self, segment: int, offset: int) -> None:
        self._pending = Group(segment, offset, self._number)
        self._parts = self._pending.parts
        self._bodies = self._body_bytes = 0
        self._start = self._next = segment << 32 | offset + BLOCK_BYTES
        self._limit = (segment << 32) + max(_BLOCK_END_MAX, offset + BLOCK_BYTES)

    def _trust(self) -> None:
        """All blocks before the pending one are durable."""
        self._trusted = self._start - BLOCK_BYTES
        self._trusted_number = self._number - 1

    def _completed(self) -> None:
        """On the loop, once per commit: the next group leaves for the disk before the effects of this one run."""
        group = self._group
        if group is None or not group.finished:
            return
        self._group = None
        if self._limit == STOPPED:
            return  # those who waited for it know already
        if group.error is not None:
            self._stop(group.error, group.effects)
            return
        self._trust()
        self.commit_times.observe(self._clock.steady_ms() - group.started_at)
        between_turns = self._next == self._flushed
        effects = group.effects
        if self._next == self._start:
            if self._waiters:
                effects, self._waiters = effects + self._waiters, []
        elif self._waiters and between_turns:
            self._hand_over()
        run_effects(effects, None)
        if between_turns:
            self.flush()
        if self._compaction.blocked:
            self._compaction.goes_on()

    # ── reading back ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def fetch(self, locations: list[int], effect: FetchEffect) -> None:
        fetch = Fetch(len(locations), effect, self._fetched)
        if self._limit == STOPPED:
            fetch.fail(self._refusal())
            self._loop_call(fetch.deliver)
            return
        group = self._group
        in_memory = group.segment << 32 | group.offset if group is not None else self._start
        for i, location in enumerate(locations):
            if location < in_memory:
                fetch.wanted.append(location)
                continue
            block = group if group is not None and location < self._start else self._pending
            body = block.body_at(location)
            if body is None:
                fetch.fail(Corrupt(f"{self._log.where}: no record at location {location:#x}"))
                break
            fetch.found[i] = body
        if fetch.error is not None or not fetch.wanted:
            self._loop_call(fetch.deliver)
        else:
            self._maintenance.fetch(fetch)

    def _fetched(self, fetch: Fetch) -> None:
        error = fetch.error
        if error is None and self._limit == STOPPED:
            error = self._refusal()  # whoever asked would go on as if the store took what follows
        if error is None:
            self._maintenance.tell(fetch.damaged)
            fetch.effect.fetched(fetch.in_order(), None)
            return
        if not isinstance(error, StoreUnavailable):
            self._stop(error, [])
        fetch.effect.fetched([], error)

    # ── opening, stopping, closing ───────────────────────────────────────────────────────────────────────────────────────────

    def replay(self, tenant: Tenant) -> None:
        if self._state is not StoreState.RECOVERING:
            raise StoreUnavailable(f"the store is {self._state.value}; only a store that was just opened can be replayed")
        try:
            self._recover(tenant)
            self._state, self._cause = StoreState.UP, ""
        except OSError as error:
            self._state, self._cause = StoreState.DOWN, f"cannot be opened: {error}"
            self._let_go()
            raise StoreUnavailable(f"{self._log.where}: {self._cause}") from error
        except BusError as error:
            self._state = StoreState.CORRUPT if isinstance(error, Corrupt) else StoreState.DOWN
            self._cause = error.description
            self._let_go()
            raise
        except BaseException:
            self._state, self._cause = StoreState.DOWN, "replay was interrupted"
            self._let_go()
            raise

    def _recover(self, tenant: Tenant) -> None:
        """What was kept is told; then threads are made, and from where it ends on the store is written."""
        stats = self._stats = {}
        found = self._log.replay(tenant, stats, self._trusted, self._trusted_number)
        self._seed, self.recovery = found.seed, found.report
        self._write, self._short = found.write, found.short
        maintenance = self._maintenance = found.upkeep
        maintenance.tell(found.told)
        self._committer = self._new_worker("tandem-committer")
        self._workers_made = True
        self._compaction = Compaction(self, maintenance, tenant, self._settings, self._call_loop)
        following = self._log.begin_writing()
        self._number = following.number
        self._begin_block(following.segment, following.offset)
        self._flushed = self._next
        self._trust()

    def _stop(self, error: Exception, effects: list[Effect]) -> None:
        """For good: after a failed write or sync nobody knows what the file holds. `reopen` reads it again."""
        if self._limit != STOPPED:
            self._limit = STOPPED
            self._state = StoreState.CORRUPT if isinstance(error, Corrupt) else StoreState.DOWN
            self._cause = str(error) or type(error).__name__
            self._log.stopped()
        refusal = self._refusal()
        refusal.__cause__ = error
        waiting, group = effects, self._group
        if group is not None:
            # It may still reach the disk; but whoever waited is told that nobody knows, and on reopening it is cut off.
            waiting = waiting + group.give_up_effects()
        waiting, self._waiters = waiting + self._waiters, []
        self._parts = []
        self._next = self._flushed = self._start
        run_effects(waiting, refusal)

    def fail(self, cause: str) -> None:
        """Stop from outside: a stalled disk, an injected fault."""
        if self._limit != STOPPED:
            self._stop(StoreUnavailable(cause), [])

    def check_stalled(self, stall_ms_max: int) -> None:
        group = self._group
        if group is not None and not group.finished and self._clock.steady_ms() - group.started_at > stall_ms_max:
            why = self._log.doubted()
            self.fail(f"the {self._log.medium} has not answered for more than {stall_ms_max} ms{f': {why}' if why else ''}")
            self._log.abandon()

    def reopen(self, tenant: Tenant) -> None:
        self._come_to_rest()
        self._let_go()
        self._state, self._cause = StoreState.RECOVERING, ""
        self.replay(tenant)

    def _come_to_rest(self) -> None:
        """Nothing of what was begun before the store stopped is under way any more."""
        if self._limit != STOPPED:
            raise StoreUnavailable("the store is up; only a store that stopped can be reopened")
        stuck = self._group is not None and not self._group.finished
        if stuck or not self._stop_workers(_REOPEN_SECONDS):
            raise StoreUnavailable(
                f"{self._log.where}: a call to the {self._log.medium} has not returned yet; reopen the store when it has"
            )
        self._completed()

    def close(self) -> None:
        """Everything appended is made durable, lazily appended records too, and their effects run before this returns."""
        while self._limit != STOPPED and (self._group is not None or self._next != self._start or self._waiters):
            if self._group is None:
                self._hand_over()
            self._wait_for_committer()
            self._completed()
        self._limit = STOPPED
        if self._state in (StoreState.UP, StoreState.RECOVERING):
            self._state, self._cause = StoreState.DOWN, "closed"
        if self._stop_workers(_STOP_SECONDS):
            self._let_go()
        self._log.abandon()

    def _wait_for_committer(self) -> None:
        self._committer.stop(_STOP_SECONDS)
        group = self._group
        if group is not None and not group.finished:
            self._stop(StoreUnavailable("the last commit did not return in time"), [])
            self._log.give_up_waiting()
            if not self._committer.stop(_REOPEN_SECONDS):
                return  # `close` lets go of nothing that a thread still uses
        self._committer = self._new_worker("tandem-committer")

    def _stop_workers(self, seconds: float) -> bool:
        """In the order in which they hand work to each other."""
        if not self._workers_made:
            return True
        if not self._committer.stop(seconds) or not self._maintenance.end(seconds):
            return False
        self._workers_made = False
        return True

    def _let_go(self) -> None:
        if self._workers_made:
            self._stop_workers(_STOP_SECONDS)
        self._log.release()

    def _call_loop(self, function: Callable[[], None]) -> None:
        try:
            self._loop_call(function)
        except RuntimeError:
            pass  # the loop is closed already; `close` looks for itself what is finished

    # ── compaction ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def step_compaction(self) -> bool:
        """True while compaction is under way. Call it now and then: it looks whether compaction is due, and that goes on by itself."""
        if self._limit == STOPPED:
            return False
        self._maintenance.check(self.active_segment)
        if not self._compaction.under_way:
            self.compaction_turn()
        return self._compaction.under_way

    def compaction_turn(self) -> None:
        """Bounded, and a turn of its own on the loop."""
        if self._limit == STOPPED:
            return
        between_turns = self._next == self._flushed
        if self._compaction.step():
            self._compaction.goes_on()
        if between_turns:
            self.flush()

    def compaction_failed(self, error: Exception) -> None:
        self._stop(error, [])

    # ── what others may ask ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def pending_bytes(self) -> int:
        group = self._group
        return self._next - self._start + (group.bytes if group is not None else 0)

    @property
    def health(self) -> StoreHealth:
        if self._state is not StoreState.UP:
            return self._log.health(StoreHealth(self._state, self._cause))
        group, healthy = self._group, self._maintenance.healthy
        waited = self._clock.steady_ms() - group.started_at if group is not None else 0
        if waited > self._settings.stall_ms_max:
            healthy = StoreHealth(StoreState.DEGRADED, f"the {self._log.medium} has not answered for {waited} ms", healthy.notes)
        else:
            for cause in self._maintenance.troubles.values():
                healthy = StoreHealth(StoreState.DEGRADED, cause, healthy.notes)
                break
        return self._log.health(healthy)

    @property
    def short_of_room(self) -> str:
        """The segment in use was reserved before room ran out, so what settles messages still fits; new messages would use it up."""
        if self._state is not StoreState.UP:
            return ""
        return self._maintenance.short_of_room

    def when_room_changes(self, tell: Callable[[], None]) -> None:
        self._log.when_room_changes(tell)

    @property
    def active_segment(self) -> int:
        return self._start >> 32

    @property
    def segment_count(self) -> int:
        return len(self._stats)

    def _refusal(self) -> StoreUnavailable:
        if self._limit != STOPPED:
            return StoreUnavailable(f"{self._name}: too much waits for the {self._log.medium} already")
        cause = f": {self._cause}" if self._cause else ""
        return StoreUnavailable(f"{self._name}: the store is {self._state.value}{cause}. Try again.")
