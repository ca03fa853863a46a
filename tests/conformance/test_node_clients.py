"""Clients in JavaScript, rhea and the official SDK, tell a story each: they send, receive, settle and are refused."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.house import ROOT_KEY, ROOT_NAME, ProcessBroker, connection_string
from tests.conformance.raw import Raw, token_for

QUEUES = {"plain": 8, "sessions": 2, "short": 2}
SCRIPTS = Path(__file__).resolve().parent.parent / "js"


def node(script: str, *arguments: str) -> dict[str, Any]:
    """Run a script of tests/js; its last line is JSON."""
    program = shutil.which("node")
    if program is None:
        pytest.skip("MISSING: Node.js 20; the broker was not tested with JavaScript clients")
    if not (SCRIPTS / "node_modules").is_dir():
        pytest.skip("MISSING: packages of tests/js; run npm install there (make js does)")
    done = subprocess.run([program, str(SCRIPTS / script), *arguments], capture_output=True, text=True, timeout=110, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


@pytest.mark.js
@pytest.mark.parametrize("sub_protocol", [[], ["amqp"], ["AMQPWSB10"]], ids=["tcp", "amqp", "AMQPWSB10"])
def test_rhea_sends_receives_settles_and_drains(broker: ProcessBroker, raw: Raw, sub_protocol: list[str]) -> None:
    queue = broker.queue("plain")
    seen = node("rhea_story.mjs", str(broker.port), queue, token_for(broker.port, queue), ROOT_NAME, ROOT_KEY, *sub_protocol)
    assert seen["accepted"] == 10
    assert seen["received"] == [f"message {n}" for n in range(10)]
    assert seen["again"] == {"body": "message 9", "delivery_count": 1}
    assert seen["drained"] is True
    assert seen["refused"]["condition"] == "amqp:not-found"
    assert "TrackingId:" in seen["refused"]["description"]
    assert [a.text for a in raw.receiver(f"{queue}/$DeadLetterQueue").receive()] == ["message 8"]
    assert raw.receiver(queue).drain(5) == []


@pytest.mark.js
def test_the_javascript_sdk_tells_the_same_story(broker: ProcessBroker) -> None:
    queue, sessions, short = broker.queue("plain"), broker.queue("sessions"), broker.queue("short")
    seen = node("service_bus_story.mjs", connection_string(broker.port), queue, sessions, short)
    assert seen["received"] == ["single", "batched 0", "batched 1", "batched 2"]
    assert seen["abandoned"] == {"body": "single", "deliveryCount": 1, "properties": {"tried": 1}}
    assert seen["deferred"] == "batched 0"
    assert seen["dead"] == {"body": "batched 1", "reason": "because", "description": "of this"}
    assert seen["scheduled"] == ["later"]
    assert seen["emptyPeek"] == 0
    assert seen["emptyReceive"] == 0
    assert seen["sessionOrder"] == ["s0", "s1", "s2"]
    assert seen["sessionState"] == "kept"
    assert seen["nextSession"] == "other"
    assert seen["heldSession"] == "SessionCannotBeLocked"
    assert seen["noSession"] == "ServiceTimeout"
    assert seen["lockRenewed"] is True
    assert seen["subscribed"] == ["streamed 0", "streamed 1", "streamed 2"]
    assert seen["tooLarge"] == "MessageSizeExceeded"
    assert seen["missing"] in ("MessagingEntityNotFound", "UnauthorizedAccess", "GeneralError")
