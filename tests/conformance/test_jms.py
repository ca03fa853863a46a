"""Apache Qpid JMS, unmodified, against a broker process: every story in `tests/java/.../JmsStories.java`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.broker_process import BrokerProcess
from tests.conformance.house import ROOT_KEY, ROOT_NAME
from tests.conformance.jvm import needs_java, run_page, seen, tell

pytestmark = needs_java

QUEUES = ("orders", "plain", "tls", "websocket", "commit-in", "commit-out", "rollback", "recover", "delay", "select", "browse")
CONFIG = "".join(f'[[queue]]\nname = "{name}"\nlock_duration = "5m"\n' for name in QUEUES)
CONFIG += "".join(
    f'[[topic]]\nname = "{name}"\n[[topic.subscription]]\nname = "eu"\n' for name in ("events", "durable-events", "shared-events")
)
CONFIG += '[[queue]]\nname = "grouped"\nrequires_session = true\n'


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    (module_path / "tandem.toml").write_text(CONFIG)
    with BrokerProcess(module_path, "--port", "0", "--data", "data", "--dev", "--config", "tandem.toml") as broker:
        yield broker


@pytest.fixture(scope="module")
def told(broker: BrokerProcess) -> dict[str, Any]:
    return tell(broker, "JmsStories", ROOT_NAME, ROOT_KEY, f"localhost:{broker.port}")


@pytest.mark.parametrize("story", ["send_and_receive", "over_tls", "over_websocket"])
def test_sends_and_receives(told: dict[str, Any], story: str) -> None:
    assert seen(told, story) == ["one", "two"]


def test_a_transacted_session_receives_sends_and_commits_as_one(told: dict[str, Any]) -> None:
    assert seen(told, "committed") == ["order", "order done", True]


def test_after_a_rollback_the_messages_are_there_again_at_once_and_counted(told: dict[str, Any]) -> None:
    assert seen(told, "rolled_back") == [["one", 1, False], ["two", 1, False], ["one", 2, True], ["two", 2, True], True]


def test_a_recovered_session_gets_its_messages_again(told: dict[str, Any]) -> None:
    assert seen(told, "recovered") == ["one", True]


def test_a_delivery_delay_schedules_the_message(told: dict[str, Any]) -> None:
    assert seen(told, "delayed") == ["now", "later", True, True]


def test_selectors_choose_by_headers_and_properties_and_leave_the_rest(told: dict[str, Any]) -> None:
    found = seen(told, "selected")
    assert "Syntax" in found["wrong"] or "selector" in found["wrong"].lower()
    del found["wrong"]
    assert list(found.values()) == ["m0", True, "m1", "m5", "m2", "m4", "m3"]


def test_a_browser_looks_and_takes_nothing(told: dict[str, Any]) -> None:
    assert seen(told, "browsed") == ["one", "two", "three"] * 2


def test_what_only_an_administrator_can_make_is_refused_in_words_that_help_and_the_session_lives_on(told: dict[str, Any]) -> None:
    found = seen(told, "refused")
    for wish in ("temporary_queue", "temporary_topic"):
        assert "Dynamic nodes" in found[wish] and "amqp:not-implemented" in found[wish]
    assert "events/Subscriptions/<name>" in found["topic"] and "amqp:not-implemented" in found["topic"]
    for wish in ("shared", "durable"):
        assert "events/Subscriptions/mine' could not be found. Create it" in found[wish] and "amqp:not-found" in found[wish]
    assert found["after"] == ["one", "two"]


def test_the_program_of_the_guide_runs_as_it_stands(broker: BrokerProcess) -> None:
    environ = {"HOST": f"localhost:{broker.port}", "KEY_NAME": ROOT_NAME, "KEY": ROOT_KEY}
    assert run_page(broker, "jms.md", "Orders", environ) == ["to fr", "to fr", "to it"]


def test_a_subscription_is_received_from_as_a_queue(told: dict[str, Any]) -> None:
    assert seen(told, "subscription") == "told"


def test_a_durable_subscriber_receives_from_the_subscription_of_its_name_and_does_not_delete_it(told: dict[str, Any]) -> None:
    *received, unsubscribing = seen(told, "durable")
    assert received == ["first", "second"]
    assert "amqp:invalid-field" in unsubscribing


def test_shared_consumers_receive_from_the_subscription_of_their_name(told: dict[str, Any]) -> None:
    assert seen(told, "shared") == ["number 2", "number 1"]


def test_a_message_group_is_a_session_which_other_clients_accept(told: dict[str, Any]) -> None:
    body, refused = seen(told, "grouped")
    assert body == "of blue"
    assert "amqp:not-allowed" in refused
