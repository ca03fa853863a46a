"""Writes down once which classes Spark loads, so that each Spark of the tests starts with two fifths less processor time.

    python tools/spark_classes.py ARCHIVE

A Java that finds the archive made by another version, or for other packages, does without it and says nothing. Nothing is written on a
machine without Java: the tests that need it are skipped there anyway.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

QUIET = "-Xlog:disable -Xlog:all=error:stderr"


def usual_work(directory: str) -> None:
    """What nearly all tests do: rows from Python, an aggregate, files written and read, a stream."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession, functions

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    rows = spark.createDataFrame([(1, "a", 0.5), (2, "b", 1.5)], "number int, name string, share double")
    path = f"{directory}/rows"
    rows.withColumn("when", functions.current_timestamp()).write.parquet(path)
    stored = spark.read.parquet(path)
    stored.join(rows, "number").groupBy(stored["name"]).agg(functions.count("*"), functions.max("when")).orderBy("name").collect()
    stream = spark.readStream.schema(stored.schema).parquet(path).writeStream.trigger(availableNow=True)
    stream.option("checkpointLocation", f"{directory}/checkpoint").foreachBatch(lambda batch, _: batch.count()).start().awaitTermination()
    spark.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()  # type: ignore[attr-defined]
    gateway.proc.wait()  # type: ignore[attr-defined]  # the archive is written when Java ends


def main() -> int:
    archive = Path(sys.argv[1])
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return 0
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {QUIET} -XX:ArchiveClassesAtExit={archive}"
    with tempfile.TemporaryDirectory() as directory:
        usual_work(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
