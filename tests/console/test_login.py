"""Who may enter, with what, and what they see: on a broker that is not for development."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from datetime import datetime

import pytest

from tandem.model.sas_token import make_token
from tests.cli.broker_process import BrokerProcess
from tests.console.browser import Browser

CONFIG = """
[[namespace]]
name = "east"
[[namespace.queue]]
name = "orders"
[[namespace.queue]]
name = "secret"
[[namespace.queue.authorization_rule]]
name = "one"
rights = ["Listen"]
primary_key = "only-here"
[[namespace.authorization_rule]]
name = "monitor"
rights = ["Listen"]
primary_key = "look"
[[namespace.authorization_rule]]
name = "producer"
rights = ["Send"]
primary_key = "send"
"""


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("strict")
    (directory / "tandem.toml").write_text(CONFIG)
    with BrokerProcess(directory, "--port", "0", "--memory", "--key", "root") as broker:
        yield broker


@pytest.fixture(autouse=True)
def fresh(browser: Browser, strict: BrokerProcess) -> Iterator[None]:
    browser.open(f"http://localhost:{strict.port}/$tandem/console/")
    browser.run("sessionStorage.clear()")
    browser.open(f"http://localhost:{strict.port}/$tandem/console/?{id(object())}")
    browser.sees("Log in with")
    yield
    browser.check_quiet()


def enter(browser: Browser, name: str, key: str, entity: str = "") -> None:
    browser.choose("Log in with", "key")
    browser.write("Key name", name)
    browser.write("Key", key)
    if entity:
        browser.write("Entity", entity)
    browser.click("Log in")


@pytest.mark.slow
def test_strangers_see_a_form_and_nothing_of_the_namespace(browser: Browser, strict: BrokerProcess) -> None:
    assert "orders" not in browser.text() and "east" not in browser.text()
    browser.axe()
    for method, path in (("GET", "overview"), ("GET", "live"), ("POST", "entities"), ("POST", "entity"), ("PUT", "entity")):
        connection = http.client.HTTPConnection("127.0.0.1", strict.port, timeout=20)
        connection.request(method, f"/$tandem/api/{path}", body=json.dumps({"path": "orders"}))
        answer = connection.getresponse()
        told = json.loads(answer.read())
        assert (answer.status, told["error"]) == (401, "com.microsoft:auth-failed")
        assert "TrackingId" in told["description"] and answer.getheader("WWW-Authenticate") is None
        connection.close()


def test_a_wrong_key_is_told_so_and_the_form_stays(browser: Browser) -> None:
    enter(browser, "monitor", "wrong")
    browser.sees("There is no key named 'monitor' with this value")
    browser.sees("Log in with")


def test_a_connection_string_enters_and_the_key_is_not_kept(browser: Browser, strict: BrokerProcess) -> None:
    browser.write("Connection string", strict.connection_string)
    browser.click("Log in")
    browser.sees("Active messages")
    kept = browser.run("return JSON.stringify(sessionStorage) + JSON.stringify(localStorage) + document.cookie")
    assert "SharedAccessSignature" in kept and '"root"' not in kept and "SharedAccessKey=root" not in kept
    browser.click("Log out")
    browser.sees("Log in with")
    assert "SharedAccessSignature" not in browser.run("return JSON.stringify(sessionStorage)")


def test_a_key_with_listen_sees_and_changes_nothing(browser: Browser) -> None:
    enter(browser, "monitor", "look")
    browser.sees("Active messages")
    browser.goto("#/entities")
    browser.sees("orders")
    assert "Create…" not in browser.text()
    browser.click("orders")
    browser.sees("Lock duration")
    assert "Delete…" not in browser.text() and "Disable" not in browser.text()
    status = browser.driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "fetch('/$tandem/api/entity', {method: 'DELETE', body: JSON.stringify({path: 'orders'}),"
        "headers: {Authorization: JSON.parse(sessionStorage['tandem-session']).token}}).then(r => done(r.status))"
    )
    assert status == 401


def test_a_token_enters(browser: Browser, strict: BrokerProcess) -> None:
    browser.choose("Log in with", "token")
    browser.write("Token", make_token(f"http://localhost:{strict.port}/", "monitor", "look", 1 << 42))
    browser.click("Log in")
    browser.sees("Active messages")


def test_a_key_of_one_queue_sees_that_queue_alone(browser: Browser) -> None:
    enter(browser, "one", "only-here", "secret")
    browser.sees("Entities")
    browser.sees("secret")
    assert "orders" not in browser.text()


def test_a_token_that_has_ended_leads_back_to_the_form(browser: Browser) -> None:
    enter(browser, "monitor", "look")
    browser.sees("Active messages")
    browser.run(
        "const s = JSON.parse(sessionStorage['tandem-session']); s.token = s.token.replace(/se=\\d+/, 'se=1000');"
        "sessionStorage['tandem-session'] = JSON.stringify(s)"
    )
    browser.driver.refresh()
    browser.sees("Log in with")


@pytest.mark.slow
def test_a_computer_whose_clock_is_off_is_told_so_and_schedules_by_the_brokers(browser: Browser, strict: BrokerProcess) -> None:
    ahead = "const real = Date.now; Date.now = () => real() + 3600000;"
    script = browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": ahead})
    try:
        browser.driver.refresh()
        enter(browser, "RootManageSharedAccessKey", "root")
        browser.sees("This computer's clock is 60 min ahead of the broker's")
        browser.goto("#/entity/orders/send")
        browser.write("Schedule", "10m")
        browser.click("Send", "form button")
        browser.sees("1 scheduled")
        (message,) = browser.api("POST", "messages", {"path": "orders"})["messages"]
        due, enqueued = (datetime.fromisoformat(message[name]) for name in ("scheduled_enqueue_time_utc", "enqueued_time_utc"))
        assert abs((due - enqueued).total_seconds() - 600) < 30
    finally:
        browser.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
