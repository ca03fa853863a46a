"""The administration client of the Python SDK against a broker process, where the service's own tests say what it must see."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ResourceNotFoundError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.cli.broker_process import BrokerProcess

NEVER = datetime(1, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    (module_path / "tandem.toml").write_text(
        """
        [[authorization_rule]]
        name = "worker"
        rights = ["Send", "Listen"]
        primary_key = "worker-key"
        """
    )
    with BrokerProcess(module_path, "--port", "0", "--data", "data", "--dev") as broker:
        yield broker


@pytest.fixture(scope="module")
def client(broker: BrokerProcess) -> Iterator[ServiceBusAdministrationClient]:
    with ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=broker.line("CA file:")
    ) as client:
        yield client


def test_a_subscription_was_accessed_when_it_was_created_until_somebody_uses_it(client: ServiceBusAdministrationClient) -> None:
    """A queue or topic that nobody used has no such date: the service's own tests want it so."""
    client.create_queue("unused")
    client.create_topic("events")
    client.create_subscription("events", "all")
    seen = client.get_subscription_runtime_properties("events", "all")
    assert seen.accessed_at_utc == seen.created_at_utc
    assert client.get_queue_runtime_properties("unused").accessed_at_utc == NEVER
    assert client.get_topic_runtime_properties("events").accessed_at_utc == NEVER


def test_a_partitioned_entity_reports_the_size_of_all_its_partitions(client: ServiceBusAdministrationClient) -> None:
    client.create_queue("wide", enable_partitioning=True, max_size_in_megabytes=2048)
    client.create_topic("wide-topic", enable_partitioning=True)
    queue, topic = client.get_queue("wide"), client.get_topic("wide-topic")
    assert (queue.max_size_in_megabytes, topic.max_size_in_megabytes) == (16 * 2048, 16 * 1024)
    client.update_queue(queue, max_delivery_count=3)  # which sends back the size it read
    client.update_topic(topic)
    assert client.get_queue("wide").max_size_in_megabytes == 16 * 2048
    assert client.get_topic("wide-topic").max_size_in_megabytes == 16 * 1024
    client.update_queue(client.get_queue("wide"), max_size_in_megabytes=1024)
    assert client.get_queue("wide").max_size_in_megabytes == 16 * 1024


def test_what_cannot_be_changed_is_said_in_the_words_programs_look_for(client: ServiceBusAdministrationClient) -> None:
    queue = client.create_queue("fixed")
    queue.requires_session = True
    with pytest.raises(HttpResponseError, match="The value for the RequiresSession property of an existing Queue cannot be changed"):
        client.update_queue(queue)
    topic = client.create_topic("fixed-topic")
    topic.enable_partitioning = True
    with pytest.raises(HttpResponseError, match=r"Partitioning cannot be changed for Topic\. "):
        client.update_topic(topic)
    subscription = client.create_subscription("fixed-topic", "s")
    subscription.requires_session = True
    with pytest.raises(HttpResponseError, match="The value for the RequiresSession property of an existing Subscription cannot be changed"):
        client.update_subscription("fixed-topic", subscription)


def test_names_may_have_tildes_and_slashes(client: ServiceBusAdministrationClient, broker: BrokerProcess) -> None:
    """As libraries that name entities after types and machines have them: a topic of messages, whose subscription forwards to a queue."""
    client.create_queue("shop~v2/order-service")
    client.create_topic("shop.messages~1/order--submitted")
    client.create_subscription("shop.messages~1/order--submitted", "order-service", forward_to="shop~v2/order-service")
    assert client.get_queue("shop~v2/order-service").name == "shop~v2/order-service"
    with ServiceBusClient.from_connection_string(broker.connection_string) as messages:
        with messages.get_topic_sender("shop.messages~1/order--submitted") as sender:
            sender.send_messages(ServiceBusMessage("an order"))
        with messages.get_queue_receiver("shop~v2/order-service") as receiver:
            assert [str(message) for message in receiver.receive_messages(max_wait_time=30)] == ["an order"]


def test_who_may_only_send_and_receive_is_told_what_is_not_there_and_refused_the_rest(
    client: ServiceBusAdministrationClient, broker: BrokerProcess
) -> None:
    """In the words that the Go client's own tests look for."""
    client.create_queue("guarded")
    with ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string.replace("RootManageSharedAccessKey", "worker").replace("SAS_KEY_VALUE", "worker-key"),
        connection_verify=broker.line("CA file:"),
    ) as worker:
        with pytest.raises(ResourceNotFoundError):
            worker.get_queue("not-there")
        with pytest.raises(ClientAuthenticationError, match="Manage,EntityRead claims required for this operation"):
            worker.get_queue("guarded")
        with pytest.raises(ClientAuthenticationError, match="Authorization failed for specified action: Manage,EntityWrite"):
            worker.create_queue("not-there")
        with pytest.raises(ClientAuthenticationError, match="Authorization failed for specified action: Manage,EntityDelete"):
            worker.delete_queue("not-there")
        with pytest.raises(ClientAuthenticationError):
            worker.get_subscription("not-there", "either")
