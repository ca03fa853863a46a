"""State changes are told to those who may read the namespace that they are of; those of the whole broker to all."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem.model.sas_token import make_token
from tests.cli.broker_process import BrokerProcess
from tests.waiting import wait_until

CONFIG = "faults = true\n" + "".join(
    f'[[namespace]]\nname = "{name}"\nhosts = ["{name}.localhost"]\n[[namespace.authorization_rule]]\nname = "all-of-{name}"\n'
    f'rights = ["Manage", "Listen", "Send"]\nprimary_key = "key-of-{name}"\n'
    for name in ("east", "west")
)


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    (module_path / "tandem.toml").write_text(CONFIG)
    with BrokerProcess(module_path, "--port", "0", "--data", "data") as running:
        yield running


def ask(broker: BrokerProcess, name: str, method: str, page: str, body: Any = None) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", broker.port, timeout=30)
    host = f"{name}.localhost:{broker.port}"
    token = make_token(f"http://{host}/", f"all-of-{name}", f"key-of-{name}", 1 << 42)
    connection.request(method, f"/$tandem/{page}", json.dumps(body) if body else None, {"Host": host, "Authorization": token})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    told = json.loads(answer.read())
    connection.close()
    return told


def test_a_store_of_one_namespace_is_no_news_in_another(broker: BrokerProcess) -> None:
    ask(broker, "west", "POST", "faults", {"kind": "store-down", "store": 1})
    wait_until(lambda: len(ask(broker, "west", "GET", "events")["events"]) > 1, "the store to be down")
    for page in ("events", "api/overview"):
        west, east = (ask(broker, name, "GET", page)["events"] for name in ("west", "east"))
        assert ("store-1", "down", "west") in {(one["subject"], one["state"], one.get("namespace")) for one in west}
        assert [(one["subject"], one["state"]) for one in east] == [("broker", "started")]
    lines = [json.loads(line) for line in (broker.directory / "data" / "events.jsonl").read_text().splitlines()]
    assert [(one["kind"], one.get("namespace")) for one in lines if one["path"] != "broker"][:1] == [("store-down", "west")]
