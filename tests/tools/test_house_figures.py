"""The figures of a house are counted as the words say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools import house_figures

ROOT = Path(__file__).resolve().parents[2]


def checkout(tmp_path: Path, **modules: str) -> Path:
    for name, text in modules.items():
        file = tmp_path / "src" / "tandem" / f"{name.replace('__', '/')}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_files_and_lines_are_counted(tmp_path: Path) -> None:
    counted = house_figures.figures(checkout(tmp_path, a="class A:\n    pass\n", room__b="x = 1\n"))
    assert (counted.files, counted.lines) == (2, 3)


def test_a_tower_of_classes_counts_as_one_and_an_overridden_method_once(tmp_path: Path) -> None:
    counted = house_figures.figures(
        checkout(
            tmp_path,
            room__low="class Low:\n    def one(self): ...\n    def two(self): ...\n",
            room__middle="from tandem.room import low\nclass Middle(low.Low):\n    def two(self): ...\n    async def three(self): ...\n",
            room__high="from tandem.room.middle import Middle as M\nclass High(M, Exception):\n    def four(self): ...\n",
        )
    )
    assert (counted.largest_class, counted.largest_class_name) == (4, "room.high.High")
    assert house_figures.towers(house_figures.Source(tmp_path))["tandem.room.high", "High"] == {"one", "two", "three", "four"}


def test_writes_to_fields_of_others_are_counted_and_those_to_ones_own_are_not(tmp_path: Path) -> None:
    body = (
        "class A:\n"
        "    def f(self, other):\n"
        "        self.x = 1\n"
        "        local = 2\n"
        "        other.x = 1\n"
        "        other.x += 1\n"
        "        self.link.credit = 1\n"
        "        other.y, local = 1, 2\n"
        "        other.table[1] = 2\n"
    )
    assert house_figures.figures(checkout(tmp_path, a=body)).foreign_writes == 4


def test_a_circle_that_only_type_checking_closes_is_a_knot(tmp_path: Path) -> None:
    counted = house_figures.figures(
        checkout(
            tmp_path,
            __init__="",
            room____init__="",
            room__a="from tandem.room import b\nclass A: ...\n",
            room__b="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tandem.room.c import C\n",
            room__c="def f():\n    from .a import A\nclass C: ...\n",
            room__d="from tandem.room.a import A\n",
        )
    )
    assert counted.import_knots == 1
    assert house_figures.circles(house_figures.Source(tmp_path).graph()) == [["tandem.room.a", "tandem.room.b", "tandem.room.c"]]


def test_a_name_of_two_classes_is_counted_once(tmp_path: Path) -> None:
    counted = checkout(tmp_path, a="class A: ...\nclass B: ...\n", b="class A: ...\n", c="class A: ...\n")
    assert house_figures.figures(counted).class_names_reused == 1
    assert house_figures.reused(house_figures.Source(tmp_path)) == {"A": ["tandem.a", "tandem.b", "tandem.c"]}


@pytest.mark.slow
def test_the_command_compares_checkouts_and_says_where_the_numbers_come_from(tmp_path: Path) -> None:
    small = checkout(tmp_path, a="class A:\n    def f(self, b):\n        b.x = 1\n")
    command = [sys.executable, ROOT / "tools" / "house_figures.py", small]
    found = json.loads(subprocess.run([*command, ROOT, "--json"], capture_output=True, text=True, check=True).stdout)
    assert found[str(small)]["foreign_writes"] == 1
    assert found[str(ROOT)]["files"] > 100
    assert "1 foreign writes  tandem.a" in subprocess.run([*command, "--details"], capture_output=True, text=True, check=True).stdout


def test_a_directory_without_source_is_refused(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "house_figures.py", tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no src/tandem here" in done.stderr
