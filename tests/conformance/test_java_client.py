"""The unmodified Java client against a broker process: every story in `tests/java/.../ServiceBusStories.java`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.broker_process import BrokerProcess
from tests.conformance.jvm import needs_java, run_page, seen, tell

pytestmark = needs_java

CONFIG = "".join(f'[[queue]]\nname = "{name}"\n' for name in ("transactions", "rolled-back", "tls", "websocket"))
CONFIG += "".join(f'[[queue]]\nname = "{name}"\nrequires_session = true\n' for name in ("sessions", "processed"))


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    (module_path / "tandem.toml").write_text(CONFIG)
    with BrokerProcess(module_path, "--port", "0", "--data", "data", "--dev", "--config", "tandem.toml") as broker:
        yield broker


@pytest.fixture(scope="module")
def told(broker: BrokerProcess) -> dict[str, Any]:
    return tell(broker, "ServiceBusStories", broker.connection_string, for_tls(broker), str(broker.port))


def for_tls(broker: BrokerProcess) -> str:
    connection_string = broker.connection_string.replace(";UseDevelopmentEmulator=true", "")
    assert "Emulator" not in connection_string
    return connection_string


def test_a_transaction_is_the_first_thing_on_a_connection(told: dict[str, Any]) -> None:
    assert seen(told, "transaction_first") == ["one", "two"]


def test_nothing_of_a_transaction_that_was_rolled_back_has_happened(told: dict[str, Any]) -> None:
    assert seen(told, "transaction_rolled_back") == ["kept"]


def test_sends_and_receives_over_tls(told: dict[str, Any]) -> None:
    assert seen(told, "over_tls") == ["hello"]


def test_sends_and_receives_over_websocket(told: dict[str, Any]) -> None:
    assert seen(told, "over_websocket") == ["hello"]


def test_the_administration_client_works_on_any_port_with_a_policy_of_three_lines(told: dict[str, Any]) -> None:
    assert seen(told, "administration") == {"there": True, "lock": "PT1M", "forward": "made-by-java", "after": False}


def test_sessions_by_id_and_next_with_state_and_deferred_messages(told: dict[str, Any]) -> None:
    found = seen(told, "sessions")
    assert found == {"renewed": True, "next": ["green", ["g1"]], "held": ["b2"], "deferred": "b1", "state": "half way"}


def test_a_session_processor_has_each_session_in_its_order(told: dict[str, Any]) -> None:
    assert seen(told, "session_processor") == {"all": "true", "s0": "012", "s1": "012", "s2": "012", "s3": "012"}


def test_topics_and_rules(told: dict[str, Any]) -> None:
    found = seen(told, "topics_and_rules")
    assert found["rules"] == ["large", "urgent"]
    assert sorted(found["received"]) == ["large null", "urgent seen"]
    assert found["left"] == ["urgent", "urgent", {"country": "fr"}, "SET sys.Label = 'seen'"]


def test_the_program_of_the_guide_runs_as_it_stands(broker: BrokerProcess) -> None:
    assert run_page(broker, "java.md", "Orders", {"SERVICEBUS": for_tls(broker)}) == ["first", "second"]
