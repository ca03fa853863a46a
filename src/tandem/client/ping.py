"""While a path is failed over: one short-lived message per interval to the primary, until one is accepted."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import OperationTimeoutError

from tandem.client.errors import classify, describe
from tandem.client.verdicts import Verdict

if TYPE_CHECKING:
    from tandem.client.transport import NamespaceTransport

log = logging.getLogger("tandem.client.ping")

CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
TTL_MS = 1_000
IN_FLIGHT_MAX = 4
"""Pings of one path that may wait for an answer at a time."""


class PingResult(enum.Enum):
    ACCEPTED = "accepted"
    REFUSED = "refused"
    """A lasting no: the entity is gone, disabled, full. The path is poisoned."""
    UNANSWERED = "unanswered"
    """Not reachable, busy, or not authorized: ping again."""


def ping_message(random_id: Callable[[], str]) -> AmqpAnnotatedMessage:
    """An empty message a broker accepts and never delivers. The session id lets entities that require sessions accept it."""
    return AmqpAnnotatedMessage(
        data_body=[b""],
        header={"time_to_live": TTL_MS},
        properties={"message_id": random_id(), "group_id": random_id(), "content_type": CONTENT_TYPE},
    )


async def ping(
    primary: NamespaceTransport, path: str, timeout: float, random_id: Callable[[], str]
) -> tuple[PingResult, BaseException | None]:
    """Send one ping over a link of its own, so that what it proves is that a new sender would get through."""
    sender = primary.sender(path)
    try:
        async with asyncio.timeout(timeout):
            await sender.send(ping_message(random_id), timeout)
    except TimeoutError as error:
        late = OperationTimeoutError(message=f"{path}: {primary.host} did not answer a ping within {timeout:.3g} s", error=error)
        return PingResult.UNANSWERED, late
    except Exception as error:  # noqa: BLE001 - an error is the other answer a ping may bring
        log.debug("ping of %s on %s: %s", path, primary.host, describe(error))
        refused = classify(error) in (Verdict.REFUSED, Verdict.QUOTA)
        return (PingResult.REFUSED if refused else PingResult.UNANSWERED), error
    finally:
        await sender.close()
    return PingResult.ACCEPTED, None


class Pinger:
    """Pings one path every `interval` seconds, the first time one interval after it was started, until told to stop.

    A ping without an answer does not keep the next one from going. `IN_FLIGHT_MAX` may be waiting: the oldest keeps its time, so that a
    slow line heals too, and the one behind it is cut off to make room.
    """

    def __init__(self, interval: float, once: Callable[[], Coroutine[Any, Any, None]], cut_off: Callable[[], None]) -> None:
        """`once` sends a ping and acts on its answer; `cut_off` is told of each that made room."""
        self._interval = interval
        self._once = once
        self._cut_off = cut_off
        self._timer: asyncio.TimerHandle | None = None
        self._in_flight: list[asyncio.Task[None]] = []

    def start(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._due)

    def _due(self) -> None:
        self._timer = None
        self.start()
        waiting = self._in_flight = [task for task in self._in_flight if not task.done()]
        if len(waiting) >= IN_FLIGHT_MAX:
            waiting.pop(1).cancel()
            self._cut_off()
        waiting.append(asyncio.ensure_future(self._once()))

    def stop(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        waiting, self._in_flight = self._in_flight, []
        for task in waiting:
            if task is not asyncio.current_task():
                task.cancel()
