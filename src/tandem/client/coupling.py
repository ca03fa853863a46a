"""The two sides of a pair live and die together where a syphon runs: closing one closes or faults the other."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from tandem.client.errors import NamespaceClosedError, PairedNamespaceFaultedError, describe

if TYPE_CHECKING:
    from tandem.client.transport import NamespaceTransport

log = logging.getLogger("tandem.client.coupling")

GRACE_SECONDS = 5.0
"""How long the partner of a closed namespace may stay open before it is faulted."""


class SideState(enum.Enum):
    OPEN = "open"
    CLOSED = "closed"
    FAULTED = "faulted"


class PairSide:
    """One namespace of a pair, with the state the coupling watches."""

    def __init__(self, name: str, namespace: NamespaceTransport) -> None:
        self.name = name
        self.namespace = namespace
        self.state = SideState.OPEN
        self.error: BaseException | None = None
        self._watchers: list[Callable[[PairSide], None]] = []

    @property
    def host(self) -> str:
        return self.namespace.host

    @property
    def ours(self) -> bool:
        """Made here, and so closed here; false for a client the application made."""
        return getattr(self.namespace, "owned", True)

    def watch(self, watcher: Callable[[PairSide], None]) -> None:
        self._watchers.append(watcher)

    def check(self) -> None:
        """Raise if this side can no longer be used."""
        if self.state is SideState.CLOSED:
            raise NamespaceClosedError(f"the {self.name} namespace {self.host} was closed")
        if self.state is SideState.FAULTED:
            raise PairedNamespaceFaultedError(f"the {self.name} namespace {self.host} is faulted: {self.error}") from self.error

    def was_closed(self) -> None:
        """The application has closed its own client of this namespace."""
        if self.state is not SideState.CLOSED:
            self._become(SideState.CLOSED, self.error)

    async def close(self) -> None:
        """Close this namespace. Where a syphon runs, the partner goes with it."""
        if self.state is SideState.CLOSED:
            return
        self._become(SideState.CLOSED, self.error)
        await self.namespace.close()

    def fault(self, error: BaseException) -> None:
        """Make every further use of this namespace fail with `error` as the cause."""
        if self.state is SideState.OPEN:
            self._become(SideState.FAULTED, error)

    def _become(self, state: SideState, error: BaseException | None) -> None:
        self.state, self.error = state, error
        for watcher in tuple(self._watchers):
            watcher(self)


class Coupling:
    """Watches both sides for a process that hosts the syphon, and acts the moment one of them goes."""

    def __init__(
        self,
        primary: PairSide,
        secondary: PairSide,
        stop_pumps: Callable[[], Awaitable[None]],
        tell: Callable[[str, str, str, BaseException | None], object],
        grace: float = GRACE_SECONDS,
    ) -> None:
        self._primary = primary
        self._secondary = secondary
        self._stop_pumps = stop_pumps
        self._tell = tell
        self._grace = grace
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = False
        primary.watch(self._changed)
        secondary.watch(self._changed)

    def _changed(self, side: PairSide) -> None:
        if self._ended:
            return
        partner = self._secondary if side is self._primary else self._primary
        if side.state is SideState.FAULTED:
            self._fault(partner, side)
            self._later(self._stop_pumps())
        elif side is self._primary and self._secondary.ours:
            self._later(self._close_secondary())
        else:
            self._later(self._fault_after_grace(partner, side))
            self._later(self._stop_pumps())

    async def _close_secondary(self) -> None:
        await self._stop_pumps()
        if self._secondary.state is not SideState.OPEN:
            return
        try:
            async with asyncio.timeout(self._grace):
                await self._secondary.close()
        except Exception as error:  # noqa: BLE001 - a close that fails becomes a fault, which cannot fail
            log.warning("the secondary did not close: %s", describe(error))
            self._secondary.fault(PairedNamespaceFaultedError(f"its partner {self._primary.host} was closed"))

    async def _fault_after_grace(self, partner: PairSide, gone: PairSide) -> None:
        await asyncio.sleep(self._grace)
        self._fault(partner, gone)

    def _fault(self, partner: PairSide, gone: PairSide) -> None:
        if partner.state is not SideState.OPEN:
            return
        error = PairedNamespaceFaultedError(f"its partner {gone.host} is {gone.state.value}")
        self._tell("namespace-faulted", partner.host, str(error), error)
        partner.fault(error)

    def _later(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Forget what is still waiting, and begin nothing more; the pair itself is closing."""
        self._ended = True
        for task in tuple(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
