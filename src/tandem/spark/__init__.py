"""Tandem on Spark: `register(spark)` makes the data source `servicebus` known to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """After this, `format("servicebus")` reads and writes, in batches and as a stream."""
    from tandem.spark.datasource import ServiceBusDataSource

    spark.dataSource.register(ServiceBusDataSource)
