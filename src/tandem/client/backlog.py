"""The backlog queues of a pair: which exist, which are in the rotation, which one a diverted message goes to."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError

from tandem.client.errors import describe
from tandem.model.backoff import Backoff

if TYPE_CHECKING:
    from azure.servicebus.aio.management import ServiceBusAdministrationClient

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
MESSAGE_KILOBYTES = (102_400, 260)
"""What one message may measure, the first that the secondary grants: whatever the primary takes can then be diverted, envelope and all."""


def queue_name(primary_namespace: str, index: int) -> str:
    return f"{primary_namespace}/x-servicebus-transfer/{index}"


@dataclass(slots=True)
class _Slot:
    name: str
    pauses: Backoff
    out_until: float | None = None

    def leave(self, now: float) -> float:
        """Out of the rotation; for so long."""
        pause = self.pauses.next_pause()
        self.out_until = now + pause
        return pause

    def come_back(self) -> None:
        self.out_until = None


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
        self._slots = [_Slot(name, Backoff(pause_min, pause_max)) for name in names]
        self._choose = choose
        self._clock = clock
        self._tell = tell

    @property
    def names(self) -> list[str]:
        return [slot.name for slot in self._slots]

    def available(self) -> list[str]:
        """The queues in the rotation, those whose pause is over re-admitted."""
        now = self._clock()
        for slot in self._slots:
            if slot.out_until is not None and now >= slot.out_until:
                slot.come_back()
                self._tell("backlog-queue-readmitted", slot.name, f"back in the rotation after {slot.pauses.last:.3g} s", None)
        return [slot.name for slot in self._slots if slot.out_until is None]

    def pick(self, tried: Collection[str] = ()) -> str | None:
        """A random queue in the rotation that was not tried yet; when all are out, the one that comes back first; None if none is left."""
        candidates = [name for name in self.available() if name not in tried]
        if candidates:
            return candidates[self._choose(len(candidates))]
        out = [slot for slot in self._slots if slot.name not in tried]
        if not out:
            return None
        return min(out, key=lambda slot: slot.out_until or 0.0).name

    def pick_for(self, key: str, tried: Collection[str] = ()) -> str | None:
        """The queue in the rotation that belongs to this key, whoever asks; when all are out, as `pick`."""
        candidates = [name for name in self.available() if name not in tried]
        if not candidates:
            return self.pick(tried)
        return max(candidates, key=lambda name: hashlib.blake2b(f"{key}\n{name}".encode(), digest_size=8).digest())

    def in_rotation(self, name: str) -> bool:
        return name in self.available()

    def failed(self, name: str, error: BaseException) -> None:
        for slot in self._slots:
            if slot.name == name and slot.out_until is None:
                pause = slot.leave(self._clock())
                self._tell("backlog-queue-out", name, f"out of the rotation for {pause:.3g} s: {describe(error)}", error)

    def succeeded(self, name: str) -> None:
        for slot in self._slots:
            if slot.name == name:
                slot.pauses.reset()
                slot.come_back()


class Administration(Protocol):
    """The little of queue administration that pairing needs; needs the Manage claim."""

    async def exists(self, name: str) -> bool: ...
    async def create(self, name: str) -> None: ...
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

    async def create(self, name: str) -> None:
        for kilobytes in MESSAGE_KILOBYTES:
            try:
                await self._create(name, max_message_size_in_kilobytes=kilobytes)
            except HttpResponseError as error:
                if error.status_code != 400:
                    raise
                log.info("%s is not granted messages of %d KB: %s", name, kilobytes, describe(error))
            else:
                return
        # A namespace of Azure's standard tier has one size for all; the sender keeps the head-room free instead.
        await self._create(name)

    async def _create(self, name: str, **extra: Any) -> None:
        try:
            await self._client.create_queue(name, **PROPERTIES, **extra)
        except ResourceExistsError:
            # Another process of the same application was faster, which is what we wanted; the look makes sure.
            if not await self.exists(name):
                raise

    async def depth(self, name: str) -> int:
        properties = await self._client.get_queue_runtime_properties(name)
        return int(properties.active_message_count or 0)

    async def close(self) -> None:
        await self._client.close()
