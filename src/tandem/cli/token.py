"""`tandem token`: a shared access signature for programs that speak HTTP without an SDK."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from tandem.cli.operations.output import JsonFlag, tell
from tandem.cli.operations.target import ConnectionString, ContextName, target_of
from tandem.engine_client.endpoint import Endpoint
from tandem.model.errors import ConfigurationError
from tandem.model.sas_token import make_token


def token(
    entity: Annotated[str, typer.Option(help="Good for this path and what is beneath it; without it, for the whole namespace.")] = "",
    minutes: Annotated[int, typer.Option(help="How long it is good.", min=1, max=525_600)] = 60,
    connection_string: ConnectionString = None,
    context: ContextName = None,
    as_json: JsonFlag = False,
) -> None:
    """Print a token for the header Authorization. Whoever has it may do what the key may, until it ends.

    Example: tandem token --entity orders --minutes 10
    """
    try:
        endpoint = Endpoint.parse(target_of(connection_string, context, None).connection_string)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    if endpoint.token:
        raise ConfigurationError("the connection string has a token of its own and no key to sign with")
    expires_at_ms = time.time_ns() // 1_000_000 + minutes * 60_000
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    made = make_token(f"sb://{host}/{entity}", endpoint.key_name, endpoint.key, expires_at_ms)
    tell(as_json, made, token=made, entity=entity, expires_at_ms=expires_at_ms)
