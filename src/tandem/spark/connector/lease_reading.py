"""Reading a lease in a task: page after page, the next one asked for before the last is taken apart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from struct import Struct
from typing import Final

from tandem.engine_client.blocking import BlockingClient, Pending, TransportError
from tandem.spark.connector.connections import connection, drop, new_backoff, unreachable
from tandem.spark.connector.options import Where

_STAMP: Final = Struct(">qqqII")
PAGE_MESSAGES: Final = 2_000

Message = tuple[tuple[int, int, int, int], bytes]
"""(sequence number, enqueued at, expires at or 0, delivery count), payload."""


def read_lease(where: Where, entity: str, lease: str, start: int, end: int, *, remaining: bool = False) -> Iterator[list[Message]]:
    """The messages at these places, the same on every call. A lease that is gone raises; it never looks empty.

    With `remaining` messages that were settled since are left out. A broker that is away is waited for.
    """
    at = start
    backoff = new_backoff()
    patience_until = 0.0
    pending: Pending | None = None
    while at < end:
        try:
            client = connection(where)
            if pending is None or not pending.belongs_to(client):
                pending = _ask(client, entity, lease, at, end, remaining)
            client.pump_until(pending.done, f"read-lease of {entity}")
            page = pending.result()
            pending = None
        except TransportError as error:
            pending = None
            if not unreachable(error):
                raise
            drop(where)
            now = time.monotonic()
            patience_until = patience_until or now + where.timeout_seconds
            pause = backoff.next_pause()
            if now + pause > patience_until:
                raise
            time.sleep(pause)
            continue
        backoff.reset()
        patience_until = 0.0
        if page is None:
            return
        at = int(page["next"])
        if at < end:
            pending = _ask_ahead(where, client, entity, lease, at, end, remaining)
        yield unpack(page["stamps"], page["payloads"])


def _ask_ahead(where: Where, client: BlockingClient, entity: str, lease: str, at: int, end: int, remaining: bool) -> Pending | None:
    """None when the connection has gone meanwhile: then the page is asked for when it is needed, and waited for."""
    try:
        pending = _ask(client, entity, lease, at, end, remaining)
        client.flush()
    except TransportError as error:
        if not unreachable(error):
            raise
        drop(where)
        return None
    return pending


def _ask(client: BlockingClient, entity: str, lease: str, at: int, end: int, remaining: bool) -> Pending:
    body: dict[str, object] = {"lease-id": lease, "skip": at, "top": min(PAGE_MESSAGES, end - at), "packed": True, "remaining": remaining}
    return client.post(entity, "com.tandem:read-lease", body, client.timeout)


def unpack(stamps: bytes, payloads: bytes) -> list[Message]:
    found: list[Message] = []
    at = 0
    for seq, enqueued_at, expires_at, count, size in _STAMP.iter_unpack(stamps):
        found.append(((seq, enqueued_at, expires_at, count), payloads[at : at + size]))
        at += size
    return found
