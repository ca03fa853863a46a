"""Every block of the README and of the guide is run, as it stands, by somebody who starts with an empty directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.spark.java import missing_java
from tests.docs.pages import NOT_RUN, ROOT, RUN, before, blocks_of

PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "start.md",
    *sorted((ROOT / "docs" / "guide").glob("*.md")),
    ROOT / "docs" / "reference" / "rest.md",
]
WITH_SPARK = frozenset({"availability.md", "cost.md", "reconcile.md", "report.md", "spark.md", "syphon.md"})
PROGRAMS = {"rest.md": "curl"}
"""What a page uses that a machine may not have."""
SAYS = {
    "README.md": "first\nsecond",
    "paired-namespaces.md": "came home",
    "paired-client.md": "1 diverted",
    "replication.md": "processing order-1",
    "outbox.md": "2 delivered, 0 pending",
    "pipelined-sending.md": "1000 accepted",
    "tokens.md": "signed by ourselves: 1",
    "issuer.md": "with an issued token",
    "testing.md": "2 passed",
    "rest.md": "hello",
    "operate.md": "sent 100",
    "backup.md": "before the backup",
    "missing-files.md": "rebuilt with 1 entities",
    "relay.md": "GET /web/some/page: hello from behind",
    "relay-pair.md": "active now: mySecondaryService and 1 made again",
}
"""What a reader must have seen when a page is done, beside all blocks having worked."""


ALONE = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
"""In a network of its own; root needs no user namespace, which a changed root does not allow."""


def _own_network() -> bool:
    done = subprocess.run([*ALONE, "true"], capture_output=True, check=False)
    return done.returncode == 0


def _runs(page: Path) -> bool:
    return any(block.mark != "not run" and block.language in RUN for block in blocks_of(page))


@pytest.fixture(scope="module")
def shared(module_path: Path) -> Path:
    """What pages that need the same story share."""
    return module_path


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not _own_network(), reason="MISSING: a network of its own (unshare --net), where the ports of the pages are free")
@pytest.mark.parametrize("page", [page for page in PAGES if _runs(page)], ids=lambda page: page.name)
def test_a_reader_gets_from_the_first_line_of_the_page_to_the_last(page: Path, tmp_path: Path, shared: Path) -> None:
    if page.name in WITH_SPARK and missing_java():
        pytest.skip(f"MISSING: {missing_java()}")
    program = PROGRAMS.get(page.name, "bash")
    if shutil.which(program) is None:
        pytest.skip(f"MISSING: {program}")
    home = tmp_path / "empty"
    home.mkdir()
    command = [
        *ALONE,
        sys.executable,
        str(ROOT / "tests" / "docs" / "pages.py"),
        str(page),
        str(home),
        str(shared),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4_000:] + done.stdout[-2_000:]
    assert SAYS.get(page.name, "") in done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks_of(page):
        assert block.language in RUN | NOT_RUN, f"{page.name}:{block.line}: what is a block of {block.language or 'nothing'}?"
        assert block.mark != "not run" or len(block.of) > 10, f"{page.name}:{block.line}: a reason is missing"
    assert text_fences(page) == 2 * len(blocks_of(page)), f"{page.name}: a fence does not end"
    for other in before(page):
        assert other.exists()
        assert f"]({other.name})" in page.read_text(), "the reader is not told where to begin"


def text_fences(page: Path) -> int:
    return sum(line.startswith("```") for line in page.read_text().splitlines())


def test_every_page_on_the_decision_table_is_run_to_its_last_word() -> None:
    pages = {block.name for block in PAGES}
    for name in ("paired-namespaces.md", "replication.md", "outbox.md", "pipelined-sending.md", "tokens.md", "issuer.md"):
        assert name in pages and name in SAYS
        assert f"]({name})" in (ROOT / "docs" / "guide" / "which-defence.md").read_text()
