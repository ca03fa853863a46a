"""The syphon's planning, driven as Spark drives it: back-off, waiting destinations, restarts, the end of `once`."""

from __future__ import annotations

import dataclasses
import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tandem.model.clock import SystemClock
from tandem.model.sas_token import make_token
from tandem.spark.connector.connections import drop
from tandem.spark.connector.options import OptionError
from tandem.spark.syphon.source import SyphonOptions, SyphonStreamReader
from tests.acceptance.brokers import KEY, KEY_NAME, Broker
from tests.spark.house import EXACT, connect, counts, create_queue, diverted, ids, send, take_all, verdict
from tests.waiting import wait_until


class Drain:
    """One syphon and its checkpoint."""

    def __init__(
        self, primary: Broker, secondary: Broker, *queues: str, checkpoint: list[dict[str, Any]] | None = None, **more: str
    ) -> None:
        given = {
            "primary": primary.connection_string,
            "secondary": secondary.connection_string,
            "queues": "\n".join(queues),
            "pollMs": "50",
            "retryMs": "100",
            "operationTimeoutSeconds": "5",
            **more,
        }
        self.options = SyphonOptions.parse(given)
        self.reader = SyphonStreamReader(self.options)
        self.log = checkpoint if checkpoint is not None else [self.reader.initialOffset()]

    def plan(self) -> bool:
        end = self.reader.latestOffset(self.log[-1], ReadAllAvailable())
        if end == self.log[-1]:
            return False
        self.log.append(end)
        return True

    def run(self) -> dict[str, int]:
        """The tasks of the last batch: what they moved, buried and left waiting."""
        worker = SyphonStreamReader(self.options)
        total = {"moved": 0, "dead_lettered": 0, "waiting": 0}
        for part in self.reader.partitions(self.log[-2], self.log[-1]):
            for batch in worker.read(part):
                for row in batch.to_pylist():
                    for name in total:
                        total[name] += row[name]
        return total

    def step(self) -> dict[str, int]:
        wait_until(self.plan, "a batch", 30)
        told = self.run()
        return told if self.log[-1]["queues"] else self.step()  # the first attempt may be one at nothing

    def die(self) -> None:
        self.reader.stop()


@pytest.fixture(autouse=True)
def no_connection_outlives_its_test() -> Iterator[None]:
    from tandem.spark.connector import connections

    yield
    for one in list(connections._cached):
        drop(one)


def test_all_queues_are_drained_and_their_leases_ended(west: Broker, east: Broker, name: str) -> None:
    create_queue(west, name)
    create_queue(east, f"{name}/0", f"{name}/1")
    for queue in (0, 1):
        send(east, f"{name}/{queue}", diverted(300, name, f"q{queue}-"))
    drain = Drain(west, east, f"{name}/0", f"{name}/1")
    moved = 0
    while moved < 600:
        moved += drain.step()["moved"]
    assert not drain.plan()
    wanted = (f"q{queue}-{n}" for queue in (0, 1) for n in range(300))
    assert verdict(wanted, ids(take_all(west, name))) == EXACT
    with connect(east) as client:
        assert client.request(f"{name}/0", "com.tandem:list-leases", {}) is None
    drain.die()


@pytest.mark.slow
def test_while_the_primary_is_away_attempts_grow_rarer_and_nothing_fails(mortal: Broker, east: Broker, name: str) -> None:
    create_queue(mortal, "orders")
    create_queue(east, name)
    send(east, name, diverted(100, "orders"))
    mortal.kill()
    drain = Drain(mortal, east, name, retryMs="200")
    pauses = []
    for _ in range(4):
        assert drain.step() == {"moved": 0, "dead_lettered": 0, "waiting": 100}
        pauses.append(drain.reader._queues[name].pauses.last)
    assert pauses == [0.0, 0.2, 0.4, 0.8]
    assert counts(east, name)["leased"] == 100
    mortal.start()
    assert drain.step() == {"moved": 100, "dead_lettered": 0, "waiting": 0}
    drain.die()


@pytest.mark.slow
@pytest.mark.parametrize("gone", ["killed", "hangs"])
def test_when_the_primary_is_back_what_waits_is_tried_at_once_however_long_the_pauses(
    mortal: Broker, east: Broker, name: str, gone: str
) -> None:
    create_queue(mortal, "orders")
    create_queue(east, name)
    send(east, name, diverted(100, "orders"))
    mortal.kill() if gone == "killed" else mortal.freeze()
    drain = Drain(mortal, east, name, retryMs="600000", operationTimeoutSeconds="2")
    assert drain.step()["waiting"] == 100
    for _ in range(3):
        assert not drain.plan(), "ten minutes, as was asked for"
    mortal.start() if gone == "killed" else mortal.thaw()
    began = time.monotonic()
    assert drain.step()["moved"] == 100
    assert time.monotonic() - began < 20
    drain.die()


def test_one_closed_destination_does_not_hold_up_the_others_and_keeps_its_order(west: Broker, east: Broker, name: str) -> None:
    create_queue(west, f"{name}-open")
    create_queue(east, name)
    # A queue that is full answers "quota", which may change: its messages wait, in order, while others pass.
    create_queue(west, f"{name}-full")
    _fill(west, f"{name}-full")
    send(east, name, diverted(20, f"{name}-full", "first"))
    send(east, name, diverted(20, f"{name}-open", "o"))
    drain = Drain(west, east, name)
    assert drain.step() == {"moved": 20, "dead_lettered": 0, "waiting": 20}
    send(east, name, diverted(20, f"{name}-full", "second"))
    send(east, name, diverted(20, f"{name}-open", "p"))
    moved = 0
    while moved < 20:
        moved += drain.step()["moved"]
    assert len(take_all(west, f"{name}-open")) == 40
    _empty(west, f"{name}-full")
    moved = 0
    while moved < 40:
        moved += drain.step()["moved"]
    assert ids(take_all(west, f"{name}-full")) == [f"first{n}" for n in range(20)] + [f"second{n}" for n in range(20)]
    drain.die()


def _fill(broker: Broker, queue: str) -> None:
    """Close it to senders in a way that passes: by a fault, as a full store would."""
    _fault(broker, "POST", {"kind": "entity-error", "entity": queue, "condition": "amqp:resource-limit-exceeded"})


def _empty(broker: Broker, queue: str) -> None:
    _fault(broker, "DELETE", {})


def _fault(broker: Broker, method: str, body: dict[str, Any]) -> None:
    request = urllib.request.Request(f"http://localhost:{broker.port}/$tandem/faults", json.dumps(body).encode(), method=method)
    address = f"http://localhost:{broker.port}/"
    request.add_header("Authorization", make_token(address, KEY_NAME, KEY, SystemClock().now_ms() + 60_000))
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status < 300


def test_a_killed_driver_is_followed_by_one_that_goes_on_where_it_was(west: Broker, east: Broker, name: str) -> None:
    create_queue(west, name, requires_duplicate_detection=True)
    create_queue(east, f"{name}/0")
    send(east, f"{name}/0", diverted(500, name))
    first = Drain(west, east, f"{name}/0", maxMessagesPerTrigger="200")
    first.step()
    wait_until(first.plan, "a second batch", 30)
    first.die()  # planned and logged, not run
    second = Drain(west, east, f"{name}/0", checkpoint=first.log, maxMessagesPerTrigger="200")
    moved = second.run()["moved"]
    assert moved == 200
    while moved < 300:
        moved += second.step()["moved"]
    assert verdict((f"m{n}" for n in range(500)), ids(take_all(west, name))) == EXACT
    second.die()


def test_leases_that_no_checkpoint_knows_are_given_back(west: Broker, east: Broker, name: str) -> None:
    create_queue(west, name)
    create_queue(east, f"{name}/0")
    send(east, f"{name}/0", diverted(50, name))
    first = Drain(west, east, f"{name}/0")
    wait_until(first.plan, "a batch", 30)
    first.log.pop()
    first.die()
    assert counts(east, f"{name}/0")["leased"] == 50
    second = Drain(west, east, f"{name}/0", checkpoint=first.log)
    assert second.step()["moved"] == 50
    second.die()


def test_once_ends_when_the_backlog_is_empty_also_of_what_dead_readers_held(west: Broker, east: Broker, name: str) -> None:
    create_queue(west, name)
    create_queue(east, f"{name}/0")
    send(east, f"{name}/0", diverted(30, name))
    with connect(east) as client:
        body: dict[str, object] = {"lease-id": "of-the-dead", "max-messages": 10, "max-bytes": 10**6, "duration-ms": 2_000}
        client.request(f"{name}/0", "com.tandem:lease-batch", body)
    drain = Drain(west, east, f"{name}/0")
    drain.reader.prepareForTriggerAvailableNow()
    moved = 0
    while drain.plan():
        moved += drain.run()["moved"]
    assert moved == 30
    assert counts(east, f"{name}/0")["total"] == 0
    drain.die()


def test_once_gives_up_when_told_to_and_leaves_the_messages_where_they_are(mortal: Broker, east: Broker, name: str) -> None:
    create_queue(mortal, "orders")
    create_queue(east, name)
    send(east, name, diverted(10, "orders"))
    mortal.kill()
    drain = Drain(mortal, east, name, giveUpSeconds="1")
    drain.reader.prepareForTriggerAvailableNow()
    while drain.plan():
        assert drain.run()["moved"] == 0
    assert counts(east, name)["leased"] == 10
    drain.die()


def test_an_idle_syphon_holds_one_long_poll_per_queue(west: Broker, east: Broker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tandem.engine_client.blocking import BlockingClient

    asked: list[str] = []
    post = BlockingClient.post

    def counted(self: BlockingClient, path: str, operation: str, body: dict[str, object], seconds: float) -> Any:
        asked.append(operation)
        return post(self, path, operation, body, seconds)

    monkeypatch.setattr(BlockingClient, "post", counted)
    create_queue(east, f"{name}/0", f"{name}/1")
    drain = Drain(west, east, f"{name}/0", f"{name}/1", pollMs="5")
    assert drain.plan(), "the first batch is an attempt at nothing, which warms everything up"
    assert drain.run() == {"moved": 0, "dead_lettered": 0, "waiting": 0}
    for _ in range(20):
        assert not drain.plan()
    assert sorted(asked) == ["com.tandem:lease-batch"] * 2 + ["com.tandem:list-leases"] * 2
    drain.die()


@pytest.mark.parametrize(
    "queue, key, said",
    [("no-such", "SAS_KEY_VALUE", "option 'queues': a backlog queue does not exist"), ("any", "wrong", "option 'secondary'.*key")],
)
def test_what_only_the_user_can_mend_is_one_clear_error(west: Broker, east: Broker, queue: str, key: str, said: str) -> None:
    drain = Drain(west, east, queue)
    wrong = dataclasses.replace(drain.options.move.secondary, connection_string=east.string_for("RootManageSharedAccessKey", key))
    options = dataclasses.replace(drain.options, move=dataclasses.replace(drain.options.move, secondary=wrong))
    reader = SyphonStreamReader(options)
    with pytest.raises(OptionError, match=said):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.stop()
