"""A Spark session for the jobs of this house: quiet, on this machine unless a master is named, with the Python that runs us."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import tandem
from tandem.model.errors import ConfigurationError
from tandem.spark.java import missing_java
from tandem.spark.pyspark_version import need_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[*,4]"
"""All cores, and four attempts per task: one lost Python worker must not fail a batch."""


@contextlib.contextmanager
def open_session(name: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Stopped when left. Workers find this very Tandem: on this machine and on loopback clusters by its path."""
    need_pyspark()
    missing = missing_java()
    if missing:
        raise ConfigurationError(missing)
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    source = str(Path(tandem.__file__).resolve().parent.parent)
    known = os.environ.get("PYTHONPATH", "")
    if source not in known.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (source, known) if part)
    builder = SparkSession.builder.appName(name).master(master or os.environ.get("SPARK_MASTER") or LOCAL_MASTER)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.sql.streaming.stopTimeout": "30000",
        **(conf or {}),
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    with _quiet_start():
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


_LOGGING = "LOG4J_CONFIGURATION_FILE"
_HARMLESS = b"WARNING: Using incubator modules"
"""Java says so of a module that Spark asks for, and has no setting that keeps it from saying it."""


@contextlib.contextmanager
def _quiet_start() -> Iterator[None]:
    """The Java that is started meanwhile reports errors only, unless the user configured its logging."""
    conf = os.environ.get("SPARK_CONF_DIR") or str(Path(os.environ.get("SPARK_HOME") or _spark_home()) / "conf")
    own = _LOGGING not in os.environ and not list(Path(conf).glob("log4j2*"))
    if own:
        os.environ[_LOGGING] = str(Path(__file__).with_name("log4j2.properties"))
    try:
        with _without_harmless_lines():
            yield
    finally:
        if own:
            del os.environ[_LOGGING]


def _spark_home() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent)


@contextlib.contextmanager
def _without_harmless_lines() -> Iterator[None]:
    """Programs started meanwhile write to standard error through a pipe of ours for as long as they live; it drops that one line."""
    kept = os.dup(2)
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    threading.Thread(target=_hand_on, args=(reading, kept), name="spark-stderr", daemon=True).start()
    try:
        yield
    finally:
        os.dup2(kept, 2)


def _hand_on(reading: int, to: int) -> None:
    with os.fdopen(reading, "rb") as lines, os.fdopen(to, "wb", buffering=0) as out:
        for line in lines:
            if not line.startswith(_HARMLESS):
                out.write(line)
