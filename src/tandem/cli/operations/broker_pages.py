"""Requests to the pages of a broker under `/$tandem/`, with a token made from the connection string's key."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from typing import Any, Final

from tandem.cli.operations.target import OperationTarget
from tandem.engine_client.endpoint import Endpoint
from tandem.model.errors import ConfigurationError
from tandem.model.sas_token import make_token

_TIMEOUT_SECONDS: Final = 30
_TOKEN_MS: Final = 600_000


def call(target: OperationTarget, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    """The JSON that came back; ConfigurationError with what the broker said when it refused."""
    return json.loads(fetch(target, method, path, body))


def fetch(target: OperationTarget, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
    try:
        endpoint = Endpoint.parse(target.connection_string, target.ca_file)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    base = f"{'https' if endpoint.tls else 'http'}://{endpoint.place}/"
    token = endpoint.token or make_token(base, endpoint.key_name, endpoint.key, time.time_ns() // 1_000_000 + _TOKEN_MS)
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{base}$tandem/{path}", data, {"Authorization": token}, method=method)
    context = ssl.create_default_context(cafile=target.ca_file) if endpoint.tls else None
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS, context=context) as reply:
            found: bytes = reply.read()
            return found
    except urllib.error.HTTPError as error:
        try:
            said = json.loads(error.read()).get("description", "")
        except ValueError:
            said = error.reason
        raise ConfigurationError(f"the broker refused: {said or error.reason}") from error
    except OSError as error:
        raise ConfigurationError(f"{endpoint.place} cannot be reached: {error}; is the broker running?") from error
