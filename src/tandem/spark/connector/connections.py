"""Connections of one Python process to its brokers: opened when first needed, kept between tasks, dropped when they fail."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from tandem.client.verdicts import Verdict, classify_condition
from tandem.engine_client.blocking import BlockingClient, TransportError
from tandem.model.backoff import Backoff
from tandem.spark.connector.options import Where

log = logging.getLogger("tandem.spark")

_T = TypeVar("_T")
_cached: dict[Where, BlockingClient] = {}

PAUSE_SECONDS = 0.1
_PAUSE_SECONDS_MAX = 5.0
LEASE_LOST = "com.tandem:lease-lost"
_LOST = (LEASE_LOST, "com.tandem:claim-lost")
"""Somebody else has what was ours: to wait brings nothing back."""


def connection(where: Where) -> BlockingClient:
    """The connection of this process to a namespace. For the thread that runs the task."""
    client = _cached.get(where)
    if client is None:
        client = _cached[where] = BlockingClient(where.endpoint, timeout=where.timeout_seconds)
    return client


def drop(where: Where) -> None:
    client = _cached.pop(where, None)
    if client is not None:
        client.close()


def unreachable(error: TransportError) -> bool:
    """Trying again later makes sense: the broker is away or busy, and has not refused."""
    return error.condition not in _LOST and classify_condition(error.condition) in (Verdict.UNREACHABLE, Verdict.BUSY)


def new_backoff() -> Backoff:
    """Between attempts to reach a broker that is away."""
    return Backoff(PAUSE_SECONDS, _PAUSE_SECONDS_MAX)


def patiently(where: Where, what: str, step: Callable[[BlockingClient], _T]) -> _T:
    """Run a step that may be run again; while the broker is away, wait and try anew for as long as an operation may take."""
    deadline = time.monotonic() + where.timeout_seconds
    backoff = new_backoff()
    while True:
        try:
            return step(connection(where))
        except TransportError as error:
            if not unreachable(error):
                raise
            drop(where)
            pause = backoff.next_pause()
            if time.monotonic() + pause > deadline:
                raise
            log.info("%s: trying again in %.1f s: %s", what, pause, error)
            time.sleep(pause)
