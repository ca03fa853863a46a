"""Sockets that wait for clients."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tandem.cli.listening import listen


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_a_name_that_stands_for_an_address_of_ipv6_alone_is_listened_on(monkeypatch: pytest.MonkeyPatch) -> None:
    known = socket.getaddrinfo

    def only_six(host: Any, *rest: Any, **more: Any) -> Any:
        return known("::1" if host == "six" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", only_six)
    with listen("six", 0) as listener, socket.create_connection(("::1", listener.getsockname()[1]), 5):
        assert listener.family == socket.AF_INET6
