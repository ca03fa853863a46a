"""Makes sure of the backlog queues: at once if the secondary can be reached, else in the background for as long as it takes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from azure.servicebus.exceptions import ServiceBusError

from tandem.client.errors import SendAvailabilityBacklogError, classify, describe
from tandem.client.verdicts import Verdict
from tandem.model.backoff import Backoff

if TYPE_CHECKING:
    from tandem.client.backlog import Administration
    from tandem.client.transport import NamespaceTransport

log = logging.getLogger("tandem.client.backlog")

_PAUSE_SECONDS_MIN = 0.5
_PASSING = (Verdict.UNREACHABLE, Verdict.BUSY, Verdict.QUOTA)
"""What may be different the next time somebody asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioning:
    attempts_max: int = 3
    """For queues that cannot be used while others can."""
    attempts_pause: float = 30.0
    attempt_timeout: float = 10.0
    """The first attempt keeps the application waiting no longer than this."""


class Provisioner:
    """The backlog queues of one pair: their names are known, whether they can be used the secondary says.

    An existing queue is used as it is; a missing one is created if that is permitted. Without administration, without its Manage claim, or
    while it does not answer (often it has a port of its own), a queue exists if a sender for it opens. `confirmed` is told which queues can
    be used, and how large a message may be, as soon as that is known, and again when it changes.
    """

    def __init__(
        self,
        secondary: NamespaceTransport,
        names: Sequence[str],
        administration: Administration | None,
        settings: Provisioning,
        tell: Callable[[str, str, str, BaseException | None], object],
        confirmed: Callable[[list[str], int], None],
    ) -> None:
        self._secondary = secondary
        self._names = list(names)
        self._administration = administration
        self._settings = settings
        self._tell = tell
        self._confirmed = confirmed
        self._usable: list[str] = []
        self._found: set[str] = set()
        """Those that are there: usable, once one of them has said how large a message may be."""
        self._absent: set[str] = set()
        self._unmanageable: BaseException | None = None
        """Why administration did not answer in this attempt, if it did not: queues that are there can be used all the same."""
        self._task: asyncio.Task[None] | None = None

    @property
    def confirmed(self) -> bool:
        """Whether the secondary has said yet which queues can be used."""
        return bool(self._usable)

    @property
    def possible(self) -> list[str]:
        """Every queue that may be there, and hold messages, whether it can be used now or not."""
        return [name for name in self._names if name not in self._absent]

    async def first(self) -> None:
        """Ask once. What can be different later is asked again in the background; wrong credentials and a lasting no are raised."""
        errors = await self._attempt()
        if not self._usable and not any(classify(error) in _PASSING for error in errors):
            reasons = "; ".join(sorted(set(map(describe, errors)))) or "none was asked for"
            error = SendAvailabilityBacklogError(f"no backlog queue can be used on {self._secondary.host}: {reasons}")
            raise error from (errors[-1] if errors else None)
        if not self._usable:
            told = f"the names of the backlog queues are known; the rest is asked for in the background: {describe(errors[-1])}"
            self._tell("backlog-assumed", self._secondary.host, told, errors[-1])
        if any(classify(error) in _PASSING for error in errors):
            self._task = asyncio.ensure_future(self._go_on())

    async def _go_on(self) -> None:
        attempts = 1
        backoff = Backoff(_PAUSE_SECONDS_MIN, max(self._settings.attempts_pause, _PAUSE_SECONDS_MIN))
        pause = backoff.next_pause()
        while True:
            await asyncio.sleep(pause)
            try:
                errors = await self._attempt()
            except Exception as error:  # noqa: BLE001 - told; the application runs already, and somebody may mend it
                errors = [error]
            if not self._usable:
                pause = backoff.next_pause()
                told = f"asking again in {pause:.3g} s: {describe(errors[-1])}"
                self._tell("backlog-unavailable", self._secondary.host, told, errors[-1])
                continue
            attempts += 1
            pause = max(self._settings.attempts_pause, _PAUSE_SECONDS_MIN)
            if attempts >= self._settings.attempts_max or not any(classify(error) in _PASSING for error in errors):
                return

    async def _attempt(self) -> list[BaseException]:
        """Ask for each queue not known to be usable; why the others cannot be used. Raises only what says that the key is wrong."""
        errors: list[BaseException] = []
        found = self._found
        self._unmanageable = None
        deadline = asyncio.get_running_loop().time() + self._settings.attempt_timeout
        try:
            async with asyncio.timeout(self._settings.attempt_timeout * 0.8):
                for name in self._names:
                    error = None if name in found else await self._usable_error(name)
                    if error is None:
                        found.add(name)
                        self._absent.discard(name)
                        continue
                    log.warning("the backlog queue %s cannot be used: %s", name, describe(error))
                    errors.append(error)
                    if classify(error) is Verdict.REFUSED:
                        self._absent.add(name)
                    if classify(error) is Verdict.UNREACHABLE and error is not self._unmanageable:
                        break  # the others are in the same namespace
        except TimeoutError as error:
            errors.append(error)
        if len(found) > len(self._usable):
            # What a slow secondary has said in time counts: the next attempt asks for the rest.
            await self._use([name for name in self._names if name in found], deadline, errors)
        return errors

    async def _use(self, names: list[str], deadline: float, errors: list[BaseException]) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                bytes_max = await self._message_bytes_max(names[0])
        except Exception as error:  # becomes part of the verdict, as if that queue had not answered before
            verdict = classify(error)
            if verdict is Verdict.UNAUTHORIZED:
                raise
            if verdict is Verdict.REFUSED:
                self._found.discard(names[0])
            errors.append(error)
            return
        self._usable = names
        self._confirmed(names, bytes_max)

    async def _usable_error(self, name: str) -> BaseException | None:
        """None if the queue can be used now, else why not."""
        if self._administration is not None and self._unmanageable is None:
            try:
                async with asyncio.timeout(self._settings.attempt_timeout * 0.4):
                    if not await self._administration.exists(name):
                        await self._administration.create(name)
                return None
            except Exception as error:  # noqa: BLE001 - becomes part of the verdict on this queue
                verdict = classify(error)
                if verdict is Verdict.UNREACHABLE:
                    self._unmanageable = error
                elif verdict is not Verdict.UNAUTHORIZED:
                    return error
                log.info("%s cannot be managed; looking for existing backlog queues instead: %s", self._secondary.host, describe(error))
        try:
            await self._message_bytes_max(name)
        except ServiceBusError as refusal:
            verdict = classify(refusal)
            if verdict is Verdict.UNAUTHORIZED:
                raise
            missing = self._unmanageable if verdict is Verdict.REFUSED else None
            return missing or refusal  # it may be made when it can be managed again
        return None

    async def _message_bytes_max(self, name: str) -> int:
        sender = self._secondary.sender(name)
        try:
            await sender.open(self._settings.attempt_timeout)
            return sender.message_bytes_max
        finally:
            await sender.close()

    @property
    def asking(self) -> bool:
        return self._task is not None and not self._task.done()

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
