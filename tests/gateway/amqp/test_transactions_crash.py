"""A broker killed while transactions over several stores are under way: each of them happened whole, or not at all."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tandem.testing.ports import free_port
from tests.cli.broker_process import BrokerProcess
from tests.conformance.raw import Raw, Refused, message
from tests.gateway.amqp.coordinator import Coordinator, send_in, settle_in
from tests.waiting import wait_until

QUEUES = ("in", "x", "y", "z")
CONFIG = "".join(f'[[queue]]\nname = "{name}"\nlock_duration = "5m"\nmax_delivery_count = 1000\n' for name in QUEUES)
MESSAGES = 300
"""For each life: more than anybody can move before the kill, so that every kill meets transactions under way."""


def work(port: int, discharged: list[str], attempted: list[str]) -> None:
    """Move messages from `in` to x, y and z, one transaction each, until the broker is gone."""
    with Raw(port) as raw:
        try:
            coordinator = Coordinator(raw)
            receiver = raw.receiver("in")
            senders = [raw.sender(name) for name in QUEUES[1:]]
            while True:
                [one] = receiver.receive()
                transaction = coordinator.declare()
                settle_in(receiver, transaction, one)
                for sender in senders:
                    send_in(sender, transaction, message(one.text))
                attempted.append(one.text)
                coordinator.discharge(transaction)
                discharged.append(one.text)
        except (Refused, OSError, AssertionError):
            return


def drained(raw: Raw, queue: str) -> Counter[str]:
    found: Counter[str] = Counter()
    receiver = raw.receiver(queue, delete=True)
    while batch := receiver.drain(1000):
        found.update(one.text for one in batch)
    return found


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_killed_at_many_instants_every_transaction_is_whole(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(CONFIG)
    port = free_port()
    arguments = ("--port", str(port), "--data", "data", "--dev", "--config", "tandem.toml")
    dice = random.Random(11)
    discharged: list[str] = []
    attempted: list[str] = []
    everything: set[str] = set()
    for life in range(12):
        with BrokerProcess(tmp_path, *arguments) as broker:
            fed = [f"m{life}-{n}" for n in range(MESSAGES)]
            everything.update(fed)
            with Raw(port) as raw:
                raw.feed("in", *fed)
            workers = [threading.Thread(target=work, args=(port, discharged, attempted)) for _ in range(3)]
            for worker in workers:
                worker.start()
            enough = len(discharged) + 4
            time.sleep(dice.uniform(0.05, 0.35))
            if life % 2:  # on a slow machine nothing would come through otherwise
                wait_until(lambda enough=enough: len(discharged) >= enough, "some transactions come through", 60)  # type: ignore[misc]
            broker.process.send_signal(signal.SIGKILL)
            for worker in workers:
                worker.join(60)
    with BrokerProcess(tmp_path, *arguments), Raw(port) as raw:
        raw.quiet(0.5)
        left, *moved = [drained(raw, name) for name in QUEUES]
    done = set(moved[0])
    assert moved[0] == moved[1] == moved[2], "a transaction was done in part"
    assert set(moved[0].values()) <= {1}, "a transaction was done twice"
    assert set(discharged) <= done, "a transaction was confirmed and lost"
    assert done <= set(attempted), "a transaction that nobody discharged was done"
    assert set(left) == everything - done and set(left.values()) <= {1}
    assert len(attempted) > len(discharged) > 20
