"""Who is not read from, and until when."""

from __future__ import annotations

from typing import Any

import pytest

from tandem.server.backpressure import Backpressure


class Connection:
    def __init__(self) -> None:
        self.reading = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Disk:
    pending_bytes = 0


class Setting:
    def __init__(self) -> None:
        self.turns = 0
        self.disks = (Disk(), Disk())
        self.backpressure = Backpressure(1000, self._schedule)
        for disk in self.disks:
            journal: Any = disk
            self.backpressure.add(journal)

    def _schedule(self) -> None:
        self.turns += 1


@pytest.fixture
def setting() -> Setting:
    return Setting()


def test_a_quiet_connection_is_read_from_all_the_time(setting: Setting) -> None:
    connection = Connection()
    setting.backpressure.took(connection, 5000)
    assert connection.reading and setting.turns == 0


def test_who_brings_too_much_in_one_turn_waits_for_the_next(setting: Setting) -> None:
    first, second = Connection(), Connection()
    setting.backpressure.took(first, 131_071)
    setting.backpressure.took(second, 1)
    assert (first.reading, second.reading, setting.turns) == (True, False, 1)
    setting.backpressure.relieve()
    assert second.reading
    setting.backpressure.took(second, 1)
    assert second.reading


def test_one_disk_that_is_behind_stops_everybody_until_it_has_half_of_it(setting: Setting) -> None:
    connection = Connection()
    setting.disks[1].pending_bytes = 1001
    setting.backpressure.took(connection, 1)
    assert not connection.reading
    setting.disks[1].pending_bytes = 501
    setting.backpressure.relieve()
    assert not connection.reading
    setting.disks[1].pending_bytes = 500
    setting.backpressure.relieve()
    assert connection.reading
