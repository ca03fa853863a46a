"""A real browser on the console: Debian's Chromium, driven by Selenium. One for a module; it must not complain about anything."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
AXE = Path(__file__).parent.parent / "js" / "node_modules" / "axe-core" / "axe.min.js"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-prefers-reduced-motion",
    "--window-size=1280,900",
)
PATIENCE_SECONDS = 20.0


class Browser:
    """What a person does with a page, in the words of the page."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.complaints: list[str] = []

    def open(self, address: str) -> None:
        self.driver.get(address)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, what: str, test: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
        """Asks again and again; a page that has just been replaced under the question is asked anew."""
        from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException

        end = time.monotonic() + seconds
        while True:
            try:
                found = test()
            except (NoSuchElementException, StaleElementReferenceException):
                found = None
            if found:
                return found
            if time.monotonic() > end:
                raise AssertionError(f"{what}: not within {seconds} s; the page says:\n{self.text()[:3000]}")
            time.sleep(0.05)

    def text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def sees(self, text: str, seconds: float = PATIENCE_SECONDS) -> None:
        self.until(f"'{text}' is seen", lambda: text in self.text(), seconds)

    def sees_not(self, text: str) -> None:
        self.until(f"'{text}' is gone", lambda: text not in self.text())

    def find(self, css: str, text: str | None = None) -> Any:
        """The first that is displayed, with exactly this text or label if one is given."""

        def look() -> Any:
            # The topmost open dialog is what a person can reach.
            return self.run(
                """
                const [css, text] = arguments;
                const dialogs = [...document.querySelectorAll('dialog[open]')];
                const root = dialogs.length ? dialogs[dialogs.length - 1] : document;
                for (const one of root.querySelectorAll(css)) {
                  if (!one.checkVisibility()) continue;
                  const words = [one.innerText?.trim(), one.getAttribute('aria-label'), one.labels?.[0]?.innerText?.trim()];
                  if (text === null || words.includes(text)) return one;
                }
                return null;
                """,
                css,
                text,
            )

        return self.until(f"{css} '{text}'", look)

    def click(self, text: str, css: str = "button, a, summary, [role=button]") -> None:
        from selenium.common.exceptions import (
            ElementClickInterceptedException,
            ElementNotInteractableException,
            StaleElementReferenceException,
        )

        def attempt() -> bool:
            one = self.find(css, text)
            place = "const {x, y} = arguments[0].getBoundingClientRect(); return [x, y]"
            try:
                if not one.is_enabled():
                    return False  # it waits for figures of its own, and a click on it would be lost without a word
                self.run("arguments[0].scrollIntoView({block: 'center'})", one)
                before = self.run(place, one)
                time.sleep(0.05)
                if self.run(place, one) != before:
                    return False  # rows come above it: a click would go where it was
                one.click()
            except (ElementClickInterceptedException, ElementNotInteractableException, StaleElementReferenceException):
                return False
            return True

        self.until(f"'{text}' can be clicked", attempt)

    def write(self, label: str, text: str) -> None:
        one = self.find("input, textarea", label)
        self.run(
            """
            const [field, text] = arguments;
            Object.getOwnPropertyDescriptor(Object.getPrototypeOf(field), 'value').set.call(field, text);
            field.dispatchEvent(new Event('input', {bubbles: true}));
            """,
            one,
            text,
        )

    def choose(self, label: str, value: str) -> None:
        one = self.find("select", label)
        self.run("arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change', {bubbles: true}))", one, value)
        assert one.get_property("value") == value, f"{label} has no choice {value}"

    def tick(self, label: str) -> None:
        one = self.find("input[type=checkbox]", label)
        self.run("arguments[0].click()", one)

    def press(self, key: str) -> None:
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver).send_keys(key).perform()

    def goto(self, place: str) -> None:
        self.run("location.hash = arguments[0]", place)

    def api(self, method: str, what: str, body: Any = None) -> Any:
        """A call that the page itself could make, with the token it has."""
        return self.driver.execute_async_script(
            "const [method, what, body, done] = arguments;"
            "const failed = e => done({refused: e.message});"
            "import('/$tandem/console/js/api.js').then(a => a.call(method, what, body ?? undefined)).then(done, failed)",
            method,
            what,
            body,
        )

    def size(self, width: int, height: int) -> None:
        self.driver.set_window_size(width, height)

    def check_quiet(self) -> None:
        """Neither an error in the page, nor anything the policy had to stop."""
        told = [one for one in self.driver.get_log("browser") if one["level"] in ("SEVERE", "WARNING")]
        lines = [one["message"] for one in told if "/$tandem/api/" not in one["message"]]
        assert not lines, lines

    def axe(self) -> None:
        """No finding that is serious or worse."""
        if not AXE.exists():
            pytest.skip("MISSING: axe-core (make js)")
        if not self.run("return Boolean(window.axe)"):
            # Over the debugging protocol: the page itself may load nothing from elsewhere.
            self.driver.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE.read_text() + ";undefined"})
        found = self.driver.execute_async_script(
            "const done = arguments[arguments.length - 1];"
            "const failed = e => done([{id: String(e), impact: 'critical', nodes: []}]);"
            "axe.run(document, {resultTypes: ['violations']}).then(r => done(r.violations), failed)"
        )
        serious = [
            f"{one['id']} ({one['impact']}): {[node.get('html', '')[:200] for node in one['nodes'][:3]]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert not serious, json.dumps(serious, indent=1)


@contextmanager
def a_browser() -> Iterator[Browser]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("MISSING: Chromium or its driver (on Debian: apt-get install chromium chromium-driver)")
    selenium = pytest.importorskip("selenium.webdriver")
    profile = tempfile.mkdtemp(prefix="tandem-browser-")
    options = selenium.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.set_capability("pageLoadStrategy", "eager")
    from selenium.webdriver.chrome.service import Service

    driver = selenium.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(60)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
        shutil.rmtree(profile, ignore_errors=True)
