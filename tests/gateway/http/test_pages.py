"""Our own pages, over HTTP, on the port that speaks everything."""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tandem.model.sas_token import make_token
from tandem.testing import Bus
from tests.cli.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def bus() -> Iterator[Bus]:
    with Bus() as running:
        running.create_queue("orders")
        with ServiceBusClient.from_connection_string(running.connection_string) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("one"))
        yield running


def get(bus: Bus, path: str, headers: dict[str, str] | None = None) -> tuple[int, str, str]:
    request = urllib.request.Request(f"http://localhost:{bus.port}/{path}", headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_health_names_every_store_and_its_state(bus: Bus) -> None:
    status, kind, text = get(bus, "$tandem/health")
    told = json.loads(text)
    assert (status, kind.split(";")[0], told["status"]) == (200, "application/json", "ok")
    assert {store["state"] for store in told["namespaces"][0]["stores"]} == {"up"}


def test_metrics_count_messages_per_entity_and_state(bus: Bus) -> None:
    _, kind, text = get(bus, "$tandem/metrics")
    assert kind.startswith("text/plain")
    assert 'tandem_messages{entity="orders",namespace="tandem",state="active"} 1.0' in text


def test_the_console_is_served_with_its_files_and_nothing_else(bus: Bus) -> None:
    status, kind, text = get(bus, "$tandem/console/")
    assert (status, kind.split(";")[0]) == (200, "text/html")
    assert "js/app.js" in text
    assert get(bus, "$tandem/console/js/app.js")[1].startswith("text/javascript")
    assert get(bus, "$tandem/console/vendor/LICENSE-preact.txt")[0] == 200
    assert get(bus, "$tandem/console/__init__.py")[0] == 404
    assert get(bus, "$tandem/console/..%2f..%2fversion.py")[0] == 404


def test_events_and_faults_need_manage(bus: Bus) -> None:
    assert get(bus, "$tandem/events")[0] == 401
    assert get(bus, "$tandem/faults")[0] == 401
    parts = dict(part.split("=", 1) for part in bus.connection_string.strip(";").split(";"))
    expiry = int(time.time() * 1000) + 86_400_000
    token = make_token(f"http://localhost:{bus.port}/", parts["SharedAccessKeyName"], parts["SharedAccessKey"], expiry)
    status, _, text = get(bus, "$tandem/events", {"Authorization": token})
    assert status == 200
    assert [event["number"] for event in json.loads(text)["events"]] == list(range(1, len(json.loads(text)["events"]) + 1))
    for method, page in (("POST", "meters"), ("DELETE", "events"), ("PUT", "connections"), ("GET", "reload"), ("POST", "relays")):
        connection = http.client.HTTPConnection("localhost", bus.port, timeout=30)
        connection.request(method, f"/$tandem/{page}", headers={"Authorization": token})
        answer = connection.getresponse()
        assert answer.status == 405 and b"means nothing here" in answer.read()
        connection.close()


# --- a broker that is not for development

CONFIG = """
[[namespace]]
name = "east"
[[namespace.queue]]
name = "orders"
[[namespace.authorization_rule]]
name = "monitor"
rights = ["Listen"]
primary_key = "look"
[[namespace.authorization_rule]]
name = "producer"
rights = ["Send"]
primary_key = "send"
[[namespace]]
name = "west"
hosts = ["west.example"]
[[namespace.queue]]
name = "secret-of-the-west"
"""


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("strict")
    (directory / "tandem.toml").write_text(CONFIG)
    with BrokerProcess(directory, "--port", "0", "--memory", "--key", "root") as broker:
        yield broker


def ask(port: int, path: str, **headers: str) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, {name.casefold(): value for name, value in answer.getheaders()}, text


def basic(user: str, key: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{key}".encode()).decode()


def test_health_says_up_to_anybody_and_no_more(strict: BrokerProcess) -> None:
    for path in ("/$tandem/health", "/health"):
        status, _, text = ask(strict.port, path)
        assert (status, json.loads(text)) == (200, {"status": "up"})


@pytest.mark.parametrize("path", ["/$tandem/metrics", "/$tandem/events", "/$tandem/meters"])
def test_details_need_a_key(strict: BrokerProcess, path: str) -> None:
    for given in (
        {},
        {"Authorization": basic("monitor", "wrong")},
        {"Authorization": basic("producer", "send")},
        {"Authorization": "Basic !"},
    ):
        status, _, text = ask(strict.port, path, **given)
        assert status == 401
        assert "orders" not in text


def test_a_wrong_key_is_told_so_even_by_health(strict: BrokerProcess) -> None:
    status, headers, _ = ask(strict.port, "/$tandem/health", Authorization=basic("monitor", "wrong"))
    assert status == 401
    assert headers["www-authenticate"].startswith("Basic ")


def test_a_key_with_listen_reads_details_of_its_own_namespace(strict: BrokerProcess) -> None:
    token = make_token(f"http://localhost:{strict.port}/", "monitor", "look", int(time.time() * 1000) + 60_000)
    for given in (basic("monitor", "look"), token):
        status, _, text = ask(strict.port, "/$tandem/metrics", Authorization=given)
        assert status == 200
        assert 'entity="orders"' in text and "secret-of-the-west" not in text
        status, _, text = ask(strict.port, "/$tandem/health", Authorization=given)
        assert [space["name"] for space in json.loads(text)["namespaces"]] == ["east"]


def test_the_console_is_the_same_for_everybody_and_runs_nothing_but_its_files(strict: BrokerProcess) -> None:
    status, headers, text = ask(strict.port, "/$tandem/console/")
    assert status == 200 and "orders" not in text and "east" not in text
    policy = headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy and "unsafe" not in policy
    assert "<script>" not in text and "style=" not in text and "onclick" not in text
    assert ask(strict.port, "/$tandem/console/", If_None_Match=headers["etag"])[0] == 304


def test_a_user_name_and_password_change_nothing(strict: BrokerProcess) -> None:
    """A browser sends them along by itself, so they are good for reading only."""
    assert ask(strict.port, "/$tandem/faults", Authorization=basic("RootManageSharedAccessKey", "root"))[0] == 401


def test_pages_are_not_framed_nor_guessed_at(strict: BrokerProcess) -> None:
    for path in ("/$tandem/console/", "/$tandem/metrics", "/$tandem/health"):
        _, headers, _ = ask(strict.port, path, Authorization=basic("monitor", "look"))
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.slow
def test_a_development_broker_answers_to_names_it_knows(tmp_path: Path) -> None:
    """Its key is known to everybody; a web page that has its own name point to this machine must not get through."""
    with BrokerProcess(tmp_path, "--port", "0", "--memory", "--dev") as broker:
        port = broker.port
        for host in ("localhost", f"localhost:{port}", "127.0.0.1", f"[::1]:{port}", "LOCALHOST."):
            assert ask(port, "/$tandem/health", Host=host)[0] == 200, host
        for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", ""):
            status, _, text = ask(port, "/$tandem/health", Host=host)
            assert status == 421, host
            assert "stores" not in text
        assert ask(port, "/$tandem/health", Host="localhost", Origin=f"http://localhost:{port}")[0] == 200
        assert ask(port, "/$tandem/health", Host="localhost", Origin="https://evil.example")[0] == 421
        assert ask(port, "/$servicebus/websocket", Host="localhost", Origin="https://evil.example")[0] == 421
        assert ask(port, "/$tandem/health", Host="localhost", Origin="null")[0] == 421
