"""Any node takes any client: what it does not serve is carried, what another node made is known, and a dead owner is followed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.cli.broker_process import BrokerProcess
from tests.cluster.nodes import Cluster, metrics_of, receive_all, sender_of, try_send, until


@pytest.fixture
def cluster(tmp_path: Path, cluster_dsn: str) -> Iterator[Cluster]:
    made = Cluster(tmp_path, cluster_dsn, peers=True)
    yield made
    made.close()


def administration_of(broker: BrokerProcess) -> ServiceBusAdministrationClient:
    trusted = str(broker.directory / broker.line("CA file:"))
    return ServiceBusAdministrationClient.from_connection_string(broker.connection_string, connection_verify=trusted)


@pytest.mark.slow
def test_a_client_of_a_node_that_serves_nothing_sends_and_receives_and_goes_on_after_the_owner_died(cluster: Cluster) -> None:
    owner = cluster.start("a")
    other = cluster.start("b")
    with sender_of(other.connection_string) as send:
        for number in range(10):
            send(f"{number}")
    assert 'tandem_cluster_serves{namespace="tandem",store="0"} 1.0' in metrics_of(owner)
    said = metrics_of(other)
    assert 'tandem_cluster_serves{namespace="tandem",store="0"} 0.0' in said
    assert "tandem_cluster_nodes 2.0" in said
    with (
        ServiceBusClient.from_connection_string(other.connection_string) as client,
        client.get_queue_receiver("q", max_wait_time=5) as receiver,
    ):
        taken = receiver.receive_messages(4, max_wait_time=5)
        for message in taken:
            receiver.complete_message(message)
    owner.process.kill()
    until(lambda: try_send(other.connection_string, "after"))
    assert sorted(receive_all(other.connection_string)) == sorted([*map(str, range(len(taken), 10)), "after"])
    until(lambda: "tandem_cluster_takeovers_total 4.0" in metrics_of(other))


@pytest.mark.slow
def test_what_is_made_at_one_node_is_there_at_the_others_at_once(cluster: Cluster) -> None:
    owner = cluster.start("a")
    other = cluster.start("b")
    with administration_of(other) as administration:
        administration.create_queue("made-at-b", lock_duration="PT17S")
        administration.create_topic("t")
        administration.create_subscription("t", "s")
    with (
        ServiceBusClient.from_connection_string(other.connection_string) as client,
        client.get_topic_sender("t") as sender,
        client.get_subscription_receiver("t", "s", max_wait_time=5) as receiver,
    ):
        sender.send_messages(ServiceBusMessage("x"))
        assert [str(message) for message in receiver.receive_messages(1, max_wait_time=5)] == ["x"]
    assert try_send(other.connection_string, "one", "made-at-b")
    assert receive_all(owner.connection_string, "made-at-b") == ["one"]
    with administration_of(owner) as administration:
        assert administration.get_queue("made-at-b").lock_duration.total_seconds() == 17
        administration.delete_queue("made-at-b")
    until(lambda: not try_send(other.connection_string, "two", "made-at-b"))
    owner.process.kill()
    until(lambda: try_send(other.connection_string, "three"))
    with administration_of(other) as administration:
        assert {queue.name for queue in administration.list_queues()} == {"q", "sessions"}
