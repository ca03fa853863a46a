"""`tandem serve --workers`: several processes that are one broker to everybody who comes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.management import ServiceBusAdministrationClient
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics

from tandem import amqp
from tandem.cluster.workers import assign_stores
from tandem.server.sas import make_token
from tests.cli.broker_process import BrokerProcess
from tests.conformance.house import ROOT_KEY, ROOT_NAME
from tests.conformance.raw import End, Raw, Refused, token_for
from tests.gateway.amqp.test_selectors import attach, select, texts
from tests.waiting import wait_until

QUEUES = ("a", "b", "c", "d")
QUEUE_ENTRY = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<QueueDescription xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"/></content></entry>'
)
CONFIG = "".join(f'[[queue]]\nname = "{name}"\n' for name in QUEUES) + (
    '[[queue]]\nname = "sessions"\nrequires_session = true\n'
    '[[queue]]\nname = "onward"\nforward_to = "a"\n'
    '[[queue]]\nname = "spread"\nenable_partitioning = true\n'
    '[[topic]]\nname = "t"\n[[topic.subscription]]\nname = "s"\n[[topic.subscription]]\nname = "u"\n'
)


def start(directory: Path, *arguments: str, kind: type[BrokerProcess] = BrokerProcess) -> BrokerProcess:
    directory.mkdir(exist_ok=True)
    (directory / "tandem.toml").write_text(CONFIG)
    log = directory / "log"
    return kind(directory, "--port", "0", "--data", "data", "--dev", "--workers", "2", *arguments, log=log)


def pids(broker: BrokerProcess) -> list[int]:
    return [int(part.split()[1]) for part in broker.line("workers:").split(",")]


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    with start(module_path / "broker") as broker:
        yield broker


def administration(broker: BrokerProcess) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=str(broker.directory / "data" / "ca.pem")
    )


def health(broker: BrokerProcess) -> dict[str, object]:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.port}/$tandem/health") as answer:
        found: dict[str, object] = json.load(answer)
        return found


def over_http(broker: BrokerProcess, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes, str]:
    token = make_token(f"sb://localhost:{broker.port}/", ROOT_NAME, ROOT_KEY, int((time.time() + 600) * 1000))
    url = f"http://127.0.0.1:{broker.port}/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Authorization": token}, method=method)) as answer:
        return answer.status, answer.read(), answer.headers.get("Location", "")


@pytest.mark.slow
def test_every_connection_reaches_every_queue_whichever_worker_has_it(broker: BrokerProcess) -> None:
    for queue in QUEUES:
        for number in range(2):  # connections go to the workers in turn
            with Raw(broker.port) as client:
                client.feed(queue, f"{queue}{number}")
        for number in range(2):
            with Raw(broker.port) as client:
                receiver = client.receiver(queue)
                (arrival,) = receiver.receive()
                assert arrival.text == f"{queue}{number}"
                receiver.settle(arrival, b"\x00\x53\x24\x45")


def tcp_sockets(pid: int) -> int:
    """Of clients: those between workers are unix sockets."""
    inodes = {line.split()[9] for name in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]}
    found = 0
    for entry in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{entry}")
        except FileNotFoundError:
            continue
        found += target.startswith("socket:[") and target[8:-1] in inodes
    return found


@pytest.mark.slow
@pytest.mark.parametrize("way", ["plain", "token", "sdk"])
def test_a_connection_goes_to_the_worker_that_has_its_first_queue(broker: BrokerProcess, way: str) -> None:
    """Connections come to the workers in turn: of two to one queue, one is moved."""
    opened: list[Any] = []
    for queue in QUEUES:
        before = [tcp_sockets(pid) for pid in pids(broker)]
        for _ in range(2):
            if way == "sdk":
                client = ServiceBusClient.from_connection_string(broker.connection_string)
                opened += [client.get_queue_sender(queue).__enter__(), client]
                continue
            raw = Raw(broker.port) if way == "plain" else Raw(broker.port, user="", password="")
            opened.append(raw)
            if way == "token":
                assert raw.put_token(queue, token_for(broker.port, queue))[0] == 202
            raw.feed(queue, "one")
            receiver = raw.receiver(queue, delete=True)
            assert [arrival.text for arrival in receiver.receive()] == ["one"]
        more = sorted(tcp_sockets(pid) - had for pid, had in zip(pids(broker), before, strict=True))
        assert more == [0, 2], "both are with the worker that has the queue"
    for one in opened:
        one.close()


@pytest.mark.slow
def test_a_websocket_is_served_where_it_came_whichever_worker_has_the_queue(broker: BrokerProcess) -> None:
    for queue in QUEUES:
        with ServiceBusClient.from_connection_string(
            broker.connection_string,
            transport_type=TransportType.AmqpOverWebsocket,
            custom_endpoint_address=f"sb://localhost:{broker.port}",
            retry_total=0,
        ) as client:
            with client.get_queue_sender(queue) as sender:
                sender.send_messages(ServiceBusMessage(queue))
            with client.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver:
                assert [str(one) for one in receiver.receive_messages(1, max_wait_time=10)] == [queue]


def test_a_connection_that_turns_to_a_second_queue_stays_and_its_link_is_carried(broker: BrokerProcess) -> None:
    with Raw(broker.port) as client:
        for queue in QUEUES:
            client.feed(queue, "one")
        for queue in QUEUES:
            assert [arrival.text for arrival in client.receiver(queue, delete=True).receive()] == ["one"]


def test_a_connection_that_heard_what_no_other_worker_would_say_stays_and_is_carried(broker: BrokerProcess) -> None:
    for queue in QUEUES:
        for _ in range(2):
            with Raw(broker.port, user="", password="") as client:
                assert client.put_token(queue, "nonsense")[0] == 401, "with a tracking id that exists once"
                assert client.put_token(queue, token_for(broker.port, queue))[0] == 202
                client.feed(queue, "one")
                assert [arrival.text for arrival in client.receiver(queue, delete=True).receive()] == ["one"]


def test_two_attaches_in_one_breath_are_both_answered(broker: BrokerProcess) -> None:
    for first, second in (("a", "b"), ("b", "a"), ("c", "d"), ("a", "c")):
        for _ in range(2):
            with Raw(broker.port) as client:
                one, two = End(), End()
                client.session.attach_sender("one", amqp.Terminus("here"), amqp.Terminus(first), one)
                client.session.attach_sender("two", amqp.Terminus("here"), amqp.Terminus(second), two)
                client.until(lambda one=one, two=two: one.attached and two.attached)  # type: ignore[misc]


def test_an_entity_created_on_one_worker_is_there_on_all_when_the_request_is_answered(broker: BrokerProcess) -> None:
    administrator = administration(broker)
    for number in range(4):
        name = f"made-{number}"
        administrator.create_queue(name)
        for _ in range(2):
            with Raw(broker.port) as client:
                client.feed(name, "one")
        assert administrator.get_queue_runtime_properties(name).active_message_count == 2, "counted by whoever has it"
        properties = administrator.get_queue(name)
        properties.max_delivery_count = 3
        administrator.update_queue(properties)
        administrator.delete_queue(name)
        for _ in range(2):
            with Raw(broker.port) as client, pytest.raises(Refused, match="could not be found"):
                client.sender(name)


def test_topics_sessions_and_forwarding_work_over_workers(broker: BrokerProcess) -> None:
    for number in range(2):
        with Raw(broker.port) as client:
            client.feed("t", f"t{number}")
            client.feed("sessions", f"s{number}", session_id="one")
            client.feed("onward", f"f{number}")
    for subscription in ("s", "u"):
        with Raw(broker.port) as client:
            got = client.receiver(f"t/Subscriptions/{subscription}", delete=True).receive(2)
            assert [arrival.text for arrival in got] == ["t0", "t1"]
    with Raw(broker.port) as client:
        assert [arrival.text for arrival in client.receiver("sessions", session=None).receive(2)] == ["s0", "s1"]
        assert [arrival.text for arrival in client.receiver("a", delete=True).receive(2)] == ["f0", "f1"]


def test_a_partitioned_queue_gives_back_everything_that_was_sent_from_anywhere(broker: BrokerProcess) -> None:
    sent = set()
    for number in range(4):
        with Raw(broker.port) as client:
            for key in range(5):
                body = f"{number}-{key}"
                annotations = {"x-opt-partition-key": f"key-{key}"} if key else {}
                client.feed("spread", body, message_annotations=annotations)
                sent.add(body)
    with Raw(broker.port) as client:
        assert {arrival.text for arrival in client.receiver("spread", delete=True).receive(len(sent))} == sent


def test_a_partitioned_queue_is_with_all_workers_and_counted_looked_at_and_read_as_one(broker: BrokerProcess) -> None:
    keyed = [{"message_annotations": {"x-opt-partition-key": f"key-{number}"}} for number in range(8)]
    for number in range(8):
        with Raw(broker.port) as client:
            client.feed("spread", str(number), **keyed[number])
    with Raw(broker.port) as client:
        numbers = [one.message_annotations[amqp.Symbol("x-opt-sequence-number")] for one in client.peek("spread")]
        assert numbers == sorted(numbers) and len(numbers) == 8
        assert len({(number >> 48) % 2 for number in numbers}) == 2, "both workers have some"
    administrator = administration(broker)
    assert administrator.get_queue_runtime_properties("spread").active_message_count == 8
    assert over_http(broker, "POST", "spread/messages", b"8")[0] == 201
    seen = []
    for number in range(9):  # over HTTP, which the first worker answers
        status, body, location = over_http(broker, "POST", "spread/messages/head?timeout=5", b"")
        seen.append(body.decode())
        assert status == 201
        if number % 2:
            assert over_http(broker, "POST", location.partition(f":{broker.port}/")[2], b"")[0] == 200  # renewed
        assert over_http(broker, "DELETE", location.partition(f":{broker.port}/")[2])[0] == 200
    assert sorted(seen) == [str(number) for number in range(9)]
    assert administrator.get_queue_runtime_properties("spread").active_message_count == 0


def test_a_selector_chooses_and_a_browser_looks_whichever_worker_has_the_fragments(broker: BrokerProcess) -> None:
    administrator = administration(broker)
    administrator.create_topic("chosen", enable_partitioning=True)
    administrator.create_subscription("chosen", "s")
    sent = [str(number) for number in range(12)]
    for target, source in (("spread", "spread"), ("chosen", "chosen/Subscriptions/s")):
        with Raw(broker.port) as client:
            for number in range(12):
                annotations = {"x-opt-partition-key": f"key-{number}"}
                client.feed(target, str(number), message_annotations=annotations, application_properties={"third": number % 3 == 0})
        for _ in range(2):  # connections go to the workers in turn
            with Raw(broker.port) as client:
                browser = attach(client, source, {}, mode="copy")
                seen = [*browser.drain(1), *browser.drain(4), *browser.drain(50)]
                assert sorted(texts(seen)) == sorted(sent)
        found: list[str] = []
        for _ in range(2):
            with Raw(broker.port) as client:
                receiver = select(client, "third", source)
                for arrival in receiver.receive(2):
                    receiver.settle(arrival, amqp.ACCEPTED)
                    found.append(arrival.text)
        assert sorted(found, key=int) == ["0", "3", "6", "9"]
        with Raw(broker.port) as client:
            assert select(client, "third", source).drain(10) == []
            rest = texts(client.receiver(source, delete=True).receive(8))
            assert sorted([*found, *rest]) == sorted(sent)
    administrator.delete_topic("chosen")


@pytest.mark.slow
def test_the_destinations_of_a_partitioned_backlog_queue_are_counted_at_all_workers(broker: BrokerProcess) -> None:
    backlog = "contoso/x-servicebus-transfer/7"
    administrator = administration(broker)
    administrator.create_queue(backlog, enable_partitioning=True)
    with Raw(broker.port) as client:
        for number in range(2_100):  # more than one answer is about
            annotations = {"x-opt-partition-key": f"key-{number % 40}"}
            client.feed(backlog, "", message_annotations=annotations, application_properties={"x-ms-path": f"to-{number % 3}"})
    counted: dict[str, int] = {}
    start: str | None = "0"
    while start is not None:
        body = json.dumps({"path": backlog, "from": start}).encode()
        told = json.loads(over_http(broker, "POST", "$tandem/api/outage/destinations", body)[1])
        for path, one in told["destinations"].items():
            counted[path] = counted.get(path, 0) + one["messages"]
        start = told["next"]
    assert counted == {"to-0": 700, "to-1": 700, "to-2": 700}
    administrator.delete_queue(backlog)


def test_a_partitioned_topic_gives_every_subscription_everything_from_whichever_worker(broker: BrokerProcess) -> None:
    administrator = administration(broker)
    administrator.create_topic("wide", enable_partitioning=True)
    for name in ("s", "u"):
        administrator.create_subscription("wide", name)
    for number in range(6):
        with Raw(broker.port) as client:
            client.feed("wide", str(number), message_annotations={"x-opt-partition-key": f"key-{number}"} if number % 2 else {})
    for name in ("s", "u"):
        with Raw(broker.port) as client:
            got = client.receiver(f"wide/Subscriptions/{name}", delete=True).receive(6)
            assert sorted(arrival.text for arrival in got) == [str(number) for number in range(6)]
    administrator.delete_topic("wide")


def test_messages_are_forwarded_from_worker_to_worker_whatever_forwards_where(broker: BrokerProcess) -> None:
    administrator = administration(broker)
    for number in range(4):  # one after the other in the stores, and so on both workers
        administrator.create_queue(f"end-{number}")
    for number in range(4):
        administrator.create_queue(f"begin-{number}", forward_to=f"end-{(number + 1) % 4}")
    administrator.create_queue("into-spread", forward_to="spread")
    administrator.create_queue("wide-source", enable_partitioning=True, forward_to="end-0")
    for number in range(4):
        with Raw(broker.port) as client:
            client.feed(f"begin-{number}", f"n{number}")
            client.feed("wide-source", f"w{number}", message_annotations={"x-opt-partition-key": f"key-{number}"})
            client.feed("into-spread", f"s{number}", message_annotations={"x-opt-partition-key": f"key-{number}"})
    with Raw(broker.port) as client:
        for number in range(1, 4):
            assert [arrival.text for arrival in client.receiver(f"end-{number}", delete=True).receive()] == [f"n{number - 1}"]
        got = sorted(arrival.text for arrival in client.receiver("end-0", delete=True).receive(5))
        assert got == ["n3", "w0", "w1", "w2", "w3"]
        assert sorted(arrival.text for arrival in client.receiver("spread", delete=True).receive(4)) == ["s0", "s1", "s2", "s3"]
    for name in ("into-spread", "wide-source", *(f"begin-{n}" for n in range(4)), *(f"end-{n}" for n in range(4))):
        administrator.delete_queue(name)


def test_what_a_target_of_another_worker_does_not_take_is_set_aside_with_the_reason(broker: BrokerProcess) -> None:
    administrator = administration(broker)
    for number in range(2):
        administrator.create_queue(f"strict-{number}", requires_session=True)
    for number in range(2):
        administrator.create_queue(f"loose-{number}", forward_to=f"strict-{1 - number}")
    for number in range(2):
        with Raw(broker.port) as client:
            client.feed(f"loose-{number}", "without a session")
            (arrival,) = client.receiver(f"loose-{number}/$Transfer/$DeadLetterQueue", delete=True).receive()
            assert arrival.message.application_properties["DeadLetterReason"] == "Session ID is null"
    for number in range(2):
        administrator.delete_queue(f"loose-{number}")
        administrator.delete_queue(f"strict-{number}")


def test_a_rule_added_over_amqp_reaches_the_worker_that_has_the_topic(broker: BrokerProcess) -> None:
    for number in range(2):
        with Raw(broker.port) as client:
            rule = {"sql-filter": {"expression": f"n = {number}"}, "sql-rule-action": None}
            body = {"rule-name": f"rule-{number}", "rule-description": rule}
            assert client.request("t/Subscriptions/u", "com.microsoft:add-rule", body)[0] == 200
    names = {rule.name for rule in administration(broker).list_rules("t", "u")}
    assert {"rule-0", "rule-1"} <= names
    with Raw(broker.port) as client:
        for number in range(2):
            assert client.request("t/Subscriptions/u", "com.microsoft:remove-rule", {"rule-name": f"rule-{number}"})[0] == 200


def test_messages_go_over_http_to_and_from_every_queue(broker: BrokerProcess) -> None:
    for queue in QUEUES:
        for number in range(2):
            assert over_http(broker, "POST", f"{queue}/messages", f"{queue}{number}".encode())[0] == 201
        for number in range(2):
            status, body, location = over_http(broker, "POST", f"{queue}/messages/head?timeout=5", b"")
            assert (status, body) == (201, f"{queue}{number}".encode())
            assert over_http(broker, "DELETE", location.partition(f":{broker.port}/")[2])[0] == 200


def test_health_and_connections_are_those_of_all_workers(broker: BrokerProcess) -> None:
    found = health(broker)
    assert found["status"] == "ok"
    namespaces: object = found["namespaces"]
    assert isinstance(namespaces, list)
    assert [store["state"] for store in namespaces[0]["stores"]] == ["up"] * 4
    with Raw(broker.port) as one, Raw(broker.port) as two:
        one.sender("a")
        two.sender("b")
        _, body, _ = over_http(broker, "GET", "$tandem/connections")
        peers = {connection["peer"] for connection in json.loads(body)["connections"]}
        mine = {f"127.0.0.1:{client.socket.getsockname()[1]}" for client in (one, two)}
        assert mine <= peers


def test_a_client_whose_link_is_carried_is_one_connection(broker: BrokerProcess) -> None:
    def count() -> tuple[int, int]:
        namespaces: Any = health(broker)["namespaces"]
        page = over_http(broker, "GET", "$tandem/metrics")[1].decode().splitlines()
        return namespaces[0]["connections"], sum(int(float(line.split()[-1])) for line in page if line.startswith("tandem_connections{"))

    wait_until(lambda: count() == (0, 0), "all clients to be gone")
    with Raw(broker.port) as client:
        client.sender("a")
        client.sender("b")  # of another worker than the first, whichever that is
        assert count() == (1, 1)


def test_metrics_are_those_of_all_workers_and_say_whose(broker: BrokerProcess) -> None:
    _, page, _ = over_http(broker, "GET", "$tandem/metrics")
    lines = page.decode().splitlines()
    for worker in ("worker-0", "worker-1"):
        assert any(line.startswith("tandem_connections{") and f'worker="{worker}"' in line for line in lines)
    for queue in QUEUES:
        of_it = [line for line in lines if line.startswith("tandem_size_bytes{") and f'entity="{queue}"' in line]
        assert len(of_it) == 1, "told by the worker that has it"


@pytest.mark.slow
def test_locks_of_a_partitioned_queue_are_listed_and_released_whichever_worker_has_them(broker: BrokerProcess) -> None:
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_sender("spread") as sender:
            for number in range(12):
                sender.send_messages(ServiceBusMessage(f"{number}", partition_key=f"{number}"))
        with client.get_queue_receiver("spread") as receiver:
            got: list[Any] = []
            while len(got) < 12:
                got += receiver.receive_messages(12 - len(got), max_wait_time=20)
            numbers = sorted(message.sequence_number for message in got)
            listed = json.loads(over_http(broker, "GET", "$tandem/locks/spread")[1])
            assert sorted(one["sequence_number"] for one in listed["locks"]) == numbers and listed["total"] == 12
            named = "&".join(f"seq={number}" for number in numbers[:6])
            assert json.loads(over_http(broker, "DELETE", f"$tandem/locks/spread?{named}")[1])["released"] == 6
            assert json.loads(over_http(broker, "GET", "$tandem/locks/spread")[1])["total"] == 6
            assert json.loads(over_http(broker, "DELETE", "$tandem/locks/spread?all=true")[1])["released"] == 6
            with pytest.raises(urllib.error.HTTPError, match="404"):
                over_http(broker, "DELETE", f"$tandem/locks/spread?seq={numbers[-1]}")
        with client.get_queue_receiver("spread") as receiver:
            left = 12
            while left:
                for message in receiver.receive_messages(left, max_wait_time=20):
                    receiver.complete_message(message)
                    left -= 1


def test_the_joined_metrics_are_valid_openmetrics_and_add_up(broker: BrokerProcess) -> None:
    address = f"http://127.0.0.1:{broker.port}/$tandem/metrics"
    request = urllib.request.Request(address, headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        families = {family.name: family for family in read_openmetrics(answer.read().decode())}
    assert {sample.labels["worker"]: sample.value for sample in families["tandem_worker_up"].samples} == {"worker-0": 1, "worker-1": 1}
    assert families["tandem_operations"].type == "counter" and families["tandem_loop_lag_seconds"].type == "histogram"
    assert all("worker" in sample.labels for family in families.values() for sample in family.samples)
    if shutil.which("promtool") is not None:
        page = over_http(broker, "GET", "$tandem/metrics")[1]
        checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, b"")


def test_top_adds_up_what_all_workers_have(broker: BrokerProcess) -> None:
    with Raw(broker.port) as client:
        for queue in ("a", "b"):
            client.feed(queue, "seen in top")
    command = [sys.executable, "-m", "tandem", "top", "--once", "--json", "--every", "0.2"]
    environ = {**os.environ, "TANDEM_CONNECTION_STRING": broker.connection_string}
    shown = json.loads(subprocess.check_output(command, text=True, env=environ, cwd=broker.directory))
    rows = {row["entity"]: row for row in shown["entities"]}
    assert rows["a"]["active"] == rows["b"]["active"] == 1
    assert shown["stores"] == [f"store-{number} up" for number in range(4)]
    for queue in ("a", "b"):
        assert over_http(broker, "DELETE", f"{queue}/messages/head?timeout=5")[0] == 200


@pytest.mark.slow
def test_a_worker_that_is_killed_takes_its_stores_along_and_brings_them_back(tmp_path: Path) -> None:
    with start(tmp_path / "broker") as broker:
        where = {}
        for queue in QUEUES:
            with Raw(broker.port) as client:
                client.feed(queue, "kept")
            where[queue] = queue
        victim = pids(broker)[1]
        clients = [Raw(broker.port) for _ in range(2)]
        senders = [client.sender("a") for client in clients]
        assert senders
        os.kill(victim, signal.SIGKILL)
        for queue in QUEUES:
            for _ in range(2):
                while True:  # a connection may meet the dead worker, or one that is not back yet; attaches are held meanwhile
                    try:
                        with Raw(broker.port) as client:
                            client.feed(queue, "more")
                            break
                    except (Refused, ConnectionError):
                        time.sleep(0.05)
        for queue in QUEUES:
            with Raw(broker.port) as client:
                assert [arrival.text for arrival in client.receiver(queue, delete=True).receive(3)] == ["kept", "more", "more"]
        log = (tmp_path / "broker" / "log").read_text()
        assert "worker-1 ended with signal 9: its stores are away until it is back" in log
        assert "worker-1 is back" in log
        for client in clients:
            client.close()
        assert broker.stop()[0] == 0


IMPATIENT = """
from tandem.cli import workers
from tandem.cli.main import main
workers._SILENT_BEATS, workers._HUNG_BEATS, workers._HUNG_BEATS_AT_THE_END = 2, 8, 4
main()
"""


class ImpatientBroker(BrokerProcess):
    program = ("-c", IMPATIENT)


@pytest.mark.slow
def test_a_worker_that_hangs_is_killed_and_comes_back_and_keeps_nobody_from_stopping(tmp_path: Path) -> None:
    with start(tmp_path, kind=ImpatientBroker) as broker:
        _, hung = pids(broker)
        os.kill(hung, signal.SIGSTOP)
        log = tmp_path / "log"
        wait_until(lambda: "worker-1 does not answer: it is given no new connections" in log.read_text(), log.read_text)
        for _ in range(6):
            with socket.create_connection(("127.0.0.1", broker.port), timeout=30) as taken:  # by the other, whichever turn it is
                taken.sendall(b"AMQP\x03\x01\x00\x00")
                assert taken.recv(8) == b"AMQP\x03\x01\x00\x00"
        wait_until(lambda: "worker-1 is back" in log.read_text(), log.read_text)
        assert "worker-1 has not answered for 8 s and is killed" in log.read_text()
        with (
            ServiceBusClient.from_connection_string(broker.connection_string) as client,
            client.get_queue_sender("a") as sender,
            client.get_queue_sender("b") as other,
        ):
            sender.send_messages(ServiceBusMessage("x"))
            other.send_messages(ServiceBusMessage("x"))
        (again,) = (pid for pid in children(broker.process.pid) if pid not in pids(broker))
        os.kill(again, signal.SIGSTOP)
        assert broker.stop()[0] == 0


@pytest.mark.slow
def test_administration_does_not_wait_for_a_worker_that_hangs(tmp_path: Path) -> None:
    with start(tmp_path / "broker") as broker:
        _, hung = pids(broker)
        os.kill(hung, signal.SIGSTOP)
        log = tmp_path / "broker" / "log"
        try:
            wait_until(lambda: "it is given no new connections" in log.read_text(), log.read_text)
            assert over_http(broker, "GET", "a?api-version=2021-05")[0] == 200, "what another worker has"
            for path in ("b", "$Resources/queues"):
                began = time.monotonic()
                with pytest.raises(urllib.error.HTTPError) as refused:
                    over_http(broker, "GET", f"{path}?api-version=2021-05")
                assert (refused.value.code, time.monotonic() - began < 15) == (408, True)
                assert "Node 'worker-1' did not answer. One that hangs is given up, or started again" in refused.value.read().decode()
            began = time.monotonic()
            entry = QUEUE_ENTRY.encode()
            assert over_http(broker, "PUT", "new?api-version=2021-05", entry)[0] == 201 and time.monotonic() - began < 10
        finally:
            os.kill(hung, signal.SIGCONT)
        wait_until(lambda: over_http(broker, "GET", "b?api-version=2021-05")[0] == 200, log.read_text)


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_told_to_stop_all_workers_drain_and_nothing_is_left(tmp_path: Path) -> None:
    with start(tmp_path / "broker") as broker:
        workers = pids(broker)
        with Raw(broker.port) as client:
            client.feed("a", "kept")
            assert broker.stop()[0] == 0
        for pid in workers:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
        assert (tmp_path / "broker" / "log").read_text().count("drained in") == 2
    with start(tmp_path / "broker") as broker, Raw(broker.port) as client:
        assert [arrival.text for arrival in client.receiver("a", delete=True).receive()] == ["kept"]


@pytest.mark.slow
def test_workers_end_with_whoever_started_them_and_hold_the_data_directory_until_then(tmp_path: Path) -> None:
    with start(tmp_path / "broker") as broker:
        workers = pids(broker)
        os.kill(workers[1], signal.SIGSTOP)
        broker.process.kill()
        broker.process.wait(20)
        second = BrokerProcess(tmp_path / "broker", "--port", "0", "--data", "data", "--dev")
        with pytest.raises(AssertionError, match="is in use by another broker"), second:
            pass
        os.kill(workers[1], signal.SIGCONT)
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--memory", "--workers", "2"), "workers: they share a data directory"),
        (("--data", "data", "--workers", "5"), "each needs a store and there are 4"),
        (("--data", "data", "--workers", "0"), "--workers: found 0; allowed is"),
    ],
)
def test_what_workers_cannot_do_is_said_before_anything_starts(tmp_path: Path, arguments: tuple[str, ...], why: str) -> None:
    with pytest.raises(AssertionError, match=why), BrokerProcess(tmp_path, "--port", "0", "--dev", *arguments):
        pass


def test_a_worker_that_cannot_start_ends_all_with_its_reason_and_a_code(tmp_path: Path) -> None:
    (tmp_path / "data" / "tandem" / "store-1" / "store.json").mkdir(parents=True)
    broker = BrokerProcess(tmp_path, "--port", "0", "--data", "data", "--dev", "--workers", "2")
    with pytest.raises(AssertionError, match="ended with 2 before it was ready: tandem: "), broker:
        pass


def test_a_long_directory_for_temporary_files_is_no_obstacle(tmp_path: Path) -> None:
    deep = tmp_path / ("t" * 110)
    deep.mkdir()
    with BrokerProcess(tmp_path, "--port", "0", "--data", "data", "--dev", "--workers", "2", environ={"TMPDIR": str(deep)}):
        assert not list(deep.iterdir())


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        broker = BrokerProcess(tmp_path, "--port", port, "--data", "data", "--dev", "--workers", "2")
        with pytest.raises(AssertionError, match=f"cannot listen on 127.0.0.1:{port}"), broker:
            pass


def test_stores_are_spread_evenly() -> None:
    assert assign_stores(4, 2) == (0, 1, 0, 1)
    assert assign_stores(5, 2) == (0, 1, 0, 1, 0)
