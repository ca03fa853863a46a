"""`tandem rule match` against a running broker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tandem.model.entity import RuleDescription, SqlFilter
from tandem.testing import Bus


@pytest.fixture(scope="module")
def bus() -> Iterator[Bus]:
    with Bus(real_time=True) as bus:
        bus.create_topic("orders")
        bus.create_subscription("orders", "all")
        wanted = RuleDescription(name="big-eu", filter=SqlFilter(expression="region = 'eu' AND total > 100 AND sys.Label = 'new'"))
        bus.create_subscription("orders", "big", rules=[wanted])
        yield bus


def tandem(bus: Bus, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tandem", "rule", "match", *arguments, "--connection-string", bus.connection_string]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_match_tells_who_gets_the_message_and_why_the_others_do_not(bus: Bus) -> None:
    done = tandem(bus, "orders", "-p", "region=eu", "-p", "total=12", "--subject", "new")
    assert done.returncode == 0, done.stderr
    assert "all: gets the message" in done.stdout
    assert "big: does not get it" in done.stdout
    assert "total > 100 is false: total = 12" in done.stdout


def test_match_prints_json_and_exits_1_when_nobody_would_get_it(bus: Bus) -> None:
    path = "orders/Subscriptions/big"
    done = tandem(bus, path, "-p", 'region="eu"', "-p", "total=120", "--json")
    [answer] = json.loads(done.stdout)
    assert (done.returncode, answer["name"], answer["matches"]) == (1, "big", False)
    assert "not set" in answer["rules"][0]["text"]
    done = tandem(bus, path, "-p", "region=eu", "-p", "total=120", "--subject", "new", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)[0]["matches"]


def test_mistakes_are_said_with_exit_code_2(bus: Bus) -> None:
    done = tandem(bus, "nowhere")
    assert done.returncode == 2 and "nowhere" in done.stderr
    done = tandem(bus, "orders", "-p", "region")
    assert done.returncode == 2 and "name=value" in done.stderr
    command = [sys.executable, "-m", "tandem", "rule", "match", "orders", "--connection-string", "nonsense"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "Name=value" in done.stderr
