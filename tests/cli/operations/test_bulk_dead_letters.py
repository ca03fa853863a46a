"""Dead letters sent again in bulk, by command and by console, interrupted in the middle and continued: each is home once.

A hundred thousand with TANDEM_LONG_TESTS=1, which also prints how long it took.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.broker_process import BrokerProcess
from tests.gateway.http.api.console_client import ConsoleClient
from tests.waiting import wait_until

LONG = "TANDEM_LONG_TESTS" in os.environ
COUNT = 100_000 if LONG else 2_000
STEP = 1_000
AS_THE_PAGE = 200
CONFIG = """
[[queue]]
name = "stopped"

[[queue]]
name = "killed"

[[queue]]
name = "home"
requires_duplicate_detection = true
"""

pytestmark = pytest.mark.timeout(1_800 if LONG else 300)


def started(directory: Path) -> BrokerProcess:
    (directory / "tandem.toml").write_text(CONFIG)
    return BrokerProcess(directory, "--port", "0", "--dev", "--data", "data")


@pytest.fixture(scope="module")
def directory(module_path: Path) -> Path:
    return module_path


def console_of(broker: BrokerProcess) -> ConsoleClient:
    return ConsoleClient(broker.port)


def bury(console: ConsoleClient, queue: str) -> None:
    for at in range(0, COUNT, STEP):
        lines = [{"body": f"body {n}", "message_id": f"m{n}"} for n in range(at, at + STEP)]
        numbers = console("POST", "messages/send", path=queue, messages=lines)["sequence_numbers"]
        assert console("POST", "messages/dead-letter", path=queue, sequence_numbers=numbers, reason="Bulk")["done"] == STEP


def counts(console: ConsoleClient, queue: str) -> tuple[int, int]:
    found = console("POST", "entity", path=queue)["counts"]
    return found["active"], found["dead_letters"]


def ids(console: ConsoleClient, queue: str) -> Counter[str]:
    found: Counter[str] = Counter()
    at: str | None = "0"
    while at is not None:
        page = console("POST", "messages", path=queue, count=500, **{"from": at})
        found.update(str(one["message_id"]) for one in page["messages"])
        at = page["next"]
    return found


def each_once() -> Counter[str]:
    return Counter(f"m{n}" for n in range(COUNT))


def told(what: str, number: int, began: float) -> None:
    took = time.monotonic() - began
    print(f"{what}: {number:,} in {took:.1f} s, {number / took:,.0f} a second")


@pytest.mark.slow
def test_the_command_is_stopped_in_the_middle_and_goes_on(directory: Path) -> None:
    with started(directory) as broker:
        console = console_of(broker)
        bury(console, "stopped")
        command = [sys.executable, "-m", "tandem", "dead-letter", "resubmit", "stopped", "--yes", "-c", broker.connection_string]
        began = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
            wait_until(lambda: counts(console, "stopped")[0] > 0, "some are home", 300)
            first.send_signal(signal.SIGINT)
            said, wrong = first.communicate(timeout=120)
        assert first.returncode == 1 and "run it again" in wrong, (said, wrong)
        home, left = counts(console, "stopped")
        assert 0 < left < COUNT and home + left == COUNT, "what was sent is completed, too"
        done = subprocess.run(command, capture_output=True, text=True, timeout=1_500, check=False)
        assert (done.returncode, done.stdout) == (0, f"sent {left} of {left} again\n"), done.stderr
        told("command", COUNT, began)
        assert counts(console, "stopped") == (COUNT, 0)
        assert ids(console, "stopped") == each_once()


def resubmitted(console: ConsoleClient) -> Iterator[int]:
    """As the page does it: a few hundred with each step, from where the last one ended."""
    at: str | None = "0"
    while at is not None:
        step = console("POST", "messages/resubmit", path="killed/$DeadLetterQueue", to="home", count=AS_THE_PAGE, **{"from": at})
        yield step["done"]
        at = step["next"]


@pytest.mark.slow
def test_the_broker_is_killed_under_the_console_which_goes_on(directory: Path) -> None:
    with started(directory) as broker:
        console = console_of(broker)
        bury(console, "killed")
        began, done = time.monotonic(), 0
        with contextlib.suppress(http.client.HTTPException, OSError):
            for step in resubmitted(console):
                done += step
                if done >= COUNT // 2:
                    broker.process.kill()
        assert broker.process.wait(60) == -signal.SIGKILL
    with started(directory) as broker:
        console = console_of(broker)
        done += sum(resubmitted(console))
        wait_until(lambda: sum(resubmitted(console)) == 0 and counts(console, "killed") == (0, 0), "none is in hand any more", 120)
        told("console, with a restart", COUNT, began)
        assert counts(console, "home") == (COUNT, 0)
        assert ids(console, "home") == each_once(), "whatever was sent twice was known by its id"
