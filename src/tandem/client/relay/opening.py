"""Opening a WebSocket at a relay, with its refusals told apart: whether the relay or the listener said no, or nobody answered."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any, Final

from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI

from tandem.client.relay.errors import RelayError, RelayRefusedError, RelayUnavailableError
from tandem.client.relay.stream import MESSAGE_BYTES_MAX

UNAVAILABLE_STATUSES: Final = frozenset({404, 408, 410, 429})
"""With every 5xx: of the relay itself they mean that this endpoint cannot serve now."""


async def open_socket(
    uri: str,
    *,
    headers: dict[str, str] | None = None,
    sub_protocols: Sequence[str] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    timeout: float = 40.0,
    message_bytes_max: int | None = MESSAGE_BYTES_MAX,
) -> Any:
    """The open WebSocket. Raises RelayRefusedError or RelayUnavailableError; nothing was delivered then."""
    try:
        return await connect(
            uri,
            additional_headers=headers,
            subprotocols=sub_protocols,
            compression=None,
            proxy=None,
            ssl=ssl_context,
            open_timeout=timeout,
            max_size=message_bytes_max,
            user_agent_header="tandem",
        )
    except InvalidStatus as refused:
        raise refusal(refused.response.status_code, _reason(refused), "via" in refused.response.headers) from None
    except (OSError, TimeoutError, asyncio.IncompleteReadError, EOFError, InvalidHandshake) as error:
        raise RelayUnavailableError(f"{uri.partition('?')[0]} cannot be reached: {type(error).__name__}: {error}") from error
    except InvalidURI as error:
        raise ValueError(str(error)) from error


def refusal(status: int, reason: str, of_listener: bool, delivered: bool = False) -> RelayError:
    """What a status means: `Via` is on everything that came from a listener."""
    if not of_listener and (status >= 500 or status in UNAVAILABLE_STATUSES):
        return RelayUnavailableError(f"{status} {reason}".strip(), status=status, delivered=delivered)
    return RelayRefusedError(status, reason)


def _reason(refused: InvalidStatus) -> str:
    body = refused.response.body
    return str(body.decode("utf-8", "replace")[:1_000] if body else refused.response.reason_phrase)
