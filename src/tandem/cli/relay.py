"""`tandem relay`: hybrid connections made, changed and looked at; and TCP carried through them."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from tandem.cli.operations.broker_pages import call
from tandem.cli.operations.output import JsonFlag, Yes, confirm, show, show_one, tell
from tandem.cli.operations.target import OperationTarget, takes_target
from tandem.model.errors import ConfigurationError

if TYPE_CHECKING:
    from tandem.aio.relay import RelayPair
    from tandem.client.event_log import EventLog

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Relays, and TCP through them.")

_COLUMNS = ("name", "listener_count", "connection_count", "requires_client_authorization", "user_metadata")

Authorization = Annotated[
    bool | None, typer.Option("--client-authorization/--no-client-authorization", help="Whether senders need a token; listeners always do.")
]
Metadata = Annotated[str | None, typer.Option("--user-metadata", help="Any text to keep with it.")]
Rules = Annotated[list[str] | None, typer.Option("--rule", help="name=Listen,Send: an authorization rule of its own; keys are made.")]
RelayName = Annotated[str, typer.Argument(help="Its name.", metavar="NAME")]


@app.callback()
def relay() -> None:
    """Relays (hybrid connections), and TCP through them.

    Example: tandem relay create web
    """


def _path(name: str) -> str:
    return f"relays/{quote(name)}"


def _wish(authorization: bool | None, metadata: str | None, rules: list[str] | None) -> dict[str, Any]:
    wanted: dict[str, Any] = {}
    if authorization is not None:
        wanted["requires_client_authorization"] = authorization
    if metadata is not None:
        wanted["user_metadata"] = metadata or None
    if rules is not None:
        wanted["authorization_rules"] = [_rule(text) for text in rules]
    return wanted


def _rule(text: str) -> dict[str, Any]:
    name, sign, rights = text.partition("=")
    if not sign or not name:
        raise ConfigurationError(f"--rule {text}: write name=Listen,Send")
    return {"name": name, "rights": [right.strip().capitalize() for right in rights.split(",")]}


@app.command(name="create")
@takes_target
def create(
    target: OperationTarget,
    name: RelayName,
    authorization: Authorization = None,
    metadata: Metadata = None,
    rules: Rules = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a relay.

    Example: tandem relay create web --rule service=Listen --rule clients=Send
    """
    if any(one["name"].casefold() == name.casefold() for one in call(target, "GET", "relays")["relays"]):
        raise ConfigurationError(f"there is a relay '{name}' already; change it with: tandem relay update {name}")
    show_one(call(target, "PUT", _path(name), _wish(authorization, metadata, rules)), as_json)


@app.command(name="list")
@takes_target
def list_relays(target: OperationTarget, as_json: JsonFlag = False) -> None:
    """List relays with who listens.

    Example: tandem relay list
    """
    show(call(target, "GET", "relays")["relays"], as_json, _COLUMNS)


@app.command(name="show")
@takes_target
def show_relay(
    target: OperationTarget,
    name: RelayName,
    as_json: JsonFlag = False,
) -> None:
    """Show one relay.

    Example: tandem relay show web
    """
    show_one(call(target, "GET", _path(name)), as_json)


@app.command(name="update")
@takes_target
def update(
    target: OperationTarget,
    name: RelayName,
    authorization: Authorization = None,
    metadata: Metadata = None,
    rules: Rules = None,
    as_json: JsonFlag = False,
) -> None:
    """Change a relay; what is not named stays, and so do those who are connected.

    Example: tandem relay update web --no-client-authorization
    """
    call(target, "GET", _path(name))
    show_one(call(target, "PUT", _path(name), _wish(authorization, metadata, rules)), as_json)


@app.command(name="delete")
@takes_target
def delete(
    target: OperationTarget,
    name: RelayName,
    yes: Yes = False,
    as_json: JsonFlag = False,
) -> None:
    """Delete a relay; listeners and senders are cut off.

    Example: tandem relay delete web
    """
    found = call(target, "GET", _path(name))
    confirm(f"Delete {found['name']} with {found['listener_count']} listeners and {found['connection_count']} connections?", yes)
    call(target, "DELETE", _path(name))
    tell(as_json, f"deleted {name}", deleted=name)


Relay = Annotated[str, typer.Option("--relay", help="The relay to go through.", metavar="NAME")]
Secondary = Annotated[
    str | None, typer.Option(help="Connection string of a second namespace: either data centre will do.", metavar="STRING")
]
SecondaryRelay = Annotated[str | None, typer.Option(help="The relay there, if its name is another.", metavar="NAME")]
Prefer = Annotated[str | None, typer.Option(help="primary or secondary; without it either is used first, at random.")]
Events = Annotated[Path | None, typer.Option(help="Write events there, as tandem availability reads them.", metavar="FILE")]


@app.command(name="bridge")
@takes_target
def bridge(
    target: OperationTarget,
    listen: Annotated[str, typer.Option(help="Where clients connect to: 127.0.0.1:5432; port 0 for any.", metavar="HOST:PORT")],
    relay: Relay,
    secondary: Secondary = None,
    secondary_relay: SecondaryRelay = None,
    prefer: Prefer = None,
    events: Events = None,
) -> None:
    """Take TCP connections here and carry them to where `tandem relay expose` runs.

    Example: tandem relay bridge --listen 127.0.0.1:5432 --relay db
    """
    asyncio.run(_bridge(_address("--listen", listen), target, relay, secondary, secondary_relay, prefer, events))


@app.command(name="expose")
@takes_target
def expose(
    target: OperationTarget,
    relay: Relay,
    to: Annotated[str, typer.Option(help="The server to reach: 127.0.0.1:5432.", metavar="HOST:PORT")],
    secondary: Secondary = None,
    secondary_relay: SecondaryRelay = None,
    events: Events = None,
) -> None:
    """Make a TCP server reachable through a relay, for `tandem relay bridge` elsewhere.

    Example: tandem relay expose --relay db --to 127.0.0.1:5432
    """
    asyncio.run(_expose(_address("--to", to), target, relay, secondary, secondary_relay, events))


async def _bridge(
    address: tuple[str, int],
    target: OperationTarget,
    relay: str,
    secondary: str | None,
    secondary_relay: str | None,
    prefer: str | None,
    events: Path | None,
) -> None:
    from tandem.aio.relay import RelaySender
    from tandem.client.relay.bridge import serve_bridge

    log = _log(events)
    if secondary is None:
        sender: RelaySender | RelayPair = RelaySender(_endpoint(target, relay))
        through = relay
    else:
        sender = _pair(target, relay, secondary, secondary_relay, prefer, log)
        through = f"{sender.endpoints[0]} or {sender.endpoints[1]}"
    async with sender:
        server = await serve_bridge(sender.open, *address)
        host, port = server.sockets[0].getsockname()[:2]
        print(f"ready: {host}:{port} leads through {through}", flush=True)
        await _until_stopped()
        server.close()
    _close(log, sender)


async def _expose(
    address: tuple[str, int], target: OperationTarget, relay: str, secondary: str | None, secondary_relay: str | None, events: Path | None
) -> None:
    from tandem.aio.relay import PairListener, RelayError, RelayListener
    from tandem.client.relay.bridge import expose as serve_streams

    log = _log(events)
    if secondary is None:
        listener: RelayListener | PairListener = RelayListener(_endpoint(target, relay))
    else:
        listener = _pair(target, relay, secondary, secondary_relay, None, log).listen()
    try:
        await listener.start()
    except RelayError as error:
        raise ConfigurationError(str(error)) from error
    serving = asyncio.ensure_future(serve_streams(listener, *address))
    try:
        await listener.wait_online(None)
        print(f"ready: {address[0]}:{address[1]} is reached through {relay}", flush=True)
        await _until_stopped()
    finally:
        await listener.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        _close(log, None)


def _endpoint(target: OperationTarget, relay: str) -> Any:
    from tandem.aio.relay import RelayEndpoint

    try:
        return RelayEndpoint.from_connection_string(target.connection_string, relay, ca_file=target.ca_file)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def _pair(
    target: OperationTarget, relay: str, secondary: str, secondary_relay: str | None, prefer: str | None, log: EventLog | None
) -> RelayPair:
    from tandem.aio.relay import RelayPair

    other = _endpoint(OperationTarget(secondary, target.ca_file), secondary_relay or relay)
    try:
        return RelayPair(_endpoint(target, relay), other, prefer=prefer, on_event=log)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def _address(option: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise ConfigurationError(f"{option}: found '{text}'; allowed is host:port, for instance 127.0.0.1:5432")
    return host.strip("[]"), int(port)


def _log(file: Path | None) -> EventLog | None:
    if file is None:
        return None
    from tandem.client.event_log import EventLog

    return EventLog(file)


def _close(log: EventLog | None, sender: Any) -> None:
    if log is None:
        return
    from tandem.model.clock import SystemClock

    if hasattr(sender, "counters"):
        log.count(sender.counters, SystemClock().now_ms)
    log.close()


async def _until_stopped() -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await stopping.wait()
