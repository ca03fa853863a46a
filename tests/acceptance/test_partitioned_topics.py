"""Partitioned topics over real stores: publishing goes on while a store is down, and every subscription gets everything in the end."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient, SqlRuleAction, SqlRuleFilter

from tests.acceptance.test_partitions import House

DOWN = ["up", "down", "up", "up"]


class Topics(House):
    def start(self) -> None:
        super().start()
        self.admin = ServiceBusAdministrationClient.from_connection_string(
            self.broker.connection_string, connection_verify=self.broker.line("CA file:")
        )

    def drain(self, topic: str, subscription: str, count: int) -> list[str]:
        got: list[str] = []
        with self.client.get_subscription_receiver(topic, subscription) as receiver:
            while len(got) < count and (messages := receiver.receive_messages(50, max_wait_time=1)):
                for message in messages:
                    got.append(str(message))
                    receiver.complete_message(message)
        return sorted(got)

    def publish(self, topic: str, *names: str, **properties: str) -> None:
        with self.client.get_topic_sender(topic) as sender:
            for name in names:
                sender.send_messages(ServiceBusMessage(name, application_properties=dict(properties)))

    def break_store(self) -> None:
        self.call("POST", "faults", {"kind": "store-down", "store": 1})
        self.await_states(DOWN)

    def heal(self) -> None:
        self.call("DELETE", "faults")
        self.await_states(["up"] * 4)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Topics]:
    house = Topics(tmp_path)
    house.admin.create_topic("news", enable_partitioning=True)
    house.admin.create_subscription("news", "all")
    yield house
    house.kill()


def names(stem: str, count: int = 32) -> list[str]:
    return sorted(f"{stem}-{number:02}" for number in range(count))


def test_publishing_goes_on_while_a_store_is_down_and_every_subscription_gets_everything(house: Topics) -> None:
    house.admin.create_subscription("news", "some")
    house.admin.delete_rule("news", "some", "$Default")
    house.admin.create_rule("news", "some", "wanted", filter=SqlRuleFilter("kind = 'wanted'"))
    house.publish("news", *names("before"), kind="wanted")
    house.break_store()
    house.publish("news", *names("during"), kind="wanted")
    house.publish("news", *names("other"), kind="unwanted")
    assert house.admin.get_topic("news").enable_partitioning
    early = {name: house.drain("news", name, 96) for name in ("all", "some")}
    assert set(names("during")) <= set(early["all"])
    assert len(early["all"]) == 24 + 64
    assert len(early["some"]) == 24 + 32
    house.heal()
    assert sorted(early["all"] + house.drain("news", "all", 8)) == sorted(names("before") + names("during") + names("other"))
    assert sorted(early["some"] + house.drain("news", "some", 8)) == sorted(names("before") + names("during"))


def test_messages_of_all_fragments_survive_a_kill_with_their_numbers(house: Topics) -> None:
    house.publish("news", *names("kept", 40))
    with house.client.get_subscription_receiver("news", "all") as receiver:
        before = [message.sequence_number for message in receiver.peek_messages(100)]
    assert len({number >> 48 for number in before}) == 16
    house.kill()
    house.start()
    with house.client.get_subscription_receiver("news", "all") as receiver:
        assert [message.sequence_number for message in receiver.peek_messages(100)] == before
    assert house.admin.get_subscription_runtime_properties("news", "all").active_message_count == 40
    assert house.drain("news", "all", 40) == names("kept", 40)


def test_what_was_administered_while_a_store_was_down_holds_when_it_is_back(house: Topics) -> None:
    house.admin.create_subscription("news", "leaving")
    house.publish("news", *names("before"))
    house.break_store()
    house.admin.delete_subscription("news", "leaving")
    house.admin.create_subscription("news", "joining")
    house.admin.delete_rule("news", "all", "$Default")
    house.admin.create_rule("news", "all", "none", filter=SqlRuleFilter("1 = 0"))
    house.heal()
    house.publish("news", *names("after"))
    assert house.drain("news", "all", 64) == names("before")
    assert house.drain("news", "joining", 64) == names("after")
    house.kill()
    house.start()
    house.publish("news", *names("later"))
    assert house.drain("news", "joining", 64) == names("later")
    assert house.drain("news", "all", 1) == []


def test_sessions_stay_in_order_also_those_an_action_gave(house: Topics) -> None:
    house.admin.create_subscription("news", "grouped", requires_session=True)
    house.admin.delete_rule("news", "grouped", "$Default")
    house.admin.create_rule(
        "news", "grouped", "regroup", filter=SqlRuleFilter("1 = 1"), action=SqlRuleAction("SET sys.SessionId = 'of ' + colour")
    )
    with house.client.get_topic_sender("news") as sender:
        for number in range(12):
            colour = ("red", "green", "blue")[number % 3]
            sender.send_messages(ServiceBusMessage(f"{number:02}", session_id=str(number), application_properties={"colour": colour}))
    found: dict[str, list[str]] = {}
    for _ in range(3):
        with house.client.get_subscription_receiver("news", "grouped", session_id=NEXT_AVAILABLE_SESSION, max_wait_time=3) as receiver:
            mine = found.setdefault(receiver.session.session_id, [])
            while len(mine) < 4 and (messages := receiver.receive_messages(4, max_wait_time=3)):
                for message in messages:
                    mine.append(str(message))
                    receiver.complete_message(message)
    assert found == {
        "of red": ["00", "03", "06", "09"],
        "of green": ["01", "04", "07", "10"],
        "of blue": ["02", "05", "08", "11"],
    }
    assert len(house.drain("news", "all", 12)) == 12


def test_a_copy_whose_session_is_in_a_store_that_is_down_refuses_the_message_for_all(house: Topics) -> None:
    house.admin.create_subscription("news", "grouped", requires_session=True)
    house.admin.delete_rule("news", "grouped", "$Default")
    house.admin.create_rule("news", "grouped", "regroup", filter=SqlRuleFilter("1 = 1"), action=SqlRuleAction("SET sys.SessionId = colour"))
    house.break_store()
    accepted, refused = [], 0
    with house.client.get_topic_sender("news") as sender:
        for number in range(24):
            try:
                sender.send_messages(ServiceBusMessage(f"{number:02}", application_properties={"colour": f"colour-{number}"}))
                accepted.append(f"{number:02}")
            except ServiceBusError as error:
                assert "TrackingId" in str(error)
                refused += 1
    assert refused
    assert accepted
    assert house.drain("news", "all", 24) == accepted


def test_duplicates_schedules_and_dead_letters_of_a_partitioned_topic(house: Topics) -> None:
    house.admin.create_topic("once", enable_partitioning=True, requires_duplicate_detection=True)
    house.admin.create_subscription("once", "all")
    with house.client.get_topic_sender("once") as sender:
        for number in (*range(20), *range(20)):
            sender.send_messages(ServiceBusMessage(f"{number:02}", message_id=str(number)))
    assert house.drain("once", "all", 21) == [f"{number:02}" for number in range(20)]
    with house.client.get_topic_sender("news") as sender:
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
        numbers = sender.schedule_messages([ServiceBusMessage("later") for _ in range(3)], later)
        assert house.admin.get_topic_runtime_properties("news").scheduled_message_count == 3
        sender.cancel_scheduled_messages(numbers)
        assert house.admin.get_topic_runtime_properties("news").scheduled_message_count == 0
    house.publish("news", "bad")
    with house.client.get_subscription_receiver("news", "all") as receiver:
        (bad,) = receiver.receive_messages(1, max_wait_time=3)
        receiver.dead_letter_message(bad, reason="why")
    with house.client.get_subscription_receiver("news", "all", sub_queue="deadletter") as receiver:
        (dead,) = receiver.receive_messages(1, max_wait_time=3)
        assert dead.dead_letter_reason == "why"
        receiver.complete_message(dead)


def test_a_partitioned_topic_can_be_deleted_and_made_again(house: Topics) -> None:
    house.publish("news", *names("old"))
    house.admin.delete_topic("news")
    house.admin.create_topic("news", enable_partitioning=True)
    house.admin.create_subscription("news", "all")
    house.publish("news", "new")
    assert house.drain("news", "all", 33) == ["new"]
