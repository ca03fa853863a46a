"""Partitioned queues over real stores: what goes on, what waits, and what is refused while one store is down."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tandem import amqp
from tandem.broker.entities.joined import fragment_of_key
from tandem.model.sas_token import make_token
from tandem.simulator.amqp_client import AmqpClient
from tests.cli.broker_process import BrokerProcess
from tests.waiting import wait_until

CONFIG = """
[[queue]]
name = "plain-0"

[[queue]]
name = "plain-1"

[[queue]]
name = "plain-2"

[[queue]]
name = "plain-3"

[[queue]]
name = "spread"
enable_partitioning = true

[[queue]]
name = "grouped"
enable_partitioning = true
requires_session = true
"""


class House:
    def __init__(self, directory: Path) -> None:
        (directory / "tandem.toml").write_text(CONFIG)
        self._directory = directory
        self.start()

    def start(self) -> None:
        self.broker = BrokerProcess(self._directory, "--port", "0", "--dev", "--data", "data", "--config", "tandem.toml").__enter__()
        self.client = ServiceBusClient.from_connection_string(self.broker.connection_string, retry_total=0)

    def kill(self) -> None:
        self.broker.__exit__(None, None, None)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        base = f"http://localhost:{self.broker.port}/"
        token = make_token(base, "RootManageSharedAccessKey", "SAS_KEY_VALUE", int(time.time() * 1000) + 600_000)
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{base}$tandem/{path}", data, {"Authorization": token}, method=method)
        with urllib.request.urlopen(request, timeout=10) as reply:
            return json.loads(reply.read())

    def store_states(self) -> list[str]:
        return [store["state"] for store in self.call("GET", "health")["namespaces"][0]["stores"]]

    def await_states(self, wanted: list[str]) -> None:
        wait_until(lambda: self.store_states() == wanted, lambda: f"stores are {self.store_states()}, not {wanted}", 15)

    def receive_all(self, queue: str, count: int) -> list[str]:
        got: list[str] = []
        with self.client.get_queue_receiver(queue) as receiver:
            while len(got) < count:
                messages = receiver.receive_messages(50, max_wait_time=1)
                if not messages:
                    break
                for message in messages:
                    got.append(str(message))
                    receiver.complete_message(message)
        return got


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.kill()


def test_sequence_numbers_carry_the_fragment_and_survive_a_kill(house: House) -> None:
    with house.client.get_queue_sender("spread") as sender:
        for number in range(40):
            sender.send_messages(ServiceBusMessage(str(number)))
    with house.client.get_queue_receiver("spread") as receiver:
        seen = receiver.peek_messages(100)
    fragments = {message.sequence_number >> 48 for message in seen}
    assert len(seen) == 40
    assert len(fragments) == 16
    house.kill()
    house.start()
    assert sorted(house.receive_all("spread", 40), key=int) == [str(n) for n in range(40)]


def test_keyless_sends_go_on_while_a_store_is_down_and_its_messages_come_back(house: House) -> None:
    with house.client.get_queue_sender("spread") as sender:
        for number in range(32):
            sender.send_messages(ServiceBusMessage(f"before-{number}"))
        house.call("POST", "faults", {"kind": "store-down", "store": 1})
        for number in range(32):
            sender.send_messages(ServiceBusMessage(f"during-{number}"))
    house.await_states(["up", "down", "up", "up"])
    during = house.receive_all("spread", 64)
    assert {text for text in during if text.startswith("during")} == {f"during-{n}" for n in range(32)}
    assert len(during) == 32 + 24
    house.call("DELETE", "faults")
    house.await_states(["up"] * 4)
    after = house.receive_all("spread", 8)
    assert sorted(during + after) == sorted([f"before-{n}" for n in range(32)] + [f"during-{n}" for n in range(32)])


def test_keyed_send_to_a_fragment_that_is_down_is_refused_and_order_within_a_key_holds(house: House) -> None:
    with house.client.get_queue_sender("spread") as sender:
        for number in range(20):
            sender.send_messages(ServiceBusMessage(f"{number}", partition_key="one"))
        house.call("POST", "faults", {"kind": "store-down", "store": 0})
        house.await_states(["down", "up", "up", "up"])
        outcomes: dict[str, bool] = {}
        for key in ("a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"):
            try:
                sender.send_messages(ServiceBusMessage("x", partition_key=key))
                outcomes[key] = True
            except ServiceBusError as error:
                assert "TrackingId" in str(error)
                outcomes[key] = False
        assert True in outcomes.values()
        assert False in outcomes.values()
    house.call("DELETE", "faults")
    house.await_states(["up"] * 4)
    received = house.receive_all("spread", 20 + sum(outcomes.values()))
    assert [text for text in received if text != "x"] == [str(n) for n in range(20)]


def test_a_store_that_is_down_takes_down_its_own_queue_and_no_other(house: House) -> None:
    """Four plain queues, four stores: whichever store fails, exactly one queue does, at once, and it comes back."""
    names = [f"plain-{n}" for n in range(4)]
    senders = {name: house.client.get_queue_sender(name) for name in names}
    failed: list[str] = []
    for store in range(4):
        house.call("POST", "faults", {"kind": "store-down", "store": store})
        for name, sender in senders.items():
            try:
                sender.send_messages(ServiceBusMessage(f"{store}"))
            except ServiceBusError as error:
                assert "amqp:internal-error" in str(error)
                failed.append(name)
        house.call("DELETE", "faults")
        house.await_states(["up"] * 4)
    assert sorted(failed) == names
    for name in names:
        assert len(house.receive_all(name, 3)) == 3


def test_sessions_of_a_partitioned_queue_keep_order_state_and_one_holder(house: House) -> None:
    with house.client.get_queue_sender("grouped") as sender:
        for number in range(5):
            for session in ("red", "green", "blue"):
                sender.send_messages(ServiceBusMessage(f"{session}-{number}", session_id=session))
    with house.client.get_queue_receiver("grouped", session_id="green") as receiver:
        receiver.session.set_state(b"half way")
        texts = []
        for message in receiver.receive_messages(5, max_wait_time=3):
            texts.append(str(message))
            receiver.complete_message(message)
    assert texts == [f"green-{n}" for n in range(5)]
    found = set()
    for _ in range(2):
        with house.client.get_queue_receiver("grouped", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=3) as receiver:
            found.add(receiver.session.session_id)
            for message in receiver.receive_messages(5, max_wait_time=3):
                receiver.complete_message(message)
    assert found == {"red", "blue"}


def test_defer_dead_letter_schedule_and_counts_span_fragments(house: House) -> None:
    with house.client.get_queue_sender("spread") as sender:
        for number in range(6):
            sender.send_messages(ServiceBusMessage(str(number)))
    with house.client.get_queue_receiver("spread") as receiver:
        messages = receiver.receive_messages(6, max_wait_time=3)
        while len(messages) < 6:
            messages += receiver.receive_messages(6 - len(messages), max_wait_time=3)
        receiver.defer_message(messages[0])
        receiver.defer_message(messages[1])
        receiver.dead_letter_message(messages[2], reason="why")
        receiver.abandon_message(messages[3])
        deferred = receiver.receive_deferred_messages([messages[0].sequence_number, messages[1].sequence_number])
        assert [str(m) for m in deferred] == [str(messages[0]), str(messages[1])]
        for message in deferred:
            receiver.complete_message(message)
        receiver.complete_message(messages[4])
        receiver.complete_message(messages[5])
    with house.client.get_queue_receiver("spread", sub_queue="deadletter") as receiver:
        (dead,) = receiver.receive_messages(1, max_wait_time=3)
        assert dead.dead_letter_reason == "why"
        receiver.complete_message(dead)
    assert house.receive_all("spread", 1) == [str(messages[3])]


async def _send_through_an_outage(port: int, break_store: Callable[[], None], batches: bool) -> tuple[set[str], list[BaseException]]:
    """Keep a window full for a while; a store fails half-way. (Accepted, refused.)"""
    client = await AmqpClient.connect(port)
    sender = await client.sender("spread")
    accepted: set[str] = set()
    refused: list[BaseException] = []
    room = asyncio.Semaphore(300)

    def answered(names: list[str], answer: asyncio.Future[None]) -> None:
        room.release()
        error = answer.exception()
        if error is None:
            accepted.update(names)
        else:
            refused.append(error)

    number = 0
    broken: asyncio.Future[None] | None = None
    while number < 12_000:
        if number >= 4_000 and broken is None:
            broken = asyncio.get_running_loop().run_in_executor(None, break_store)
        names = [str(number + step) for step in range(4 if batches else 1)]
        number += len(names)
        await room.acquire()
        payloads = [amqp.encode_message(properties={"message-id": name}, body=[b"x" * 500]) for name in names]
        answer = sender.send_batch(payloads) if batches else sender.send(payloads[0])
        answer.add_done_callback(partial(answered, names))
    assert broken is not None
    await broken
    for _ in range(300):
        await room.acquire()
    await client.close()
    return accepted, refused


async def _receive_every(port: int, count: int) -> dict[str, int]:
    client = await AmqpClient.connect(port)
    receiver = await client.receiver("spread", credit=500)
    seen: dict[str, int] = {}
    while True:
        try:
            incoming = await asyncio.wait_for(receiver.get(), 20 if len(seen) < count else 1)
        except TimeoutError:
            await client.close()
            return seen
        name = str(amqp.decode_message(incoming.payload).properties["message-id"])
        seen[name] = seen.get(name, 0) + 1
        receiver.settle(incoming)


@pytest.mark.parametrize("batches", [False, True], ids=["single", "batches"])
@pytest.mark.parametrize("kind", ["store-down", "store-error"])
def test_no_keyless_send_fails_when_a_store_fails_under_load_and_none_is_lost_or_doubled(house: House, kind: str, batches: bool) -> None:
    """Also those that were on their way to its disk: whatever of them it kept is not delivered a second time."""
    wish = {"kind": kind, "store": 1}
    accepted, refused = asyncio.run(_send_through_an_outage(house.broker.port, lambda: house.call("POST", "faults", wish), batches))
    assert refused == []
    assert len(accepted) == 12_000
    house.call("DELETE", "faults")
    house.await_states(["up"] * 4)
    seen = asyncio.run(_receive_every(house.broker.port, 12_000))
    assert seen.keys() == accepted
    assert max(seen.values()) == 1


def test_what_a_failed_store_kept_is_not_delivered_twice_after_a_kill_either(house: House) -> None:
    accepted, refused = asyncio.run(
        _send_through_an_outage(house.broker.port, lambda: house.call("POST", "faults", {"kind": "store-error", "store": 1}), False)
    )
    assert refused == []
    house.kill()
    house.start()
    with house.client.get_queue_sender("spread") as sender:
        sender.send_messages([ServiceBusMessage("later", message_id=f"later-{number}") for number in range(64)])
    seen = asyncio.run(_receive_every(house.broker.port, 12_064))
    assert {name for name in seen if not name.startswith("later")} == accepted
    assert len(seen) == 12_064
    assert max(seen.values()) == 1


def _key_in_store(store: int) -> str:
    return next(str(number) for number in range(1_000) if fragment_of_key(str(number), 16) % 4 == store)


def test_a_batch_waits_for_the_stores_it_went_to_and_for_no_other(house: House) -> None:
    """Also when the batch before it, in the same breath, went to a store that does not answer."""

    def batch(key: str) -> list[bytes]:
        annotations: dict[object, object] = {amqp.Symbol("x-opt-partition-key"): key}
        return [amqp.encode_message(message_annotations=annotations, properties={"message-id": str(n)}, body=[b"x"]) for n in range(3)]

    async def tell() -> tuple[bool, bool]:
        client = await AmqpClient.connect(house.broker.port)
        sender = await client.sender("spread")
        await asyncio.to_thread(house.call, "POST", "faults", {"kind": "store-slow", "store": 1, "delay_ms": 60_000})
        slow = sender.send_batch(batch(_key_in_store(1)))
        quick = sender.send_batch(batch(_key_in_store(2)))
        await asyncio.wait_for(quick, 10)
        over = slow.done()
        both = sender.send_batch(batch(_key_in_store(3)) + batch(_key_in_store(1)))
        await asyncio.wait_for(sender.send_batch(batch(_key_in_store(3))), 10)
        answered = both.done()
        slow.cancel()
        both.cancel()
        client.abort()
        return over, answered

    assert asyncio.run(tell()) == (False, False)
