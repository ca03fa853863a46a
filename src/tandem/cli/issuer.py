"""`tandem issuer`: run an issuer of tokens, and keep its book of clients."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tandem.cli.configuration.setting_types import DAY_MS, MINUTE_MS, SECOND_MS, Duration, InvalidSetting
from tandem.cli.listening import listen, shown_address
from tandem.model.errors import ConfigurationError

if TYPE_CHECKING:
    from tandem.server.settings import TlsSettings

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Tokens for clients that have secrets.")
clients = typer.Typer(no_args_is_help=True, add_completion=False, help="Who may have tokens.")
app.add_typer(clients, name="client")

DEFAULT_DATA: Final = Path("issuer-data")
DEFAULT_PORT: Final = 5443
_Data = Annotated[Path, typer.Option(help="Directory with keys, clients and the audit.", metavar="DIR", envvar="TANDEM_ISSUER_DATA")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Lifetime = Annotated[str, typer.Option(help="How long a token is good.", envvar="TANDEM_ISSUER_LIFETIME")]


@app.callback()
def issuer() -> None:
    """Tokens for clients that have secrets.

    Example: tandem issuer serve
    """


@app.command(name="serve")
def serve(
    port: Annotated[int, typer.Option(help="Where to listen, with TLS; 0 asks the system for a free one.")] = DEFAULT_PORT,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 serves other machines.")] = "127.0.0.1",
    data: _Data = DEFAULT_DATA,
    url: Annotated[str, typer.Option(help="How others reach it. [default: https://localhost:PORT]", envvar="TANDEM_ISSUER_URL")] = "",
    tenant: Annotated[str, typer.Option(help="The tenant that clients name.", envvar="TANDEM_ISSUER_TENANT")] = "tandem",
    lifetime: _Lifetime = "3h",
    rotate_every: Annotated[str, typer.Option(help="How long one key signs.")] = "30d",
    publish_ahead: Annotated[str, typer.Option(help="How long a key is published before it signs.")] = "1h",
    per_minute: Annotated[int, typer.Option(help="Requests allowed to one client, and to one address.", min=1)] = 120,
    certificate: Annotated[Path | None, typer.Option(help="Own certificate (PEM); without it one is made.")] = None,
    private_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    name: Annotated[list[str] | None, typer.Option(help="One more name for the certificate that is made; may be repeated.")] = None,
) -> None:
    """Run an issuer until it is told to stop (Ctrl-C or SIGTERM).

    Prints its authority for azure-identity, the issuer and the address of its keys for a broker's [[trusted_issuer]], the file that
    clients and brokers must trust for TLS, and "ready" at last.

    Example: tandem issuer serve --data issuer-data
    """
    from tandem.issuer.settings import IssuerSettings

    listener = listen(host, port)
    bound = listener.getsockname()[1]
    settings = IssuerSettings(
        url=(url or f"https://{'localhost' if host in ('127.0.0.1', '0.0.0.0', '::', '::1') else host}:{bound}").rstrip("/"),
        tenant=tenant,
        lifetime_ms=_duration("--lifetime", lifetime, 2 * SECOND_MS, DAY_MS),
        rotate_every_ms=_duration("--rotate-every", rotate_every, MINUTE_MS, 3650 * DAY_MS),
        publish_ahead_ms=_duration("--publish-ahead", publish_ahead, 0, 30 * DAY_MS),
        requests_per_minute=per_minute,
    )
    if settings.publish_ahead_ms > settings.rotate_every_ms:
        raise ConfigurationError("--publish-ahead: must not be longer than --rotate-every")
    tls = _certificates(data, certificate, private_key, tuple(name or ()))
    asyncio.run(_serve(settings, data, listener, tls))


@clients.command(name="add")
def add(
    client_id: Annotated[str, typer.Argument(help="Its id, which is also the subject of its tokens.")],
    data: _Data = DEFAULT_DATA,
    role: Annotated[
        list[str] | None, typer.Option(help="A role in its tokens, such as 'Azure Service Bus Data Sender'; may be repeated.")
    ] = None,
    group: Annotated[list[str] | None, typer.Option(help="A group in its tokens; may be repeated.")] = None,
    as_json: _Json = False,
) -> None:
    """Let a client have tokens. Its secret is printed this once; only a hash of it is kept.

    Example: tandem issuer client add shop --role "Azure Service Bus Data Sender"
    """
    secret = _book(data).add(client_id, tuple(role or ()), tuple(group or ()), _now())
    if as_json:
        print(json.dumps({"client_id": client_id, "client_secret": secret}))
        return
    print(f"client id: {client_id}\nclient secret: {secret}")


@clients.command(name="list")
def list_clients(data: _Data = DEFAULT_DATA, as_json: _Json = False) -> None:
    """Show who may have tokens.

    Example: tandem issuer client list
    """
    rows = [
        {"client_id": client.client_id, "roles": list(client.roles), "groups": list(client.groups), "created_at": client.created_at}
        for client in _book(data).all()
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        said = [f"roles {', '.join(row['roles'])}"] if row["roles"] else []
        said += [f"groups {', '.join(row['groups'])}"] if row["groups"] else []
        print(f"{row['client_id']}  {'; '.join(said) or 'no roles'}")


@clients.command(name="remove")
def remove(client_id: Annotated[str, typer.Argument(help="Its id.")], data: _Data = DEFAULT_DATA, lifetime: _Lifetime = "3h") -> None:
    """Take a client off the book. It gets no more tokens, and brokers refuse those it has when they next look at the issuer's keys.

    Example: tandem issuer client remove shop
    """
    _book(data).remove(client_id, _now(), _duration("--lifetime", lifetime, 2 * SECOND_MS, DAY_MS))
    print(f"removed {client_id}")


@app.command(name="rotate")
def rotate(
    data: _Data = DEFAULT_DATA,
    now: Annotated[bool, typer.Option("--now", help="Sign with the new key at once, for a key that leaked.")] = False,
    publish_ahead: Annotated[str, typer.Option(help="How long the key is published before it signs.")] = "1h",
) -> None:
    """Make a new signing key before its time. The old one stays published until its last token has ended.

    Example: tandem issuer rotate
    """
    from tandem.issuer.settings import IssuerSettings
    from tandem.issuer.signing_keys import SigningKeys

    settings = IssuerSettings(url="", publish_ahead_ms=_duration("--publish-ahead", publish_ahead, 0, 30 * DAY_MS))
    key = SigningKeys(data, settings, os.urandom).rotate(_now(), at_once=now)
    print(f"new key {key.key_id}, signs from {time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(key.signs_from_ms / 1000))}")


def _now() -> int:
    return time.time_ns() // 1_000_000


def _book(data: Path) -> Any:
    from tandem.issuer.clients import ClientBook

    return ClientBook(data)


def _duration(flag: str, text: str, low: int, high: int) -> int:
    kind = Duration(low, high)
    try:
        return kind.read(text)
    except InvalidSetting:
        raise ConfigurationError(f'{flag}: found "{text}"; allowed is {kind.allowed}') from None


def _certificates(data: Path, certificate: Path | None, private_key: Path | None, names: tuple[str, ...]) -> TlsSettings:
    from tandem.server.settings import TlsSettings
    from tandem.wire.tls import TlsError, ensure_certificates

    if (certificate is None) != (private_key is None):
        raise ConfigurationError("--certificate and --private-key belong together")
    made_for = (socket.gethostname(), *names)
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        if certificate is not None and private_key is not None:
            return TlsSettings(certificate=certificate, private_key=private_key)
        files = ensure_certificates(data, made_for, _now())
    except TlsError as error:
        raise ConfigurationError(f"tls: {error}") from error
    except OSError as error:
        raise ConfigurationError(f"{data} cannot be written: {error.strerror}") from error
    return TlsSettings(certificate=files.certificate, private_key=files.private_key, ca=files.ca, made_for=made_for)


async def _serve(settings: Any, data: Path, listener: socket.socket, tls: TlsSettings) -> None:
    from tandem.cli.audit_file import FILE_NAME, audit_to
    from tandem.cli.log_output import LINES, greet
    from tandem.cli.served_certificate import ServedCertificate
    from tandem.issuer.clients import ClientBook
    from tandem.issuer.endpoint import TokenEndpoint
    from tandem.issuer.server import IssuerServer
    from tandem.issuer.signing_keys import SigningKeys
    from tandem.model.clock import SystemClock
    from tandem.wire.tls import TlsError, server_context

    clock = SystemClock()
    keys, book = SigningKeys(data, settings, os.urandom), ClientBook(data)
    endpoint = TokenEndpoint(settings, keys, book, clock=clock, entropy=os.urandom, audit=audit_to(data / FILE_NAME, LINES.say))
    server = IssuerServer(settings, keys, book, endpoint, clock=clock, note=LINES.say)
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    try:
        await server.start(listener, server_context(tls.certificate, tls.private_key))
    except TlsError as error:
        raise ConfigurationError(f"tls: {error}") from error
    host, port = listener.getsockname()[:2]
    greet(
        [
            f"authority: {settings.url}",
            f"tenant: {settings.tenant}",
            f"issuer: {settings.issuer}",
            f"keys: {settings.keys_url}",
            *([f"CA file: {tls.ca}"] if tls.ca is not None else []),
            f"ready: listening on {shown_address(host, port)}; data in {data}",
        ]
    )
    showing = asyncio.create_task(ServedCertificate(tls, server.use_certificate).keep())
    try:
        await stopping.wait()
    finally:
        showing.cancel()
        await server.stop()
