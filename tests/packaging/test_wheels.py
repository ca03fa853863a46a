"""The wheels that are published install into an empty environment, bring nothing a broker does not need, and do what the README says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import urllib.request
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
        for file in ("", "js/app.js", "vendor/preact.js", "vendor/LICENSE-preact.txt"):
            with urllib.request.urlopen(f"http://localhost:{broker.port}/$tandem/console/{file}", timeout=20) as page:
                assert page.read(), f"the console has no {file or 'page'}"
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


@pytest.mark.skipif("TANDEM_LONG_TESTS" not in os.environ, reason="takes a minute and a half: asked for with TANDEM_LONG_TESTS=1")
@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="MISSING: dpkg-deb")
def test_the_debian_package_has_the_unit_the_command_and_an_environment_that_does_not_know_where_it_was_made(tmp_path: Path) -> None:
    wheel = build(False, tmp_path)
    command = [str(ROOT / "deploy" / "debian" / "build.sh"), str(wheel), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=ALONE | {"PYTHON": sys.executable})
    if done.returncode and re.search(r"Could not find a version|Max retries|NewConnectionError|ReadTimeout", done.stderr):
        pytest.skip("MISSING: a package index, to install what Tandem depends on")
    assert done.returncode == 0, done.stderr
    [package] = (tmp_path / "out").glob("tandem-bus_*.deb")
    subprocess.run(["dpkg-deb", "--extract", str(package), str(tmp_path / "root")], check=True)
    root = tmp_path / "root"
    assert (root / "etc" / "tandem" / "tandem.toml").exists() and (root / "lib" / "systemd" / "system" / "tandem.service").exists()
    assert os.readlink(root / "usr" / "bin" / "tandem") == "/opt/tandem/bin/tandem"
    assert (root / "opt" / "tandem" / "bin" / "tandem").read_text().splitlines()[0] == "#!/opt/tandem/bin/python"
    assert "/tmp" not in (root / "opt" / "tandem" / "pyvenv.cfg").read_text()
    fields = subprocess.run(["dpkg-deb", "--field", str(package)], capture_output=True, text=True, check=True).stdout
    assert f"Depends: python3.{sys.version_info.minor}\n" in fields and "Package: tandem-bus\n" in fields
    configured = subprocess.run(["dpkg-deb", "--info", str(package), "conffiles"], capture_output=True, text=True, check=True).stdout
    assert configured == "/etc/tandem/tandem.toml\n"
    try_it(root / "opt" / "tandem", tmp_path)
