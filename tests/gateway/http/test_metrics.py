"""What `/$tandem/metrics` says is what monitoring systems can read."""

from __future__ import annotations

import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from tandem.gateway.http import metrics
from tandem.model.histogram import AGE_BOUNDS_MS, AgeHistogram, Histogram
from tandem.model.sas_token import make_token
from tandem.testing import Bus
from tests.cli.broker_process import BrokerProcess
from tests.waiting import wait_until

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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("version", "kind"),
    [('"1.0.0"', "application/openmetrics-text; version=1.0.0"), ("new", "text/plain; version=0.0.4"), ("", "application/")],
)
def test_a_version_may_be_quoted_and_one_that_is_none_gets_the_older_text(broker: BrokerProcess, version: str, kind: str) -> None:
    assert scrape(broker.port, f"application/openmetrics-text; version={version}")[0].startswith(kind)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="MISSING: promtool")
def test_promtool_has_nothing_to_say(broker: BrokerProcess) -> None:
    checked = subprocess.run(["promtool", "check", "metrics"], input=scrape(broker.port)[1], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_send_over_http_that_is_refused_is_counted(broker: BrokerProcess) -> None:
    def refused() -> float:
        samples = [one for family in read_text(scrape(broker.port)[1]) if family.name == "tandem_operations" for one in family.samples]
        return sum(one.value for one in samples if (one.labels["entity"], one.labels["outcome"]) == ("other-one", "refused"))

    parts = dict(part.partition("=")[::2] for part in broker.connection_string.split(";"))
    token = make_token(f"sb://localhost:{broker.port}/", parts["SharedAccessKeyName"], parts["SharedAccessKey"], 4_000_000_000_000)
    for headers, body in (({"BrokerProperties": "{nonsense"}, b"x"), ({}, b"x" * 300_000)):
        url = f"http://localhost:{broker.port}/other-one/messages"
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(urllib.request.Request(url, body, {"Authorization": token, **headers}), timeout=30)
    wait_until(lambda: refused() == 2, "both refusals to be counted")


def test_more_entities_than_a_scrape_should_have_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "ENTITIES_MAX", 2)
    with Bus() as bus:
        for number in range(4):
            bus.create_queue(f"q{number}")
        families = {family.name: family for family in read_openmetrics(scrape(bus.port, OPENMETRICS)[1])}
    assert len({one.labels["entity"] for one in families["tandem_messages"].samples}) == 3
    assert "other" in {one.labels["entity"] for one in families["tandem_messages"].samples}


@pytest.mark.slow
def test_sends_and_ages_are_timed_for_each_entity_and_those_beyond_the_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "TIMED_ENTITIES_MAX", 2)

    def counted(port: int, name: str) -> dict[str, float]:
        samples = [one for family in read_openmetrics(scrape(port, OPENMETRICS)[1]) if family.name == name for one in family.samples]
        assert {one.labels["le"] for one in samples if one.name.endswith("_bucket")} >= {"+Inf"} or not samples
        return {one.labels["entity"]: one.value for one in samples if one.name.endswith("_count")}

    with Bus() as bus, ServiceBusClient.from_connection_string(bus.connection_string) as client:
        bus.create_queue("a", enable_partitioning=True)
        bus.create_topic("t")
        bus.create_subscription("t", "s")
        for name in ("b", "c"):
            bus.create_queue(name)
        assert counted(bus.port, "tandem_send_seconds") == {}
        for name in ("a", "b", "c", "t"):
            with client.get_queue_sender(name) as sender:
                sender.send_messages([ServiceBusMessage(str(number)) for number in range(20)])
                sender.send_messages(ServiceBusMessage("one more"))
        wait_until(lambda: sum(counted(bus.port, "tandem_send_seconds").values()) == 84, "all to be counted")
        assert {name: count for name, count in counted(bus.port, "tandem_send_seconds").items() if name != "other"} == {"a": 21, "t": 21}
        assert counted(bus.port, "tandem_send_seconds")["other"] == 42
        with client.get_queue_receiver("a", prefetch_count=50) as receiver, client.get_subscription_receiver("t", "s") as other:
            got = 0
            while got < 21:
                got += len(receiver.receive_messages(21, max_wait_time=30))
            assert other.receive_messages(5, max_wait_time=30)
            ages = counted(bus.port, "tandem_delivery_age_seconds")
        assert ages["a"] == 21 and ages["t/Subscriptions/s"] >= 5


def test_ages_in_runs_are_counted_as_one_by_one() -> None:
    ages, plain = AgeHistogram(), Histogram(AGE_BOUNDS_MS)
    for age in (0, 10, 11, 5, 100, 101, 1_000, 90_000_000, 86_400_000, 86_400_001, 3, 3):
        ages.observe(age)
        plain.observe(age)
        assert (ages.histogram().counts, ages.histogram().sum_ms) == (plain.counts, plain.sum_ms)
    ages.observe(-5)  # the clock was set back
    assert ages.histogram().counts[0] == plain.counts[0] + 1


def test_a_duration_is_counted_in_the_first_bucket_it_fits_into() -> None:
    histogram = Histogram()
    for duration in (0, 1, 1.5, 10_000, 99_999):
        histogram.observe(duration)
    assert (histogram.counts[0], histogram.counts[1], histogram.counts[-2], histogram.counts[-1]) == (2, 1, 1, 1)
    assert histogram.sum_ms == 110_001.5
