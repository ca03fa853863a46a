from __future__ import annotations

import socket

from tandem.testing import ports
from tandem.testing.ports import free_port


def test_a_free_port_is_none_that_an_outgoing_connection_may_get():
    outgoing_from = int(ports._OUTGOING.read_text().split()[0])
    found = {free_port() for _ in range(20)}
    assert all(ports._LOWEST <= port < outgoing_from for port in found)
    assert len(found) > 15, "two that ask at the same time get different ones"


def test_a_port_in_use_is_passed_over(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "_LOWEST", port)
        monkeypatch.setattr(ports, "_outgoing_from", lambda: port + 1)
        assert free_port() != port


def test_a_system_that_does_not_tell_its_range_gives_any_port(monkeypatch, tmp_path):
    monkeypatch.setattr(ports, "_OUTGOING", tmp_path / "missing")
    with socket.create_server(("127.0.0.1", free_port())):
        pass
