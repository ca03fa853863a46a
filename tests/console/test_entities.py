"""What an operator sees of a broker, and does to its entities, in a browser."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from tandem.testing import Bus
from tests.console.browser import Browser


@pytest.fixture(scope="module")
def bus() -> Iterator[Bus]:
    with Bus(real_time=True, store_count=2) as running:
        running.create_queue("orders")
        running.create_topic("events")
        running.create_subscription("events", "billing")
        with ServiceBusClient.from_connection_string(running.connection_string) as client, client.get_queue_sender("orders") as sender:
            sender.send_messages([ServiceBusMessage(f"order {number}") for number in range(7)])
        yield running


@pytest.fixture(autouse=True)
def console(browser: Browser, bus: Bus) -> Iterator[None]:
    if "$tandem/console" not in browser.driver.current_url:
        browser.open(f"http://localhost:{bus.port}/$tandem/console/")
    browser.goto("#/overview")
    yield
    browser.check_quiet()


@pytest.mark.slow
def test_the_overview_lives(browser: Browser, bus: Bus) -> None:
    browser.sees("Active messages")
    browser.until("seven are active", lambda: browser.find(".figure:nth-child(3) dd").text == "7")
    browser.sees("store-1 up")
    with ServiceBusClient.from_connection_string(bus.connection_string) as client, client.get_queue_sender("orders") as sender:
        sender.send_messages(ServiceBusMessage("one more"))
        browser.until("the eighth is seen without a click", lambda: browser.find(".figure:nth-child(3) dd").text == "8")
    browser.axe()


def test_the_last_hour_is_kept_by_the_broker(browser: Browser) -> None:
    browser.sees("Active messages")
    browser.driver.refresh()
    browser.sees("Active messages")
    kept = browser.api("GET", "overview")["history"]["active"]
    assert len(kept) >= 2 and 7.0 in kept


def test_the_tree_opens_down_to_rules(browser: Browser) -> None:
    browser.goto("#/entities")
    browser.click("Open events")
    browser.sees("billing")
    browser.click("Open billing")
    browser.sees("$Default")
    browser.axe()


def test_an_entity_is_created_changed_disabled_and_deleted(browser: Browser, bus: Bus) -> None:
    browser.goto("#/entities")
    browser.click("Create…")
    browser.write("Name", "made-here")
    browser.write("Lock duration", "30s")
    browser.axe()
    browser.click("Create")
    browser.sees("queue made-here created")
    browser.click("made-here")
    browser.sees("30s")
    browser.click("Edit…")
    browser.write("Deliveries at most", "3")
    browser.click("Save")
    browser.sees("made-here changed")
    browser.click("Disable")
    browser.until("it is disabled", lambda: browser.find(".badge").text == "Disabled")
    browser.click("Delete…")
    browser.click("Delete")
    browser.sees("made-here deleted")


def test_what_the_broker_refuses_is_said_in_the_form_and_nothing_is_lost(browser: Browser) -> None:
    browser.goto("#/entities")
    browser.click("Create…")
    browser.write("Name", "too-long")
    browser.write("Lock duration", "2h")
    browser.click("Create")
    browser.until("the allowed range is named", lambda: "LockDuration" in browser.text() or "lock duration" in browser.text().lower())
    browser.find("dialog .wrong")
    browser.write("Lock duration", "soon")
    browser.click("Create")
    browser.sees("write it like 30s")
    browser.write("Lock duration", "1m")
    browser.click("Create")
    browser.sees("queue too-long created")


def test_a_rule_is_tried_before_it_is_kept(browser: Browser) -> None:
    browser.goto("#/entity/events%2FSubscriptions%2Fbilling/rules")
    browser.click("Add a rule…")
    browser.write("Rule name", "large")
    browser.write("SQL expression", "total > 100 AND region = 'eu'")
    browser.write("Application properties", "total = 50\nregion = 'eu'")
    browser.click("Test")
    browser.sees("does not match")
    browser.sees("total > 100 is false")
    browser.write("Application properties", "total = 500\nregion = 'eu'")
    browser.click("Test")
    browser.sees("large matches")
    browser.axe()
    browser.click("Save")
    browser.sees("rule large created")
    browser.click("Which rules take a message?")
    browser.write("Subject", "nothing else")
    browser.click("Test all rules")
    browser.sees("$Default matches")
    browser.sees("total is not set")


def test_a_wrong_expression_is_refused_with_its_place(browser: Browser) -> None:
    browser.goto("#/entity/events%2FSubscriptions%2Fbilling/rules")
    browser.click("Add a rule…")
    browser.write("Rule name", "wrong")
    browser.write("SQL expression", "total >")
    browser.click("Save")
    browser.find("dialog .wrong")
    browser.click("Cancel")


def test_an_entity_deleted_under_the_page_says_so(browser: Browser, bus: Bus) -> None:
    bus.create_queue("fleeting")
    browser.goto("#/entity/fleeting")
    browser.sees("Lock duration")
    bus.delete("fleeting")
    browser.sees("could not be found")
    browser.click("Back to all entities")
    browser.sees("orders")


def test_pages_work_by_keyboard_alone(browser: Browser) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.goto("#/entities")
    browser.sees("orders")
    browser.run("document.querySelector('.virtual').focus()")
    browser.press(Keys.HOME)
    browser.press(Keys.ARROW_DOWN)
    browser.press(Keys.ARROW_DOWN)
    browser.press(Keys.ARROW_UP)
    browser.press(Keys.ENTER)
    browser.until("the chosen one opens", lambda: browser.run("return location.hash").startswith("#/entity/"))


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_themes_have_enough_contrast_also_on_a_phone(browser: Browser, theme: str) -> None:
    try:
        browser.size(390, 844)
        browser.run("localStorage['tandem-theme'] = arguments[0]", theme)
        browser.driver.refresh()
        browser.sees("Active messages")
        assert browser.run("return document.documentElement.dataset.theme") == theme
        seen = {
            "overview": "Active messages",
            "entities": "orders",
            "entity/orders": "Lock duration",
            "entity/orders/messages": "order 0",
            "entity/orders/send": "Repeat",
            "entity/events%2FSubscriptions%2Fbilling/rules": "$Default",
            "outage": "Backlog queues",
            "connections": "AMQP connections",
            "faults": "Nothing fails on purpose",
        }
        for place, words in seen.items():
            browser.goto(f"#/{place}")
            browser.sees(words)
            wide = browser.run("return document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{place} is {wide} pixels too wide for a phone"
            browser.axe()
    finally:
        browser.size(1280, 900)
        browser.run("localStorage.clear()")


def test_a_broker_that_is_away_is_said_to_be_and_found_again(browser: Browser, bus: Bus) -> None:
    browser.sees("Active messages")
    began = time.monotonic()
    bus.stop()
    assert time.monotonic() - began < 5, "a page that watches does not keep a broker from stopping"
    browser.sees("The broker does not answer")
    bus.start()
    browser.sees_not("The broker does not answer")
    browser.until("samples come again", lambda: browser.find(".figure:nth-child(3) dd").text not in ("", "0"))


def test_a_relay_stands_in_the_tree_with_its_listeners(browser: Browser) -> None:
    browser.goto("#/entities")
    browser.click("Create…")
    browser.choose("Kind", "relay")
    browser.write("Name", "hooks")
    browser.tick("Senders need a token")
    browser.click("Create")
    browser.sees("relay hooks created")
    browser.choose("Show", "relays")
    browser.sees("0 listeners, 0 connections")
    browser.click("hooks")
    browser.until("senders need none", lambda: browser.find(".settings dd").text == "no")
    browser.click("Delete…")
    browser.click("Delete")
    browser.sees("hooks deleted")


@pytest.mark.slow
def test_what_is_scheduled_on_a_topic_is_seen_there(browser: Browser) -> None:
    browser.goto("#/entity/events/send")
    browser.write("Body", "tomorrow")
    browser.write("Schedule", "24h")
    browser.click("Send", "form button")
    browser.sees("1 scheduled")
    browser.goto("#/entity/events/messages")
    browser.sees("tomorrow")
    browser.click("1", "button.link")
    browser.click("Cancel it…")
    browser.click("Cancel it")
    browser.sees("There are no messages")
