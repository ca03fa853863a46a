"""`tandem import` against a living broker: the file it writes makes the same namespace again."""

from __future__ import annotations

import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from azure.servicebus.management import CorrelationRuleFilter, ServiceBusAdministrationClient, SqlRuleFilter

from tandem.cli.configuration.settings import Flags, load
from tandem.server.settings import NamespaceSettings
from tests.cli.broker_process import BrokerProcess

CONFIG = """
[[queue]]
name = "target"
[[queue]]
name = "orders"
lock_duration = "30s"
max_size_megabytes = 2048
requires_session = true
default_message_time_to_live = "14d"
dead_lettering_on_message_expiration = true
max_delivery_count = 3
status = "SendDisabled"
auto_delete_on_idle = "7d"
forward_dead_lettered_messages_to = "target"
user_metadata = 'says "hello" \\ and more'
max_message_bytes = 2097152
[[queue.authorization_rule]]
name = "reader"
rights = ["Listen"]
primary_key = "first"
secondary_key = "second"
[[queue]]
name = "wide"
enable_partitioning = true
max_size_megabytes = 2048
[[queue]]
name = "a/b.c"
requires_duplicate_detection = true
duplicate_detection_history = "1m"
forward_to = "target"
[[topic]]
name = "events"
default_message_time_to_live = "1d 2h 3m 4s"
support_ordering = false
[[topic.subscription]]
name = "all"
[[topic.subscription]]
name = "some"
lock_duration = "10s"
dead_lettering_on_filter_evaluation_exceptions = false
forward_to = "target"
[[topic.subscription.rule]]
name = "sql"
sql = "region = @r AND total > 1.5"
sql_parameters = { "@r" = "eu" }
action = "SET a = 'x''y'; REMOVE b"
[[topic.subscription.rule]]
name = "correlated"
correlation = { label = "l", content_type = "text/plain", properties = { "n 1" = 5, yes = true, half = 0.5, t = "x" } }
[[topic.subscription]]
name = "none"
[[topic.subscription.rule]]
name = "$Default"
sql = "1=0"
"""


def serve(directory: Path, config: Path) -> BrokerProcess:
    directory.mkdir(exist_ok=True)
    return BrokerProcess(directory, "--port", "0", "--data", "data", "--dev", "--config", str(config))


def tandem_import(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tandem", "import", "--from", broker.connection_string, *arguments]
    ca = str(broker.directory / broker.line("CA file:"))
    return subprocess.run([*command, "--ca-file", ca], cwd=broker.directory, capture_output=True, text=True, timeout=60, check=False)


def administration(broker: BrokerProcess) -> ServiceBusAdministrationClient:
    ca = str(broker.directory / broker.line("CA file:"))
    return ServiceBusAdministrationClient.from_connection_string(broker.connection_string, connection_verify=ca)


def settings(file: Path) -> NamespaceSettings:
    [namespace] = load(Flags(config=file, memory=True), {}, file.parent).server.namespaces
    return namespace


@pytest.mark.slow
def test_the_file_makes_the_same_namespace_again(tmp_path: Path) -> None:
    original = tmp_path / "original.toml"
    original.write_text(CONFIG)
    with serve(tmp_path / "first", original) as broker:
        done = tandem_import(broker, "--to", str(tmp_path / "once.toml"), "--keys")
        assert done.returncode == 0, done.stderr
        assert "4 queues, 1 topics, 3 subscriptions" in done.stdout
    with serve(tmp_path / "second", tmp_path / "once.toml") as broker:
        assert tandem_import(broker, "--to", str(tmp_path / "twice.toml"), "--keys").returncode == 0
    assert (tmp_path / "once.toml").read_text() == (tmp_path / "twice.toml").read_text()
    assert stat.S_IMODE((tmp_path / "once.toml").stat().st_mode) == 0o600
    wanted, found = settings(original), settings(tmp_path / "once.toml")
    assert {queue.name: queue for queue in found.queues} == {queue.name: queue for queue in wanted.queues}
    assert found.topics == wanted.topics
    by_name = {one.name: one for one in found.subscriptions}
    for one in wanted.subscriptions:
        rules = {rule.name: rule for rule in by_name[one.name].rules}
        assert rules == {rule.name: rule for rule in one.rules}


@pytest.mark.slow
def test_keys_stay_out_of_the_file_unless_asked_for(tmp_path: Path) -> None:
    (tmp_path / "original.toml").write_text(CONFIG)
    with serve(tmp_path / "first", tmp_path / "original.toml") as broker:
        done = tandem_import(broker, "--to", "-")
        assert done.returncode == 0 and "reader" in done.stdout and "first" not in done.stdout
        kept = tmp_path / "first" / "tandem.toml"
        kept.write_text("mine")
        done = tandem_import(broker)
        assert done.returncode == 2 and "exists" in done.stderr and kept.read_text() == "mine"
        assert tandem_import(broker, "--force").returncode == 0 and "orders" in kept.read_text()


@pytest.mark.slow
def test_what_a_file_cannot_hold_is_said(tmp_path: Path) -> None:
    (tmp_path / "original.toml").write_text(
        '[[topic]]\nname = "t"\n[[topic.subscription]]\nname = "s"\n[[topic.subscription]]\nname = "bare"\n'
    )
    with serve(tmp_path / "first", tmp_path / "original.toml") as broker:
        client = administration(broker)
        when = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
        client.create_rule("t", "s", "dated", filter=CorrelationRuleFilter(properties={"when": when}))
        client.create_rule("t", "s", "plain", filter=SqlRuleFilter("a = 1"))
        client.delete_rule("t", "bare", "$Default")
        done = tandem_import(broker, "--to", "-")
    assert done.returncode == 0
    assert "t/s: rule 'dated': 'when' is of a kind that a file cannot hold (datetime)" in done.stderr
    file = tmp_path / "written.toml"
    file.write_text(done.stdout)
    found = {one.name: one for one in settings(file).subscriptions}
    assert [rule.name for rule in found["s"].rules] == ["$Default", "dated", "plain"]
    [nothing] = found["bare"].rules
    assert getattr(nothing.filter, "expression", "") == "1=0"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nonsense", "--from"),
        ("Endpoint=sb://localhost:1;SharedAccessKeyName=a;SharedAccessKey=b", "could not be read"),
    ],
)
def test_a_namespace_that_cannot_be_read_is_exit_code_2(tmp_path: Path, source: str, words: str) -> None:
    command = [sys.executable, "-m", "tandem", "import", "--from", source]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and words in done.stderr
    assert list(tmp_path.iterdir()) == []
