"""The backlog queues of a pair: which exist, which are in the rotation, which one a diverted message goes to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.exceptions import ServiceBusError

from tandem.client.errors import SendAvailabilityBacklogError, classify, describe
from tandem.client.verdicts import Verdict

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

    from tandem.client.transport import Namespace

log = logging.getLogger("tandem.client.backlog")

TIMESPAN_MAX = "P10675199DT2H48M5.4775807S"
PROPERTIES: dict[str, Any] = {
    "max_size_in_megabytes": 5_120,
    "max_delivery_count": 2_147_483_647,
    "default_message_time_to_live": TIMESPAN_MAX,
    "auto_delete_on_idle": TIMESPAN_MAX,
    "lock_duration": "PT1M",
    "dead_lettering_on_message_expiration": True,
    "enable_batched_operations": True,
}
"""What a backlog queue is created with; everything else is the service's default for queues."""
HEADROOM_KILOBYTES = 4


def queue_name(primary_namespace: str, index: int) -> str:
    return f"{primary_namespace}/x-servicebus-transfer/{index}"


@dataclass(slots=True)
class _Slot:
    name: str
    out_until: float | None = None
    pause: float = 0.0


class Rotation:
    """The queues senders may use now, shared by all senders of a pair: what one learns of a failure, all know.

    A failing queue is out for `pause_min` seconds, twice as long each further time up to `pause_max`, and back afterwards; otherwise one
    bad minute would remove them all for good. `choose` is the only randomness: `random.randrange` or a test's.
    """

    def __init__(
        self,
        names: Sequence[str],
        choose: Callable[[int], int],
        clock: Callable[[], float],
        tell: Callable[[str, str, str, BaseException | None], object],
        pause_min: float = 5.0,
        pause_max: float = 60.0,
    ) -> None:
        self._slots = [_Slot(name) for name in names]
        self._choose = choose
        self._clock = clock
        self._tell = tell
        self._pause_min = pause_min
        self._pause_max = pause_max

    @property
    def names(self) -> list[str]:
        return [slot.name for slot in self._slots]

    def available(self) -> list[str]:
        """The queues in the rotation, those whose pause is over re-admitted."""
        now = self._clock()
        for slot in self._slots:
            if slot.out_until is not None and now >= slot.out_until:
                slot.out_until = None
                self._tell("backlog-queue-readmitted", slot.name, f"back in the rotation after {slot.pause:.3g} s", None)
        return [slot.name for slot in self._slots if slot.out_until is None]

    def pick(self, tried: Sequence[str] = ()) -> str | None:
        """A random queue in the rotation that was not tried yet; when all are out, the one that comes back first; None if none is left."""
        candidates = [name for name in self.available() if name not in tried]
        if candidates:
            return candidates[self._choose(len(candidates))]
        out = [slot for slot in self._slots if slot.name not in tried]
        if not out:
            return None
        return min(out, key=lambda slot: slot.out_until or 0.0).name

    def in_rotation(self, name: str) -> bool:
        return name in self.available()

    def failed(self, name: str, error: BaseException) -> None:
        for slot in self._slots:
            if slot.name == name and slot.out_until is None:
                slot.pause = min(self._pause_max, slot.pause * 2 or self._pause_min)
                slot.out_until = self._clock() + slot.pause
                self._tell("backlog-queue-out", name, f"out of the rotation for {slot.pause:.3g} s: {describe(error)}", error)

    def succeeded(self, name: str) -> None:
        for slot in self._slots:
            if slot.name == name:
                slot.pause = 0.0
                slot.out_until = None


class Administration(Protocol):
    """The little of queue administration that pairing needs; needs the Manage claim."""

    async def exists(self, name: str) -> bool: ...
    async def create(self, name: str, message_kilobytes_max: int | None) -> None: ...
    async def depth(self, name: str) -> int: ...


class SdkAdministration:
    """Queue administration over the SDK's client."""

    def __init__(self, client: ServiceBusAdministrationClient) -> None:
        self._client = client

    async def exists(self, name: str) -> bool:
        try:
            await self._client.get_queue(name)
        except ResourceNotFoundError:
            return False
        return True

    async def create(self, name: str, message_kilobytes_max: int | None) -> None:
        properties = dict(PROPERTIES)
        if message_kilobytes_max is not None:
            properties["max_message_size_in_kilobytes"] = message_kilobytes_max
        try:
            await self._client.create_queue(name, **properties)
        except ResourceExistsError:
            # Another process of the same application was faster, which is what we wanted; the look makes sure.
            if not await self.exists(name):
                raise
        except HttpResponseError as error:
            if message_kilobytes_max is None or error.status_code != 400:
                raise
            # A namespace of the standard tier has one size for all; the sender keeps the head-room free instead.
            await self.create(name, None)

    async def depth(self, name: str) -> int:
        properties = await self._client.get_queue_runtime_properties(name)
        return int(properties.active_message_count or 0)

    async def close(self) -> None:
        await self._client.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioning:
    attempts_max: int = 3
    attempts_pause: float = 30.0
    attempt_timeout: float = 120.0
    message_kilobytes_max: int | None = None


async def provision(
    secondary: Namespace,
    names: Sequence[str],
    administration: Administration | None,
    settings: Provisioning,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> list[str]:
    """The names of the backlog queues that are there to be used, the missing ones created if that is permitted.

    An existing queue is used as it is. Without administration, or without its Manage claim, a queue exists if a sender for it opens.
    Wrong credentials end it at once; what else fails is tried `attempts_max` times; no queue at all is an error.
    """
    usable: dict[str, bool] = {}
    causes: list[BaseException] = []
    for attempt in range(settings.attempts_max):
        if attempt:
            await sleep(settings.attempts_pause)
        missing = [name for name in names if name not in usable]
        causes = []
        for name in missing:
            error = await _provision_one(secondary, name, administration, settings)
            if error is None:
                usable[name] = True
                continue
            if isinstance(error, _NotPermitted):
                raise error.cause
            causes.append(error)
            if classify(error) is Verdict.UNREACHABLE:
                break  # the others are in the same namespace; the next attempt asks again
        if all(classify(cause) is Verdict.REFUSED for cause in causes):
            break  # also if there are none: asking again would bring the same answer
    for cause in causes:
        log.warning("a backlog queue cannot be used: %s", describe(cause))
    if not usable:
        reasons = "; ".join(sorted({describe(cause) for cause in causes})) or "none was asked for"
        error = SendAvailabilityBacklogError(f"no backlog queue can be used on {secondary.host}: {reasons}")
        raise error from (causes[-1] if causes else None)
    return [name for name in names if name in usable]


class _NotPermitted(Exception):
    """Carries an authentication error out of an attempt."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


async def _provision_one(
    secondary: Namespace, name: str, administration: Administration | None, settings: Provisioning
) -> BaseException | None:
    """None if the queue can be used now, else why not."""
    if administration is not None:
        try:
            async with asyncio.timeout(settings.attempt_timeout):
                if not await administration.exists(name):
                    await administration.create(name, settings.message_kilobytes_max)
            return None
        except Exception as error:  # noqa: BLE001 - becomes part of the verdict on this queue
            if classify(error) is not Verdict.UNAUTHORIZED:
                return error
            log.info("no Manage claim on %s; looking for existing backlog queues instead", secondary.host)
    return await _opens(secondary, name, settings.attempt_timeout)


async def _opens(secondary: Namespace, name: str, timeout: float) -> BaseException | None:
    sender = secondary.sender(name)
    try:
        await sender.open(timeout)
    except ServiceBusError as error:
        return _NotPermitted(error) if classify(error) is Verdict.UNAUTHORIZED else error
    finally:
        await sender.close()
    return None
