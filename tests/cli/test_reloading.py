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
import time
from functools import partial
from pathlib import Path

import pytest

from tandem.testing.ports import free_port
from tests.cli.broker_process import BrokerProcess
from tests.cli.operations.conftest import command_line
from tests.issuer.issuer_process import IssuerProcess
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_broker_at_a_terminal_goes_with_it(tmp_path: Path) -> None:
    terminal, mine = pty.openpty()
    command = [sys.executable, "-m", "tandem", "serve", "--port", "0", "--memory", "--dev"]
    heeds = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it, and children would too (nohup)
    with subprocess.Popen(command, cwd=tmp_path, stdin=mine, stdout=subprocess.PIPE, text=True, preexec_fn=heeds) as broker:
        os.close(mine)
        assert broker.stdout is not None
        while not broker.stdout.readline().startswith("ready"):
            assert broker.poll() is None
        broker.send_signal(signal.SIGHUP)
        assert broker.wait(30) == -signal.SIGHUP
    os.close(terminal)


class HungUpWhileItStarts(BrokerProcess):
    program = (
        "-c",
        """
import os, signal
from tandem.cli import main
from tandem.server.server import Server
start = Server.start
async def interrupted(server):
    os.kill(os.getpid(), signal.SIGHUP)
    await start(server)
Server.start = interrupted
main.main()
""",
    )


def test_a_signal_while_it_starts_is_obeyed_when_it_serves(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with HungUpWhileItStarts(tmp_path, "--port", "0", "--dev", "--data", "data", log=log):
        wait_until(lambda: "configuration read again" in log.read_text(), "the reload")


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


def _swap(link: Path, target: str) -> None:
    """As cert-manager and certbot put a renewed certificate in place."""
    beside = link.with_name("beside")
    beside.symlink_to(target)
    beside.replace(link)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
def test_files_that_are_replaced_are_served_without_a_signal_and_broken_ones_are_not(tmp_path: Path, workers: tuple[str, ...]) -> None:
    from tandem.wire.tls import ensure_certificates

    now = time.time_ns() // 1_000_000
    for name in ("first", "second"):
        ensure_certificates(tmp_path / name, (), now)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "server.pem").write_bytes((tmp_path / "first" / "server.pem").read_bytes())
    (tmp_path / "broken" / "server.key").write_bytes((tmp_path / "second" / "server.key").read_bytes())
    live, log, issuer = tmp_path / "live", tmp_path / "log.txt", free_port()
    _swap(live, "first")
    tls = f'[tls]\ncertificate = "{live}/server.pem"\nprivate_key = "{live}/server.key"\n'
    (tmp_path / "tandem.toml").write_text(f"{tls}[issuer]\nport = {issuer}\n")
    with BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", "data", *workers, log=log) as broker:
        first = certificate(broker.port)
        _swap(live, "second")
        wait_until(lambda: all(certificate(broker.port) != first for _ in range(4)), "all workers have the new one")
        second = certificate(broker.port)
        wait_until(lambda: certificate(issuer) == second, "the issuer beside has it, too")
        _swap(live, "broken")
        wait_until(lambda: "cannot be used together" in log.read_text(), "the broken ones are told")
        assert certificate(broker.port) == second
        _swap(live, "first")
        wait_until(lambda: certificate(broker.port) == first, "the good ones are taken")
        (tmp_path / "tandem.toml").write_text(f"{tls}[issuer]\nport = {issuer}\n".replace(str(live), str(tmp_path / "second")))
        broker.process.send_signal(signal.SIGHUP)
        wait_until(lambda: certificate(broker.port) == certificate(issuer) == second, "other files after a reload")
    assert log.read_text().count("the certificate of before goes on") == 1


@pytest.mark.slow
def test_a_generated_certificate_is_renewed_before_its_end_while_the_broker_runs(tmp_path: Path) -> None:
    from tandem.wire.tls import ensure_certificates

    old = tmp_path / "old"
    ensure_certificates(old, (socket.gethostname(),), time.time_ns() // 1_000_000 - 380 * 86_400_000)
    for name in ("ca.pem", "ca.key"):
        (tmp_path / name).write_bytes((old / name).read_bytes())
    log = tmp_path / "log.txt"
    with BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", ".", log=log) as broker:
        for name in ("server.key", "server.pem"):
            (old / name).replace(tmp_path / name)
        wait_until(lambda: "is a new one" in log.read_text(), "the change is noticed")
        context = ssl.create_default_context(cafile=tmp_path / "ca.pem")
        with (
            socket.create_connection(("127.0.0.1", broker.port), 30) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as tls,
        ):
            assert ssl.cert_time_to_seconds(str(tls.getpeercert()["notAfter"])) > time.time() + 300 * 86_400  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize(("age", "told"), [(390, "ends in "), (400, "has ended: clients refuse it"), (370, "")])
def test_a_certificate_of_ones_own_that_nears_its_end_is_told(tmp_path: Path, age: int, told: str) -> None:
    """One that is made lives for 397 days."""
    from tandem.wire.tls import ensure_certificates

    ensure_certificates(tmp_path / "own", (), time.time_ns() // 1_000_000 - age * 86_400_000)
    (tmp_path / "tandem.toml").write_text('[tls]\ncertificate = "own/server.pem"\nprivate_key = "own/server.key"\n')
    log = tmp_path / "log.txt"
    with BrokerProcess(tmp_path, "--port", "0", "--dev", "--data", "data", log=log) as broker:
        if told:
            wait_until(lambda: f"server.pem {told}" in log.read_text(), "it is told")
        else:  # a look that found something else to say has been there
            first = certificate(broker.port)
            ensure_certificates(tmp_path / "new", (), time.time_ns() // 1_000_000)
            for name in ("server.key", "server.pem"):
                (tmp_path / "new" / name).replace(tmp_path / "own" / name)
            wait_until(lambda: certificate(broker.port) != first, "the new one is served")
            assert "ends in" not in log.read_text()


@pytest.mark.slow
def test_an_issuer_by_itself_serves_files_that_are_replaced(tmp_path: Path) -> None:
    from tandem.wire.tls import ensure_certificates

    for name in ("first", "second"):
        ensure_certificates(tmp_path / name, (), time.time_ns() // 1_000_000)
    _swap(tmp_path / "live", "first")
    with IssuerProcess(tmp_path, "--certificate", "live/server.pem", "--private-key", "live/server.key") as issuer:
        first = certificate(issuer.port)
        _swap(tmp_path / "live", "second")
        wait_until(lambda: certificate(issuer.port) != first, "the new one is served")
