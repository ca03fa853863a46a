"""Our own pages, over HTTP, on the port that speaks everything."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tandem.model.sas_token import make_token
from tandem.testing import Bus


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
    assert 'entity="orders",state="active"} 1' in text


def test_the_console_is_served_with_its_files_and_nothing_else(bus: Bus) -> None:
    status, kind, text = get(bus, "$tandem/console/")
    assert (status, kind.split(";")[0]) == (200, "text/html")
    assert "app.js" in text
    assert get(bus, "$tandem/console/app.js")[1].startswith("text/javascript")
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
