"""The wheels that are published install into an empty environment, bring nothing a broker does not need, and do what the README says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.broker_process import BrokerProcess
from tools.wheels import ROOT, build

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
UNWANTED = {"pyspark", "pyarrow", "pandas", "mypy", "pytest", "ruff", "setuptools", "python-qpid-proton", "psycopg"}


def quick_start() -> str:
    """The README's first program, with the port left open."""
    [program] = re.findall(r"```python\n(from azure\.servicebus.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[:1]
    return program


@pytest.fixture(scope="module")
def environment(module_path: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", str(module_path / "env")], check=True)
    return module_path / "env"


def install(environment: Path, wheel: Path) -> None:
    command = [str(environment / "bin" / "pip"), "install", "--disable-pip-version-check", "--quiet", "--force-reinstall", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    if done.returncode and re.search(r"Could not find a version|Max retries|NewConnectionError|ReadTimeout", done.stderr):
        pytest.skip("MISSING: a package index, to install what Tandem depends on")
    assert done.returncode == 0, done.stderr


def try_it(environment: Path, directory: Path) -> None:
    """In a directory where no source of ours is near."""
    (directory / "tandem.toml").write_text('[[queue]]\nname = "orders"\n')
    program = str(environment / "bin" / "python")
    with BrokerProcess(directory, "--port", "0", "--dev", "--config", "tandem.toml", "--data", "data", python=program) as broker:
        text = quick_start().replace("localhost:5672", f"localhost:{broker.port}")
        done = subprocess.run([program, "-c", text], env=ALONE, capture_output=True, text=True, cwd=directory, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "first\nsecond\n"), done.stderr


def test_the_pure_wheel_brings_no_spark_compiler_or_test_tools_and_works(environment: Path, tmp_path: Path) -> None:
    wheel = build(False, tmp_path)
    assert re.fullmatch(r"tandem_bus-[\w.]+-py3-none-any\.whl", wheel.name)
    install(environment, wheel)
    listed = subprocess.run(
        [str(environment / "bin" / "pip"), "list", "--format=freeze"], capture_output=True, text=True, check=True
    ).stdout
    assert {line.partition("==")[0].lower() for line in listed.splitlines()} & (UNWANTED - {"setuptools"}) == set()
    try_it(environment, tmp_path)


def test_the_compiled_wheel_works_too(environment: Path, tmp_path: Path) -> None:
    wheels = list((ROOT / "build" / "wheel").glob("tandem_bus-*linux*.whl"))
    if not wheels or shutil.which("cc") is None:
        pytest.skip("MISSING: a compiled wheel in build/wheel, which `make setup` leaves there where a C compiler is")
    install(environment, wheels[0])
    compiled = "import tandem.amqp.codec as codec; print(codec.__file__)"
    told = subprocess.run(
        [str(environment / "bin" / "python"), "-c", compiled], env=ALONE, capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert told.stdout.strip().endswith(".so")
    try_it(environment, tmp_path)
