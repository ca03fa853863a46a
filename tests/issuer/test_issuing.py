"""Keys that rotate without a gap, secrets that are kept as hashes, limits, and what the token endpoint says."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from tandem.issuer.clients import FILE_NAME, ClientBook
from tandem.issuer.endpoint import Answer, TokenEndpoint
from tandem.issuer.rate_limit import RateLimit
from tandem.issuer.server import IssuerServer
from tandem.issuer.settings import DAY_MS, HOUR_MS, IssuerSettings
from tandem.issuer.signing_keys import SigningKeys
from tandem.model import clock
from tandem.model.errors import ConfigurationError
from tandem.tokens.key_set import parse_key_set
from tandem.tokens.trust import TrustedIssuer
from tandem.tokens.verification import read_unverified, verify
from tandem.wire.tls import ensure_certificates, server_context

SETTINGS = IssuerSettings(url="https://issuer.test", requests_per_minute=5)
SCOPE = "https://servicebus.azure.net/.default"
START = 1_800_000_000_000


class Clock(clock.Clock):
    def __init__(self) -> None:
        self.now = START

    def now_ms(self) -> int:
        return self.now

    def steady_ms(self) -> int:
        return self.now

    def jumped(self) -> int:
        return 0


class Desk:
    """An issuer without its network."""

    def __init__(self, directory: Path) -> None:
        self.clock = Clock()
        self.audit: list[dict[str, Any]] = []
        self.book = ClientBook(directory)
        self.keys = SigningKeys(directory, SETTINGS, os.urandom)
        self.keys.look_after(self.clock.now)
        self.secret = self.book.add("shop", ("Sender",), ("ops",), self.clock.now)
        self.endpoint = TokenEndpoint(SETTINGS, self.keys, self.book, clock=self.clock, entropy=os.urandom, audit=self.audit.append)

    def form(self, **changed: str) -> dict[str, str]:
        usual = {"grant_type": "client_credentials", "client_id": "shop", "client_secret": self.secret, "scope": SCOPE}
        return {name: value for name, value in {**usual, **changed}.items() if value}

    async def ask(self, authorization: str = "", address: str = "10.0.0.1", **changed: str) -> Answer:
        return await self.endpoint.answer(self.form(**changed), authorization, address)

    def believed(self, token: str) -> str:
        keys = parse_key_set(json.dumps({"keys": self.keys.published(), "tandem_revoked": self.book.revoked()}).encode())
        return verify(read_unverified(token), TrustedIssuer(issuer=SETTINGS.issuer), keys, self.clock.now).subject


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


async def test_a_token_says_who_for_whom_and_until_when(desk: Desk) -> None:
    answer = await desk.ask()
    assert (answer.status, answer.body["token_type"], answer.body["expires_in"], answer.body["refresh_in"]) == (
        200,
        "Bearer",
        10_800,
        5_400,
    )
    said = jwt.decode(answer.body["access_token"], options={"verify_signature": False})
    assert said["aud"] == "https://servicebus.azure.net/"
    assert (said["iss"], said["sub"], said["roles"], said["groups"]) == (SETTINGS.issuer, "shop", ["Sender"], ["ops"])
    assert (said["nbf"], said["exp"]) == (START // 1000, START // 1000 + 10_800)
    assert desk.believed(answer.body["access_token"]) == "shop"
    assert desk.audit == [
        {
            "event": "issued",
            "client": "shop",
            "address": "10.0.0.1",
            "audience": said["aud"],
            "token_id": said["jti"],
            "expires_at": said["exp"],
        }
    ]


async def test_credentials_may_come_as_user_name_and_password(desk: Desk) -> None:
    basic = "Basic " + base64.b64encode(f"shop:{desk.secret}".encode()).decode()
    assert (await desk.ask(basic, client_id="", client_secret="")).status == 200


@pytest.mark.parametrize(
    ("changed", "authorization", "status", "error"),
    [
        ({"client_secret": "wrong"}, "", 401, "invalid_client"),
        ({"client_id": "nobody"}, "", 401, "invalid_client"),
        ({"client_secret": "x" * 10_000}, "", 401, "invalid_client"),
        ({"client_secret": ""}, "", 400, "invalid_request"),
        ({"client_secret": ""}, "Basic !!!", 401, "invalid_client"),
        ({"client_secret": ""}, "Basic é", 401, "invalid_client"),
        ({"grant_type": "password"}, "", 400, "unsupported_grant_type"),
        ({"scope": "https://vault.azure.net/.default"}, "", 400, "invalid_scope"),
        ({"scope": ""}, "", 400, "invalid_scope"),
    ],
)
async def test_what_is_wrong_is_said_in_oauths_words_and_written_down(
    desk: Desk, changed: dict[str, str], authorization: str, status: int, error: str
) -> None:
    answer = await desk.ask(authorization, **changed)
    assert (answer.status, answer.body["error"]) == (status, error)
    assert (desk.audit[-1]["event"], desk.audit[-1]["reason"]) == ("refused", error)
    assert desk.secret not in json.dumps([answer.body, desk.audit])


async def test_one_address_and_one_client_may_ask_only_so_often(desk: Desk) -> None:
    for _ in range(5):
        assert (await desk.ask()).status == 200
    refused = await desk.ask()
    assert (refused.status, refused.body["error"], refused.retry_after) == (429, "temporarily_unavailable", 13)
    assert (await desk.ask(address="10.0.0.2")).status == 429, "the same client from elsewhere"
    desk.clock.now += 13_000
    assert (await desk.ask()).status == 200


def test_a_bucket_refills_evenly_and_there_are_never_too_many() -> None:
    limit = RateLimit(60)
    assert [limit.wait_ms("a", 0) for _ in range(60)] == [0] * 60
    assert limit.wait_ms("a", 0) == 1001
    assert (limit.wait_ms("a", 1_000), limit.wait_ms("b", 1_000)) == (0, 0)
    for number in range(20_000):
        limit.wait_ms(str(number), 1_000)
    assert len(limit._buckets) == 10_000


# --- keys


@pytest.mark.slow
async def test_keys_rotate_and_every_token_is_good_until_its_end(desk: Desk) -> None:
    """Three months, hour by hour: at no time is a token refused that has not ended, nor signed with a key that is not published."""
    alive: list[tuple[int, str]] = []
    seen: set[str] = set()
    for hour in range(90 * 24):
        desk.clock.now = START + hour * HOUR_MS
        desk.keys.look_after(desk.clock.now)
        published = [key["kid"] for key in desk.keys.published()]
        assert desk.keys.current(desk.clock.now).key_id in published
        if hour % 120 == 0 or len(published) > 1:
            answer = await desk.ask(address=str(hour))
            alive.append((desk.clock.now + SETTINGS.lifetime_ms, answer.body["access_token"]))
            seen.add(jwt.get_unverified_header(answer.body["access_token"])["kid"])
        alive = [(until, token) for until, token in alive if until > desk.clock.now]
        for _, token in alive:
            assert desk.believed(token) == "shop"
        assert len(published) <= 2
    assert len(seen) == 3, "one a month"


def test_a_new_key_is_published_before_it_signs_and_the_old_one_stays(tmp_path: Path) -> None:
    keys = SigningKeys(tmp_path, SETTINGS, os.urandom)
    keys.look_after(START)
    first = keys.current(START).key_id
    soon = START + SETTINGS.rotate_every_ms - SETTINGS.publish_ahead_ms
    keys.look_after(soon)
    second = keys.published()[1]["kid"]
    assert keys.current(soon).key_id == first, "published, but not used yet"
    assert keys.current(soon + SETTINGS.publish_ahead_ms).key_id == second
    again = SigningKeys(tmp_path, SETTINGS, os.urandom)
    assert [key["kid"] for key in again.published()] == [first, second], "a restart changes nothing"
    again.look_after(soon + SETTINGS.publish_ahead_ms + SETTINGS.lifetime_ms)
    assert first in [key["kid"] for key in again.published()]
    again.look_after(soon + SETTINGS.publish_ahead_ms + SETTINGS.lifetime_ms + DAY_MS)
    assert [key["kid"] for key in again.published()] == [second]


def test_a_key_that_leaked_is_replaced_at_once(tmp_path: Path) -> None:
    keys = SigningKeys(tmp_path, SETTINGS, os.urandom)
    keys.look_after(START)
    fresh = keys.rotate(START + 1, at_once=True)
    assert keys.current(START + 1).key_id == fresh.key_id
    assert oct((tmp_path / "issuer-signing-keys.json").stat().st_mode)[-3:] == "600"


# --- clients


def test_secrets_are_kept_as_hashes_in_a_file_for_nobody_else(desk: Desk, tmp_path: Path) -> None:
    file = tmp_path / FILE_NAME
    assert desk.secret not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    assert desk.book.is_client("shop", desk.secret) is not None
    assert repr(desk.book.find("shop")).count("hash") == 0


async def test_a_removed_client_gets_no_token_and_those_it_has_are_void(desk: Desk, tmp_path: Path) -> None:
    token = (await desk.ask()).body["access_token"]
    assert desk.believed(token) == "shop"
    ClientBook(tmp_path).remove("shop", desk.clock.now, SETTINGS.lifetime_ms)  # by another process
    assert (await desk.ask()).body["error"] == "invalid_client"
    with pytest.raises(Exception, match="RevokedClient"):
        desk.believed(token)
    desk.secret = desk.book.add("shop", (), (), desk.clock.now)
    desk.clock.now += 2_000
    assert desk.believed((await desk.ask()).body["access_token"]) == "shop", "who is on the book again is believed again"


def test_the_book_refuses_what_it_cannot_keep(desk: Desk, tmp_path: Path) -> None:
    for wrong in ("", "a b", "x" * 200, "line\nbreak"):
        with pytest.raises(ConfigurationError, match="a client's id has letters"):
            desk.book.add(wrong, (), (), 0)
    with pytest.raises(ConfigurationError, match="already"):
        desk.book.add("shop", (), (), 0)
    with pytest.raises(ConfigurationError, match="no client 'nobody'"):
        desk.book.remove("nobody", 0, 0)
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        ClientBook(tmp_path).all()


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        (b"", b""),
        (b"POST /tandem/oauth2/v2.0/token HTTP/1.1\r\nHost: x\r\n", b""),
        (b"POST /tandem/oauth2/v2.0/token HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\ngrant", b"HTTP/1.1 408 "),
    ],
    ids=["nothing", "half a header", "half a body"],
)
async def test_who_says_nothing_or_half_of_a_request_is_not_waited_for(desk: Desk, tmp_path: Path, said: bytes, heard: bytes) -> None:
    files = ensure_certificates(tmp_path, (), int(time.time() * 1000))
    listener = socket.create_server(("127.0.0.1", 0))
    server = IssuerServer(
        SETTINGS, desk.keys, desk.book, desk.endpoint, clock=desk.clock, note=pytest.fail, header_ms_max=200, body_ms_max=200
    )
    await server.start(listener, server_context(files.certificate, files.private_key))
    try:
        trust = ssl.create_default_context(cafile=files.ca)
        reader, writer = await asyncio.open_connection(*listener.getsockname()[:2], ssl=trust, server_hostname="localhost")
        writer.write(said)
        async with asyncio.timeout(20):
            assert (await reader.read()).startswith(heard)
        writer.close()
    finally:
        await server.stop()


async def test_connections_beyond_those_it_may_have_are_hung_up_on_and_the_others_served(desk: Desk, tmp_path: Path) -> None:
    files = ensure_certificates(tmp_path, (), int(time.time() * 1000))
    listener = socket.create_server(("127.0.0.1", 0))
    server = IssuerServer(SETTINGS, desk.keys, desk.book, desk.endpoint, clock=desk.clock, note=pytest.fail, connections_max=3)
    await server.start(listener, server_context(files.certificate, files.private_key))
    try:
        trust = ssl.create_default_context(cafile=files.ca)
        many = [await asyncio.open_connection(*listener.getsockname()[:2], ssl=trust, server_hostname="localhost") for _ in range(4)]
        async with asyncio.timeout(20):
            assert await many[-1][0].read() == b""
            many[0][1].write(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert (await many[0][0].read()).startswith(b"HTTP/1.1 200 ")
        for _, writer in many:
            writer.close()
    finally:
        await server.stop()
