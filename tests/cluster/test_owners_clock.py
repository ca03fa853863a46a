"""A store's instants go on from where they were, whatever the clock of the node that takes it over says."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from azure.servicebus import ServiceBusClient

from tandem.cluster.owners_clock import LEAD_MS_MAX, OwnersClock
from tandem.model.clock import Clock
from tests.cluster.nodes import Cluster, sender_of, try_send, until

AHEAD_MS = 20_000


class Machine(Clock):
    """A clock that somebody sets."""

    def __init__(self) -> None:
        self.now = self.steady = 1_000_000
        self._set = 0

    def pass_ms(self, milliseconds: int) -> None:
        self.now += milliseconds
        self.steady += milliseconds

    def set(self, by_ms: int) -> None:
        self.now += by_ms
        self._set += by_ms

    def now_ms(self) -> int:
        return self.now

    def steady_ms(self) -> int:
        return self.steady

    def jumped(self) -> int:
        by_ms, self._set = self._set, 0
        return by_ms


def test_it_goes_ahead_with_a_jump_and_gives_the_lead_back_without_an_instant_coming_twice() -> None:
    machine = Machine()
    clock = OwnersClock(machine)
    assert clock.not_before(machine.now + 3_000)
    assert clock.jumped() == 3_000, "everybody is told, as when a clock is set"
    assert clock.now_ms() == machine.now + 3_000
    last = clock.now_ms()
    while clock.lead_ms:
        machine.pass_ms(250)
        assert last <= clock.now_ms() <= last + 250
        last = clock.now_ms()
        assert clock.jumped() == 0
        assert clock.now_ms() >= last
    machine.pass_ms(250)
    assert clock.now_ms() == machine.now


def test_a_machine_that_is_set_right_takes_the_lead_away() -> None:
    machine = Machine()
    clock = OwnersClock(machine)
    clock.not_before(machine.now + 3_000)
    clock.jumped()
    machine.set(2_000)
    assert clock.jumped() == 0, "instants are where they were"
    assert clock.lead_ms < 1_001
    machine.set(5_000)
    assert 4_000 <= clock.jumped() <= 4_020
    assert clock.now_ms() == machine.now
    machine.set(-50_000)
    assert clock.jumped() == -50_000
    assert clock.now_ms() == machine.now, "whoever sets a clock back is believed"


def test_a_machine_that_is_set_right_before_it_goes_ahead_needs_to_go_no_further() -> None:
    machine = Machine()
    clock = OwnersClock(machine)
    assert clock.not_before(machine.now + 1_500)
    machine.set(2_000)
    assert clock.jumped() == 2_000
    assert (clock.lead_ms, clock.now_ms()) == (0, machine.now)
    assert clock.not_before(machine.now + 1_500)
    machine.set(-2_000)
    assert clock.jumped() == -2_000 + 3_500
    assert (clock.lead_ms, clock.now_ms()) == (3_500, machine.now + 3_500)


def test_an_instant_that_no_clock_in_order_can_have_is_not_followed() -> None:
    machine = Machine()
    clock = OwnersClock(machine)
    assert not clock.not_before(machine.now + LEAD_MS_MAX + 1)
    assert clock.not_before(machine.now - 1)
    assert clock.jumped() == 0
    assert clock.now_ms() == machine.now


def cluster_of(connection_string: str) -> dict[str, Any]:
    endpoint = connection_string.partition("sb://")[2].partition(";")[0].rstrip("/")
    with urlopen(f"http://{endpoint}/$tandem/health", timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)["cluster"]
    return found


def enqueued_at(connection_string: str) -> dict[str, datetime]:
    with ServiceBusClient.from_connection_string(connection_string) as client, client.get_queue_receiver("q") as receiver:
        found = {str(message): message.enqueued_time_utc for message in receiver.peek_messages(10)}
    return {body: at for body, at in found.items() if at is not None}


@pytest.mark.slow
def test_a_node_goes_on_from_the_last_instant_of_a_node_whose_clock_was_ahead_and_both_say_so(tmp_path: Path, cluster_dsn: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        f"import time\nreal = time.time_ns\ntime.time_ns = lambda: real() + {AHEAD_MS} * 1_000_000\n", encoding="utf-8"
    )
    cluster = Cluster(tmp_path, cluster_dsn)
    try:
        path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
        ahead = cluster.start("a", environ={"PYTHONPATH": path})
        with sender_of(ahead.connection_string) as send:
            send("before")
        assert "ahead of the engine's: set both by NTP" in cluster_of(ahead.connection_string)["notes"][0]
        right = cluster.start("b")
        assert cluster_of(right.connection_string)["notes"] == []
        ahead.process.kill()
        until(lambda: try_send(right.connection_string, "after"))
        at = enqueued_at(right.connection_string)
        assert at["before"] <= at["after"]
        assert "its last owner's clock was" in cluster.logs("b")
        until(lambda: bool(cluster_of(right.connection_string)["notes"]))
    finally:
        cluster.close()
