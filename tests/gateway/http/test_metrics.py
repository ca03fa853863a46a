"""What `/$tandem/metrics` says is what monitoring systems can read."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from tandem.gateway.http import metrics
from tandem.model.histogram import Histogram
from tandem.testing import Bus
from tests.cli.broker_process import BrokerProcess

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    (module_path / "tandem.toml").write_text('[[queue]]\nname = "orders"\n\n[[queue]]\nname = "other-one"\n')
    with BrokerProcess(module_path, "--port", "0", "--dev", "--data", "data", "--config", "tandem.toml") as running:
        with ServiceBusClient.from_connection_string(running.connection_string) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("one"))
        yield running


def scrape(port: int, accept: str = "") -> tuple[str, str]:
    request = urllib.request.Request(f"http://localhost:{port}/$tandem/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return reply.headers["Content-Type"], reply.read().decode()


def test_the_page_parses_as_openmetrics_and_as_the_older_text(broker: BrokerProcess) -> None:
    kind, text = scrape(broker.port, OPENMETRICS)
    assert kind.startswith("application/openmetrics-text")
    families = {family.name: family for family in read_openmetrics(text)}
    assert {family.name for family in read_text(scrape(broker.port)[1])} == set(families)
    assert families["tandem_operations"].type == "counter"
    assert families["tandem_commit_seconds"].type == families["tandem_loop_lag_seconds"].type == "histogram"
    active = [one for one in families["tandem_messages"].samples if one.labels["entity"] == "orders" and one.labels["state"] == "active"]
    assert [one.value for one in active] == [1]
    assert all(family.documentation for family in families.values())


@pytest.mark.skipif(shutil.which("promtool") is None, reason="MISSING: promtool")
def test_promtool_has_nothing_to_say(broker: BrokerProcess) -> None:
    checked = subprocess.run(["promtool", "check", "metrics"], input=scrape(broker.port)[1], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_more_entities_than_a_scrape_should_have_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "ENTITIES_MAX", 2)
    with Bus() as bus:
        for number in range(4):
            bus.create_queue(f"q{number}")
        families = {family.name: family for family in read_openmetrics(scrape(bus.port, OPENMETRICS)[1])}
    assert len({one.labels["entity"] for one in families["tandem_messages"].samples}) == 3
    assert "other" in {one.labels["entity"] for one in families["tandem_messages"].samples}


def test_a_duration_is_counted_in_the_first_bucket_it_fits_into() -> None:
    histogram = Histogram()
    for duration in (0, 1, 1.5, 10_000, 99_999):
        histogram.observe(duration)
    assert (histogram.counts[0], histogram.counts[1], histogram.counts[-2], histogram.counts[-1]) == (2, 1, 1, 1)
    assert histogram.sum_ms == 110_001.5
