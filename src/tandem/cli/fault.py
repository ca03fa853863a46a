"""`tandem fault`: make a store, an entity or the namespace fail on purpose, see what is in force, and heal it."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from typing import Annotated, Any

import typer

from tandem.engine_client.blocking import Endpoint
from tandem.model.errors import ConfigurationError
from tandem.model.sas_token import make_token

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Faults on purpose.")

_ConnectionString = Annotated[
    str, typer.Option("--connection-string", "-c", envvar="TANDEM_CONNECTION_STRING", help="Of the namespace; see `tandem keys`.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


@app.callback()
def fault() -> None:
    """Faults on purpose. The broker must run with --dev or faults = true; the key needs Manage.

    Example: tandem fault inject store-down --store 0 --for 30s
    """


@app.command(name="inject")
def inject(
    kind: Annotated[str, typer.Argument(help="store-down, store-slow, entity-error, black-hole, … (an unknown one lists all).")],
    connection_string: _ConnectionString,
    entity: Annotated[str | None, typer.Option(help="Path of the entity it concerns; without it, every entity.")] = None,
    store: Annotated[int | None, typer.Option(help="Number of the store it concerns.")] = None,
    condition: Annotated[str | None, typer.Option(help="AMQP condition of an entity-error.")] = None,
    delay: Annotated[str | None, typer.Option(help="For the slow ones: 200ms, 2s.")] = None,
    duration: Annotated[str | None, typer.Option("--for", help="Ends by itself after this: 30s, 5m.")] = None,
    count: Annotated[int | None, typer.Option(help="Ends by itself after so many strikes.")] = None,
    fraction: Annotated[float, typer.Option(help="Part of the occasions it strikes at.")] = 1.0,
    as_json: _Json = False,
) -> None:
    """Put a fault in force.

    Example: tandem fault inject lose-acknowledgement --entity orders --count 1
    """
    wish: dict[str, Any] = {"kind": kind, "fraction": fraction}
    given = {"entity": entity, "store": store, "condition": condition, "count": count}
    wish.update({name: value for name, value in given.items() if value is not None})
    if delay is not None:
        wish["delay_ms"] = _milliseconds("--delay", delay)
    if duration is not None:
        wish["for_ms"] = _milliseconds("--for", duration)
    _show([_call(connection_string, "POST", "", wish)], as_json)


@app.command(name="list")
def list_faults(connection_string: _ConnectionString, as_json: _Json = False) -> None:
    """Show what is in force.

    Example: tandem fault list
    """
    _show(_call(connection_string, "GET", "", None)["faults"], as_json)


@app.command(name="heal")
def heal(
    connection_string: _ConnectionString,
    number: Annotated[int | None, typer.Argument(help="One fault; without it, all of them.")] = None,
    as_json: _Json = False,
) -> None:
    """End a fault, or all of them.

    Example: tandem fault heal
    """
    _show(_call(connection_string, "DELETE", f"/{number}" if number is not None else "", None)["healed"], as_json)


def _milliseconds(option: str, text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)", text.strip())
    if found is None:
        raise ConfigurationError(f"{option}: {text!r} is no duration; write 200ms, 30s, 5m or 1h")
    return int(float(found.group(1)) * _UNITS[found.group(2)])


def _call(connection_string: str, method: str, path: str, body: dict[str, Any] | None) -> Any:
    try:
        endpoint = Endpoint.parse(connection_string)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    base = f"http://{endpoint.host}:{endpoint.port}/"
    token = endpoint.token or make_token(base, endpoint.key_name, endpoint.key, time.time_ns() // 1_000_000 + 600_000)
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{base}$tandem/faults{path}", data, {"Authorization": token}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.loads(reply.read())
    except urllib.error.HTTPError as error:
        try:
            said = json.loads(error.read()).get("description", "")
        except ValueError:
            said = error.reason
        raise ConfigurationError(f"the broker refused: {said}") from error
    except OSError as error:
        raise ConfigurationError(f"{endpoint.host}:{endpoint.port} cannot be reached: {error}; is the broker running?") from error


def _show(faults: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(faults, indent=2))
        return
    if not faults:
        print("no faults")
    for one in faults:
        details = ", ".join(f"{name} {value}" for name, value in one.items() if name not in ("id", "kind") and value is not None)
        print(f"{one['id']:>4}  {one['kind']:<22} {details}")
