"""`tandem bench` against a real broker, by connection string and as any AMQP 1.0 broker."""

from __future__ import annotations

import json

import pytest

from tests.cli.broker_process import BrokerProcess
from tests.cli.operations.conftest import Tandem, command_line

pytestmark = pytest.mark.timeout(180)


@pytest.mark.slow
def test_every_message_is_counted_on_both_sides_with_its_time(broker: BrokerProcess, tandem: Tandem) -> None:
    tandem("queue", "create", "load")
    shown = json.loads(tandem("bench", "load", "-n", "501", "--size", "100", "--senders", "2", "--json").stdout)
    assert shown["sent"]["count"] == shown["received"]["count"] == 501
    for side in ("sent", "received"):
        assert 0 < shown[side]["p50_ms"] <= shown[side]["p99_ms"] <= shown[side]["max_ms"] and shown[side]["per_second"] > 0
    assert json.loads(tandem("queue", "show", "load", "--json").stdout)["total_message_count"] == 0


@pytest.mark.slow
def test_any_broker_that_speaks_amqp_is_measured_the_same(broker: BrokerProcess) -> None:
    parts = dict(part.partition("=")[::2] for part in broker.connection_string.split(";"))
    url = f"amqp://{parts['SharedAccessKeyName']}:{parts['SharedAccessKey']}@localhost:{broker.port}"
    said = command_line("bench", "load", "--url", url, "-n", "50").stdout
    assert said.count("50 messages") == 2 and "p99.9" in said
    assert "amqp://user:password@host" in command_line("bench", "load", "--url", "http://x").stderr
    refused = command_line("bench", "load", "--url", url.replace("Root", "Nobody"), "-n", "5")
    assert refused.returncode == 2 and refused.stderr.strip().startswith("tandem: ")


@pytest.mark.slow
def test_messages_of_others_stay_where_they_are(tandem: Tandem) -> None:
    tandem("queue", "create", "in-use")
    tandem("send", "in-use", "not yours")
    assert "not of this run" in tandem("bench", "in-use", "-n", "5", expect=2).stderr
    assert "not yours" in tandem("peek", "in-use").stdout
    assert "the messaging entity" in tandem("bench", "nowhere", "-n", "5", expect=2).stderr.casefold()
