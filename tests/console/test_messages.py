"""What an operator does with messages in a browser: looks, sends, mends, clears away; and what a message cannot do to the page."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.testing import Bus
from tests.console.browser import Browser
from tests.gateway.http.api.console_client import ConsoleClient, console_of

PAYLOADS = (
    "<img src=x onerror=window.hacked=1>",
    "<script>window.hacked=1</script>",
    "\"'><svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "<iframe srcdoc='<script>parent.hacked=1</script>'>",
    "{{constructor.constructor('window.hacked=1')()}}",
    "</textarea><a href=javascript:window.hacked=1>x</a>",
)


@pytest.fixture(scope="module")
def bus() -> Iterator[Bus]:
    with Bus(real_time=True) as running:
        running.create_queue("orders")
        running.create_queue("mended")
        running.create_queue("many")
        running.create_queue("bulk")
        running.create_queue("sessions", requires_session=True)
        running.create_topic("events")
        yield running


@pytest.fixture(scope="module")
def api(bus: Bus) -> ConsoleClient:
    return console_of(bus)


@pytest.fixture(autouse=True)
def console(browser: Browser, bus: Bus) -> Iterator[None]:
    if "$tandem/console" not in browser.driver.current_url:
        browser.open(f"http://localhost:{bus.port}/$tandem/console/")
        browser.sees("Overview")
    yield
    browser.check_quiet()


def go(browser: Browser, queue: str, tab: str = "messages") -> None:
    browser.goto("#/entities")
    browser.goto(f"#/entity/{queue}/{tab}")
    browser.until(f"{tab} of {queue}", lambda: browser.find("h1", queue) and browser.find(f".tabs a[aria-current][href$='{tab}']"))


@pytest.mark.slow
def test_a_message_is_sent_from_a_form_and_seen_with_all_it_has(browser: Browser, bus: Bus) -> None:
    go(browser, "orders", "send")
    browser.write("Body", '{"order": 1, "lines": [{"sku": "a"}]}')
    browser.write("Application properties", '{"region": "eu"}')
    browser.write("Message id", "first")
    browser.write("Subject", "created")
    browser.axe()
    browser.click("Send", "form button")
    browser.sees("1 sent")
    go(browser, "orders")
    browser.sees("first")
    browser.axe()
    browser.click("1", "button.link")
    browser.sees('"sku": "a"')
    for view, seen in (("Hex", "7b 22 6f 72"), ("Text", '{"order": 1,'), ("JSON", '  "order": 1')):
        browser.click(view, ".body button")
        browser.sees(seen)
    browser.sees("region")
    browser.sees("created")
    browser.axe()
    browser.click("Close")


def test_a_message_is_scheduled_repeated_and_cancelled(browser: Browser, bus: Bus) -> None:
    go(browser, "orders", "send")
    browser.write("Body", "<order><id>7</id></order>")
    browser.write("Schedule", "2h")
    browser.write("Repeat", "3")
    browser.click("Send", "form button")
    browser.sees("3 scheduled")
    assert bus.counts("orders").scheduled == 3
    go(browser, "orders")
    browser.choose("State", "scheduled")
    browser.click("Filter")
    browser.until("three are scheduled", lambda: browser.run("return document.querySelectorAll('tbody tr').length") == 3)
    browser.click(browser.run("return document.querySelector('button.link').innerText"), "button.link")
    browser.sees("<id>7</id>")
    browser.click("Cancel it…")
    browser.click("Cancel it")
    browser.until("one less", lambda: bus.counts("orders").scheduled == 2)


def test_pages_of_a_long_queue_are_turned(browser: Browser, api: ConsoleClient) -> None:
    api("POST", "messages/send", path="many", messages=[{"body": f"number {n}", "properties": {"n": n}} for n in range(170)])
    go(browser, "many")
    browser.sees("number 0")
    browser.click("Next")
    browser.sees("number 50")
    browser.click("Previous")
    browser.sees("number 49")
    browser.write("From sequence number", "151")
    browser.find("input", "From sequence number").submit()
    browser.sees("number 169")
    browser.write("SQL filter", "n > 160 AND n < 164")
    browser.click("Filter")
    browser.until("three match", lambda: browser.run("return document.querySelectorAll('tbody tr').length") == 3)
    browser.write("SQL filter", "n >")
    browser.click("Filter")
    browser.find(".wrong")


def test_lines_go_out_and_come_in_again_and_a_queue_is_purged(browser: Browser, bus: Bus, api: ConsoleClient, tmp_path: Path) -> None:
    bus.create_queue("source")
    bus.create_queue("target")
    api("POST", "messages/send", path="source", messages=[{"body": f"number {n}"} for n in range(170)])
    browser.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    go(browser, "source")
    browser.sees("number 0")
    browser.click("Export")
    file = tmp_path / "source.jsonl"
    browser.until("the file is there", lambda: file.exists() and file.read_text().count("\n") == 170)
    assert json.loads(file.read_text().splitlines()[5])["body"] == "number 5"
    go(browser, "target", "send")
    browser.find("input[type=file]").send_keys(str(file))
    browser.sees("170 messages imported")
    assert bus.counts("target").active == 170
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text('{"body": "fine"}\n{"body": ')
    browser.find("input[type=file]").send_keys(str(wrong))
    browser.sees("line 2:")
    assert bus.counts("target").active == 170
    go(browser, "target")
    browser.click("Purge…")
    browser.click("Purge")
    browser.sees("Purged 170 messages")
    assert bus.counts("target").active == 0


def test_a_dead_letter_is_edited_and_sent_again(browser: Browser, bus: Bus, api: ConsoleClient) -> None:
    sent = api(
        "POST", "messages/send", path="mended", messages=[{"body": "broken", "message_id": "patient", "properties": {"n": 1, "bad": True}}]
    )
    api("POST", "messages/dead-letter", path="mended", sequence_numbers=sent["sequence_numbers"], reason="Sick")
    go(browser, "mended", "dead-letters")
    browser.sees("Sick")
    browser.click(browser.run("return document.querySelector('button.link').innerText"), "button.link")
    browser.click("Edit and resubmit…")
    browser.write("Body", "well again")
    browser.write("Application properties", '{"n": 2}')
    browser.axe()
    browser.click("Send again")
    browser.sees("Sending again: 1 done")
    (home,) = api("POST", "messages/lines", path="mended", text="well again")["messages"]
    assert (home["body"], home["message_id"], home["properties"]) == ("well again", "patient", {"n": 2})
    assert bus.counts("mended").dead_lettered == 0


@pytest.mark.slow
def test_a_thousand_dead_letters_are_sent_again_with_progress_and_may_be_stopped(browser: Browser, bus: Bus, api: ConsoleClient) -> None:
    numbers = []
    for _ in range(2):
        numbers.append(api("POST", "messages/send", path="bulk", messages=[{"body": "x"}] * 1_000)["sequence_numbers"])
    for some in numbers:
        api("POST", "messages/dead-letter", path="bulk", sequence_numbers=some, reason="Bulk")
    go(browser, "bulk", "dead-letters")
    browser.sees("Bulk")
    # No step after the first ends before somebody has pressed the button.
    browser.run(
        "const real = window.real = window.fetch; let n = 0; const pressed = new Promise(done => window.pressed = done);"
        "window.fetch = async (a, o) => { if (a.includes('resubmit') && ++n > 1) await pressed; return real(a, o) }"
    )
    browser.click("Resubmit…")
    browser.click("Send again")
    browser.sees("Sending again: 200 of 2,000")
    browser.click("Stop")
    browser.run("window.pressed(); window.fetch = window.real")
    browser.sees("stopped; start again to go on")
    counts = bus.counts("bulk")
    assert counts.active + counts.dead_lettered == 2_000 and counts.dead_lettered > 0
    browser.click("Resubmit…")
    browser.click("Send again")
    browser.until("all are home", lambda: bus.counts("bulk").dead_lettered == 0)
    browser.sees("– done.")
    assert bus.counts("bulk").active == 2_000


def test_a_broker_lost_in_the_middle_says_so_and_all_can_be_continued(browser: Browser, bus: Bus, api: ConsoleClient) -> None:
    before = bus.counts("mended")
    everything = before.active + before.dead_lettered + 900
    numbers = api("POST", "messages/send", path="mended", messages=[{"body": "x"}] * 900)["sequence_numbers"]
    api("POST", "messages/dead-letter", path="mended", sequence_numbers=numbers, reason="Bulk")
    go(browser, "mended", "dead-letters")
    browser.sees("Bulk")
    try:
        # After the first answer the network is gone, as the page sees it.
        browser.run(
            "const real = window.fetch; window.real = real; let n = 0;"
            "window.fetch = (a, o) => a.includes('resubmit') && ++n > 1 ? Promise.reject(new TypeError('gone')) : real(a, o)"
        )
        browser.click("Resubmit…")
        browser.click("Send again")
        browser.sees("stopped by an error")
        browser.sees("The broker does not answer")
    finally:
        browser.run("window.fetch = window.real")
    counts = bus.counts("mended")
    assert counts.active + counts.dead_lettered == everything and counts.dead_lettered == before.dead_lettered + 700
    browser.click("Resubmit…")
    browser.click("Send again")
    browser.until("all are home", lambda: bus.counts("mended").dead_lettered == 0)
    assert bus.counts("mended").active == everything


def test_sessions_show_their_state_and_take_another(browser: Browser, api: ConsoleClient) -> None:
    api("POST", "messages/send", path="sessions", messages=[{"body": "x", "session_id": f"s{n}"} for n in range(3)])
    go(browser, "sessions", "sessions")
    browser.click("State of s1")
    browser.write("New state", '{"step": 3}')
    browser.axe()
    browser.click("Set")
    browser.sees("state of s1 set")
    browser.click("State of s1")
    browser.sees('"step": 3')
    browser.click("Close")


def test_deferred_messages_are_fetched(browser: Browser, bus: Bus, api: ConsoleClient) -> None:
    from azure.servicebus import ServiceBusClient

    bus.create_queue("put-off")
    api("POST", "messages/send", path="put-off", messages=[{"body": "later"}])
    with ServiceBusClient.from_connection_string(bus.connection_string) as client, client.get_queue_receiver("put-off") as receiver:
        receiver.defer_message(receiver.receive_messages(max_wait_time=10)[0])
    go(browser, "put-off")
    browser.click("1", "button.link")
    browser.click("Fetch and send again")
    browser.until("it is active", lambda: (bus.counts("put-off").active, bus.counts("put-off").deferred) == (1, 0))


def test_a_message_deleted_under_the_page_says_so(browser: Browser, bus: Bus, api: ConsoleClient) -> None:
    bus.create_queue("gone")
    api("POST", "messages/send", path="gone", messages=[{"body": "soon gone"}])
    go(browser, "gone")
    browser.sees("soon gone")
    api("POST", "messages/purge", path="gone")
    browser.click("1", "button.link")
    browser.sees("is not, or no longer, in 'gone'")
    browser.click("Close")


@pytest.mark.slow
@pytest.mark.parametrize("payload", PAYLOADS)
def test_what_a_message_says_is_shown_and_never_run(browser: Browser, bus: Bus, api: ConsoleClient, payload: str) -> None:
    name = f"xss-{PAYLOADS.index(payload)}"
    bus.create_queue(name)
    api("PUT", "entity", kind="queue", path=name, description={"user_metadata": payload})
    line = dict.fromkeys(("body", "message_id", "subject", "correlation_id", "content_type", "to", "reply_to"), payload)
    sent = api("POST", "messages/send", path=name, messages=[{**line, "properties": {payload: payload}}])
    api("POST", "messages/dead-letter", path=name, sequence_numbers=sent["sequence_numbers"], reason=payload, description=payload)
    browser.goto(f"#/entity/{name}/settings")
    browser.sees(payload)
    go(browser, name, "dead-letters")
    browser.sees(payload)
    browser.click("1", "button.link")
    for view in ("Text", "Hex", "XML"):
        browser.run("[...document.querySelectorAll('.body button')].find(b => b.innerText === arguments[0] && !b.disabled)?.click()", view)
    browser.click("Edit and resubmit…")
    browser.until("the body is in the form", lambda: browser.find("textarea", "Body").get_property("value") == payload)
    assert browser.run("return window.hacked") is None
    assert (
        browser.run("return document.querySelectorAll('main img, main iframe, main script, dialog img, dialog iframe, dialog svg').length")
        == 0
    )
    assert browser.run("return [...document.querySelectorAll('a')].filter(a => a.protocol === 'javascript:').length") == 0
    browser.click("Cancel")
