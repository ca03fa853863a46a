"""The issuer on the network, and its commands: what strangers and mistakes get."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import jwt
import pytest

from tests.issuer.issuer_process import IssuerProcess, add_client, tandem

TOKEN = "/tandem/oauth2/v2.0/token"


@pytest.fixture(scope="module")
def issuer(module_path: Path) -> Iterator[IssuerProcess]:
    with IssuerProcess(module_path, "--per-minute", "1000") as issuer:
        yield issuer


def ask(issuer: IssuerProcess, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPSConnection("localhost", issuer.port, timeout=20, context=ssl.create_default_context(cafile=issuer.ca))
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def form(secret: str, client: str = "shop", scope: str = "https://servicebus.azure.net/.default") -> bytes:
    return urlencode({"grant_type": "client_credentials", "client_id": client, "client_secret": secret, "scope": scope}).encode()


def test_its_documents_lead_from_one_to_the_next(issuer: IssuerProcess) -> None:
    status, found = ask(issuer, "GET", "/tandem/v2.0/.well-known/openid-configuration")
    assert (status, found["issuer"], found["jwks_uri"]) == (200, issuer.line("issuer:"), issuer.line("keys:"))
    assert str(found["token_endpoint"]).endswith(TOKEN)
    status, keys = ask(issuer, "GET", str(found["jwks_uri"]).partition(f":{issuer.port}")[2])
    assert status == 200
    (key,) = keys["keys"]  # type: ignore[misc]
    assert set(key) == {"kty", "key_ops", "n", "e", "kid", "use", "alg"}, "nothing of the private key"
    assert ask(issuer, "GET", "/health") == (200, {"status": "up"})


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/other/v2.0/.well-known/openid-configuration", b"", 404),
        ("GET", "/", b"", 404),
        ("GET", "/tandem/nowhere", b"", 404),
        ("GET", TOKEN, b"", 405),
        ("POST", "/tandem/discovery/v2.0/keys", b"", 404),
        ("POST", TOKEN, b"", 400),
        ("POST", TOKEN, b"\xff\xfe", 400),
        ("POST", TOKEN, b"x" * 20_000, 413),
        ("POST", TOKEN, b"&".join(b"a=%d" % number for number in range(50)), 400),
        ("POST", TOKEN, form("guess"), 401),
    ],
)
def test_strangers_are_refused_in_words(issuer: IssuerProcess, method: str, path: str, body: bytes, status: int) -> None:
    found, answer = ask(issuer, method, path, body)
    assert found == status
    assert set(answer) == {"error", "error_description"}


def test_a_compressed_body_is_refused_in_words_and_not_taken_apart(issuer: IssuerProcess) -> None:
    found, answer = ask(issuer, "POST", TOKEN, b"\x1f\x8b\x08 nothing of the kind", **{"Content-Encoding": "gzip"})
    assert (found, answer["error"]) == (400, "invalid_request")
    assert "Traceback" not in issuer.log.read_text()


def test_a_client_that_waits_to_be_told_to_continue_is_told(issuer: IssuerProcess) -> None:
    plain = socket.create_connection(("localhost", issuer.port), 20)
    with ssl.create_default_context(cafile=issuer.ca).wrap_socket(plain, server_hostname="localhost") as waiting:
        body = form("guess")
        head = f"POST {TOKEN} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        waiting.sendall(head.encode())
        assert waiting.recv(1_000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        waiting.sendall(body)
        assert waiting.recv(1_000).startswith(b"HTTP/1.1 401 ")


@pytest.mark.slow
def test_a_client_may_be_added_and_removed_while_it_runs(issuer: IssuerProcess) -> None:
    secret = add_client(issuer.directory, "shop", "--role", "Sender", "--group", "ops")
    status, answer = ask(issuer, "POST", TOKEN, form(secret))
    assert (status, answer["expires_in"]) == (200, 10_800)
    assert tandem(issuer.directory, "issuer", "client", "list", "--data", "issuer") == "shop  roles Sender; groups ops\n"
    listed = tandem(issuer.directory, "issuer", "client", "list", "--data", "issuer", "--json")
    assert json.loads(listed)[0]["client_id"] == "shop" and "hash" not in listed
    tandem(issuer.directory, "issuer", "client", "remove", "shop", "--data", "issuer")
    assert ask(issuer, "POST", TOKEN, form(secret))[0] == 401
    _, keys = ask(issuer, "GET", "/tandem/discovery/v2.0/keys")
    assert "shop" in keys["tandem_revoked"]  # type: ignore[operator]


def test_a_secret_is_never_in_its_output_or_its_logs(issuer: IssuerProcess) -> None:
    secret = add_client(issuer.directory, "quiet")
    token = str(ask(issuer, "POST", TOKEN, form(secret, "quiet"))[1]["access_token"])
    ask(issuer, "POST", TOKEN, form(secret[:-1], "quiet"))
    written = "\n".join(issuer.lines) + issuer.log.read_text() + json.dumps(issuer.audit)
    for kept in (secret, secret[:-1], token, "PRIVATE KEY"):
        assert kept not in written
    assert [line["event"] for line in issuer.audit if line["client"] == "quiet"] == ["issued", "refused"]


def test_it_speaks_tls_only(issuer: IssuerProcess) -> None:
    with socket.create_connection(("127.0.0.1", issuer.port), 10) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        plain.settimeout(20)
        assert b"200 OK" not in plain.recv(100)


@pytest.mark.slow
def test_a_new_key_made_by_command_is_published_and_signs_in_its_time(tmp_path: Path) -> None:
    secret = add_client(tmp_path, "shop")
    with IssuerProcess(tmp_path) as issuer:
        before = ask(issuer, "POST", TOKEN, form(secret))[1]["access_token"]
        issuer.kill(signal.SIGTERM)
        shown = tandem(tmp_path, "issuer", "rotate", "--data", "issuer", "--now")
        fresh = re.match(r"new key (\S+), signs from", shown)
        assert fresh
        issuer.start()
        after = ask(issuer, "POST", TOKEN, form(secret))[1]["access_token"]
        kids = [jwt.get_unverified_header(str(token))["kid"] for token in (before, after)]
        assert kids[1] == fresh.group(1)
        _, keys = ask(issuer, "GET", "/tandem/discovery/v2.0/keys")
        assert [key["kid"] for key in keys["keys"]] == kids, "the old one is published while its tokens last"  # type: ignore[index, attr-defined]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("serve", "--lifetime", "1s"), "--lifetime: found"),
        (("serve", "--lifetime", "soon"), "--lifetime: found"),
        (("serve", "--rotate-every", "10m", "--publish-ahead", "1h"), "--publish-ahead: must not be longer"),
        (("serve", "--certificate", "x.pem"), "belong together"),
        (("serve", "--host", "192.0.2.1"), "cannot listen on"),
        (("client", "add", "two words"), "a client's id has letters"),
        (("client", "remove", "nobody"), "there is no client 'nobody'"),
    ],
)
def test_a_mistake_ends_with_two_and_one_line(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    port = ("--port", "0") if arguments[0] == "serve" else ()
    command = [sys.executable, "-m", "tandem", "issuer", *arguments, *port, "--data", "issuer"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_it_stops_when_told(tmp_path: Path) -> None:
    with IssuerProcess(tmp_path) as issuer:
        began = time.monotonic()
        assert issuer.kill(signal.SIGTERM) == 0
        assert time.monotonic() - began < 10
