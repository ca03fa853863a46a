"""A Spark session for the jobs of this house: quiet, on this machine unless a master is named, with the Python that runs us."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import tandem
from tandem.model.errors import ConfigurationError
from tandem.spark.java import missing_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER = "local[*,4]"
"""All cores, and four attempts per task: one lost Python worker must not fail a batch."""


@contextlib.contextmanager
def open_session(name: str, master: str | None = None, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Stopped when left. Workers find this very Tandem: on this machine and on loopback clusters by its path."""
    from pyspark.sql import SparkSession

    missing = missing_java()
    if missing:
        raise ConfigurationError(missing)
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
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()
