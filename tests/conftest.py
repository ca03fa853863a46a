"""Which Tandem the tests run against: the source tree, or with TANDEM_TEST_INSTALLED=1 the installed, compiled package."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import tandem

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
FOUND = Path(tandem.__file__).resolve().parent.parent
COMPILED = len(list((FOUND / "tandem").rglob("*.so")))
INSTALLED = os.environ.get("TANDEM_TEST_INSTALLED") == "1"


SHORT_LIVED_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A Spark that lives for a minute spends half of it on making itself faster."""
NOTED_CLASSES = ROOT / "build" / "spark-classes.jsa"
"""And much of the rest on finding its classes, unless `make test` had them noted. A Java that cannot use them says nothing."""


# On a busy machine examples are drawn slowly; that says nothing about what is tested with them.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("busy")
    for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
        os.environ.setdefault(name, f"{SHORT_LIVED_JAVA} {_noted_classes()}".strip())
    if INSTALLED and FOUND == SOURCE:
        raise pytest.UsageError("TANDEM_TEST_INSTALLED=1, but src/ comes first on the path; `make test` runs it properly")
    if INSTALLED and not COMPILED:
        raise pytest.UsageError("tandem was installed uncompiled: see build/compiled.txt for the reason")
    if not INSTALLED:
        if FOUND != SOURCE:
            raise pytest.UsageError(f"tandem was imported from {FOUND}; run PYTHONPATH=src python -m pytest, or make test")
        # Brokers are started as `sys.executable -m tandem serve`: they must find the same tree, from any directory.
        others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and Path(entry).resolve() != SOURCE]
        os.environ["PYTHONPATH"] = os.pathsep.join([str(SOURCE), *others])
    if not config.pluginmanager.has_plugin("tandem"):
        # An installed Tandem brings its fixtures by itself; the source tree has to be told.
        from tandem.testing import plugin

        config.pluginmanager.register(plugin, "tandem")
    from tests import postgres

    config.pluginmanager.register(postgres, "postgres")


def _noted_classes() -> str:
    return f"-XX:SharedArchiveFile={NOTED_CLASSES} -Xshare:auto -Xlog:disable -Xlog:all=error:stderr" if NOTED_CLASSES.exists() else ""


@pytest.fixture(scope="module")
def module_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """As `tmp_path`, for a module: gone with it, since a broker reserves room for its journals."""
    path = tmp_path_factory.mktemp("module")
    yield path
    shutil.rmtree(path)


LONG = (
    "spark/test_cluster",
    "docs/",
    "acceptance/test_crash",
    "cluster/test_stores_apart",
    "cli/test_demo",
    "spark/syphon/",
    "spark/",
    "simulator/test_seeds",
    "acceptance/",
    "cluster/",
    "test_house",
)
"""Those that take longest begin first, so that nobody waits for one at the end while others have nothing to do."""


AS_USERS_HAVE_IT = ("acceptance/", "cluster/")
"""Brokers in processes of their own, killed and started for minutes: compiled where that is possible, as their users have them."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if any(f"tests/{part}" in item.nodeid for part in AS_USERS_HAVE_IT) and not item.get_closest_marker("compiled_too"):
            item.add_marker("compiled_instead")
    if not INSTALLED and os.environ.get("TANDEM_COMPILED_FOLLOWS") == "1":
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("compiled_instead")])
        items[:] = [item for item in items if not item.get_closest_marker("compiled_instead")]

    def rank(item: pytest.Item) -> int:
        return next((place for place, part in enumerate(LONG) if f"tests/{part}" in item.nodeid), len(LONG))

    items.sort(key=rank)
    items[:] = _alternating(items)


def _alternating(items: list[pytest.Item]) -> list[pytest.Item]:
    """Files with a Spark, which need processors, in turns with others, which mostly wait: with one for every worker at once all starve."""
    files: dict[bool, dict[str, list[pytest.Item]]] = {True: {}, False: {}}
    for item in items:
        name = item.nodeid.partition("::")[0]
        files["tests/spark/" in name].setdefault(name, []).append(item)
    pairs = itertools.zip_longest(files[True].values(), files[False].values(), fillvalue=())
    return [item for pair in pairs for file in pair for item in file]


def pytest_report_header(config: pytest.Config) -> str:
    return f"tandem {tandem.__version__}: {'installed' if INSTALLED else 'source tree'}, {COMPILED} compiled modules"
