"""What an operator reads of a broker afterwards: the audit log, and the log as JSON; no secret in either."""

from __future__ import annotations

import json
import logging
import os
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tandem.cli.audit_file import AuditWriter, append_line
from tandem.cli.log_output import LogOutput
from tandem.engine_client.blocking import BlockingClient, Endpoint
from tandem.server.audit import AuditEntry
from tests.cli.broker_process import BrokerProcess
from tests.cli.operations.conftest import command_line


def secrets_of(broker: BrokerProcess) -> list[str]:
    keys = json.loads((broker.directory / "data" / "keys.json").read_text())
    found: list[str] = []

    def look(value: object) -> None:
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            look(one)
        if isinstance(value, str) and len(value) > 30:
            found.append(value)

    look(keys)
    assert found, "there are no keys to look for"
    return [*found, "SharedAccessSignature", "sig="]


@pytest.fixture(scope="module")
def after(module_path: Path) -> tuple[list[dict[str, str]], str, str]:
    """The audit log of a day at work, the log, and what must not be in them."""
    arguments = ("--port", "0", "--data", "data", "--log-format", "json", "--log-level=info")
    with BrokerProcess(module_path, *arguments) as broker:
        text = broker.connection_string
        command_line("queue", "create", "orders", "-c", text)
        command_line("queue", "update", "orders", "-p", "max-delivery-count=3", "-c", text)
        command_line("topic", "create", "events", "-c", text)
        command_line("subscription", "create", "events/all", "-c", text)
        command_line("rule", "create", "events/all/large", "--sql", "total > 100", "-c", text)
        command_line("relay", "create", "web", "--rule", "senders=Send", "-c", text)
        command_line("send", "orders", "x", "--count", "3", "-c", text)
        with BlockingClient(Endpoint.parse(text)) as engine:
            engine.request("events/Subscriptions/all", "com.microsoft:remove-rule", {"rule-name": "large"})
            engine.request("orders", "com.microsoft:batch-delete-messages", {"message-count": engine.int32(100)})
        [*_, address] = broker.line("ready: listening on").split(";")[0].split(",")
        token = command_line("token", "-c", text).stdout.strip()
        url = f"http://{address.strip()}/$tandem/relays?keys=true"
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": token}), timeout=30):
            pass
        wrong = text.replace("SharedAccessKey=", "SharedAccessKey=d3Jvbmc")
        with ServiceBusClient.from_connection_string(wrong, retry_total=0) as client, pytest.raises(ServiceBusError):
            client.get_queue_sender("orders").send_messages(ServiceBusMessage("never"))
        secrets = "\n".join(secrets_of(broker))
        _, log = broker.stop()
    path = module_path / "data" / "audit.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    return [json.loads(line) for line in path.read_text().splitlines()], log, secrets


@pytest.mark.slow
def test_who_did_what_to_what_is_written_down(after: tuple[list[dict[str, str]], str, str]) -> None:
    audit = after[0]
    done = {(one["action"], one.get("what", ""), one.get("detail", "")) for one in audit}
    assert ("changed", "orders", "created") in done and ("changed", "orders", "updated") in done
    assert ("changed", "events/Subscriptions/all", "created") in done or ("changed", "events/subscriptions/all", "created") in done
    assert any(detail == "rule large deleted" for _, _, detail in done)
    assert any(what.casefold().endswith("/rules/large") for action, what, _ in done if action == "changed")
    assert ("changed", "/$tandem/relays/web", "PUT") in done
    assert ("purged", "orders", "3 messages") in done
    assert any(action == "token" and what == "orders" for action, what, _ in done)
    assert any(action == "read-keys" and what.startswith("/$tandem/relays") for action, what, _ in done)
    assert any(one["action"] == "read-keys" and one["who"].startswith("user ") for one in audit)
    remote = [one for one in audit if not one["who"].startswith("user ")]
    assert {one["who"] for one in remote} == {"RootManageSharedAccessKey"}
    assert all(one["peer"].startswith("127.0.0.1:") and one["namespace"] == "tandem" and one["at"].endswith("Z") for one in remote)


def test_every_line_of_the_log_is_an_object_with_its_level(after: tuple[list[dict[str, str]], str, str]) -> None:
    lines = [json.loads(line) for line in after[1].splitlines()]
    assert all(set(line) == {"at", "level", "text"} for line in lines)
    levels = {line["text"].split(" ")[0]: line["level"] for line in lines}
    assert levels["token"] == "warning" and levels["drained"] == "info"


def test_no_secret_is_in_any_of_them(after: tuple[list[dict[str, str]], str, str]) -> None:
    audit, log, secrets = after
    for secret in secrets.splitlines():
        assert secret not in log and secret not in json.dumps(audit)


def test_lines_below_the_level_are_left_out(capfd: pytest.CaptureFixture[str]) -> None:
    output = LogOutput()
    output.configure("text", "warning")
    output.lines.say("nothing much")
    output.lines.warn("look at this")
    logging.getLogger("some.library").error("over\ntwo lines")
    said = capfd.readouterr().err
    assert "nothing much" not in said and "look at this" in said and "two lines" in said
    output.configure("json", "debug")
    logging.getLogger("some.library").debug("one\ntwo")
    line = json.loads(capfd.readouterr().err)
    assert (line["level"], line["text"]) == ("debug", "one\ntwo")
    output.configure("text", "info")
    logging.getLogger().handlers.pop()
    logging.getLogger().setLevel(logging.WARNING)


def test_what_strangers_write_into_a_line_begins_no_line_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    LogOutput().lines.say("GET /a\n2026-01-01T00:00:00Z all is well\x1b[2J\r\u2028of somebody refused")
    first, second = capfd.readouterr().err.splitlines()
    assert first.endswith("GET /a") and second == "    2026-01-01T00:00:00Z all is well\\x1b[2J\\x0d\\x2028of somebody refused"


@pytest.mark.parametrize("trouble", ["nobody reads", "nobody is there", "full"])
def test_a_log_that_cannot_be_written_keeps_nobody_waiting(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe() if trouble != "full" else (-1, os.open("/dev/full", os.O_WRONLY))
    if trouble == "nobody is there":
        os.close(reading)
    output = LogOutput()
    with os.fdopen(writing, "w") as log:
        monkeypatch.setattr("sys.stderr", log)
        for number in range(50):
            output._write(f"line {number} " + "x" * 4_000, logging.INFO)
        if trouble == "nobody reads":
            heard = os.read(reading, 1_000_000)
            output._write("the last one", logging.INFO)
            heard += os.read(reading, 1_000_000)
            os.close(reading)
            lines = [line.rstrip("x") for line in heard.decode().splitlines()]
            assert lines[0].endswith("line 0 ") and lines[-1].endswith("Z the last one"), lines
            assert lines[-2].endswith(" lines were left out: nobody read the log"), lines


def test_the_audit_log_stays_small_and_a_disk_that_hangs_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.cli.audit_file._FILE_BYTES_MAX", 1_000)
    path = tmp_path / "audit.jsonl"
    for number in range(200):
        append_line(path, {"action": "changed", "detail": str(number)})
    files = sorted(tmp_path.iterdir())
    assert len(files) == 6 and all(file.stat().st_size < 1_200 for file in files)
    assert json.loads(path.read_text().splitlines()[-1])["detail"] == "199"

    noted: list[str] = []
    monkeypatch.setattr("tandem.cli.audit_file._WAITING_MAX", 2)
    writer = AuditWriter(tmp_path / "nowhere" / "audit.jsonl", noted.append)
    for _ in range(50):
        writer(AuditEntry("changed", "n", "k", "p", "q"))
    writer.close()
    assert any("cannot be written" in text for text in noted)


WRITE_MANY = """
import sys, pathlib
from tandem.cli import audit_file
audit_file._FILE_BYTES_MAX = 10_000
for number in range(300):
    audit_file.append_line(pathlib.Path(sys.argv[1]), {"action": "changed", "detail": f"{sys.argv[2]}-{number}"})
"""


def test_workers_that_write_one_audit_log_turn_it_over_once(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITE_MANY, str(path), str(who)]) for who in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    older = [file for file in tmp_path.iterdir() if file != path]
    assert older and all(file.stat().st_size > 10_000 for file in older), "none was turned over before it was full"
    kept = [json.loads(line)["detail"] for file in (*older, path) for line in file.read_text().splitlines()]
    written = sum(file.stat().st_size for file in (*older, path))
    assert len(kept) == len(set(kept)) and (len(older) == 5 or len(kept) == 1_200), f"{len(kept)} lines, {written} bytes"


@pytest.mark.slow
def test_who_logs_in_with_name_and_key_is_written_down(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--port", "0", "--data", "data") as broker:
        endpoint = Endpoint.parse(broker.connection_string)
        plain = Endpoint(host=endpoint.host, port=endpoint.port, tls=False, key_name=endpoint.key_name, key=endpoint.key, claims=False)
        with BlockingClient(plain) as client:
            client.pump()
        broker.stop()
    entries = [json.loads(line) for line in (tmp_path / "data" / "audit.jsonl").read_text().splitlines()]
    assert any(one["action"] == "token" and one.get("detail") == "SASL PLAIN" and one["who"] == endpoint.key_name for one in entries)
