"""`tandem fault` against a real broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from tests.cli.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    (module_path / "tandem.toml").write_text('[[queue]]\nname = "orders"\n')
    with BrokerProcess(module_path, "--port", "0", "--dev", "--data", "data", "--config", "tandem.toml") as running:
        yield running


def tandem(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "tandem", *arguments], capture_output=True, text=True, timeout=60)


def fault(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return tandem("fault", *arguments, "-c", broker.connection_string)


@pytest.mark.slow
def test_an_injected_error_strikes_as_often_as_asked_and_is_listed_until_then(broker: BrokerProcess) -> None:
    done = fault(broker, "inject", "entity-error", "--entity", "orders", "--condition", "com.microsoft:server-busy", "--count", "1")
    assert done.returncode == 0, done.stderr
    listed = json.loads(fault(broker, "list", "--json").stdout)
    assert [(one["kind"], one["entity"], one["count_left"]) for one in listed] == [("entity-error", "orders", 1)]
    client = ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0)
    with client, pytest.raises(ServiceBusServerBusyError, match="injected fault"), client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("x"))
    assert json.loads(fault(broker, "list", "--json").stdout) == []


def test_healing_ends_what_is_in_force(broker: BrokerProcess) -> None:
    assert fault(broker, "inject", "slow-dispositions", "--delay", "50ms").returncode == 0
    healed = json.loads(fault(broker, "heal", "--json").stdout)
    assert [one["kind"] for one in healed] == ["slow-dispositions"]
    assert "no faults" in fault(broker, "list").stdout


def test_a_wrong_wish_says_what_is_allowed_and_exits_with_two(broker: BrokerProcess) -> None:
    unknown = fault(broker, "inject", "earthquake")
    assert unknown.returncode == 2
    assert "store-down" in unknown.stderr
    duration = fault(broker, "inject", "black-hole", "--for", "soon")
    assert duration.returncode == 2
    assert "30s" in duration.stderr
    stranger = tandem("fault", "list", "-c", broker.connection_string.replace("SAS_KEY_VALUE", "wrong"))
    assert stranger.returncode == 2


@pytest.mark.slow
def test_faults_are_off_unless_the_broker_allows_them(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--port", "0", "--data", "data", "--key", "secret") as strict:
        refused = fault(strict, "inject", "black-hole")
        assert refused.returncode == 2
        assert "faults = true" in refused.stderr
