"""Azure's administration client against a bus in a test, which has no certificate."""

from __future__ import annotations

from typing import Any

from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus.aio.management import ServiceBusAdministrationClient

from tandem.testing import Bus


class PlainTransport(AioHttpTransport):  # type: ignore[misc]
    async def send(self, request: Any, **options: Any) -> Any:
        if request.url.startswith("https://"):  # else it is sent again
            request.url = "http://" + request.url.removeprefix("https://")
        return await super().send(request, **options)


def administration_of(bus: Bus) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(bus.connection_string, transport=PlainTransport())
