"""What clients report of themselves reaches the console, bounded; what is no report is refused whole."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from tandem.client.event_report import EventReport
from tandem.client.events import Counters, Event
from tandem.server.client_reports import EVENTS_MAX, REPORTERS_MAX, ClientReports
from tandem.testing import Bus
from tests.forked import in_a_forked_process
from tests.gateway.http.api.console_client import ConsoleClient, Refusal, console_of
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def bus() -> Iterator[Bus]:
    with Bus(real_time=True) as running:
        yield running


@pytest.fixture(scope="module")
def console(bus: Bus) -> ConsoleClient:
    return console_of(bus)


def line(kind: str, at: int, path: str = "orders", who: str = "shop") -> dict[str, object]:
    return {"at_ms": at, "source": "client", "who": who, "kind": kind, "path": path, "detail": "why"}


def test_a_path_has_the_state_of_its_last_event() -> None:
    reports = ClientReports()
    reports.take([line("path-suspect", 1), line("path-failed-over", 2), line("ping-failed", 3), line("ping-failed", 4)], 10)
    known = reports.reporters["shop"].paths["orders"]
    assert (known.state, known.since_ms, known.failed_pings) == ("failed over", 2, 2) and reports.failed_over() == ["orders"]
    reports.take([line("path-healthy", 5)], 11)
    assert (known.state, known.since_ms, known.failed_pings) == ("healthy", 5, 0) and reports.failed_over() == []


def test_reports_are_bounded() -> None:
    reports = ClientReports()
    for number in range(REPORTERS_MAX + 10):
        reports.take([line("ping-failed", 1, who=f"shop-{number}", path=f"p{n}") for n in range(12)], number)
    assert len(reports.reporters) == REPORTERS_MAX and "shop-0" not in reports.reporters and len(reports.events) == EVENTS_MAX


@pytest.mark.parametrize(
    "wrong", [5, {}, {"who": "x"}, {"who": "x", "kind": "k"}, {"who": "x", "kind": "k", "at_ms": -1}, {"who": 1, "kind": "k", "at_ms": 1}]
)
def test_one_wrong_line_refuses_all(console: ConsoleClient, wrong: object) -> None:
    before = len(console("GET", "outage")["events"])
    with pytest.raises(Refusal) as refused:
        console("POST", "reports", lines=[line("path-suspect", 1), wrong])
    assert refused.value.status == 400 and "line 2" in refused.value.description
    assert len(console("GET", "outage")["events"]) == before


def test_a_client_reports_and_goes_on_when_the_broker_was_away(bus: Bus, console: ConsoleClient, caplog: pytest.LogCaptureFixture) -> None:
    report = EventReport(bus.connection_string, "shop-2", every=0.05)
    try:
        report(Event(at_ms=1, kind="path-suspect", path="bills", detail="slow"))
        wait_until(lambda: report.told == 1, "it is told")
        with caplog.at_level(logging.INFO):
            bus.stop()
            report(Event(at_ms=2, kind="path-failed-over", path="bills", detail="gone"))
            wait_until(lambda: "events are not reported for now" in caplog.text, "it is told")
            bus.start()
        wait_until(lambda: report.told == 2, "it is told")
        counters = Counters()
        counters.path("bills").sent_primary = 3
        report.count(counters, lambda: 9)
        wait_until(lambda: report.told == 3, "it is told")
    finally:
        report.close()
    (reporter,) = [one for one in console_of(bus)("GET", "outage")["reporters"] if one["who"] == "shop-2"]
    assert (reporter["paths"][0]["state"], reporter["paths"][0]["attempted"]) == ("failed over", 3)
    assert report.dropped == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
@pytest.mark.parametrize("answer", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", b""])
def test_an_answer_that_is_none_is_asked_for_again(host: str, answer: bytes) -> None:
    """As behind a proxy whose broker is away."""
    asked = 0
    with socket.create_server((host.strip("[]"), 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as proxy:
        report = EventReport(
            f"Endpoint=sb://{host}:{proxy.getsockname()[1]};SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true", every=0.01
        )
        report(Event(at_ms=1, kind="path-suspect", path="bills"))
        for reply in (answer, answer, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"):
            proxy.settimeout(30)
            connection, _ = proxy.accept()
            with connection:
                request = connection.recv(65_536)
                while b"bills" not in request:
                    request += connection.recv(65_536)
                asked += 1
                connection.sendall(reply)
        wait_until(lambda: report.told == 1, "it is told")
        report.close()
    assert (asked, report.dropped) == (3, 0)


def test_a_refused_report_is_dropped_and_counted(bus: Bus) -> None:
    report = EventReport(bus.connection_string.replace("SAS_KEY_VALUE", "wrong"), every=0.05)
    report(Event(at_ms=1, kind="path-suspect", path="bills"))
    wait_until(lambda: report.dropped == 1, "it is told")
    report.close()


def test_a_process_that_was_forked_reports_for_itself(bus: Bus) -> None:
    report = EventReport(bus.connection_string, every=0.05)

    def tell() -> str:
        report(Event(at_ms=1, kind="path-suspect", path="forked"))
        wait_until(lambda: report.told == 1, "it is told", 20)
        return report.who

    with report._lock:  # as its thread may have it at the instant of the fork
        report._lines.append({"kind": "for the parent to tell"})
        who = in_a_forked_process(tell)
        report._lines.clear()
    report.close()
    assert who != report.who
    (reporter,) = [one for one in console_of(bus)("GET", "outage")["reporters"] if one["who"] == who]
    assert reporter["paths"][0]["path"] == "forked"
