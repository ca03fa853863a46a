"""A broker killed while messages move between stores loses none and doubles none."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tandem.testing.ports import free_port
from tests.cli.broker_process import BrokerProcess
from tests.conformance.raw import Raw, Refused

CONFIG = """
[[queue]]
name = "end"
max_size_megabytes = 4096
[[queue]]
name = "middle"
forward_to = "end"
[[topic]]
name = "events"
[[topic.subscription]]
name = "on"
forward_to = "middle"
[[queue]]
name = "start"
forward_to = "events"
"""


_EACH_LIFE = 65
"""Messages accepted before each kill at least, however slow the machine is."""


def feed(port: int, numbers: list[int], accepted: list[str], process: BrokerProcess, after: float) -> None:
    """Send until the broker is gone, killed after so many seconds and some messages; what it accepted is written down."""
    killed_at = time.monotonic() + after
    enough = len(accepted) + _EACH_LIFE
    with Raw(port) as raw:
        sender = raw.sender("start")
        pending: dict[int, str] = {}
        try:
            while time.monotonic() < killed_at or len(accepted) < enough:
                body = f"m{numbers[0]}"
                numbers[0] += 1
                from tests.conformance.raw import message

                pending[sender.start(message(body))] = body
                if len(pending) >= 50:
                    raw.until(lambda: all(one in sender.end.outcomes for one in pending))
                    accepted += [pending[one] for one in pending]
                    pending.clear()
            process.process.send_signal(signal.SIGKILL)
            process.process.wait()
            raw.until(lambda: all(one in sender.end.outcomes for one in pending))
        except (Refused, OSError):
            pass
        accepted += [body for one, body in pending.items() if one in sender.end.outcomes]


@pytest.mark.slow
def test_killed_at_many_instants_every_accepted_message_arrives_once(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(CONFIG)
    port = free_port()
    arguments = ("--port", str(port), "--data", "data", "--dev", "--config", "tandem.toml")
    dice = random.Random(7)
    accepted: list[str] = []
    numbers = [0]
    for _ in range(8):
        with BrokerProcess(tmp_path, *arguments) as process:
            feed(port, numbers, accepted, process, dice.uniform(0.05, 0.4))
    received: Counter[str] = Counter()
    with BrokerProcess(tmp_path, *arguments), Raw(port) as raw:
        receiver = raw.receiver("end", delete=True)
        deadline = time.monotonic() + 60
        while set(accepted) - set(received) and time.monotonic() < deadline:
            received.update(one.text for one in receiver.drain(5000))
        raw.quiet()
        received.update(one.text for one in receiver.drain(5000))
        for stranded in ("start", "middle", "events/Subscriptions/on"):
            assert raw.receiver(f"{stranded}/$Transfer/$DeadLetterQueue", delete=True).drain(10) == []
    assert len(accepted) > 500, "fewer prove nothing"
    assert set(accepted) - set(received) == set(), "lost"
    assert {body: count for body, count in received.items() if count > 1} == {}, "doubled"
