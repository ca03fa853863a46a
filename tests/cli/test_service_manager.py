"""A broker under a service manager: it says when it is ready, that it lives, and that it stops."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.cli.service_manager import ServiceManager
from tests.cli.broker_process import BrokerProcess


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(30)
        yield listening


def test_ready_comes_after_the_listeners_the_watchdog_is_fed_and_stopping_is_said(tmp_path: Path, heard: socket.socket) -> None:
    environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "600000"}
    with BrokerProcess(tmp_path, "--port", "0", "--data", "data", environ=environ) as broker:
        said = []
        while not any("READY=1" in one for one in said):
            said.append(heard.recv(4_096).decode())
        ready = next(one for one in said if "READY=1" in one)
        assert "STATUS=ready: listening on" in ready and f"MAINPID={broker.process.pid}" in ready
        while said.count("WATCHDOG=1") < 3:
            said.append(heard.recv(4_096).decode())
        broker.process.send_signal(signal.SIGTERM)
        while not said[-1].startswith("STOPPING=1"):
            said.append(heard.recv(4_096).decode())
        _, errors = broker.process.communicate(timeout=30)
        assert broker.process.returncode == 0
        assert "stopped in" in errors


def test_a_watchdog_of_another_process_is_not_ours_and_without_a_manager_nothing_happens() -> None:
    assert ServiceManager({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid() + 1)}).watchdog_seconds == 0
    assert ServiceManager({"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1000000", "WATCHDOG_PID": str(os.getpid())}).watchdog_seconds == 1
    nobody = ServiceManager({})
    nobody.ready("x")
    nobody.stopping("x")


def test_a_manager_that_is_gone_is_said_and_harms_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    ServiceManager({"NOTIFY_SOCKET": "/nowhere/at/all"}).ready("x")
    assert "the service manager cannot be told" in capfd.readouterr().err
