"""The operator reads a few lines of each kind, and how many were left out."""

from __future__ import annotations

import logging
import socket
import time
from pathlib import Path

from tandem.server.log_lines import LINES_MAX, LINES_PER_KIND_MAX, LogHandler, LogLines
from tests.cli.broker_process import BrokerProcess


class Paper:
    """Lines that were written, and a clock to move."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.seconds = 100.0
        self.log = LogLines(lambda line, level: self.lines.append(line), lambda: self.seconds)


def test_a_few_lines_of_a_kind_are_written_and_the_rest_is_counted() -> None:
    paper = Paper()
    for number in range(1000):
        paper.log.say(f"unknown protocol: first bytes {number:08x} from 127.0.0.1:{number}")
    paper.log.say("store 1 of 'orders' is down")
    assert len(paper.lines) == LINES_PER_KIND_MAX + 1
    assert paper.lines[-1] == "store 1 of 'orders' is down"
    paper.seconds += 1
    paper.log.look_after()
    assert paper.lines[-1].startswith(f"suppressed {1000 - LINES_PER_KIND_MAX} lines of the last second")
    assert "unknown protocol: first bytes" in paper.lines[-1]
    paper.log.look_after()
    assert len(paper.lines) == LINES_PER_KIND_MAX + 2
    paper.log.say("unknown protocol: first bytes 0a")
    assert paper.lines[-1] == "unknown protocol: first bytes 0a"


def test_many_kinds_together_are_limited_too() -> None:
    paper = Paper()
    for number in range(5000):
        paper.log.say("word " * (number % 50) + "x" * (number // 50))
    assert len(paper.lines) == LINES_MAX
    paper.seconds += 1
    paper.log.say("later")
    assert paper.lines[LINES_MAX].startswith(f"suppressed {5000 - LINES_MAX} lines")
    assert paper.lines[-1] == "later"


def test_records_of_other_libraries_are_of_one_kind_by_their_template() -> None:
    paper = Paper()
    logger = logging.getLogger("somebody.else")
    logger.propagate = False
    logger.addHandler(LogHandler(paper.log))
    for number in range(100):
        logger.error("%s failed", "abcdefghij"[number % 10])
    assert len(paper.lines) == LINES_PER_KIND_MAX


def test_strangers_do_not_fill_the_log_of_a_broker(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--port", "0", "--dev", "--memory") as broker:
        began = time.monotonic()
        for _ in range(600):
            with socket.create_connection(("127.0.0.1", broker.port)) as stranger:
                stranger.sendall(b"\xff\xfe hello")
                try:
                    stranger.recv(1)
                except ConnectionResetError:
                    continue
        seconds = time.monotonic() - began
        _, error = broker.stop()
    lines = error.splitlines()
    told = sum(int(line.split("suppressed ")[1].split(" ")[0]) for line in lines if "suppressed" in line)
    shown = sum("unknown protocol" in line and "suppressed" not in line for line in lines)
    assert shown <= LINES_PER_KIND_MAX * (seconds + 3)
    assert shown + told == 600
