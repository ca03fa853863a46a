"""The unmodified Go client against a broker process: every story in `tests/go`, and the program of the guide."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.broker_process import BrokerProcess

GO = Path(__file__).parents[1] / "go"
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "go.md"

pytestmark = [
    pytest.mark.go,
    pytest.mark.timeout(600),  # the first time, modules are fetched and compiled
    pytest.mark.skipif(
        shutil.which("go") is None, reason="MISSING: Go 1.21 or newer for the Go client (on Debian: apt-get install golang)"
    ),
]

CONFIG = (
    "".join(f'[[queue]]\nname = "{name}"\n' for name in ("send", "settle", "schedule", "resend", "errors", "tls", "websocket"))
    + """
[[queue]]
name = "sessions"
requires_session = true
[[queue]]
name = "short-sessions"
requires_session = true
lock_duration = "5s"
[[topic]]
name = "events"
[[topic.subscription]]
name = "all"
[[topic.subscription]]
name = "eu"
[[topic.subscription.rule]]
name = "eu"
sql = "region = 'eu'"
"""
)


def build(sources: Path, program: Path) -> Path:
    """One program of the modules in tests/go/go.mod. Only the first time needs a network."""
    fetched = subprocess.run(["go", "mod", "download"], cwd=sources, capture_output=True, text=True, timeout=300, check=False)
    if fetched.returncode:
        pytest.skip(f"MISSING: the modules of tests/go could not be fetched: {fetched.stderr.strip()[-200:]}")
    built = subprocess.run(["go", "build", "-o", str(program), "."], cwd=sources, capture_output=True, text=True, timeout=500, check=False)
    assert built.returncode == 0, built.stderr
    return program


@pytest.fixture(scope="module")
def stories(module_path: Path) -> Path:
    return build(GO, module_path / "stories")


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    (module_path / "tandem.toml").write_text(CONFIG)
    with BrokerProcess(module_path, "--port", "0", "--data", "data", "--dev", "--config", "tandem.toml") as broker:
        yield broker


def for_tls(broker: BrokerProcess) -> str:
    connection_string = broker.connection_string.replace(";UseDevelopmentEmulator=true", "")
    assert "Emulator" not in connection_string
    return connection_string


def run(broker: BrokerProcess, *command: str, **environment: str) -> str:
    known = os.environ | {"CA_FILE": broker.line("CA file:")} | environment
    done = subprocess.run(command, env=known, cwd=broker.directory, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tell(broker: BrokerProcess, stories: Path, story: str, entity: str, tls: bool = False, **environment: str) -> Any:
    connection_string = for_tls(broker) if tls else broker.connection_string
    return json.loads(run(broker, str(stories), story, connection_string, entity, **environment))


def check_sent_and_received(seen: Any) -> None:
    assert seen["bodies"] == ["one", "two", "three"]
    assert (seen["id"], seen["subject"], seen["correlation"], seen["ttl"]) == ("m1", "created", "c", 60)
    assert seen["properties"] == {"text": "t", "number": 5, "ratio": 1.5, "yes": True}
    assert (seen["count"], seen["locked"], seen["number"], seen["left"]) == (1, True, 1, 0)


def test_sends_and_receives(broker: BrokerProcess, stories: Path) -> None:
    check_sent_and_received(tell(broker, stories, "send", "send"))


def test_sends_and_receives_over_tls(broker: BrokerProcess, stories: Path) -> None:
    check_sent_and_received(tell(broker, stories, "send", "tls", tls=True))


def test_sends_and_receives_over_websocket_with_the_sub_protocol_of_its_documentation(broker: BrokerProcess, stories: Path) -> None:
    check_sent_and_received(tell(broker, stories, "send", "websocket", tls=True, SUB_PROTOCOL="amqp"))


def test_abandon_defer_and_dead_letter(broker: BrokerProcess, stories: Path) -> None:
    seen = tell(broker, stories, "settle", "settle")
    assert (seen["again"], seen["count"], seen["properties"]) == ("abandon", 2, {"tried": 1})
    assert (seen["deferred"], seen["state"]) == ("defer", 1)
    assert (seen["letter"], seen["reason"], seen["description"]) == ("dead", "bad", "very")
    assert (seen["deadCount"], seen["letterCount"]) == (1, 1)


def test_peek_schedule_and_cancel(broker: BrokerProcess, stories: Path) -> None:
    seen = tell(broker, stories, "schedule", "schedule")
    assert seen == {"scheduled": ["kept", "cancelled"], "state": 2, "now": ["now"], "left": ["kept"]}


def test_a_received_message_is_sent_again(broker: BrokerProcess, stories: Path) -> None:
    seen = tell(broker, stories, "resend", "resend")
    assert (seen["bodies"], seen["keys"], seen["numbers"]) == (["again", "again"], ["key", "key"], [1, 2, 3])


def test_sessions_by_id_and_next_with_state_and_deferred_messages(broker: BrokerProcess, stories: Path) -> None:
    seen = tell(broker, stories, "sessions", "sessions")
    assert (seen["id"], seen["until"], seen["peeked"]) == ("a", True, ["a1", "a2", "a3"])
    assert "com.microsoft:session-cannot-be-locked" in seen["held"]["message"]
    assert (seen["found"], seen["deferred"], seen["again"]) == (["a1", "a2", "a3"], ["a2"], {"body": "a3", "count": 2})
    assert (seen["unset"], seen["state"], seen["cleared"], seen["renewed"]) == (True, "progress", True, True)
    assert (seen["next"], seen["inNext"]) == ("b", ["b1"])
    # The client gives the broker hardly less time than it has itself: either of them says it.
    assert seen["none"]["code"] == "timeout" or "context deadline exceeded" in seen["none"]["message"]
    assert seen["listed"] == ["a", "b"]
    text = "It is not possible for an entity that requires sessions to create a non-sessionful message receiver."
    assert text in seen["without"]["message"]


def test_a_worker_that_lost_its_session_reaches_it_no_more(broker: BrokerProcess, stories: Path) -> None:
    seen = tell(broker, stories, "lost_session", "short-sessions")
    assert (seen["renew"]["code"], seen["set"]["code"]) == ("locklost", "locklost")
    assert seen["complete"] is not None
    assert (seen["state"], seen["again"]) == ("of the new holder", ["one"])


def test_topics_and_rules(broker: BrokerProcess, stories: Path) -> None:
    assert tell(broker, stories, "topic", "events") == {"all": ["to us", "to eu"], "eu": ["to eu"]}


def test_errors_have_the_codes_users_look_for(broker: BrokerProcess, stories: Path) -> None:
    seen = tell(broker, stories, "errors", "errors")
    assert seen["nowhere"]["code"] == "notfound"
    assert "too large" in seen["large"]["message"]


def test_administration_over_https_with_the_same_connection_string(broker: BrokerProcess, stories: Path) -> None:
    seen = tell(broker, stories, "administration", "go-made")
    assert (seen["size"], seen["sizeAfterUpdate"], seen["lock"], seen["deliveries"]) == (16 * 4096, 16 * 4096, "PT45S", 7)
    assert "The value for the RequiresSession property of an existing Queue cannot be changed" in seen["fixed"]["message"]
    assert (seen["queueAccessed"], seen["subscriptionAccessed"], seen["active"]) == (False, True, 0)
    assert (seen["rules"], seen["gone"]) == (["$Default", "eu"], True)
    assert seen["queues"] >= 10


@pytest.mark.parametrize("web_socket", ["", "1"], ids=["tls", "websocket"])
def test_the_program_of_the_guide_runs_as_it_stands(broker: BrokerProcess, module_path: Path, web_socket: str) -> None:
    found = re.search(r"```go\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    sources = module_path / "guide"
    sources.mkdir(exist_ok=True)
    (sources / "main.go").write_text(found.group(1))
    for name in ("go.mod", "go.sum"):
        shutil.copy(GO / name, sources)
    program = build(sources, module_path / "orders")
    assert run(broker, str(program), SERVICEBUS=for_tls(broker), WEBSOCKET=web_socket) == "customer-7 first\n"
