"""Many sends in flight, a bounded number at a time, every outcome awaited: fast over long distances, and never fire-and-forget."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass, field
from typing import Any

from azure.servicebus.aio import ServiceBusSender

from tandem.client.errors import NamespaceClosedError
from tandem.client.sdk_sender import SdkSender


@dataclass(frozen=True, slots=True)
class SendFailure:
    """One message that was not accepted, and why. It may be sent again."""

    message: Any
    error: BaseException


class SendFailuresError(Exception):
    """Some sends failed; `failures` has each message with its error. Raised so that no failure goes unnoticed."""

    def __init__(self, failures: list[SendFailure]) -> None:
        super().__init__(f"{len(failures)} send(s) failed, first: {failures[0].error}")
        self.failures = failures


@dataclass(slots=True)
class SendReport:
    """What became of the sends since the last report."""

    accepted: int = 0
    failures: list[SendFailure] = field(default_factory=list)

    def raise_failures(self) -> None:
        if self.failures:
            raise SendFailuresError(self.failures)


class PipelinedSender:
    """Sends without waiting for each answer, at most `max_in_flight` messages at a time.

        async with PipelinedSender(sender, max_in_flight=200) as pipeline:
            for message in messages:
                await pipeline.send(message)        # waits only while the pipeline is full
            report = await pipeline.drain()         # every outcome is known

    `sender` is a sender of this package (paired, replicating) or the SDK's own asynchronous one, which then must not be used by anyone
    else meanwhile. Leaving the block awaits what is in flight and raises SendFailuresError if a failure was never looked at.
    Answers may come in any order; send what depends on order one at a time, or in one batch.
    """

    def __init__(self, sender: Any, *, max_in_flight: int = 100, timeout: float = 60.0, failures_max: int = 10_000) -> None:
        if max_in_flight < 1:
            raise ValueError("max_in_flight must be at least 1")
        self._sender = sender
        self._raw = SdkSender.around(sender) if isinstance(sender, ServiceBusSender) else None
        self._slots = asyncio.Semaphore(max_in_flight)
        self._timeout = timeout
        self._failures_max = failures_max
        self._tasks: set[asyncio.Task[None]] = set()
        self._report = SendReport()
        self._closed = False
        self.in_flight_peak = 0

    @property
    def in_flight(self) -> int:
        return len(self._tasks)

    async def send(self, message: Any) -> asyncio.Future[None]:
        """Send a message; waits for a free slot only. The future is its outcome, to look at or not: the report has it as well.

        Raises SendFailuresError when as many failures as may be kept (`failures_max`) have gathered unseen.
        """
        if self._closed:
            raise NamespaceClosedError("the pipeline is closed")
        if len(self._report.failures) >= self._failures_max:
            self._take_report().raise_failures()
        await self._slots.acquire()
        task = asyncio.ensure_future(self._send(message))
        self._tasks.add(task)
        self.in_flight_peak = max(self.in_flight_peak, len(self._tasks))
        task.add_done_callback(lambda done: self._settled(done, message))
        return task

    async def _send(self, message: Any) -> None:
        if self._raw is not None:
            await self._raw.send(message, self._timeout)
        else:
            await self._sender.send_messages(message, timeout=self._timeout)

    def _settled(self, task: asyncio.Task[None], message: Any) -> None:
        self._tasks.discard(task)
        self._slots.release()
        error: BaseException | None = asyncio.CancelledError("the send was cancelled") if task.cancelled() else task.exception()
        if error is None:
            self._report.accepted += 1
        else:
            self._report.failures.append(SendFailure(message, error))

    async def send_all(self, messages: Iterable[Any] | AsyncIterable[Any]) -> SendReport:
        """Send every message and await every outcome. Reads the source no faster than slots come free."""
        if isinstance(messages, AsyncIterable):
            async for message in messages:
                await self.send(message)
        else:
            for message in messages:
                await self.send(message)
        return await self.drain()

    async def drain(self) -> SendReport:
        """Await every send in flight; the report of all since the last one."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))
        return self._take_report()

    def _take_report(self) -> SendReport:
        report, self._report = self._report, SendReport()
        return report

    async def __aenter__(self) -> PipelinedSender:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        report = await self.close()
        if kind is None:
            report.raise_failures()

    async def close(self) -> SendReport:
        """Await what is in flight and end; the sender itself stays open."""
        self._closed = True
        return await self.drain()
