"""A broker process on a machine whose clock is set: told by the log, locks last, tokens are good again when the clock is."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tandem import amqp
from tandem.wire.files import write_whole
from tests.cli.broker_process import BrokerProcess
from tests.conformance.raw import Raw, token_for
from tests.waiting import wait_until

LIBRARIES = [Path(f"/usr/lib/{machine}-linux-gnu/faketime/libfaketimeMT.so.1") for machine in ("x86_64", "aarch64")]
FAKETIME = next((path for path in LIBRARIES if path.exists()), None)
CONFIG = '[[queue]]\nname = "q"\nlock_duration = "1m"\n'

pytestmark = pytest.mark.skipif(FAKETIME is None or sys.platform != "linux", reason="libfaketime is not installed")


def lines_with(file: Path, words: str, count: int) -> None:
    wait_until(lambda: file.read_text().count(words) >= count, lambda: f"{words!r} was not told {count} times:\n{file.read_text()}", 20)


@pytest.mark.slow
def test_a_clock_that_is_wrong_for_a_moment_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "tandem.toml").write_text(CONFIG)
    offset = tmp_path / "offset"
    write_whole(offset, b"+0\n", 0o600)
    environ = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    log = tmp_path / "log"
    arguments = ("--port", "0", "--data", "d", "--dev")
    with BrokerProcess(tmp_path, *arguments, environ=environ, log=log) as broker, Raw(broker.port) as raw:
        raw.feed("q", "before")
        receiver = raw.receiver("q")
        (held,) = receiver.receive()
        write_whole(offset, b"+2h\n", 0o600)  # it may be read at any moment
        lines_with(log, "ms ahead", 1)
        raw.feed("q", "during")
        with Raw(broker.port, user="") as late:
            assert late.put_token("q", token_for(late.port, "q"))[0] == 401
        write_whole(offset, b"-2h\n", 0o600)
        lines_with(log, "ms back", 1)
        write_whole(offset, b"+0\n", 0o600)
        lines_with(log, "ms ahead", 2)
        with Raw(broker.port, user="") as late:
            assert late.put_token("q", token_for(late.port, "q"))[0] == 202
        settled = receiver.settle(held, amqp.ACCEPTED)
        assert settled is not None and settled.error is None, "its lock has lasted through all of it"
        (after,) = receiver.receive()
        assert after.text == "during"
        told = int(after.message.message_annotations[amqp.Symbol("x-opt-locked-until")])
        assert abs(told - (time.time() * 1000 + 60_000)) < 3_000
