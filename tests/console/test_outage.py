"""An outage as a paired client reports it, seen in the browser from the secondary."""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tandem.aio import PairedNamespaces
from tandem.client.event_report import EventReport
from tandem.testing import Bus
from tests.console.browser import Browser


@pytest.fixture(scope="module")
def secondary(module_path: Path) -> Iterator[Bus]:
    with Bus(real_time=True, store_count=2, data_dir=module_path / "data") as running:
        yield running


@pytest.fixture(autouse=True)
def console(browser: Browser, secondary: Bus) -> Iterator[None]:
    if "$tandem/console" not in browser.driver.current_url:
        browser.open(f"http://localhost:{secondary.port}/$tandem/console/")
        browser.sees("Overview")
    yield
    browser.check_quiet()


class Application:
    """Sends through a pair, in a thread with a loop of its own, and reports what happens to it."""

    def __init__(self, primary: Bus, secondary: Bus) -> None:
        self.report = EventReport(secondary.connection_string, "shop-1", every=0.1)
        self._primary, self._secondary = primary.connection_string, secondary.connection_string.replace("localhost", "127.0.0.1")
        self._send = 0
        self._ready, self._stop = threading.Event(), threading.Event()
        self._failed: list[BaseException] = []
        self.sent = 0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    def __enter__(self) -> Application:
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)
        self.report.close()

    def send(self, count: int) -> None:
        self._send += count

    async def _main(self) -> None:
        async with (
            PairedNamespaces(
                self._primary,
                self._secondary,
                primary_namespace="contoso",
                backlog_queue_count=1,
                failover_interval=0,
                ping_primary_interval=1.0,
                enable_syphon=False,
                on_event=self.report,
            ) as pair,
            pair.get_queue_sender("orders") as sender,
        ):
            self._ready.set()
            while not self._stop.is_set():
                if self._send > self.sent:
                    await sender.send_messages(ServiceBusMessage(f"order {self.sent}"), timeout=20)
                    self.sent += 1
                    self.report.count(pair.counters, pair.now_ms)
                else:
                    await asyncio.sleep(0.05)


@pytest.mark.slow
def test_an_outage_is_seen_from_inside(browser: Browser, secondary: Bus) -> None:
    with Bus(real_time=True) as primary:
        primary.create_queue("orders")
        secondary.create_queue("contoso/x-servicebus-transfer/0")
        browser.goto("#/outage")
        browser.sees("No client has reported")
        with Application(primary, secondary) as shop:
            shop.send(1)
            browser.until("the first is sent", lambda: shop.sent == 1)
            primary.stop()
            shop.send(5)
            browser.sees("failed over", 60)
            browser.until("all are diverted", lambda: shop.sent == 6, 60)
            browser.sees("shop-1")
            browser.until("the backlog has them", lambda: browser.run("return document.querySelector('.syphon strong')?.innerText") == "5")
            browser.sees("nobody carries it home at the moment")
            browser.click("Count by destination")
            browser.until("by destination", lambda: browser.find("[aria-label=Destinations] td:nth-child(2)").text == "5")
            assert browser.find("[aria-label=Destinations] td").text == "orders"
            browser.axe()
            browser.goto("#/overview")
            browser.sees("a client reports orders as failed over")
            browser.goto("#/outage")
            primary.start()
            browser.until("the path heals", lambda: browser.find("[aria-label=Paths] .state").text == "healthy", 60)
    backlog = "contoso/x-servicebus-transfer/0"
    with ServiceBusClient.from_connection_string(secondary.connection_string) as client, client.get_queue_receiver(backlog) as receiver:
        for message in receiver.receive_messages(max_message_count=5, max_wait_time=10):
            receiver.complete_message(message)
    browser.until("the backlog is empty", lambda: secondary.counts(backlog).total == 0 and "in the backlog: empty" in browser.text())


def test_an_event_log_is_read_without_leaving_the_browser(browser: Browser, tmp_path: Path) -> None:
    lines = [
        {
            "at_ms": 1_700_000_000_000,
            "source": "client",
            "who": "old-1",
            "kind": "path-suspect",
            "path": "billing",
            "detail": "<b>slow</b>",
        },
        {"at_ms": 1_700_000_001_000, "source": "client", "who": "old-1", "kind": "path-failed-over", "path": "billing", "detail": "gone"},
        {"at_ms": 1_700_000_002_000, "source": "client", "who": "old-1", "kind": "ping-failed", "path": "billing", "detail": ""},
        {
            "at_ms": 1_700_000_003_000,
            "source": "client",
            "who": "old-1",
            "kind": "counters",
            "path": "billing",
            "attempted": 7,
            "diverted": 3,
            "failed": 0,
        },
    ]
    log = tmp_path / "sender.events.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    browser.goto("#/outage")
    browser.find("input[type=file]").send_keys(str(log))
    browser.sees("old-1")
    browser.sees("<b>slow</b>")
    assert "old-1" not in json.dumps(browser.api("GET", "outage"))
    log.write_text("nonsense\n")
    browser.find("input[type=file]").send_keys(str(log))
    browser.sees("line 1:")


@pytest.mark.slow
def test_the_report_is_a_link_that_is_good_once(browser: Browser, secondary: Bus, module_path: Path) -> None:
    browser.goto("#/outage")
    browser.sees("No report yet")
    (module_path / "data" / "report.html").write_text(
        "<!doctype html><title>r</title><h1>Nothing was lost</h1><script>opener.hacked=1</script>"
    )
    browser.click("Open the report")
    browser.until("a window opens", lambda: len(browser.driver.window_handles) == 2)
    first, other = browser.driver.window_handles
    browser.driver.switch_to.window(other)
    browser.sees("Nothing was lost")
    address = browser.driver.current_url
    browser.driver.get_log("browser")  # the policy kept its script from running, and says so
    browser.driver.close()
    browser.driver.switch_to.window(first)
    assert browser.run("return window.hacked") is None
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(address, timeout=20)
