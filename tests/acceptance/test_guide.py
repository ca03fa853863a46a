"""The programs in the guide do what the pages say."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.brokers import Broker
from tests.acceptance.conftest import create_queue, drain

GUIDE = Path(__file__).resolve().parent.parent.parent / "docs" / "guide"
EXPECTED = {
    "paired-namespaces.md": "came home",
    "replication.md": "processing order-1",
    "outbox.md": "2 delivered, 0 pending",
    "pipelined-sending.md": "1000 accepted",
    "tokens.md": "signed by ourselves: 1",
}
ARRIVED = {"paired-namespaces.md": 2, "replication.md": 1, "outbox.md": 2, "pipelined-sending.md": 1000, "tokens.md": 1}


@pytest.mark.parametrize("page", EXPECTED)
def test_the_program_on_the_page_runs_and_prints_what_it_should(page: str, west: Broker, east: Broker, tmp_path: Path):
    (program,) = re.findall(r"```python\n(.*?)```", (GUIDE / page).read_text(), re.DOTALL)
    for broker in (west, east):
        asyncio.run(create_queue(broker, "orders"))
    environment = {**os.environ, "PRIMARY": west.connection_string, "SECONDARY": east.connection_string, "CA": east.ca}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr
    assert EXPECTED[page] in done.stdout
    assert len(asyncio.run(drain(west, "orders"))) == ARRIVED[page]


def test_every_page_on_the_decision_table_exists():
    text = (GUIDE / "which-defence.md").read_text()
    pages = set(re.findall(r"\]\(([a-z-]+\.md)\)", text))
    assert pages == set(EXPECTED)
    assert all((GUIDE / page).exists() for page in pages)
