"""The pages for whoever changes the code are true: the picture is the imports, files they name exist, every kind of fact has its row."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.broker import facts
from tools import rooms_map

ROOT = Path(__file__).resolve().parents[2]
INTERNALS = ROOT / "docs" / "internals"
PAGES = [*sorted(INTERNALS.glob("*.md")), ROOT / "CONTRIBUTING.md"]
NAMED = re.compile(r"`((?:[\w.-]+/)*[\w-]+\.(?:py|md|toml|sh))`|`((?:[\w.-]+/)+)`|\]\(([\w./-]+\.md)\)")
NOT_OURS = {"tandem.toml", "damaged/"}
"""What a page speaks of and a user, or a store, has."""


SOURCES = {path.name for path in (ROOT / "src" / "tandem").rglob("*.py")}


def exists(page: Path, name: str) -> bool:
    """Below the root, the source or the page; a name without a directory may be any file's of the source."""
    return name in SOURCES or any((place / name).exists() for place in (ROOT, ROOT / "src" / "tandem", page.parent))


def missing(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    names = {next(part for part in found if part) for found in NAMED.findall(text)}
    return sorted(name for name in names - NOT_OURS if not exists(page, name))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_is_named_exists(page: Path) -> None:
    assert missing(page) == []


def test_a_name_that_does_not_exist_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`broker/turn.py`, `broker/gone.py`, `nowhere/`, [here](gone.md), `x.y`\n```\n`in/a/block.py`\n```\n")
    assert missing(page) == ["broker/gone.py", "gone.md", "nowhere/"]


@pytest.mark.slow
def test_the_picture_and_the_table_of_rooms_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "rooms_map.py", "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_a_longer_way_says_is_left_out_and_circles_keep_both_arrows() -> None:
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set(), "d": {"x", "y"}, "x": {"y", "c"}, "y": {"x"}}
    assert rooms_map.reduced(graph) == {"a": {"b"}, "b": {"c"}, "c": set(), "d": {"x", "y"}, "x": {"y", "c"}, "y": {"x"}}


def test_every_kind_of_fact_has_its_row() -> None:
    rows = re.findall(r"^\| (\d+) ([A-Z_]+) \|", (INTERNALS / "facts.md").read_text(encoding="utf-8"), re.M)
    assert {int(number): name for number, name in rows} == {
        number: name.upper().replace("-", "_") for number, name in facts.KIND_NAMES.items()
    }
