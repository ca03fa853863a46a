"""A pair's own metrics: what it counted, in the words of Prometheus."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusMessage
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import tandem
from tandem.aio import PairedNamespaces, PairMetrics
from tandem.client import metrics
from tandem.testing import Bus
from tests.plain_http import administration_of
from tests.waiting import until


@pytest.fixture(scope="module")
def buses() -> Iterator[tuple[Bus, Bus]]:
    with Bus(real_time=True) as west, Bus(real_time=True) as east:
        for name in ("orders", "invoices", "letters"):
            west.create_queue(name)
        yield west, east


def values(registry: CollectorRegistry) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(openmetrics(registry).decode()):
        for one in family.samples:
            labels = ",".join(one.labels[name] for name in ("path", "queue", "outcome") if name in one.labels)
            found[f"{one.name.removeprefix('tandem_pair_')} {labels}".strip()] = one.value
    return found


async def test_paths_backlog_and_syphon_are_told(buses: tuple[Bus, Bus]) -> None:
    west, east = buses
    registry = CollectorRegistry()
    async with (
        administration_of(east) as manager,
        PairedNamespaces(
            west.connection_string,
            east.connection_string,
            primary_namespace="contoso",
            enable_syphon=True,
            backlog_queue_count=1,
            secondary_administration=manager,
        ) as pair,
    ):
        told = PairMetrics(pair)
        registry.register(told)
        async with pair.get_queue_sender("orders") as sender:
            await sender.send_messages(ServiceBusMessage("straight"))
            await pair.fail_over("orders", hold=True)
            assert pair.syphon is not None
            await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
            await told.measure()
            diverted = values(registry)
            await pair.mark_path_healthy("orders")
            await until(lambda: values(registry)["syphon_moved_total"] == 2, 60, "both to be home")
    assert (diverted["path_state orders"], diverted["sends_total orders,primary"], diverted["sends_total orders,diverted"]) == (2, 1, 2)
    assert diverted["backlog_messages contoso/x-servicebus-transfer/0"] == 2 and diverted["backlog_queues"] == 1
    assert diverted["backlog_age_seconds contoso/x-servicebus-transfer/0"] >= 0
    after = values(registry)
    assert (after["path_state orders"], after["failovers_total"], after["failbacks_total"]) == (0, 1, 1)
    if shutil.which("promtool"):
        page = generate_latest(registry)
        checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
        assert (checked.returncode, checked.stderr) == (0, b"")


def test_without_await_and_with_more_paths_than_lines(buses: tuple[Bus, Bus], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "PATHS_MAX", 1)
    west, east = buses
    registry = CollectorRegistry()
    with tandem.PairedNamespaces(west.connection_string, east.connection_string, primary_namespace="contoso") as pair:
        registry.register(tandem.PairMetrics(pair))
        for name in ("orders", "invoices", "letters"):
            with pair.get_queue_sender(name) as sender:
                sender.send_messages(ServiceBusMessage("x"))
        found = values(registry)
    assert (found["sends_total orders,primary"], found["sends_total other,primary"], found["path_state other"]) == (1, 2, 0)
