"""The data source `servicebus`: reads the options, hands out readers and writers."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from tandem.spark.connector.options import OptionError, sink_options, source_options
from tandem.spark.connector.schema import message_schema
from tandem.spark.connector.sink import ServiceBusStreamWriter, ServiceBusWriter
from tandem.spark.connector.source import ServiceBusReader, ServiceBusStreamReader


class ServiceBusDataSource(DataSource):  # type: ignore[misc]
    """Queues, subscriptions and their dead-letter queues as tables; queues and topics as sinks."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        return "servicebus"

    def schema(self) -> StructType:
        return message_schema(source_options(self._given).include_payload)

    def reader(self, schema: StructType) -> ServiceBusReader:
        return ServiceBusReader(source_options(self._given))

    def streamReader(self, schema: StructType) -> ServiceBusStreamReader:
        return ServiceBusStreamReader(source_options(self._given))

    def writer(self, schema: StructType, overwrite: bool) -> ServiceBusWriter:
        if overwrite:
            raise OptionError("mode", "expected append, found overwrite: what is in a queue stays there; empty it with tandem purge")
        return ServiceBusWriter(sink_options(self._given), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> ServiceBusStreamWriter:
        return ServiceBusStreamWriter(sink_options(self._given), schema)
