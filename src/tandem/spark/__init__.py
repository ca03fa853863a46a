"""Tandem on Spark: `register(spark)` makes the data source `servicebus` known to a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.spark.pyspark_version import need_pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """After this, `format("servicebus")` reads and writes, in batches and as a stream; `format("tandem_journal")` reads journals."""
    need_pyspark()
    from tandem.spark.analytics.journal_source import JournalDataSource
    from tandem.spark.connector.datasource import ServiceBusDataSource

    spark.dataSource.register(ServiceBusDataSource)
    spark.dataSource.register(JournalDataSource)
