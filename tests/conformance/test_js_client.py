"""The unmodified JavaScript client against a broker process: every story in `tests/js/messaging.mjs`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.broker_process import BrokerProcess

JS = Path(__file__).parents[1] / "js"
FOUND = shutil.which("node") is not None and (JS / "node_modules" / "@azure" / "service-bus").is_dir()

pytestmark = [
    pytest.mark.js,
    pytest.mark.skipif(not FOUND, reason="MISSING: Node.js 20 and the packages of tests/js. Install Node.js, then run `make js`"),
]

STORIES = ("send", "resend", "batch", "subscribe", "settle", "peek", "errors", "admin", "websocket", "tls")
CONFIG = "".join(f'[[queue]]\nname = "{name}"\n' for name in STORIES) + (
    '[[queue]]\nname = "sessions"\nrequires_session = true\n[[topic]]\nname = "events"\n[[topic.subscription]]\nname = "eu"\n'
)


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    (module_path / "tandem.toml").write_text(CONFIG)
    with BrokerProcess(module_path, "--port", "0", "--data", "data", "--dev", "--config", "tandem.toml") as broker:
        yield broker


def tell(broker: BrokerProcess, story: str, entity: str, tls: bool = False) -> Any:
    connection_string = broker.connection_string
    if tls:
        connection_string = connection_string.replace(";UseDevelopmentEmulator=true", "")
        assert "Emulator" not in connection_string
    command = ["node", str(JS / "messaging.mjs"), story, connection_string, entity]
    environment = os.environ | {"NODE_EXTRA_CA_CERTS": broker.line("CA file:")}
    done = subprocess.run(command, env=environment, cwd=broker.directory, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_sent_and_received(seen: Any) -> None:
    first, second, _ = seen["found"]
    assert first["body"] == {"order": 5, "lines": ["a", "b"]}
    assert (first["id"], first["subject"], first["deliveryCount"], first["lock"], first["enqueued"]) == ("m1", "created", 0, "string", True)
    assert first["properties"] == {"text": "t", "number": 1.5, "yes": True, "when": 0}
    assert [one["number"] for one in seen["found"]] == [1, 2, 3]
    assert (second["body"], seen["third"], seen["ttl"], seen["empty"]) == ("two", "three", 60000, 0)


def test_sends_and_receives(broker: BrokerProcess) -> None:
    check_sent_and_received(tell(broker, "send_and_receive", "send"))


def test_sends_and_receives_over_tls(broker: BrokerProcess) -> None:
    check_sent_and_received(tell(broker, "over_tls", "tls", tls=True))


def test_sends_and_receives_over_websocket(broker: BrokerProcess) -> None:
    check_sent_and_received(tell(broker, "over_websocket", "websocket", tls=True))


def test_batches_are_filled_to_the_limit_and_received_in_order(broker: BrokerProcess) -> None:
    seen = tell(broker, "batch", "batch")
    assert (seen["added"], seen["maxSize"]) == (500, 262_144)
    assert seen["found"] == [f"m{n}" for n in range(500)]


def test_subscribe_streams_and_completes(broker: BrokerProcess) -> None:
    seen = tell(broker, "subscribe", "subscribe")
    assert sorted(seen["found"]) == list(range(25))
    assert (seen["errors"], seen["rest"]) == ([], 0)


def test_abandon_defer_and_dead_letter(broker: BrokerProcess) -> None:
    seen = tell(broker, "settle", "settle")
    assert (seen["again"]["body"], seen["again"]["deliveryCount"], seen["again"]["properties"]) == ("abandon", 1, {"tried": 1})
    assert (seen["deferred"]["body"], seen["deferred"]["state"]) == ("defer", "deferred")
    assert (seen["letter"]["body"], seen["letter"]["reason"], seen["letter"]["description"]) == ("dead", "bad", "very")
    assert seen["twice"]["code"] == "MessageNotFound"
    assert seen["settledTwice"] is not None


def test_peek_schedule_and_cancel(broker: BrokerProcess) -> None:
    seen = tell(broker, "peek_and_schedule", "peek")
    assert [(one["body"], one["state"]) for one in seen["peeked"]] == [
        ("one", "active"),
        ("two", "active"),
        ("kept", "scheduled"),
        ("soon", "scheduled"),
    ]
    assert (seen["found"], seen["numbers"], seen["soon"]) == (["one", "two", "soon"], 2, 1)
    assert seen["unknown"]["code"] == "MessageNotFound"


def test_a_received_message_is_sent_again(broker: BrokerProcess) -> None:
    seen = tell(broker, "resend", "resend")  # as a message, in a batch, and raw
    assert [(one["id"], one["number"], one["deliveryCount"]) for one in seen["found"]] == [("m", n, 0) for n in (2, 3, 4)]
    assert [one["body"] for one in seen["found"][:2]] == ["again", "again"]
    assert all(one["properties"]["text"] == "t" for one in seen["found"])
    assert (seen["keys"], seen["ids"]) == (["key"] * 3, ["c"] * 3)


def test_sessions_by_id_and_next(broker: BrokerProcess) -> None:
    seen = tell(broker, "sessions", "sessions")
    assert (seen["until"], seen["state"], seen["a"]) == (True, {"step": 1}, ["a1", "a2"])
    assert seen["held"]["code"] == "SessionCannotBeLocked"
    assert (seen["next"], seen["inNext"]) == ("b", ["b1"])
    assert seen["none"]["code"] == "ServiceTimeout"
    assert seen["without"] is not None and "SessionId" in seen["without"]["message"]


def test_rule_manager(broker: BrokerProcess) -> None:
    seen = tell(broker, "rules", "events/eu")
    assert [(rule["name"], rule["filter"]) for rule in seen["before"]] == [("$Default", {"sqlExpression": "1=1"})]
    after = {rule["name"]: rule for rule in seen["after"]}
    assert list(after) == ["correlated", "sql"]
    assert after["sql"]["filter"] == {"sqlExpression": "region = 'eu'"}
    assert after["sql"]["action"] == {"sqlExpression": "SET seen = 1"}
    assert after["correlated"]["filter"]["subject"] == "s"
    assert after["correlated"]["filter"]["applicationProperties"] == {"n": 1, "t": "x"}
    assert seen["duplicate"]["code"] == "MessagingEntityAlreadyExists"
    assert "column" in seen["wrong"]["message"]
    assert seen["missing"] is not None
    assert [(one["body"], one["properties"]) for one in seen["found"]] == [
        ("eu", {"region": "eu", "seen": 1, "RuleName": "sql"}),
        ("both", {"region": "us", "n": 1, "t": "x"}),
    ]


def test_errors_have_the_codes_users_look_for(broker: BrokerProcess) -> None:
    seen = tell(broker, "errors", "errors")
    assert seen["nowhere"]["code"] == "MessagingEntityNotFound"
    assert seen["large"]["code"] == "MessageSizeExceeded"
    assert seen["key"]["code"] == "UnauthorizedAccess"


def test_administration_over_https_with_the_same_connection_string(broker: BrokerProcess) -> None:
    seen = tell(broker, "administration", "admin")
    assert (seen["moved"], seen["source"], seen["active"], seen["lock"], seen["deleted"]) == ("one", "admin-made", 1, "PT30S", True)
    assert seen["forward"].endswith("/admin")
