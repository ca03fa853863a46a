"""Reading without taking: peek by sequence number, from any process, as often as needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tandem.engine_client.blocking import BlockingClient, TransportError
from tandem.engine_client.message_rows import sequence_number_of
from tandem.model.ranges import unpack_ranges
from tandem.spark.connector.connections import LEASE_LOST, patiently
from tandem.spark.connector.offsets import BatchShare
from tandem.spark.connector.options import Where

_PEEK = "com.microsoft:peek-message"
_PAGE = 250


def _peek(where: Where, entity: str, start: int) -> list[bytes]:
    def step(client: BlockingClient) -> dict[str, Any] | None:
        return client.request(entity, _PEEK, {"from-sequence-number": start, "message-count": client.int32(_PAGE)})

    answer = patiently(where, f"peek {entity}", step)
    return [entry["message"] for entry in answer["messages"]] if answer is not None else []


def peek_from(where: Where, entity: str, start: int = 0) -> Iterator[list[tuple[Any, bytes]]]:
    """All messages from a sequence number on, in order."""
    while True:
        page = _peek(where, entity, start)
        if not page:
            return
        yield [(None, payload) for payload in page]
        start = sequence_number_of(page[-1]) + 1


def peek_deferred(where: Where, share: BatchShare, start: int, end: int) -> Iterator[list[tuple[Any, bytes]]]:
    """The messages at these places of a share, each exactly once; one that is gone is an error, never a shorter batch."""
    wanted = sorted(unpack_ranges(share.ranges)[start:end])
    missing = dict.fromkeys(wanted)
    while missing:
        first = next(iter(missing))
        page = _peek(where, share.entity, first)
        found: list[tuple[Any, bytes]] = []
        for payload in page:
            number = sequence_number_of(payload)
            if number in missing:
                del missing[number]
                found.append((None, payload))
        if first in missing:
            raise TransportError(LEASE_LOST, f"message {first} of {share.entity} is gone: somebody else has settled it")
        yield found
