"""SIGHUP and `tandem reload`: what the configuration says anew is so, and what needs a restart is named."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.broker_process import BrokerProcess
from tests.cli.operations.conftest import command_line
from tests.waiting import wait_until

BEFORE = """
drain_seconds = 1

[limits]
peek_messages_max = 100
hot_bytes_max = 100000000

[[queue]]
name = "orders"
max_delivery_count = 5
lock_duration = "30s"

[[queue]]
name = "old"

[[topic]]
name = "events"

[[topic.subscription]]
name = "large"

[[topic.subscription.rule]]
name = "over"
sql = "total > 100"

[[topic.subscription.rule]]
name = "odd"
sql = "total = 7"
"""

AFTER = """
drain_seconds = 2
node = "G7"

[limits]
peek_messages_max = 3
hot_bytes_max = 200000000

[log]
level = "warning"

[[queue]]
name = "orders"
max_delivery_count = 7
requires_session = true

[[queue]]
name = "new"

[[topic]]
name = "events"

[[topic.subscription]]
name = "large"

[[topic.subscription.rule]]
name = "over"
sql = "total > 200"

[[topic.subscription.rule]]
name = "tiny"
sql = "total < 1"

[[relay]]
name = "web"

[[authorization_rule]]
name = "reader"
rights = ["Listen"]
primary_key = "cmVhZGVyLXJlYWRlci1yZWFkZXItcmVhZGVyLXJlYWQ="
"""


@pytest.fixture
def broker(tmp_path: Path) -> BrokerProcess:
    (tmp_path / "tandem.toml").write_text(BEFORE)
    return BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", "data", log=tmp_path / "log.txt")


def shown(text: str, *arguments: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(command_line(*arguments, "--json", "-c", text).stdout)
    return found


def test_entities_rules_limits_and_keys_are_as_the_file_says_now(tmp_path: Path, broker: BrokerProcess) -> None:
    with broker:
        text = broker.connection_string
        command_line("queue", "update", "orders", "-p", "lock-duration=45s", "-c", text)
        assert shown(text, "reload") == {"changed": [], "refused": [], "left": [], "needs_restart": []}
        (tmp_path / "tandem.toml").write_text(AFTER)
        done = command_line("reload", "--json", "-c", text)
        told = json.loads(done.stdout)
        assert done.returncode == 1, "an entity cannot begin to require sessions"
        assert [one.split(":")[0] for one in told["refused"]] == ["queue orders"]
        assert told["left"] == ["queue old"]
        assert told["needs_restart"] == ["node", "limits.hot_bytes_max"]
        assert {"queue new created", "relay web created", "limits.peek_messages_max", "drain_seconds"} <= set(told["changed"])
        assert {"rule events/large/over", "rule events/large/odd", "rule events/large/tiny"} <= set(told["changed"])
        assert "tandem: authorization rule reader" in told["changed"]
        rules = {one["name"]: one for one in json.loads(command_line("rule", "list", "events/large", "--json", "-c", text).stdout)}
        assert set(rules) == {"over", "tiny"} and "200" in json.dumps(rules["over"])
        again = shown(text, "reload")
        assert again == {"changed": [], "refused": told["refused"], "left": [], "needs_restart": told["needs_restart"]}, "told each time"
        (tmp_path / "tandem.toml").write_text(AFTER.replace("requires_session = true\n", "").replace("= 7\n", "= 8\n"))
        assert "queue orders: max_delivery_count" in str(shown(text, "reload")["changed"])
        orders = shown(text, "queue", "show", "orders")
        assert (orders["max_delivery_count"], orders["lock_duration"]) == (8, "45s"), "what was changed by hand stays"
        reader = text.replace("RootManageSharedAccessKey", "reader").replace(
            "SAS_KEY_VALUE", "cmVhZGVyLXJlYWRlci1yZWFkZXItcmVhZGVyLXJlYWQ="
        )
        assert command_line("peek", "new", "-c", reader).returncode == 0
    assert "node" in (tmp_path / "log.txt").read_text()


def test_a_queue_that_shall_be_a_topic_is_refused_and_named_each_time(tmp_path: Path, broker: BrokerProcess) -> None:
    (tmp_path / "tandem.toml").write_text('[[queue]]\nname = "one"\n[[topic]]\nname = "two"\n')
    with broker:
        text = broker.connection_string
        (tmp_path / "tandem.toml").write_text('[[topic]]\nname = "one"\n[[queue]]\nname = "two"\n[[queue]]\nname = "three"\n')
        for changed in (["queue three created"], []):
            done = command_line("reload", "--json", "-c", text)
            told = json.loads(done.stdout)
            assert (done.returncode, told["changed"]) == (1, changed)
            assert ["a topic does not become a queue" in told["refused"][0], "a queue does not become a topic" in told["refused"][1]] == [
                True
            ] * 2
            assert all("delete it, with its messages, and reload, or take another name" in one for one in told["refused"])
        command_line("queue", "delete", "one", "--yes", "-c", text)
        assert shown(text, "topic", "list") and "topic one created" in str(json.loads(command_line("reload", "--json", "-c", text).stdout))


def test_a_signal_does_the_same_and_a_mistake_changes_nothing(tmp_path: Path, broker: BrokerProcess) -> None:
    log = tmp_path / "log.txt"
    with broker:
        text = broker.connection_string
        (tmp_path / "tandem.toml").write_text(BEFORE + '\n[[queue]]\nname = "by-signal"\n')
        broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "configuration read again: 1 changes: queue by-signal created" in log.read_text(), log.read_text)
        (tmp_path / "tandem.toml").write_text(BEFORE + "\n[limits2]\n")
        broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reload refused, nothing was changed" in log.read_text(), log.read_text)
        refused = command_line("reload", "-c", text)
        assert refused.returncode == 2 and "limits2" in refused.stderr and "nothing was changed" in refused.stderr
        (tmp_path / "tandem.toml").unlink()
        broker.process.send_signal(signal.SIGHUP)
        gone = f"nothing was changed: {tmp_path / 'tandem.toml'} is gone"
        wait_until(lambda: gone in log.read_text(), log.read_text)  # it would take keys away
        assert shown(text, "queue", "show", "by-signal")["name"] == "by-signal"


def test_a_broker_at_a_terminal_goes_with_it(tmp_path: Path) -> None:
    terminal, mine = pty.openpty()
    command = [sys.executable, "-m", "tandem", "serve", "--port", "0", "--memory", "--dev"]
    with subprocess.Popen(command, cwd=tmp_path, stdin=mine, stdout=subprocess.PIPE, text=True) as broker:
        os.close(mine)
        assert broker.stdout is not None
        while not broker.stdout.readline().startswith("ready"):
            assert broker.poll() is None
        broker.send_signal(signal.SIGHUP)
        assert broker.wait(30) == -signal.SIGHUP
    os.close(terminal)


def certificate(port: int) -> bytes:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), 30) as plain, context.wrap_socket(plain, server_hostname="localhost") as tls:
        return tls.getpeercert(binary_form=True) or b""


def test_new_certificates_are_served_from_then_on(tmp_path: Path, broker: BrokerProcess) -> None:
    from tandem.wire.tls import ensure_certificates

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        files = ensure_certificates(tmp_path / name, (), 1_700_000_000_000)
        (tmp_path / f"{name}.toml").write_text(
            f'{BEFORE}\n[tls]\ncertificate = "{files.certificate}"\nprivate_key = "{files.private_key}"\n'
        )
    with broker:
        text = broker.connection_string
        (tmp_path / "tandem.toml").write_text((tmp_path / "first.toml").read_text())
        assert shown(text, "reload")["changed"] == ["tls certificate"]
        before = certificate(broker.port)
        (tmp_path / "tandem.toml").write_text((tmp_path / "second.toml").read_text())
        assert shown(text, "reload")["changed"] == ["tls certificate"]
        assert certificate(broker.port) != before
        assert shown(text, "reload")["changed"] == []
