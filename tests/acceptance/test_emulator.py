"""A user of the official emulator changes nothing but the program; several namespaces live in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.cli.broker_process import BrokerProcess

CONFIG = {
    "UserConfig": {
        "Namespaces": [
            {
                "Name": "sbemulatorns",
                "Queues": [
                    {
                        "Name": "queue.1",
                        "Properties": {
                            "DeadLetteringOnMessageExpiration": False,
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "ForwardDeadLetteredMessagesTo": "",
                            "ForwardTo": "",
                            "LockDuration": "PT1M",
                            "MaxDeliveryCount": 3,
                            "RequiresDuplicateDetection": False,
                            "RequiresSession": False,
                        },
                    }
                ],
                "Topics": [
                    {
                        "Name": "topic.1",
                        "Properties": {
                            "DefaultMessageTimeToLive": "PT1H",
                            "DuplicateDetectionHistoryTimeWindow": "PT20S",
                            "RequiresDuplicateDetection": False,
                        },
                        "Subscriptions": [
                            {
                                "Name": "subscription.1",
                                "Properties": {"LockDuration": "PT1M", "MaxDeliveryCount": 3, "RequiresSession": False},
                                "Rules": [
                                    {
                                        "Name": "app-prop-filter-1",
                                        "Properties": {
                                            "FilterType": "Correlation",
                                            "CorrelationFilter": {"ContentType": "application/text", "Properties": {"prop1": "value1"}},
                                        },
                                    }
                                ],
                            },
                            {"Name": "subscription.2", "Properties": {"MaxDeliveryCount": 3}},
                        ],
                    }
                ],
            }
        ],
        "Logging": {"Type": "File"},
    }
}


def bodies(client: ServiceBusClient, topic: str, subscription: str) -> list[str]:
    with client.get_subscription_receiver(topic, subscription) as receiver:
        return [str(message) for message in receiver.receive_messages(10, max_wait_time=2)]


def test_config_json_as_it_is_with_state_that_survives_a_kill(tmp_path: Path) -> None:
    (tmp_path / "Config.json").write_text(json.dumps(CONFIG))
    arguments = ("--port", "0", "--dev", "--data", "data", "--config", "Config.json")
    with BrokerProcess(tmp_path, *arguments) as broker:
        assert "SharedAccessKey=SAS_KEY_VALUE" in broker.connection_string
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            with client.get_queue_sender("queue.1") as sender:
                sender.send_messages(ServiceBusMessage("kept"))
            with client.get_topic_sender("topic.1") as sender:
                sender.send_messages(
                    ServiceBusMessage("wanted", content_type="application/text", application_properties={"prop1": "value1"})
                )
                sender.send_messages(ServiceBusMessage("other", application_properties={"prop1": "value2"}))
    with BrokerProcess(tmp_path, *arguments) as broker:
        with ServiceBusClient.from_connection_string(broker.connection_string) as client:
            with client.get_queue_receiver("queue.1") as receiver:
                assert [str(m) for m in receiver.receive_messages(1, max_wait_time=5)] == ["kept"]
            assert bodies(client, "topic.1", "subscription.1") == ["wanted"]
            assert bodies(client, "topic.1", "subscription.2") == ["wanted", "other"]
        ca = tmp_path / "data" / "ca.pem"
        admin = ServiceBusAdministrationClient.from_connection_string(broker.connection_string, connection_verify=str(ca))
        assert admin.get_queue("queue.1").max_delivery_count == 3
        assert [queue.name for queue in admin.list_queues()] == ["queue.1"]


TWO = """
[[namespace]]
name = "east"

[[namespace.queue]]
name = "orders"

[[namespace]]
name = "west"
hosts = ["127.0.0.1"]

[[namespace.queue]]
name = "orders"

[[namespace.queue]]
name = "only-west"
"""


def test_two_namespaces_in_one_process_are_told_apart_by_host_name(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(TWO)
    with BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", "data", "--config", "tandem.toml") as broker:
        strings = [line.partition(": ")[2] for line in broker.lines if line.startswith("connection string")]
        assert ["localhost" in strings[0], "127.0.0.1" in strings[1]] == [True, True]
        east = ServiceBusClient.from_connection_string(strings[0], retry_total=0)
        west = ServiceBusClient.from_connection_string(strings[1], retry_total=0)
        with east.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("to the east"))
        with west.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("to the west"))
        with west.get_queue_receiver("orders") as receiver:
            assert [str(m) for m in receiver.receive_messages(5, max_wait_time=2)] == ["to the west"]
        with east.get_queue_receiver("orders") as receiver:
            assert [str(m) for m in receiver.receive_messages(5, max_wait_time=2)] == ["to the east"]
        with west.get_queue_sender("only-west") as sender:
            sender.send_messages(ServiceBusMessage("here"))
        with pytest.raises(ServiceBusAuthenticationError), east.get_queue_sender("only-west") as sender:
            sender.send_messages(ServiceBusMessage("not here"))
