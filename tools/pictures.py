"""Makes the pictures of the README from the real thing: the demo's live view, its report, and the console of a broker at work.

    python tools/pictures.py [demo] [console]      # into docs/images; about two minutes

Needs Chromium with its driver, Selenium (extra `dev`), Java for the demo, and `pip install pyte`, a terminal that can be read.
"""

from __future__ import annotations

import fcntl
import html
import os
import pty
import random
import re
import select
import struct
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
IMAGES = ROOT / "docs" / "images"
COLUMNS, ROWS = 112, 40
BYTES_MAX = 150_000
COLOURS = {"default": "#d7dde3", "red": "#ff7b72", "green": "#7ee787", "yellow": "#e3b341", "brown": "#e3b341", "blue": "#79c0ff"}
COLOURS |= {"cyan": "#76e3ea", "magenta": "#d2a8ff", "black": "#8b949e", "white": "#f0f6fc"}


def keep(browser: Any, name: str, element: str | None = None) -> None:
    target = IMAGES / name
    if element is None:
        browser.driver.save_screenshot(str(target))
    else:
        browser.find(element).screenshot(str(target))
    size = target.stat().st_size
    print(f"{target.relative_to(ROOT)} {size:,} bytes")
    if size > BYTES_MAX:
        raise SystemExit(f"{target} has more than {BYTES_MAX:,} bytes")


# --- the demo


def screen_html(screen: Any) -> str:
    lines = []
    for row in range(screen.lines):
        parts = []
        for column in range(screen.columns):
            cell = screen.buffer[row][column]
            colour = COLOURS.get(cell.fg, f"#{cell.fg}" if len(cell.fg) == 6 else COLOURS["default"])
            weight = "bold" if cell.bold else "normal"
            parts.append((colour, weight, cell.data))
        text, last = "", None
        for colour, weight, data in parts:
            if (colour, weight) != last:
                text += ("</span>" if last else "") + f'<span style="color:{colour};font-weight:{weight}">'
                last = (colour, weight)
            text += html.escape(data)
        lines.append(text + "</span>")
    while lines and not screen.display[len(lines) - 1].strip():
        lines.pop()
    while lines and not screen.display[screen.lines - len(lines)].strip() and len(lines) == screen.lines:
        lines.pop(0)
    style = "display:inline-block;margin:0;padding:18px;background:#0d1117;font:15px/1.35 'DejaVu Sans Mono',monospace"
    return (
        f'<!doctype html><meta charset="utf-8"><body style="margin:0;background:#0d1117"><pre style="{style}">{chr(10).join(lines)}</pre>'
    )


def watch_demo(report: Path) -> str:
    """Runs it in a terminal of its own; the picture is what stands there while the primary is down and messages are diverted."""
    import pyte

    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(COLUMNS), LINES=str(ROWS), PYTHONPATH=str(ROOT / "src"))
        os.execv(sys.executable, [sys.executable, "-m", "tandem", "demo", "--report", str(report)])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    chosen = ""
    while True:
        ready, _, _ = select.select([terminal], [], [], 300)
        if not ready:
            raise SystemExit("the demo says nothing any more")
        try:
            data = os.read(terminal, 65_536)
        except OSError:
            data = b""
        if not data:
            break
        stream.feed(data)
        shown = "\n".join(screen.display)
        whole = shown.rstrip().rpartition("\n")[2].startswith("╰")  # not one that is being drawn
        if whole and "✖ down" in shown and re.search(r"orders +failed.over", shown):
            chosen = screen_html(screen)
    os.waitpid(child, 0)
    if not chosen:
        raise SystemExit("the demo never showed a path that failed over; the last screen was:\n" + "\n".join(screen.display))
    return chosen


def demo(browser: Any, directory: Path) -> None:
    report = directory / "report.html"
    live = directory / "live.html"
    live.write_text(watch_demo(report))
    browser.open(live.as_uri())
    keep(browser, "demo.png", "pre")
    browser.size(1120, 900)
    browser.open(report.as_uri())
    keep(browser, "report.png")


# --- the console


def work_on(connection_string: str, stop: threading.Event) -> None:
    from azure.servicebus import ServiceBusClient, ServiceBusMessage

    random.seed(7)
    with ServiceBusClient.from_connection_string(connection_string) as client:
        sender, receiver = client.get_queue_sender("orders"), client.get_queue_receiver("orders", prefetch_count=100)
        while not stop.is_set():
            wanted = random.randint(10, 40)
            sender.send_messages([ServiceBusMessage('{"order": 1, "total": 99}', subject="created") for _ in range(wanted)])
            for message in receiver.receive_messages(max_message_count=max(1, wanted - random.randint(0, 3)), max_wait_time=1):
                if random.random() < 0.02:
                    receiver.dead_letter_message(message, reason="NoSuchCustomer", error_description="customer 4711 is unknown")
                else:
                    receiver.complete_message(message)


def console(browser: Any, directory: Path) -> None:
    from tandem.testing import Bus

    with Bus(real_time=True, store_count=4, data_dir=directory / "data") as bus:
        for name in ("orders", "payments", "returns", "shipping"):
            bus.create_queue(name)
        bus.create_topic("events")
        bus.create_subscription("events", "billing")
        stop = threading.Event()
        worker = threading.Thread(target=work_on, args=(bus.connection_string, stop))
        worker.start()
        time.sleep(60)
        browser.size(1280, 940)
        browser.open(f"http://localhost:{bus.port}/$tandem/console/")
        browser.sees("Active messages")
        time.sleep(3)
        keep(browser, "console.png")
        browser.goto("#/entity/orders/dead-letters")
        browser.sees("NoSuchCustomer")
        keep(browser, "console-dead-letters.png")
        stop.set()
        worker.join()


def main() -> None:
    from tests.console.browser import a_browser

    wanted = sys.argv[1:] or ["demo", "console"]
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, a_browser() as browser:
        if "demo" in wanted:
            demo(browser, Path(directory))
        if "console" in wanted:
            console(browser, Path(directory))


if __name__ == "__main__":
    main()
