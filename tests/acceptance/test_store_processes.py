"""`isolation = "process"`: a store that is killed or stopped takes down its own queues, and comes back by itself."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.cli.broker_process import BrokerProcess
from tests.waiting import wait_until

CONFIG = """
[stores]
isolation = "process"
stall_deadline = "1s"

[[queue]]
name = "first"

[[queue]]
name = "second"
"""
ARGUMENTS = ("--port", "0", "--dev", "--data", "data", "--config", "tandem.toml", "--store-count", "2")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "tandem.toml").write_text(CONFIG)
    with BrokerProcess(tmp_path, *ARGUMENTS) as running:
        yield running


def children(pid: int) -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == pid:
                    found[int(name)] = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it ended while we looked
    return found


def store_processes(broker: BrokerProcess) -> list[int]:
    return sorted(pid for pid, command in children(broker.process.pid).items() if "disk_process" in command)


def outcomes(client: ServiceBusClient) -> dict[str, bool]:
    result = {}
    for name in ("first", "second"):
        try:
            with client.get_queue_sender(name) as sender:
                sender.send_messages(ServiceBusMessage("x"), timeout=20)
            result[name] = True
        except ServiceBusError:
            result[name] = False
    return result


def await_both(client: ServiceBusClient) -> None:
    deadline = time.monotonic() + 30
    while not all(outcomes(client).values()):
        assert time.monotonic() < deadline, "the store did not come back"


def test_each_store_has_a_process_and_sigkill_of_one_harms_only_its_queue(broker: BrokerProcess) -> None:
    client = ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0)
    assert outcomes(client) == {"first": True, "second": True}
    before = store_processes(broker)
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    # The first commit after the kill meets it; exactly one of the two queues is concerned, and only for a moment.
    assert sorted(outcomes(client).values()) == [False, True]
    await_both(client)
    after = store_processes(broker)
    assert len(after) == 2
    assert before[1] in after


def test_a_stopped_store_is_given_up_after_its_deadline_and_replaced_without_loss(broker: BrokerProcess) -> None:
    client = ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0)
    with client.get_queue_sender("first") as sender:
        for number in range(20):
            sender.send_messages(ServiceBusMessage(str(number)))
    for pid in store_processes(broker):
        os.kill(pid, signal.SIGSTOP)
    assert outcomes(client) == {"first": False, "second": False}
    await_both(client)
    with client.get_queue_receiver("first") as receiver:
        texts = []
        while len(texts) < 20:
            for message in receiver.receive_messages(20, max_wait_time=5):
                texts.append(str(message))
                receiver.complete_message(message)
    assert [text for text in texts if text != "x"] == [str(n) for n in range(20)]


def test_the_processes_end_with_the_broker_even_when_it_is_killed(broker: BrokerProcess) -> None:
    pids = store_processes(broker)
    broker.process.kill()
    broker.process.wait()
    wait_until(lambda: all(not Path(f"/proc/{pid}").exists() for pid in pids), "a store outlived its broker", 10)


@pytest.mark.timeout(60)
def test_a_store_process_that_stands_still_ends_with_its_broker_and_the_next_one_opens_the_store(broker: BrokerProcess) -> None:
    for pid in store_processes(broker):
        os.kill(pid, signal.SIGSTOP)
    broker.process.kill()
    broker.process.wait()
    with BrokerProcess(broker.directory, *ARGUMENTS) as again:
        with ServiceBusClient.from_connection_string(again.connection_string, retry_total=0) as client:
            assert outcomes(client) == {"first": True, "second": True}
        code, said = again.stop()
        assert code == 0 and re.fullmatch(r"\S+ drained in .*\n\S+ stopped in .*\n", said), said


@pytest.mark.slow
def test_a_broker_stops_though_its_store_processes_stand_still(broker: BrokerProcess) -> None:
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        assert outcomes(client) == {"first": True, "second": True}
    processes = store_processes(broker)
    for pid in processes:
        os.kill(pid, signal.SIGSTOP)
    broker.process.send_signal(signal.SIGTERM)
    _, said = broker.process.communicate(timeout=60)
    assert broker.process.returncode == 0 and "stopped in" in said
    wait_until(lambda: all(not Path(f"/proc/{pid}").exists() for pid in processes), "a store outlived its broker", 10)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_broker_killed_and_started_again_at_once_opens_its_stores_thirty_times_of_thirty(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(CONFIG)
    said = ""
    for _ in range(30):
        with BrokerProcess(tmp_path, *ARGUMENTS) as running:
            running.process.kill()
            said += running.process.communicate(timeout=30)[1]
    with BrokerProcess(tmp_path, *ARGUMENTS) as running, ServiceBusClient.from_connection_string(running.connection_string) as client:
        assert outcomes(client) == {"first": True, "second": True}
    assert said == "", "nothing goes wrong that had to be told"


def test_a_process_that_cannot_get_memory_ends_with_a_clear_line_and_is_replaced(broker: BrokerProcess) -> None:
    client = ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0)
    assert outcomes(client) == {"first": True, "second": True}
    poor = store_processes(broker)
    for pid in poor:
        (held,) = re.findall(r"VmData:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
        resource.prlimit(pid, resource.RLIMIT_DATA, (int(held) * 1_024, int(held) * 1_024))
    deadline = time.monotonic() + 30
    while set(poor) <= set(store_processes(broker)):
        assert time.monotonic() < deadline, "they have enough"
        with contextlib.suppress(ServiceBusError), client.get_queue_sender("first") as sender:
            sender.send_messages(ServiceBusMessage("x" * 250_000), timeout=5)
    await_both(client)
    broker.process.terminate()
    assert broker.process.stderr is not None
    assert "tandem: out of memory in the process of a store" in broker.process.stderr.read()
