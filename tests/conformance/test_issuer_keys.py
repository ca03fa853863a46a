"""A broker and the keys of its issuer: a new key is found when the first token needs it, and strangers do not make it ask without end."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.broker_process import BrokerProcess
from tests.conformance.raw import Raw, message
from tests.tokens.minting import ISSUER, claims, jwk, key_set, rsa_key, signed

REFETCH_SECONDS = 2


class Publisher:
    """A web server with the issuer's keys, which counts."""

    def __init__(self) -> None:
        self.document = key_set(jwk(rsa_key(), "rsa-1"))
        self.asked = 0
        publisher = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                publisher.asked += 1
                self.send_response(200)
                self.end_headers()
                self.wfile.write(publisher.document)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Nobody reads it."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/keys"


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    publisher = Publisher()
    yield publisher
    publisher.server.shutdown()
    publisher.server.server_close()


@pytest.mark.compiled_too
def test_a_new_key_is_found_with_its_first_token_and_strangers_cause_few_looks(tmp_path: Path, publisher: Publisher) -> None:
    (tmp_path / "tandem.toml").write_text(
        f'[[queue]]\nname = "orders"\n[[trusted_issuer]]\nissuer = "{ISSUER}"\njwks_url = "{publisher.url}"\n'
        f'refresh = "1d"\nrefetch_min = "{REFETCH_SECONDS}s"\n'
    )
    with (
        BrokerProcess(tmp_path, "--port", "0", "--memory", "--key", "k", log=tmp_path / "log.txt") as broker,
        Raw(broker.port, user="") as raw,
    ):
        until = time.monotonic() + 30
        while raw.put_token("orders", signed(claims()))[0] != 202:
            assert time.monotonic() < until, "the keys are fetched at the start, by nobody's request"
            time.sleep(0.05)
        asked = publisher.asked
        publisher.document = key_set(jwk(rsa_key(), "rsa-1"), jwk(rsa_key("two"), "rsa-2"))
        time.sleep(REFETCH_SECONDS + 0.2)
        assert raw.put_token("orders", signed(claims(), rsa_key("two"), "rsa-2"))[0] == 202
        assert publisher.asked == asked + 1
        raw.sender("orders").send(message("with the new key"))
        began = time.monotonic()
        for number in range(60):
            status, said = raw.put_token("orders", signed(claims(), rsa_key("stranger"), f"made-up-{number}"))
            assert (status, "UnknownKey" in said) == (401, True)
        allowed = 1 + (time.monotonic() - began) / REFETCH_SECONDS
        assert publisher.asked - asked - 1 <= allowed, "not more often than refetch_min allows"
