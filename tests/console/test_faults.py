"""What is made to fail, healed and cut off with a click, in a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tandem.testing import Bus
from tests.console.browser import Browser
from tests.gateway.http.api.console_client import console_of


@pytest.fixture(scope="module")
def bus() -> Iterator[Bus]:
    with Bus(real_time=True, store_count=2) as running:
        yield running


@pytest.fixture(autouse=True)
def console(browser: Browser, bus: Bus) -> Iterator[None]:
    if "$tandem/console" not in browser.driver.current_url:
        browser.open(f"http://localhost:{bus.port}/$tandem/console/")
        browser.sees("Overview")
    yield
    browser.check_quiet()


@pytest.mark.slow
def test_a_store_fails_and_heals_with_a_click(browser: Browser, bus: Bus) -> None:
    browser.goto("#/faults")
    browser.sees("Nothing fails on purpose")
    browser.axe()
    browser.choose("Fault of the store", "store-down")
    browser.choose("Store", "1")
    browser.click("Make it fail", "form[aria-label='A store fails'] button")
    browser.sees("store-1 down")
    browser.sees("store-down")
    assert browser.find("select", "Store").get_property("value") == "1", "what was chosen stays chosen"
    browser.goto("#/overview")
    browser.sees("store-1 is")
    browser.goto("#/faults")
    browser.click("Heal store-down")
    browser.sees("store-1 up")
    browser.sees("Nothing fails on purpose")


@pytest.mark.slow
def test_what_a_fault_needs_is_said(browser: Browser) -> None:
    browser.goto("#/faults")
    browser.choose("Fault of the entity", "entity-error")
    browser.write("Entity", "orders")
    browser.write("For (entity)", "2s")
    browser.click("Make it fail", "form[aria-label='An entity fails'] button")
    browser.sees("entity-error injected")
    browser.until("it ends by itself", lambda: "Nothing fails on purpose" in browser.text())


@pytest.mark.slow
def test_a_connection_is_seen_and_closed(browser: Browser, bus: Bus) -> None:
    console_of(bus)("PUT", "entity", kind="queue", path="here", create=True)
    with ServiceBusClient.from_connection_string(bus.connection_string) as client, client.get_queue_sender("here") as sender:
        sender.send_messages(ServiceBusMessage("x"))
        browser.goto("#/connections")
        browser.sees("sends here")
        browser.axe()
        peer = browser.find("tbody td").text
        browser.click(f"Close {peer}")
        browser.click("Close it")
        browser.sees(f"{peer} closed")
        sender.send_messages(ServiceBusMessage("again"))
    assert bus.counts("here").active == 2
