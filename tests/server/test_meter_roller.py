"""Meters that cannot be written stay in the journal, and that is said once."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterable

from tandem.testing import Bus
from tests.conformance.raw import Raw


class FullDisk:
    def __init__(self) -> None:
        self.full = True
        self.tries = 0

    def append(self, number: int, length: int, lines: Iterable[object]) -> int:
        self.tries += 1
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return length + 1


def test_files_that_cannot_be_written_are_told_once_until_they_can() -> None:
    disk = FullDisk()
    with Bus() as bus:
        bus.create_queue("q")
        roller = bus._running().meters[0]
        roller._files = [disk] * len(roller._files)  # type: ignore[list-item]

        def told_after(tries: int) -> int:
            async def work() -> None:
                bus._running().driver.run_housekeeping()
                await asyncio.gather(*bus._running().contexts[0]._tasks)

            with Raw(bus.port) as raw:
                raw.feed("q", "counted")
            before = disk.tries
            for _ in range(50):
                if disk.tries >= before + tries:
                    break
                bus.advance(61)
                bus._call(work())
            assert disk.tries >= before + tries
            return sum("meters cannot be written" in note for note in bus.notes)

        assert told_after(5) == 1
        disk.full = False
        assert told_after(1) == 1
        disk.full = True
        assert told_after(5) == 2
