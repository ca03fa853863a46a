"""`make demo` and `make test` on machines that lack something: what they get, what they say, and how they end."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def machine(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """tools/machine.py where only the programs in `path` exist: no apt-get, so that root and others are told the same."""
    environment = {"PATH": str(path), "HOME": str(path)}
    command = [sys.executable, str(ROOT / "tools" / "machine.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_demo_without_java_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = machine(tmp_path, "demo")
    [line] = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert "Java 17" in line and "apt-get install" in line and "--small" in line


def test_the_small_demo_and_setup_ask_for_no_java(tmp_path: Path) -> None:
    for arguments in (["demo", "--small"], ["setup"]):
        done = machine(tmp_path, *arguments)
        assert (done.returncode, done.stderr) == (0, ""), arguments


def test_the_demo_of_a_cluster_asks_for_postgresql_and_goes_on_with_a_wheel(tmp_path: Path) -> None:
    done = machine(tmp_path, "demo", "--cluster")
    assert (done.returncode, done.stdout) == (0, "")
    for line in done.stderr.splitlines():
        assert "apt-get install postgresql" in line and "wheel" in line
    assert machine(tmp_path, "--lacks-postgres").returncode == (0 if done.stderr else 1)


def test_what_tests_would_need_is_named_with_the_tests_that_are_skipped(tmp_path: Path) -> None:
    done = machine(tmp_path, "test")
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    assert all(line.startswith("MISSING: ") and "are skipped (tests/" in line for line in lines)
    for name in ("Java 17", "Node.js 20", "mvn"):
        assert any(name in line for line in lines), name


def test_a_node_that_is_too_old_is_as_good_as_none(tmp_path: Path) -> None:
    for name, says in (("node", "v18.20.4"), ("npm", "9.2.0")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho {says}\n")
        (tmp_path / name).chmod(0o755)
    done = machine(tmp_path, "test")
    assert "Node.js 18.20.4 is here; Node.js 20 or newer" in done.stderr


# -- make test ---------------------------------------------------------------------------------------------------------


def make_test(directory: Path, compiled: str, *failing: str) -> subprocess.CompletedProcess[str]:
    """The recipe of `make test` alone, with a Python that only says which half it was called for, and fails if told."""
    shutil.copy(ROOT / "Makefile", directory)
    (directory / "build").mkdir()
    (directory / "build" / "compiled.txt").write_text(compiled + "\n")
    python = directory / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        "#!/bin/sh\nhalf=source\n"
        'if [ "$TANDEM_TEST_INSTALLED" = 1 ]; then half=compiled; fi\n'
        f'echo "ran $half"; echo "compiled follows: $TANDEM_COMPILED_FOLLOWS"\ncase " {" ".join(failing)} " in *" $half "*) exit 1;; esac\n'
    )
    python.chmod(0o755)
    done_before = ["machine-test", "js", "venv/.installed-pure", "venv/.proton-pure", "build/spark-classes.jsa"]
    command = ["make", "test", "VENV=venv", "HOW=pure", "PYTHON=python3", *(part for name in done_before for part in ("-o", name))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "TANDEM"))}
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("failing", [["source"], ["compiled"], ["source", "compiled"]], ids=" and ".join)
def test_both_halves_run_and_either_failing_fails_the_whole(tmp_path: Path, failing: list[str]) -> None:
    done = make_test(tmp_path, "compiled with mypyc: 68 modules", *failing)
    assert [line for line in done.stdout.splitlines() if line.startswith("ran ")] == ["ran source", "ran compiled"]
    assert "compiled follows: 1" in done.stdout, "what is marked compiled_instead is left to the second half"
    assert done.returncode != 0
    assert f"FAILED: {', '.join('from source' if half == 'source' else half for half in failing)}" in done.stdout


def test_without_a_compiler_the_compiled_half_is_left_out_and_that_is_no_error(tmp_path: Path) -> None:
    done = make_test(tmp_path, "not compiled, running as pure Python (slower): no C compiler found")
    assert done.returncode == 0, done.stderr
    assert "ran compiled" not in done.stdout
    assert "compiled follows: 0" in done.stdout, "what is marked compiled_instead is run from source"
    assert done.stdout.count("no C compiler found") == 1


# -- building ----------------------------------------------------------------------------------------------------------


def test_a_hot_module_that_does_not_exist_fails_the_build(tmp_path: Path) -> None:
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "src" / "tandem", tmp_path / "src" / "tandem", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    (tmp_path / "src" / "tandem" / "broker" / "turn.py").unlink()
    environment = {**os.environ, "TANDEM_COMPILE": "0"}
    done = subprocess.run(
        [sys.executable, "setup.py", "--version"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "src/tandem/broker/turn.py" in done.stderr


# -- progress ----------------------------------------------------------------------------------------------------------


def progress(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "tools" / "progress.py"), "--title", "working", "--usually", "a second"]
    command += ["--log", str(tmp_path / "log"), "--", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_command_that_works_is_told_in_a_few_lines_and_kept_whole_in_its_log(tmp_path: Path) -> None:
    done = progress(tmp_path, "for i in 1 2 3; do echo line $i; done")
    assert done.returncode == 0
    assert "working: 0 s (usually a second)" in done.stderr and "working: done in" in done.stderr
    assert (tmp_path / "log").read_text().splitlines() == ["line 1", "line 2", "line 3"]


def test_a_command_that_fails_shows_what_it_said_and_passes_its_exit_code_on(tmp_path: Path) -> None:
    done = progress(tmp_path, "echo the reason; exit 7")
    assert done.returncode == 7
    assert "working: failed after" in done.stderr and "the reason" in done.stderr
