"""Brokers as processes, queues made through the administration client, messages put in and taken out by our own engine."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from azure.servicebus.management import ServiceBusAdministrationClient

from tandem.client.envelope import wrap_payload
from tandem.engine_client.blocking import BATCH_FORMAT, BlockingClient, Endpoint
from tandem.engine_client.message_encoding import encode_batch, encode_row
from tandem.engine_client.message_rows import MessageRows
from tandem.spark.connector.lease_reading import unpack
from tests.acceptance.brokers import Broker

BACKLOG = "contoso/x-servicebus-transfer"


@contextlib.contextmanager
def administration(broker: Broker) -> Iterator[Any]:
    with ServiceBusAdministrationClient.from_connection_string(broker.connection_string, connection_verify=broker.ca) as client:
        yield client


def create_queue(broker: Broker, *names: str, **properties: Any) -> None:
    with administration(broker) as client:
        for name in names:
            client.create_queue(name, **properties)


def connect(broker: Broker, timeout: float = 30.0) -> BlockingClient:
    return BlockingClient(Endpoint.parse(broker.connection_string), timeout=timeout)


def send(broker: Broker, path: str, payloads: Iterable[bytes], per_transfer: int = 100) -> int:
    """All of them, each accepted."""
    count = 0
    with connect(broker) as client:
        sender = client.sender(path, 50)
        batch: list[bytes] = []
        for payload in payloads:
            batch.append(payload)
            count += 1
            if len(batch) == per_transfer:
                sender.send(encode_batch(batch), None, BATCH_FORMAT)
                batch = []
        if batch:
            sender.send(encode_batch(batch), None, BATCH_FORMAT)
        sender.drain()
        assert sender.failed == []
    return count


def messages(count: int, prefix: str = "m", size: int = 100, **fields: Any) -> Iterator[bytes]:
    body = b"x" * size
    for number in range(count):
        yield encode_row(body, f"{prefix}{number}", **fields)


def diverted(count: int, path: str, prefix: str = "m", size: int = 100, sessions: int = 0) -> Iterator[bytes]:
    """Messages as the paired client puts them into a backlog queue."""
    body = b"x" * size
    for number in range(count):
        session = f"s{number % sessions}" if sessions else None
        yield wrap_payload(encode_row(body, f"{prefix}{number}", session_id=session), path, 1_700_000_000_000)


def counts(broker: Broker, path: str) -> dict[str, int]:
    with connect(broker) as client:
        return {name: int(value) for name, value in (client.request(path, "com.tandem:message-counts", {}) or {}).items()}


def take_all(broker: Broker, path: str) -> MessageRows:
    """Everything in the queue, taken out of it."""
    rows = MessageRows()
    with connect(broker) as client:
        while True:
            lease = f"test-{time.monotonic_ns()}"
            body: dict[str, object] = {"lease-id": lease, "max-messages": 50_000, "max-bytes": 200_000_000, "duration-ms": 60_000}
            found = client.request(path, "com.tandem:lease-batch", body)
            if found is None:
                return rows
            at = 0
            while at < found["message-count"]:
                page = client.request(path, "com.tandem:read-lease", {"lease-id": lease, "skip": at, "top": 5_000, "packed": True})
                assert page is not None
                at = page["next"]
                for stamp, payload in unpack(page["stamps"], page["payloads"]):
                    rows.add(payload, stamp)
            client.request(path, "com.tandem:complete-lease", {"lease-id": lease})


def ids(rows: MessageRows) -> list[str]:
    return rows.column("message_id") or []


def verdict(wanted: Iterable[str], received: list[str]) -> dict[str, int]:
    expected = set(wanted)
    seen = Counter(received)
    return {
        "lost": len(expected - set(seen)),
        "duplicated": sum(count - 1 for count in seen.values()),
        "unexpected": len(set(seen) - expected),
    }


EXACT = {"lost": 0, "duplicated": 0, "unexpected": 0}
