"""A broker of several processes, in the browser: figures, charts and counts of all of them."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.cli.broker_process import BrokerProcess
from tests.console.browser import Browser

CONFIG = (
    "".join(f'[[queue]]\nname = "{name}"\n' for name in ("a", "b", "c", "d")) + '[[queue]]\nname = "spread"\nenable_partitioning = true\n'
)
SENT = {"a": 3, "b": 5, "c": 7, "d": 11, "spread": 13}


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[BrokerProcess]:
    (module_path / "tandem.toml").write_text(CONFIG)
    with BrokerProcess(module_path, "--port", "0", "--data", "data", "--dev", "--workers", "2", log=module_path / "log") as running:
        with ServiceBusClient.from_connection_string(running.connection_string) as client:
            for name, count in SENT.items():
                with client.get_queue_sender(name) as sender:
                    for number in range(count):  # one by one: those of a partitioned queue are spread by their keys
                        sender.send_messages(ServiceBusMessage(f"{name} {number}", message_id=f"{number}", partition_key=f"{number}"))
        yield running


@pytest.fixture(autouse=True)
def console(browser: Browser, broker: BrokerProcess) -> Iterator[None]:
    if f"{broker.port}/$tandem/console" not in browser.driver.current_url:
        browser.open(f"http://localhost:{broker.port}/$tandem/console/")
        browser.sees("Overview")
    yield
    browser.check_quiet()


def workers(browser: Browser) -> list[list[str]]:
    script = "return [...document.querySelectorAll('[aria-label=Workers] tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
    return list(browser.run(script))


def number(text: str) -> float:
    return float(re.sub(r"[^0-9.]", "", text))


def figure(browser: Browser, label: str) -> str:
    script = "return [...document.querySelectorAll('.figure')].map(f => [f.querySelector('dt').innerText, f.querySelector('dd').innerText])"
    return str(dict(browser.run(script)).get(label, ""))


@pytest.mark.slow
def test_the_overview_and_its_charts_are_of_all_workers_together(browser: Browser, broker: BrokerProcess) -> None:
    total = str(sum(SENT.values()))
    browser.until("all messages are counted", lambda: figure(browser, "Active messages") == total)
    chart = browser.find("[role=img][aria-label^='Messages of the last hour']").get_attribute("aria-label")
    assert f"active {total}" in chart
    assert "bad" not in [alarm["level"] for alarm in browser.api("GET", "overview")["alarms"]], "of workers that answer, and their stores"
    assert browser.text().count("\nup") + browser.text().count(" up") >= 4 and "elsewhere" not in browser.text()
    rows = workers(browser)
    assert [row[:2] for row in rows] == [["worker-0", "store-0, store-2"], ["worker-1", "store-1, store-3"]]
    assert sum(int(row[4]) for row in rows) == int(total) and all(int(row[4]) for row in rows)
    browser.until(
        "memory is that of both", lambda: abs(number(figure(browser, "Memory")) - sum(number(row[6]) for row in workers(browser))) < 2
    )
    browser.axe()


@pytest.mark.slow
def test_connections_and_rates_of_either_worker_are_seen(browser: Browser, broker: BrokerProcess) -> None:
    browser.until("nobody is connected", lambda: figure(browser, "Connections") == "0")
    first, second = (ServiceBusClient.from_connection_string(broker.connection_string) for _ in range(2))
    with first, second, first.get_queue_receiver("a") as one, second.get_queue_receiver("b") as two:
        assert one.receive_messages(1, max_wait_time=10) and two.receive_messages(1, max_wait_time=10)
        browser.until("both are connected", lambda: figure(browser, "Connections") == "2")
        browser.until("both were sent something", lambda: _out(browser) > 1.5)


def _out(browser: Browser) -> float:
    """Messages of the last minute: rates of about a second each."""
    return float(sum(browser.api("GET", "overview")["history"]["received_per_second"][-60:]))


def test_the_tree_counts_what_every_worker_has(browser: Browser) -> None:
    browser.goto("#/entities")
    script = (
        "return Object.fromEntries([...document.querySelectorAll('[role=row]')].filter(r => r.querySelector('a'))"
        ".map(r => [r.querySelector('a').innerText, r.querySelector('[data-name=active]').innerText]))"
    )
    wanted = {name: str(count) for name, count in SENT.items()}
    browser.until("all counts are seen", lambda: browser.run(script) == wanted)
    assert "store down" not in browser.text()
    browser.choose("Show", "messages")
    browser.until("those with messages are seen, whoever has them", lambda: browser.run(script) == wanted)
    browser.choose("Show", "dead-letters")
    browser.sees("Nothing fits.")
    browser.choose("Show", "all")
    browser.goto("#/overview")


def test_messages_of_a_partitioned_queue_are_browsed_page_by_page_whichever_worker_has_them(browser: Browser) -> None:
    browser.goto("#/entity/spread/messages")
    browser.sees("Sequence number")
    rows = "return document.querySelectorAll('tbody tr').length"
    browser.until("all are seen", lambda: browser.run(rows) == SENT["spread"])
    found: list[str] = []
    start: str | None = "0"
    while start is not None:
        page = browser.api("POST", "messages", {"path": "spread", "from": start, "count": 4})
        assert len(page["messages"]) <= 4
        found += [row["message_id"] for row in page["messages"]]
        start = page["next"]
    assert sorted(found, key=int) == [str(number) for number in range(SENT["spread"])]
    for row in browser.api("POST", "messages", {"path": "spread"})["messages"]:
        whole = browser.api("POST", "message", {"path": "spread", "sequence_number": row["sequence_number"]})
        assert whole["message_id"] == row["message_id"]
    browser.goto("#/overview")


def test_messages_of_a_partitioned_queue_are_sent_moved_and_removed_at_whichever_worker_has_them(
    browser: Browser, broker: BrokerProcess
) -> None:
    with ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=str(broker.directory / "data" / "ca.pem")
    ) as administration:
        administration.create_queue("wide", enable_partitioning=True)
        administration.create_queue("wide-sessions", enable_partitioning=True, requires_session=True)
    lines = [{"body": f"{number}", "message_id": f"m{number}", "partition_key": f"{number}"} for number in range(30)]
    sent = browser.api("POST", "messages/send", {"path": "wide", "messages": lines})
    assert sent["sent"] == 30 and len(set(sent["sequence_numbers"])) == 30
    rows = browser.api("POST", "messages", {"path": "wide", "count": 100})["messages"]
    assert {row["message_id"]: row["sequence_number"] for row in rows} == dict(
        zip((line["message_id"] for line in lines), sent["sequence_numbers"], strict=True)
    )
    dead = browser.api(
        "POST", "messages/dead-letter", {"path": "wide", "sequence_numbers": sent["sequence_numbers"][:20], "reason": "told so"}
    )
    assert dead["done"] == 20
    graves = "wide/$DeadLetterQueue"
    assert len(browser.api("POST", "messages", {"path": graves, "count": 100})["messages"]) == 20
    again = browser.api("POST", "messages/resubmit", {"path": graves, "from": "0", "count": 100, "where": "sys.MessageId != 'm0'"})
    assert (again["done"], again["skipped_total"], again["next"]) == (19, 0, None)
    assert browser.api("POST", "messages/remove", {"path": "wide", "sequence_numbers": sent["sequence_numbers"][20:25]})["done"] == 5
    assert browser.api("POST", "messages/purge", {"path": "wide"}) | {"before_ms": 0} == {"done": 24, "before_ms": 0, "finished": True}
    sessions = [{"body": "x", "session_id": f"s{number}"} for number in range(12)]
    assert browser.api("POST", "messages/send", {"path": "wide-sessions", "messages": sessions})["sent"] == 12
    for number in range(12):
        wish = {"path": "wide-sessions", "session": f"s{number}", "state_base64": "eA=="}
        assert browser.api("PUT", "session", wish)["state_bytes"] == 1
    shown = browser.api("POST", "sessions", {"path": "wide-sessions", "top": 5, "skip": 5})
    assert [row["session_id"] for row in shown["sessions"]] == ["s3", "s4", "s5", "s6", "s7"] and shown["more"]
    assert all(row["messages"] == 1 and row["state_bytes"] == 1 for row in shown["sessions"])
    written = [json.loads(line) for line in (broker.directory / "data" / "audit.jsonl").read_text().splitlines()]
    assert [line["detail"] for line in written if line.get("entity", line.get("what")) == "wide" and "purge" in line["detail"]] == [
        "console: POST messages/purge, 24 messages"
    ]


@pytest.mark.slow
def test_a_worker_that_does_not_answer_is_told_and_the_rest_goes_on(browser: Browser, broker: BrokerProcess) -> None:
    browser.sees("Workers")
    hung = [int(part.split()[1]) for part in broker.line("workers:").split(",")][1]
    os.kill(hung, signal.SIGSTOP)
    try:
        # The page's own connection may have come through that worker: then it is silent, given up, and made again through the other.
        browser.sees("worker-1 does not answer: what it has is not counted", 60)
        browser.sees("nobody who has it answers")
        browser.until("the first still counts", lambda: 0 < int(figure(browser, "Active messages") or 0) < sum(SENT.values()))
        browser.axe()
    finally:
        os.kill(hung, signal.SIGCONT)
    browser.sees_not("worker-1 does not answer")
