"""While a path is failed over: one short-lived message per interval to the primary, until one is accepted."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from azure.servicebus.amqp import AmqpAnnotatedMessage

from tandem.client.errors import classify, describe
from tandem.client.verdicts import Verdict

if TYPE_CHECKING:
    from tandem.client.transport import Namespace

log = logging.getLogger("tandem.client.ping")

CONTENT_TYPE = "application/vnd.ms-servicebus-ping"
TTL_MS = 1_000


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


async def ping(primary: Namespace, path: str, timeout: float, random_id: Callable[[], str]) -> tuple[PingResult, BaseException | None]:
    """Send one ping over a link of its own, so that what it proves is that a new sender would get through."""
    sender = primary.sender(path)
    try:
        await sender.send(ping_message(random_id), timeout)
    except Exception as error:  # noqa: BLE001 - an error is the other answer a ping may bring
        log.debug("ping of %s on %s: %s", path, primary.host, describe(error))
        refused = classify(error) in (Verdict.REFUSED, Verdict.QUOTA)
        return (PingResult.REFUSED if refused else PingResult.UNANSWERED), error
    finally:
        await sender.close()
    return PingResult.ACCEPTED, None


class Pinger:
    """Pings one path every `interval` seconds, the first time one interval after it was started, until told to stop."""

    def __init__(self, interval: float, once: Callable[[], Awaitable[bool]]) -> None:
        """`once` sends a ping and returns whether to go on."""
        self._interval = interval
        self._once = once
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            if not await self._once():
                return

    def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
