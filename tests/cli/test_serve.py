"""`tandem serve` as a process: what it prints, what it makes, how it stops, what it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tests.cli.broker_process import BrokerProcess
from tests.cli.operations.conftest import command_line
from tests.waiting import wait_until

pytestmark = pytest.mark.compiled_too

QUEUE = '[[queue]]\nname = "orders"\n'


def refusal(directory: Path, *arguments: str) -> str:
    """What `tandem serve` says when it does not start; it must end with code 2 and print nothing else."""
    done = subprocess.run(
        [sys.executable, "-m", "tandem", "serve", *arguments], cwd=directory, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


@pytest.mark.slow
def test_prints_endpoint_keys_authority_console_and_ready_in_this_order(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--port", "0", "--data", "d") as broker:
        starts = [line.split(": ")[0] for line in broker.lines]
        assert starts == ["endpoint", "keys", "CA file", "console", "ready"]
        port = broker.port
        assert broker.line("endpoint:") == f"sb://localhost:{port}"
        assert broker.line("keys:") == f"tandem keys --data {tmp_path / 'd'} --port {port}"
        assert broker.connection_string.startswith(f"Endpoint=sb://localhost:{port};SharedAccessKeyName=RootManageSharedAccessKey;")
        assert broker.line("CA file:") == str(tmp_path / "d" / "ca.pem")
        assert broker.line("console:") == f"http://localhost:{port}/$tandem/console/"
        assert broker.line("ready:") == f"listening on 127.0.0.1:{port}; data in {tmp_path / 'd'}"


def test_a_development_broker_prints_its_connection_string(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--port", "0", "--data", "d", "--dev") as broker:
        assert [line.split(": ")[0] for line in broker.lines] == ["connection string", "CA file", "console", "ready"]


@pytest.mark.slow
@pytest.mark.parametrize("given", [(), ("--memory",), ("--key", "given-by-hand")], ids=["kept", "in-memory", "given"])
def test_the_root_key_is_printed_by_no_other(tmp_path: Path, given: tuple[str, ...]) -> None:
    with BrokerProcess(tmp_path, "--port", "0", *given) as broker:
        key = broker.connection_string.split("SharedAccessKey=")[1].split(";")[0]
        assert len(key) > 10
        assert not any(key in line for line in broker.lines)
        _, error = broker.stop()
        assert key not in error


@pytest.mark.slow
def test_sends_and_receives_with_the_connection_string(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(QUEUE)
    with BrokerProcess(tmp_path, "--port", "0") as broker, ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("hello"))
        with client.get_queue_receiver("orders") as receiver:
            (message,) = receiver.receive_messages(max_wait_time=10)
            assert str(message) == "hello"
            receiver.complete_message(message)


def test_tls_handshake_succeeds_on_the_same_port_with_the_printed_authority(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--port", "0") as broker:
        context = ssl.create_default_context(cafile=broker.line("CA file:"))
        with (
            socket.create_connection(("localhost", broker.port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as wrapped,
        ):
            assert wrapped.version() == "TLSv1.3"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops_cleanly_when_told_to(tmp_path: Path, number: signal.Signals) -> None:
    with BrokerProcess(tmp_path, "--port", "0") as broker:
        code, said = broker.stop(number)
        assert code == 0
        assert re.fullmatch(r"\S+ drained in \d+\.\d\d s: 0 of 0 .*\n\S+ stopped in \d+\.\d\d s\n", said)


@pytest.mark.slow
def test_key_is_made_once_and_kept_where_only_the_owner_reads_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--port", "0", "--data", "d") as broker:
        first = broker.connection_string.split("SharedAccessKey=")[1]
        broker.stop()
    assert (tmp_path / "d" / "keys.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "d").stat().st_mode & 0o777 == 0o700
    with BrokerProcess(tmp_path, "--port", "0", "--data", "d") as broker:
        assert broker.connection_string.split("SharedAccessKey=")[1] == first


@pytest.mark.slow
def test_keys_command_shows_what_clients_need(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--port", "0", "--data", "d") as broker:
        command = [sys.executable, "-m", "tandem", "keys", "--data", "d", "--port", str(broker.port), "--json"]
        shown = json.loads(subprocess.check_output(command, cwd=tmp_path, text=True))
        assert [(item["key_name"], item["rights"]) for item in shown] == [("RootManageSharedAccessKey", ["Listen", "Manage", "Send"])]
        assert shown[0]["connection_string"] == broker.connection_string


def test_dev_uses_the_well_known_key(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--port", "0", "--dev", "--memory") as broker:
        assert broker.connection_string.endswith("SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true")
        assert broker.line("ready:").endswith("in memory only")


@pytest.mark.slow
def test_memory_leaves_nothing_behind(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--port", "0", "--memory", environ={"TMPDIR": str(tmp_path)}) as broker:
        authority = Path(broker.line("CA file:"))
        assert authority.is_relative_to(tmp_path) and authority.exists()
        broker.stop()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_key_may_come_from_the_environment_and_flag_wins(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--port", "0", "--memory", environ={"TANDEM_KEY": "from-environment"}) as broker:
        assert "SharedAccessKey=from-environment;" in broker.connection_string
    with BrokerProcess(tmp_path, "--port", "0", "--memory", "--key", "flag", environ={"TANDEM_KEY": "environment"}) as broker:
        assert "SharedAccessKey=flag;" in broker.connection_string


def test_every_namespace_gets_its_connection_string(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text('[[namespace]]\nname = "one"\n[[namespace]]\nname = "two"\nhosts = ["two.example"]\n')
    with BrokerProcess(tmp_path, "--port", "0", "--memory") as broker:
        assert broker.line("endpoint (one):").startswith("sb://localhost:")
        assert broker.line("endpoint (two):").startswith("sb://two.example:")


@pytest.mark.slow
@pytest.mark.slow
def test_a_namespace_that_the_configuration_has_no_more_is_told(tmp_path: Path) -> None:
    arguments = ("--dev", "--port", "0", "--data", "d")
    told = []
    for name in ("shop", "store", "shop"):
        (tmp_path / "tandem.toml").write_text(f'[[namespace]]\nname = "{name}"\n')
        with BrokerProcess(tmp_path, *arguments) as broker:
            told.append([line for line in broker.stop()[1].splitlines() if "is not served" in line])
    assert told[0] == []
    assert [len(lines) for lines in told[1:]] == [1, 1]
    assert f"{tmp_path}/d/shop is not served" in told[1][0]
    assert f"{tmp_path}/d/store is not served" in told[2][0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("queue", "topic", "topic orders: there is a queue of this name, and a queue does not become a topic"),
        ("topic", "queue", "queue orders: there is a topic of this name, and a topic does not become a queue"),
    ],
)
def test_an_entity_with_the_name_of_one_of_another_kind_is_refused_with_what_to_do(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    arguments = ("--dev", "--port", "0", "--data", "d")
    (tmp_path / "tandem.toml").write_text(f'[[{before}]]\nname = "orders"\n')
    with BrokerProcess(tmp_path, *arguments) as broker:
        broker.stop()
    (tmp_path / "tandem.toml").write_text(f'[[{after}]]\nname = "orders"\n')
    assert said in refusal(tmp_path, *arguments)


def test_data_directory_in_use_is_refused_with_the_process_that_holds_it(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--port", "0", "--data", "d") as broker:
        said = refusal(tmp_path, "--port", "0", "--data", "d")
        assert said == f"tandem: data: {tmp_path / 'd'} is in use by another broker (process {broker.process.pid})\n"


def test_port_in_use_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refusal(tmp_path, "--memory", "--port", str(port))
        assert said.startswith(f"tandem: cannot listen on 127.0.0.1:{port}: ") and "choose another with --port" in said


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["one process", "workers"])
def test_a_host_that_nobody_knows_is_refused_by_its_name(tmp_path: Path, workers: tuple[str, ...]) -> None:
    said = refusal(tmp_path, "--data", "d", "--port", "0", "--host", "nowhere.invalid", *workers)
    assert said.startswith("tandem: cannot listen on nowhere.invalid:0: ") and "choose another with --port or --host" in said


@pytest.mark.slow
@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["one process", "workers"])
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_address_of_ipv6_is_listened_on_and_shown_as_urls_have_it(tmp_path: Path, host: str, workers: tuple[str, ...]) -> None:
    with BrokerProcess(tmp_path, "--dev", "--data", "d", "--port", "0", "--host", host, *workers) as broker:
        assert broker.line("ready:").startswith(f"listening on [::1]:{broker.port};")
        socket.create_connection(("::1", broker.port), 5).close()
        plain = broker.connection_string.replace("localhost", "[::1]")
        tls = plain.removesuffix(";UseDevelopmentEmulator=true")
        for text, ca in ((plain, ()), (tls, ("--ca-file", str(tmp_path / "d" / "ca.pem")))):
            command_line("queue", "create", "orders", "-c", text, *ca)
            done = command_line("bench", "orders", "--messages", "20", "-c", text, *ca)
            assert done.returncode == 0, done.stderr
            assert command_line("connection", "list", "-c", text, *ca).returncode == 0
            assert command_line("queue", "delete", "orders", "--yes", "-c", text, *ca).returncode == 0
        refused = command_line("send", "orders", "one", "-c", plain)
        assert refused.returncode == 2 and "say a host name that stands for it" in refused.stderr


def test_bad_file_is_refused_with_file_line_key_found_and_allowed(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text('[[queue]]\nname = "a"\nmax_delivery_count = 0\n')
    said = refusal(tmp_path)
    assert said == f"tandem: {tmp_path}/tandem.toml:3: queue[0].max_delivery_count: found 0; allowed is a whole number from 1\n"


def test_dev_beyond_loopback_is_refused(tmp_path: Path) -> None:
    assert "only loopback is allowed" in refusal(tmp_path, "--dev", "--host", "0.0.0.0")
    assert list(tmp_path.iterdir()) == []


def test_own_certificate_that_is_missing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text('[tls]\ncertificate = "mine.pem"\nprivate_key = "mine.key"\n')
    assert refusal(tmp_path, "--memory").startswith(f"tandem: tls: {tmp_path}/mine.pem does not exist")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_data_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "cannot be used: Permission denied" in refusal(tmp_path, "--data", "d")


@pytest.mark.parametrize(
    ("name", "why"),
    [("d" * 300, "cannot be used: File name too long"), ("/".join(["d" * 200] * 3), "SQLite opens no path of more than 512 bytes")],
    ids=["a name", "a path"],
)
def test_data_directory_whose_name_is_too_long_is_refused(tmp_path: Path, name: str, why: str) -> None:
    said = refusal(tmp_path, "--port", "0", "--data", name)
    assert why in said and "Traceback" not in said


def test_too_few_open_files_are_refused_with_what_to_do(tmp_path: Path) -> None:
    limited = ["sh", "-c", 'ulimit -n 24; exec "$@"', "sh", sys.executable, "-m", "tandem", "serve", "--port", "0", "--data", "d"]
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "the system allows 24 open files; a broker needs at least 64; raise ulimit -n" in done.stderr


def test_files_that_may_not_be_large_enough_are_refused_with_what_to_do(tmp_path: Path) -> None:
    limited = ["bash", "-c", 'ulimit -f 65536; exec "$@"', "bash", sys.executable, "-m", "tandem", "serve", "--port", "0", "--data", "d"]
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "the system allows files of 67,108,864 bytes; segments of a journal need 134,217,728; raise ulimit -f" in done.stderr


def test_unknown_flag_is_refused_with_code_2(tmp_path: Path) -> None:
    assert "--prot" in refusal(tmp_path, "--prot", "5672")


def test_damaged_keys_are_not_replaced_silently(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "keys.json").write_text("{")
    assert "keys.json: is damaged" in refusal(tmp_path, "--data", "d")


@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", "> /dev/full", "> >(true)"])
def test_a_broker_serves_though_nobody_can_hear_it(tmp_path: Path, streams: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = f'exec "$0" -m tandem serve --dev --port {port} --data data {streams}'
    with subprocess.Popen(["bash", "-c", script, sys.executable], cwd=tmp_path, stderr=subprocess.DEVNULL) as broker:
        try:
            wait_until(lambda: _answers(port), "it answers")
        finally:
            broker.send_signal(signal.SIGTERM)
        assert broker.wait(60) == 0


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/$tandem/health", timeout=20) as answer:
        return bool(answer.status == 200)
    return False


def test_an_interruption_while_it_starts_is_no_traceback(tmp_path: Path) -> None:
    code = """
import os, signal, time
from tandem.cli import main, running
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that began the tests in the background has it ignored
running.load = lambda *arguments: (os.kill(os.getpid(), signal.SIGINT), time.sleep(60))
main.main()
"""
    done = subprocess.run([sys.executable, "-c", code, "serve"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (130, "")


def test_a_system_that_allows_too_few_threads_is_told_with_what_to_do(tmp_path: Path) -> None:
    code = """
import threading
from tandem.cli import main
def refused(*arguments):
    raise RuntimeError("can't start new thread")
threading._start_new_thread = refused
main.main()
"""
    command = [sys.executable, "-c", code, "serve", "--dev", "--port", "0"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "raise ulimit -u" in done.stderr, "Traceback" in done.stderr) == (2, True, False), done.stderr
