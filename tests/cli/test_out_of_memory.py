"""A broker that cannot get memory ends with a clear line, so that somebody starts it again; it does not leave its clients hanging."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tandem.cli.running import EXIT_OUT_OF_MEMORY
from tests.cli.broker_process import BrokerProcess
from tests.conformance.raw import Raw, Refused, message

CONFIG = """
[[queue]]
name = "q"
max_message_bytes = 4_194_304
"""
MIB = 1_048_576


@pytest.mark.parametrize("arguments", [("--memory",), ("--data", "d")], ids=["in-memory", "on-disk"])
def test_out_of_memory_ends_the_process_with_a_clear_line(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "tandem.toml").write_text(CONFIG)
    with BrokerProcess(tmp_path, "--port", "0", "--dev", *arguments) as broker:
        size = int(Path(f"/proc/{broker.process.pid}/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        with Raw(broker.port) as raw:
            sender = raw.sender("q")
            resource.prlimit(broker.process.pid, resource.RLIMIT_AS, (size + 8 * MIB, size + 8 * MIB))
            with pytest.raises((Refused, AssertionError, OSError)):
                for _ in range(200):
                    for _ in range(10):
                        sender.start(message("x" * 4_000_000))
                    raw.until(lambda: len(sender.end.outcomes) >= 5 or sender.end.gone, 20)
                    sender.end.outcomes.clear()
        assert broker.process.wait(timeout=30) == EXIT_OUT_OF_MEMORY
        assert broker.process.stderr is not None
        assert "tandem: out of memory: the process ends" in broker.process.stderr.read()
