"""Gives this machine what `make demo` or `make test` need beside Python packages: as root by apt-get, else in words.

    python3 tools/machine.py [--small | --cluster] demo | test | setup
    python3 tools/machine.py --lacks-postgres       exit code 0 if its programs are not here

Standard library only: it runs before anything is installed. Without something the command cannot do: exit code 2 and one line that says
what to install. What only some tests need is named together with the tests that are then skipped.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import progress

ROOT = Path(__file__).resolve().parent.parent
LOG = ROOT / "build" / "apt.log"
NODE_MIN = (20,)
GO_MIN = (1, 25)
"""From here on Go fetches the toolchain that a go.mod asks for by itself."""


def loaded(name: str, path: Path) -> ModuleType:
    """A module of ours that needs nothing installed, without its package, which does."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


java = loaded("java", ROOT / "src" / "tandem" / "spark" / "java.py")


@dataclass(frozen=True)
class Need:
    """Something of the operating system."""

    lacks: Callable[[], str]
    """What is wrong, in words; empty if all is well."""
    packages: Callable[[], list[str]]
    """What apt-get would have to install; empty if this release has nothing that helps."""
    without: str
    """What does not work without it; empty if nothing does."""
    usually: str = "half a minute"


def version_of(program: str, *arguments: str) -> tuple[int, ...]:
    """The first number with dots that a program says of itself; nothing if it is not there."""
    if shutil.which(program) is None:
        return ()
    said = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    return numbers(said.stdout + said.stderr)


def numbers(text: str) -> tuple[int, ...]:
    found = re.search(r"\d+(?:\.\d+)+", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def candidate(package: str) -> str:
    """The version apt-get would install; empty if there is none. Debian's epoch ("2:") says nothing to us."""
    said = subprocess.run(["apt-cache", "policy", package], capture_output=True, text=True, check=False).stdout
    found = re.search(r"Candidate: (?:\d+:)?(\S+)", said)
    return "" if found is None or found[1] == "(none)" else found[1]


# -- what there may be to get ------------------------------------------------------------------------------------------


def lacks_venv() -> str:
    importlib.invalidate_caches()
    if importlib.util.find_spec("ensurepip") and importlib.util.find_spec("venv"):
        return ""
    return f"{sys.executable} cannot create virtual environments (on Debian: apt-get install python3-venv)"


def lacks_headers() -> str:
    """Only of interest where a compiler is: without one they would be of no use."""
    if shutil.which(os.environ.get("CC", "cc").split()[0]) is None or os.environ.get("TANDEM_COMPILE") == "0":
        return ""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return "" if header.exists() else "a C compiler is here, but not the headers of Python (on Debian: apt-get install python3-dev)"


def java_packages() -> list[str]:
    """Whichever Java of at least 17 the release has; first those that Spark has been run with longest."""
    said = subprocess.run(
        ["apt-cache", "search", "--names-only", "^openjdk-[0-9]+-jre-headless$"], capture_output=True, text=True, check=False
    )
    found = sorted(int(number) for number in re.findall(r"^openjdk-(\d+)-jre-headless", said.stdout, re.MULTILINE))
    usable = [number for number in found if number >= java.JAVA_MIN]
    chosen = [number for number in (21, 17) if number in usable] or usable
    return [f"openjdk-{chosen[0]}-jre-headless"] if chosen else []


def lacks_node() -> str:
    found = version_of("node", "--version")
    if found and found >= NODE_MIN and shutil.which("npm"):
        return ""
    here = f"Node.js {'.'.join(map(str, found))} is here" if found else "Node.js is not here"
    return f"{here}; Node.js {NODE_MIN[0]} or newer with npm is needed (on Debian 13: apt-get install nodejs npm)"


def node_packages() -> list[str]:
    if version_of("node", "--version") < NODE_MIN and numbers(candidate("nodejs")) < NODE_MIN:
        return []
    bundled = "nodesource" in candidate("nodejs")
    return ["nodejs"] if bundled else ["nodejs", "npm"]


def lacks_go() -> str:
    found = version_of("go", "version")
    needed = ".".join(map(str, GO_MIN))
    here = f"Go {'.'.join(map(str, found))} is here" if found else "Go is not here"
    return "" if found >= GO_MIN else f"{here}; Go {needed} or newer is needed, as tests/go/go.mod says (Debian 13 has an older one)"


def go_packages() -> list[str]:
    return ["golang-go"] if numbers(candidate("golang-go")) >= GO_MIN else []


def lacks_maven() -> str:
    gone = [program for program in ("mvn", "javac") if shutil.which(program) is None]
    return f"{' and '.join(gone)} not here (on Debian: apt-get install maven default-jdk-headless)" if gone else ""


def lacks_prometheus() -> str:
    gone = [program for program in ("prometheus", "promtool") if shutil.which(program) is None]
    return f"{' and '.join(gone)} not here (on Debian: apt-get install prometheus)" if gone else ""


def lacks_faketime() -> str:
    here = sys.platform != "linux" or any(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return "" if here else "libfaketime is not here (on Debian: apt-get install libfaketime)"


def lacks_curl() -> str:
    return "" if shutil.which("curl") is not None else "curl is not here (on Debian: apt-get install curl)"


def lacks_browser() -> str:
    gone = [name for name, program in (("Chromium", "chromium"), ("its driver", "chromedriver")) if shutil.which(program) is None]
    return f"{' and '.join(gone)} not here (on Debian: apt-get install chromium chromium-driver)" if gone else ""


def lacks_postgres() -> str:
    here = any(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or shutil.which("initdb") is not None
    return "" if here else "PostgreSQL is not here (on Debian: apt-get install postgresql)"


VENV = Need(lacks_venv, lambda: ["python3-venv"], "", "ten seconds")
HEADERS = Need(lacks_headers, lambda: ["python3-dev"], "the hot modules are not compiled", "twenty seconds")
JAVA = Need(java.missing_java, java_packages, "")
JAVA_FOR_TESTS = Need(java.missing_java, java_packages, "tests with Spark are skipped (tests/spark, tests/cli/test_demo.py)")
NODE = Need(lacks_node, node_packages, "tests with the JavaScript SDK are skipped (tests/js)", "a minute")
GO = Need(lacks_go, go_packages, "tests with the Go SDK are skipped (tests/go)")
MAVEN = Need(lacks_maven, lambda: ["maven", "default-jdk-headless"], "tests with the Java SDK are skipped (tests/java)", "a minute")
FAKETIME = Need(
    lacks_faketime, lambda: ["libfaketime"], "tests of a clock that is set are skipped (tests/cli/test_clock_process.py)", "ten seconds"
)
PROMETHEUS = Need(lacks_prometheus, lambda: ["prometheus"], "tests of alert rules are skipped (tests/deploy)", "twenty seconds")
CURL = Need(lacks_curl, lambda: ["curl"], "tests with curl are skipped (tests/relay, tests/docs)", "ten seconds")
BROWSER = Need(
    lacks_browser, lambda: ["chromium", "chromium-driver"], "tests of the console in a browser are skipped (tests/console)", "a minute"
)
POSTGRES = Need(lacks_postgres, lambda: ["postgresql"], "tests of clusters are skipped (tests/cluster, tests/stores)", "twenty seconds")
POSTGRES_FOR_DEMO = Need(lacks_postgres, lambda: ["postgresql"], "its programs come from a wheel", "twenty seconds")


def needs(command: str, small: bool, cluster: bool) -> list[Need]:
    if command == "test":
        of_tests = [NODE] + [need for need, file in ((GO, "tests/go/go.mod"), (MAVEN, "tests/java/pom.xml")) if (ROOT / file).exists()]
        return [VENV, HEADERS, JAVA_FOR_TESTS, *of_tests, CURL, FAKETIME, PROMETHEUS, BROWSER, POSTGRES]
    if cluster:
        return [VENV, HEADERS, POSTGRES_FOR_DEMO]
    return [VENV, HEADERS] if small or command == "setup" else [VENV, HEADERS, JAVA]


# -- getting it ----------------------------------------------------------------------------------------------------------


class Apt:
    """apt-get, if we may use it; its lists are fetched once, when first needed."""

    def __init__(self) -> None:
        self.usable = os.geteuid() == 0 and shutil.which("apt-get") is not None
        self._fresh = False
        self._environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}

    def get(self, need: Need) -> None:
        """Whether it helped is asked of the machine afterwards."""
        if not self._fresh:
            self._fresh = True
            progress.run("apt-get update", ["apt-get", "update"], LOG, "ten seconds", self._environment)
        packages = need.packages()
        if packages:
            command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
            progress.run(f"installing {' and '.join(packages)}", command, LOG, need.usually, self._environment)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["setup", "demo", "test"], nargs="?", default="setup")
    parser.add_argument("--small", action="store_true", help="the demo without Spark")
    parser.add_argument("--cluster", action="store_true", help="the demo of a cluster")
    parser.add_argument("--lacks-postgres", action="store_true", help="only say whether PostgreSQL is missing")
    given = parser.parse_args()
    if given.lacks_postgres:
        return 0 if lacks_postgres() else 1
    apt = Apt()
    for need in needs(given.command, given.small, given.cluster):
        if need.lacks() and apt.usable:
            apt.get(need)
        problem = need.lacks()
        if not problem:
            continue
        if not need.without:
            small = "; `make demo ARGS=--small` shows a story without it" if need is JAVA else ""
            sys.stderr.write(f"make {given.command}: {problem}{small}\n")
            return 2
        sys.stderr.write(f"MISSING: {problem}. {need.without[0].upper()}{need.without[1:]}.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
