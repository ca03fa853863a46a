"""Ten thousand entities and a queue too long to be listed: the page holds what is seen, the broker answers in pieces.

A hundred thousand messages, or as many as TANDEM_CONSOLE_MESSAGES says: 1000000 takes a minute more.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator

import pytest

from tandem.model.address import parse
from tandem.model.entity import QueueDescription
from tandem.model.limits import Limits
from tandem.testing import Bus
from tests.console.browser import Browser
from tests.gateway.http.api.console_client import ConsoleClient, console_of

ENTITIES = 10_000
MESSAGES = int(os.environ.get("TANDEM_CONSOLE_MESSAGES", "100000"))


def fill(bus: Bus) -> None:
    """From inside: what is tested is looking at it."""
    server, loop = bus._server, bus._loop
    assert server is not None and loop is not None
    context, admin = server.contexts[0], server.admins[0]

    async def work() -> None:
        for start in range(0, ENTITIES, 500):
            names = [f"queue-{number:05}" for number in range(start, start + 500)]
            await asyncio.gather(*(admin.create_queue(QueueDescription(name=name)) for name in names))
        from tandem.amqp.message import encode_message

        for start in range(0, MESSAGES, 5_000):
            now = context.turn.begin()
            entity = context.namespace.resolve_sender(parse("queue-00007"))
            for number in range(start, start + 5_000):
                payload = encode_message(properties={"message-id": f"m{number}"}, application_properties={"n": number}, body=[b"x" * 100])
                entity.enqueue(context.translator.message(payload), now)
            context.turn.schedule()
            await asyncio.sleep(0)

    asyncio.run_coroutine_threadsafe(work(), loop).result(600)


@pytest.fixture(scope="module")
def bus() -> Iterator[Bus]:
    limits = Limits(message_bytes_max=120_000_000, message_bytes_ceiling=120_000_000, ingress_bytes_in_flight_max=1 << 30)
    with Bus(real_time=True, store_count=2, limits=limits) as running:
        fill(running)
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


def took(work: object) -> float:
    began = time.monotonic()
    work()  # type: ignore[operator]
    return time.monotonic() - began


@pytest.mark.slow
def test_ten_thousand_entities_scroll_like_ten(browser: Browser, api: ConsoleClient) -> None:
    assert api("POST", "entities", skip=0, top=10)["total"] == ENTITIES
    assert min(took(lambda: api("POST", "entities", skip=9_000, top=100)) for _ in range(5)) < 0.5
    browser.goto("#/entities")
    browser.sees("queue-00000")
    for at, name in ((0.5, "queue-05000"), (1.0, "queue-09999"), (0.1, "queue-01000")):
        browser.run("const v = document.querySelector('.virtual'); v.scrollTop = arguments[0] * (v.scrollHeight - v.clientHeight)", at)
        browser.sees(name)
        assert browser.run("return document.querySelectorAll('.virtual .row').length") < 60
    browser.write("Search", "queue-0777")
    browser.until("ten fit", lambda: browser.run("return document.querySelector('.virtual').ariaRowCount") == "11")
    browser.sees("queue-07775")


@pytest.mark.slow
def test_a_long_queue_is_browsed_without_waiting(browser: Browser, bus: Bus, api: ConsoleClient) -> None:
    assert bus.counts("queue-00007").active == MESSAGES
    for start in (0, MESSAGES // 2, MESSAGES - 60):
        assert (
            min(took(lambda start=start: api("POST", "messages", path="queue-00007", count=50, **{"from": str(start)})) for _ in range(5))
            < 0.5
        )
    browser.goto("#/entity/queue-00007/messages")
    browser.sees("m49")
    browser.write("From sequence number", str(MESSAGES - 20))
    browser.find("input", "From sequence number").submit()
    browser.sees(f"m{MESSAGES - 1}")
    browser.click("First")
    browser.sees("m49")
    browser.write("SQL filter", f"n = {MESSAGES // 10}")
    browser.click("Filter")
    browser.sees(f"m{MESSAGES // 10}", 60)
    browser.run("[...document.querySelectorAll('button')].find(b => b.innerText === 'Stop')?.click()")


def test_others_are_served_while_one_searches_a_long_queue(api: ConsoleClient, bus: Bus) -> None:
    api("POST", "messages", path="queue-00007", where="n = -1")
    import threading

    stop = threading.Event()

    def search() -> None:
        start: str | None = "0"
        while start is not None and not stop.is_set():
            start = api("POST", "messages", path="queue-00007", where="n = -1", **{"from": start})["next"]

    thread = threading.Thread(target=search)
    thread.start()
    try:
        slowest = sorted(took(lambda: api("POST", "entity", path="queue-00001")) for _ in range(20))
    finally:
        stop.set()
        thread.join()
    assert slowest[10] < 0.5, slowest


@pytest.mark.slow
def test_a_message_of_a_hundred_megabytes_is_listed_shown_in_part_and_downloaded(browser: Browser, bus: Bus, api: ConsoleClient) -> None:
    server, loop = bus._server, bus._loop
    assert server is not None and loop is not None

    async def send() -> None:
        from tandem.gateway.http.data_port import HttpMessage

        await server._data[0].send(parse("queue-00009"), [HttpMessage(body=b"<p>" + b"y" * 100_000_000, message_id="huge")])

    asyncio.run_coroutine_threadsafe(send(), loop).result(120)
    (row,) = api("POST", "messages", path="queue-00009")["messages"]
    assert row["large"] and row["size_bytes"] > 100_000_000
    browser.goto("#/entity/queue-00009/messages")
    browser.sees("large: open it to look")
    browser.click("1", "button.link")
    browser.sees("The first 256 KiB of 95.4 MiB are shown", 60)
    assert len(api.raw("POST", "message/body", {"path": "queue-00009", "sequence_number": "1"})) == 100_000_003
    browser.click("Close")
    browser.write("Contains", "nothing of the kind")
    browser.click("Filter")
    browser.sees("1 messages over 4.0 MiB are not shown: a filter does not look into them.")
    told = api("POST", "messages/resubmit", path="queue-00009", text="nothing of the kind", count=10, to="queue-00008")
    assert (told["done"], told["unread"]) == (0, 1)
