"""`tandem reload` and SIGHUP with workers: all of them have what the configuration says, and a worker that is started again too."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.cli.broker_process import BrokerProcess
from tests.cli.test_workers import CONFIG, over_http, pids
from tests.conformance.raw import Raw
from tests.waiting import wait_until

LIMITED = "[limits]\npeek_messages_max = 2\n"


def peeked(broker: BrokerProcess, queue: str) -> int:
    with Raw(broker.port) as client:
        return len(client.peek(queue))


@pytest.mark.slow
def test_what_the_configuration_says_anew_is_so_at_every_worker_and_at_one_that_is_started_again(tmp_path: Path) -> None:
    file, log = tmp_path / "tandem.toml", tmp_path / "log"
    file.write_text("workers = 2\n" + CONFIG)
    with BrokerProcess(tmp_path, "--port", "0", "--data", "data", "--dev", log=log) as broker:
        with Raw(broker.port) as client:
            for queue in ("a", "b", "c", "d"):
                client.feed(queue, "1", "2", "3", "4")
        assert [peeked(broker, queue) for queue in ("a", "b", "c", "d")] == [4] * 4
        file.write_text("workers = 2\n" + LIMITED + CONFIG + '[[queue]]\nname = "new"\n')
        os.kill(broker.process.pid, signal.SIGHUP)
        wait_until(lambda: log.read_text().count("configuration read again") == 2, "both workers")
        assert [peeked(broker, queue) for queue in ("a", "b", "c", "d")] == [2] * 4, "whichever worker has it"
        with Raw(broker.port) as client:
            client.feed("new", "made by the reload")
        os.kill(pids(broker)[1], signal.SIGKILL)
        wait_until(lambda: "worker-1 is back" in log.read_text(), "the worker")
        assert [peeked(broker, queue) for queue in ("a", "b", "c", "d")] == [2] * 4, "with what the others have"
        file.write_text("workers = 3\n" + CONFIG)
        said = json.loads(over_http(broker, "POST", "$tandem/reload", b"")[1])
        assert "limits.peek_messages_max" in said["changed"] and said["needs_restart"] == ["workers"]
        wait_until(lambda: log.read_text().count("configuration read again") == 4, "both workers")
        assert [peeked(broker, queue) for queue in ("a", "b", "c", "d")] == [4] * 4
        file.write_text("nonsense = 1\n" + CONFIG)
        os.kill(broker.process.pid, signal.SIGHUP)
        wait_until(lambda: "reload refused, nothing was changed" in log.read_text(), "the refusal")
        assert peeked(broker, "a") == 4
        assert broker.stop()[0] == 0
