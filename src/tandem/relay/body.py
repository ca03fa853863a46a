"""A body on its way from a socket to an HTTP client: a bounded buffer that stops its source when nobody takes from it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol


class BodyLost(Exception):
    """It ended in the middle."""


class Source(Protocol):
    """Where a body comes from."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Body:
    """Fed by frames, taken by `next`."""

    def __init__(self, bytes_max: int, source: Source | None) -> None:
        self._chunks: deque[bytearray] = deque()
        self._bytes = 0
        self._bytes_max = bytes_max
        self._source = source
        """None: it cannot be stopped, since others share it; too much is a loss."""
        self._ended = False
        self._failure: BodyLost | None = None
        self._wake: asyncio.Future[None] | None = None

    def feed(self, chunk: bytearray, last: bool) -> None:
        if self._ended or self._failure is not None:
            return
        if chunk:
            self._chunks.append(chunk)
            self._bytes += len(chunk)
        self._ended = last
        if self._bytes > self._bytes_max and not last:
            if self._source is None:
                self.fail(f"the listener sent more than {self._bytes_max} bytes over its control channel")
            else:
                self._source.pause_reading()
        self._tell()

    def end(self) -> None:
        self.feed(bytearray(), True)

    def fail(self, why: str) -> None:
        if not self._ended and self._failure is None:
            self._failure = BodyLost(why)
            self._chunks.clear()
            self._tell()

    @property
    def is_whole(self) -> bool:
        return self._ended

    async def next(self) -> bytearray | None:
        """None at its end. Raises BodyLost."""
        while not self._chunks:
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return None
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        chunk = self._chunks.popleft()
        self._bytes -= len(chunk)
        if self._source is not None and self._bytes * 2 <= self._bytes_max:
            self._source.resume_reading()
        return chunk

    def take_all(self) -> bytes:
        """Of a body that is whole."""
        parts = b"".join(self._chunks)
        self._chunks.clear()
        self._bytes = 0
        return parts

    def _tell(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
