"""`tandem queue|topic|subscription|rule` against a real broker."""

from __future__ import annotations

import json

import pytest

from tests.cli.broker_process import BrokerProcess
from tests.cli.operations.conftest import Tandem


@pytest.mark.slow
def test_a_queue_is_created_listed_shown_changed_and_deleted(tandem: Tandem) -> None:
    made = json.loads(tandem("queue", "create", "q", "-p", "lock-duration=30s", "-p", "requires-session=true", "--json").stdout)
    assert (made["name"], made["lock_duration"], made["requires_session"], made["active_message_count"]) == ("q", "30s", True, 0)
    changed = json.loads(tandem("queue", "update", "q", "-p", "max-delivery-count=3", "-p", "lock-duration=1m", "--json").stdout)
    assert (changed["max_delivery_count"], changed["lock_duration"], changed["requires_session"]) == (3, "1m", True)
    assert "q" in [one["name"] for one in json.loads(tandem("queue", "list", "--json").stdout)]
    assert "max delivery count" in tandem("queue", "show", "q").stdout
    assert "deleted q" in tandem("queue", "delete", "q", "--yes").stdout
    assert "tandem:" in tandem("queue", "show", "q", expect=2).stderr


def test_what_a_broker_cannot_do_now_is_asked_again_and_then_told(tandem: Tandem, broker: BrokerProcess) -> None:
    metadata = broker.directory / "data" / "tandem" / "metadata.sqlite"
    aside = metadata.rename(metadata.with_name("aside"))
    refused = tandem("queue", "create", "later", expect=2).stderr
    assert "is not the file that was opened; nothing was changed" in refused
    aside.rename(metadata)
    assert "later" in tandem("queue", "create", "later").stdout


def test_a_queue_may_be_made_disabled_and_deleting_asks_first(tandem: Tandem) -> None:
    made = json.loads(tandem("queue", "create", "off", "-p", "status=Disabled", "--json").stdout)
    assert made["status"] == "Disabled"
    tandem("queue", "delete", "off", expect=2, stdin="n\n")
    assert tandem("queue", "show", "off").stdout
    assert "deleted" in tandem("queue", "delete", "off", stdin="y\n").stdout


def test_topics_subscriptions_and_rules_have_the_same_verbs(tandem: Tandem) -> None:
    tandem("topic", "create", "t", "-p", "default-message-time-to-live=1d")
    made = json.loads(tandem("subscription", "create", "t/s", "-p", "max-delivery-count=2", "--json").stdout)
    assert (made["name"], made["max_delivery_count"]) == ("s", 2)
    assert json.loads(tandem("topic", "list", "--json").stdout)[0]["subscription_count"] == 1
    assert [one["name"] for one in json.loads(tandem("subscription", "list", "t", "--json").stdout)] == ["s"]
    tandem("rule", "create", "t/s/large", "--sql", "total > 100", "--action", "SET priority = 'high'")
    tandem("rule", "create", "t/s/mine", "--correlation", "label=created", "--correlation", "region=eu")
    tandem("rule", "delete", "t/s/$Default", "--yes")
    rules = {one["name"]: one for one in json.loads(tandem("rule", "list", "t/s", "--json").stdout)}
    assert rules["large"] == {"name": "large", "filter": "total > 100", "action": "SET priority = 'high'"}
    assert rules["mine"]["filter"] == "label = 'created' and region = 'eu'"
    tandem("rule", "update", "t/s/large", "--sql", "total > 200", "--action", "")
    assert json.loads(tandem("rule", "show", "t/s/large", "--json").stdout) == {"name": "large", "filter": "total > 200", "action": None}
    assert "gets the message" in tandem("rule", "match", "t", "-p", "total=300").stdout


def test_what_is_wrong_is_said_in_a_line_with_what_is_allowed(tandem: Tandem) -> None:
    assert "one of: auto-delete-on-idle" in tandem("queue", "create", "x", "-p", "colour=red", expect=2).stderr
    assert "takes true or false" in tandem("queue", "create", "x", "-p", "requires-session=perhaps", expect=2).stderr
    assert "write topic/subscription" in tandem("subscription", "create", "alone", expect=2).stderr
    assert "one filter" in tandem("rule", "create", "t/s/r", "--sql", "1=1", "--correlation", "a=b", expect=2).stderr
    assert "say what to change" in tandem("queue", "update", "x", expect=2).stderr
