"""Tokens of a trusted issuer open what they say, on every door; wrong ones are refused in words, and the operator sees it."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError

from tests.cli.broker_process import BrokerProcess
from tests.conformance.house import ClockedBroker
from tests.conformance.raw import Raw, Refused, message
from tests.tokens import minting
from tests.tokens.minting import ISSUER, RECEIVER, SENDER, claims, ec_key, jwk, key_set, rsa_key, signed, tampered

KEY = "only-for-this-test"
CONFIG = f"""
[[queue]]
name = "orders"
[[queue]]
name = "other"
[[relay]]
name = "line"
[[trusted_issuer]]
issuer = "{ISSUER}"
jwks_file = "keys.json"
[[trusted_issuer.grant]]
subject = "clerk"
rights = ["Send", "Listen"]
entities = ["orders"]
[[trusted_issuer.grant]]
group = "auditors"
rights = ["Listen"]
[[trusted_issuer.grant]]
role = "head-clerk"
rights = ["Manage"]
entities = ["orders"]
"""


@dataclass
class House:
    broker: BrokerProcess
    log: Path

    @property
    def port(self) -> int:
        return self.broker.port


@pytest.fixture(scope="module")
def house(module_path: Path) -> Iterator[House]:
    keys = key_set(jwk(rsa_key(), "rsa-1"), jwk(ec_key(), "ec-1"), tandem_revoked={"fired": int(time.time()) + 3600})
    (module_path / "keys.json").write_bytes(keys)
    (module_path / "tandem.toml").write_text(CONFIG)
    log = module_path / "stderr.txt"
    with BrokerProcess(module_path, "--port", "0", "--data", "data", "--key", KEY, "--faults", log=log) as broker:
        yield House(broker, log)


def put(house: House, token: str, entity: str = "orders") -> tuple[int, str]:
    with Raw(house.port, user="") as raw:
        return raw.put_token(entity, token)


def ask(house: House, method: str, path: str, token: str, body: bytes = b"") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", house.port, timeout=20)
    try:
        connection.request(method, path, body, {"Authorization": f"Bearer {token}", "Content-Type": "text/plain"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


class Fixed:
    """A credential with one token."""

    def __init__(self, token: str, expires_on: int) -> None:
        self._token = AccessToken(token, expires_on)
        self.asked: list[str] = []

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.asked.append(scopes[0])
        return self._token


# --- what opens


@pytest.mark.parametrize("key", ["RS256", "ES256"])
def test_the_sdk_sends_and_receives_with_an_issued_token(house: House, key: str) -> None:
    said = claims()
    credential = Fixed(signed(said) if key == "RS256" else signed(said, ec_key(), "ec-1"), said["exp"])
    with ServiceBusClient(f"localhost:{house.port}", credential, use_tls=False) as client:  # type: ignore[arg-type]
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage(key))
        with client.get_queue_receiver("orders") as receiver:
            (found,) = receiver.receive_messages(1, max_wait_time=10)
            receiver.complete_message(found)
            assert str(found) == key
    assert set(credential.asked) == {"https://servicebus.azure.net//.default"}


def client_with(house: House, token: str) -> ServiceBusClient:
    return ServiceBusClient(f"localhost:{house.port}", Fixed(token, 2**32), use_tls=False, retry_total=0)  # type: ignore[arg-type]


def test_the_sdk_says_authentication_for_a_wrong_token_and_authorization_for_a_missing_right(house: House) -> None:
    with client_with(house, signed(claims(time.time() - 7200))) as client:
        with pytest.raises(ServiceBusAuthenticationError) as failure, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("x"))
        assert "ExpiredToken" in str(failure.value.inner_exception)
    with (
        client_with(house, signed(claims(roles=[RECEIVER]))) as client,
        pytest.raises(ServiceBusAuthorizationError, match="'Send' claim"),
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))


def test_a_grant_for_one_entity_opens_it_and_no_other(house: House) -> None:
    clerk = signed(claims(sub="clerk", roles=None))
    with Raw(house.port, user="") as raw:
        assert raw.put_token("orders", clerk)[0] == 202
        raw.sender("orders").send(message("from the clerk"))
        assert raw.put_token("other", clerk)[0] == 202, "the token is good; what it allows is asked at the attach"
        with pytest.raises(Refused) as refusal:
            raw.sender("other")
        assert refusal.value.condition == "amqp:unauthorized-access"
        assert "'Send' claim(s) are required" in refusal.value.description
    with Raw(house.port, user="") as raw:
        assert raw.put_token("", clerk)[0] == 202, "for the whole namespace it allows what it allows on each entity"
        raw.sender("orders").send(message("again"))
        with pytest.raises(Refused):
            raw.sender("other")


def test_groups_and_roles_open_what_the_table_says(house: House) -> None:
    auditor = signed(claims(sub="x", roles=None, groups=["auditors"]))
    with Raw(house.port, user="") as raw:
        assert raw.put_token("other", auditor)[0] == 202
        raw.receiver("other")
        with pytest.raises(Refused):
            raw.sender("other")
    head = signed(claims(sub="x", roles=["head-clerk"]))
    assert ask(house, "GET", "/orders?api-version=2021-05", head)[0] == 200
    assert ask(house, "GET", "/other?api-version=2021-05", head)[0] == 401


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/orders?api-version=2021-05", 200),
        ("POST", "/orders/messages", 201),
        ("DELETE", "/orders/messages/head?timeout=10", 200),
        ("GET", "/$tandem/metrics", 200),
        ("GET", "/$tandem/api/overview", 200),
        ("GET", "/$tandem/events", 200),
        ("GET", "/$tandem/health", 200),
    ],
)
def test_a_bearer_token_opens_every_door_of_http(house: House, method: str, path: str, status: int) -> None:
    token = signed(claims())
    if method == "DELETE":
        ask(house, "POST", "/orders/messages", token, b"one")
    assert ask(house, method, path, token, b"body" if method == "POST" else b"")[0] == status


def test_the_console_takes_an_issued_token_and_shows_what_it_may_see(house: House) -> None:
    def call(method: str, what: str, bearer: str, **body: str) -> dict[str, Any]:
        status, text = ask(house, method, f"/$tandem/api/{what}", bearer, json.dumps(body).encode())
        assert status == 200, text
        return dict(json.loads(text))

    clerk = signed(claims(sub="clerk", roles=None))
    told = call("POST", "login", "", token=clerk)
    assert told["grants"] == [{"path": "orders", "rights": ["Listen", "Send"]}] and told["token"] == clerk
    assert [row["path"] for row in call("POST", "entities", clerk)["rows"]] == ["orders"]
    assert ask(house, "POST", "/$tandem/api/messages", clerk, b'{"path": "other"}')[0] == 401


def test_a_renewed_token_with_less_takes_the_rest_away(house: House) -> None:
    with Raw(house.port, user="") as raw:
        assert raw.put_token("orders", signed(claims()))[0] == 202
        raw.sender("orders").send(message("x"))
        assert raw.put_token("orders", signed(claims(roles=[RECEIVER])))[0] == 202
        with pytest.raises(Refused):
            raw.sender("orders")


# --- what does not


def wrong_tokens() -> dict[str, tuple[Callable[[], str], str]]:
    long_ago = time.time() - 7200
    return {
        "expired": (lambda: signed(claims(long_ago)), "ExpiredToken"),
        "not yet valid": (lambda: signed(claims(nbf=int(time.time()) + 600)), "TokenNotYetValid"),
        "other audience": (lambda: signed(claims(aud="https://vault.azure.net")), "InvalidAudience"),
        "other issuer": (lambda: signed(claims(iss="https://elsewhere.test")), "InvalidIssuer"),
        "other key": (lambda: signed(claims(), rsa_key("stranger")), "InvalidSignature"),
        "unknown kid": (lambda: signed(claims(), rsa_key("stranger"), "rsa-9"), "UnknownKey"),
        "none": (lambda: minting.unsigned(claims()), "AlgorithmNotAllowed"),
        "HS256 with the RSA key": (lambda: minting.signed_with_the_public_key(claims()), "AlgorithmNotAllowed"),
        "tampered": (lambda: tampered(signed(claims(roles=[SENDER])), roles=[minting.OWNER]), "InvalidSignature"),
        "revoked client": (lambda: signed(claims(sub="fired")), "RevokedClient"),
        "no JWT at all": (lambda: "eyJub3QiOiJvbmUifQ", "MalformedToken"),
    }


def no_rights() -> dict[str, Callable[[], str]]:
    return {
        "no right": lambda: signed(claims(roles=None)),
        "right on another entity": lambda: signed(claims(sub="clerk", roles=None)),
    }


HTTP_DOORS = {
    "ATOM": ("GET", "/other?api-version=2021-05"),
    "ATOM change": ("PUT", "/fresh?api-version=2021-05"),
    "REST send": ("POST", "/other/messages"),
    "REST receive": ("DELETE", "/other/messages/head?timeout=0"),
    "console": ("GET", "/$tandem/api/overview"),
    "metrics": ("GET", "/$tandem/metrics"),
    "health details": ("GET", "/$tandem/health"),
    "events": ("GET", "/$tandem/events"),
    "faults": ("GET", "/$tandem/faults"),
}
STEPS = tuple(wrong_tokens())


def relay_listen(house: House, token: str) -> tuple[int, str]:
    return upgrade(house, f"/$hc/line?sb-hc-action=listen&sb-hc-token={quote(token)}")


def relay_connect(house: House, token: str) -> tuple[int, str]:
    return upgrade(house, f"/$hc/line?sb-hc-action=connect&sb-hc-token={quote(token)}")


def relay_request(house: House, token: str) -> tuple[int, str]:
    return ask(house, "GET", "/line/somewhere", token)


RELAY_DOORS = {"listen": relay_listen, "connect": relay_connect, "request": relay_request}
NOT_FOR_THIS = frozenset({"other audience"})
"""What a relay calls forbidden: a good token, for something else."""


def upgrade(house: House, path: str) -> tuple[int, str]:
    key = base64.b64encode(os.urandom(16)).decode()
    connection = http.client.HTTPConnection("127.0.0.1", house.port, timeout=20)
    try:
        headers = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": key}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, "" if answer.status == 101 else answer.read().decode()
    finally:
        connection.close()


TRACKING = re.compile(r"TrackingId:([0-9a-f-]+_\w+)")


def refused_and_seen(house: House, attempt: Callable[[], tuple[int, str]], status: int, words: str) -> None:
    """The operator's line, with the same tracking id, is written before the answer leaves. At most a few lines of a kind are written
    in a second: then a second try, later, is seen for certain."""
    for pause in (0.0, 1.2):
        time.sleep(pause)
        found, said = attempt()
        assert (found, words in said) == (status, True), said
        tracking = TRACKING.search(said)
        assert tracking, said
        lines = [line for line in house.log.read_text().splitlines() if tracking.group(1) in line]
        if lines:
            assert all("refused" in line for line in lines)
            return
    raise AssertionError(f"nobody told the operator: {said}")


@pytest.mark.parametrize("name", STEPS)
def test_a_wrong_token_is_refused_at_cbs(house: House, name: str) -> None:
    make, words = wrong_tokens()[name]
    token = make()
    refused_and_seen(house, lambda: put(house, token), 401, words)
    assert token not in house.log.read_text()


@pytest.mark.parametrize("door", HTTP_DOORS)
@pytest.mark.parametrize("name", STEPS)
def test_a_wrong_token_is_refused_by_every_door_of_http(house: House, name: str, door: str) -> None:
    make, words = wrong_tokens()[name]
    token = make()
    method, path = HTTP_DOORS[door]
    refused_and_seen(house, lambda: ask(house, method, path, token), 401, words)


@pytest.mark.parametrize("door", RELAY_DOORS)
@pytest.mark.parametrize("name", STEPS)
def test_a_wrong_token_is_refused_by_the_relay(house: House, name: str, door: str) -> None:
    make, words = wrong_tokens()[name]
    token = make()
    refused_and_seen(house, lambda: RELAY_DOORS[door](house, token), 403 if name in NOT_FOR_THIS else 401, words)


@pytest.mark.parametrize("door", RELAY_DOORS)
@pytest.mark.parametrize("name", no_rights())
def test_a_good_token_without_the_right_is_refused_by_the_relay(house: House, name: str, door: str) -> None:
    refused_and_seen(house, lambda: RELAY_DOORS[door](house, no_rights()[name]()), 403, "InsufficientClaims")


def test_a_good_token_opens_the_relay(house: House) -> None:
    token = signed(claims())
    assert relay_listen(house, token)[0] == 101
    assert relay_request(house, token)[0] not in (401, 403), "nobody listens, but it may ask"


@pytest.mark.parametrize("name", no_rights())
def test_a_good_token_without_the_right_is_refused_at_the_link(house: House, name: str) -> None:
    def attempt() -> tuple[int, str]:
        with Raw(house.port, user="") as raw:
            assert raw.put_token("other", no_rights()[name]())[0] == 202
            with pytest.raises(Refused) as refusal:
                raw.sender("other")
            assert refusal.value.condition == "amqp:unauthorized-access"
            return 401, refusal.value.description

    refused_and_seen(house, attempt, 401, "'Send' claim(s) are required")


@pytest.mark.parametrize("door", HTTP_DOORS)
@pytest.mark.parametrize("name", no_rights())
def test_a_good_token_without_the_right_is_refused_by_every_door_of_http(house: House, name: str, door: str) -> None:
    method, path = HTTP_DOORS[door]
    refused_and_seen(house, lambda: ask(house, method, path, no_rights()[name]()), 401, "InsufficientClaims")


@pytest.mark.parametrize("size", [17_000, 70_000, 200_000])
def test_a_token_that_is_too_long_is_refused_with_an_answer(house: House, size: int) -> None:
    refused_and_seen(house, lambda: put(house, "ey" + "x" * size), 401, "characters; at most 16384 are allowed")


def test_the_sdk_hears_that_its_token_is_too_long(house: House) -> None:
    began = time.monotonic()
    with client_with(house, "ey" + "x" * 70_000) as client:
        with pytest.raises(ServiceBusAuthenticationError) as failure, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("x"))
        assert "70002 characters; at most 16384" in str(failure.value.inner_exception)
    assert time.monotonic() - began < 30, "it did not wait for an answer that never comes"


def test_a_request_to_cbs_beyond_all_measure_is_refused_too(house: House) -> None:
    with Raw(house.port, user="") as raw, pytest.raises(Refused) as refusal:
        raw.put_token("orders", "ey" + "x" * 400_000)
    assert refusal.value.condition == "amqp:link:message-size-exceeded"


def test_no_token_and_no_key_ever_stands_in_a_log(house: House) -> None:
    good = signed(claims())
    assert put(house, good)[0] == 202
    text = house.log.read_text() + "\n".join(house.broker.lines)
    assert KEY not in text
    assert not re.search(r"eyJ[\w-]{20,}", text), "no part of any token, believed or not"
    assert json.dumps(good) not in text


def test_a_link_is_cut_when_its_token_ends_and_not_before(tmp_path: Path) -> None:
    directory = tmp_path / "aging"
    directory.mkdir()
    (directory / "jwks.json").write_bytes(minting.usual_keys())
    trusted = ("[[trusted_issuer]]", f'issuer = "{ISSUER}"', 'jwks_file = "jwks.json"')
    with ClockedBroker(directory, {"plain": 1}, connections_too=True, more=trusted) as broker, Raw(broker.port, user="") as raw:
        ends = broker.clock.now_ms() // 1000 + 600
        assert raw.put_token("plain-0", signed(claims(exp=ends)))[0] == 202
        sender, receiver = raw.sender("plain-0"), raw.receiver("plain-0")
        broker.jump(ends - 10 - broker.clock.now_ms() / 1000)
        sender.send(message("in time"))
        assert not receiver.end.gone
        broker.jump(ends + 0.01 - broker.clock.now_ms() / 1000)  # jumps are cut to milliseconds
        with pytest.raises(Refused) as cut:
            sender.send(message("too late"))
        assert (cut.value.condition, "has expired" in cut.value.description) == ("amqp:unauthorized-access", True)
        raw.until(lambda: receiver.end.gone)
        assert raw.put_token("plain-0", signed(claims(exp=ends + 600)))[0] == 202, "the connection itself goes on"
        raw.sender("plain-0").send(message("renewed"))
