"""`tandem cluster follow` and `promote`: a second region, from an asynchronous standby of the engine."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tandem.cli.engine_wishes import engine_missing
from tandem.model.errors import BusError, ConfigurationError
from tandem.model.store_row import FIRST_ENGINE

if TYPE_CHECKING:
    from tandem.cli.promotion import PromotedStore
    from tandem.stores.postgres_follower import ClusterFollower

_STANDBYS = "The asynchronous standby in this region; for each further engine of the cluster one more, as NAME=DSN."
_HEALTH, _METRICS = "/$tandem/health", "/$tandem/metrics"


class _Shown:
    """What the last look found, for whoever asks over HTTP."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lag: dict[str, Any] = {}
        self.trouble = "not looked yet"

    def found(self, lag: dict[str, Any]) -> None:
        self.lag, self.trouble = lag, ""

    def missed(self, trouble: str) -> None:
        """The last look found nothing; what was known before is shown still."""
        self.trouble = trouble

    def health(self) -> tuple[int, dict[str, Any]]:
        away = self.trouble or (self.lag["primary"] if self.lag["primary"] != "followed" else "")
        status = "down" if self.trouble else "primary away" if away else "ok"
        return 503 if self.trouble else 200, {"status": status, "cause": away, "follower": {"name": self.name, **self.lag}}

    def metrics(self) -> str:
        lines = ["# TYPE tandem_follower_up gauge", f"tandem_follower_up {int(not self.trouble)}"]
        for name in ("primary_up", "lag_seconds", "lag_messages", "lag_blocks") if self.lag else ():
            lines.append(f"# TYPE tandem_follower_{name} gauge")
            for engine, lag in self.lag["engines"].items():
                value = int(lag["primary"] == "followed") if name == "primary_up" else lag[name]
                lines.append(f'tandem_follower_{name}{{engine="{engine}"}} {value}')
        return "".join(f"{line}\n" for line in lines)


def _serve(host: str, port: int, shown: _Shown) -> ThreadingHTTPServer:
    class Pages(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            status, kind = 200, "application/json"
            if self.path == _HEALTH:
                status, found = shown.health()
                page = json.dumps(found)
            elif self.path == _METRICS:
                page, kind = shown.metrics(), "text/plain; version=0.0.4; charset=utf-8"
            else:
                status, page = 404, json.dumps({"error": f"there are {_HEALTH} and {_METRICS}"})
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(page.encode())))
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Nobody wants to know."""

    try:
        server = ThreadingHTTPServer((host, port), Pages)
    except OSError as error:
        raise ConfigurationError(f"--port: {host}:{port} cannot be listened on: {error.strerror}; choose another one") from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="tandem-follower-pages", daemon=True).start()
    return server


def follow(
    engine: Annotated[str, typer.Option("--engine", envvar="TANDEM_CLUSTER", help="PostgreSQL of the cluster.", metavar="DSN")],
    standby: Annotated[list[str], typer.Option(help=_STANDBYS, metavar="[NAME=]DSN")],
    name: Annotated[str, typer.Option(help="What to be called in `tandem cluster status`; the host's name unless given.")] = "",
    host: Annotated[str, typer.Option(help="Where to show health and metrics.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535)] = 5680,
    state: Annotated[Path | None, typer.Option(help="Keep what was seen last in this file, for `promote`.", metavar="FILE")] = None,
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and say what there is; exit code 1 if the cluster is away.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: as JSON.")] = False,
) -> None:
    """Watch how far the standby of this region is behind, in seconds and messages; `/$tandem/health` and `/$tandem/metrics` show it.

    Example: tandem cluster follow --engine postgresql://tandem@pg1,pg2/tandem --standby postgresql://tandem@far/tandem --state follow.json
    """
    try:
        from tandem.stores.postgres_follower import together
    except ImportError as error:
        raise engine_missing() from error
    shown = _Shown(name or socket.gethostname())
    follower = _follower(shown.name, engine, standby)
    server = None if once else _serve(host, port, shown)
    if server is not None:
        typer.echo(f"ready: http://{host}:{server.server_address[1]}{_HEALTH}")
    told = ""
    while True:
        lags, troubles = follower.look()
        if lags:
            shown.found(together(lags))
        if troubles:
            shown.missed("; ".join(troubles.values()))
        if state is not None and (kept := follower.kept()) and any(not lag.away for lag in lags.values()):
            _keep(state, kept)
        said = shown.trouble or str(shown.lag["primary"])
        if once:
            if troubles:
                raise ConfigurationError(f"--standby: {shown.trouble}")
            typer.echo(json.dumps(shown.lag) if as_json else _behind(shown.lag))
            raise typer.Exit(int(said != "followed"))
        if said != told:
            typer.echo(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {said}", err=True)
            told = said
        time.sleep(every)


def _follower(name: str, engine: str, standby: list[str]) -> ClusterFollower:
    """Of all engines; where those beside the first are, the first knows."""
    from tandem.model.clock import SystemClock
    from tandem.stores.postgres_connection import EngineConnection, Hosts
    from tandem.stores.postgres_engines import label_of
    from tandem.stores.postgres_follower import ClusterFollower, Follower
    from tandem.stores.postgres_schema import Schema
    from tandem.stores.postgres_standbys import Standbys, by_engine

    clock, application = SystemClock(), "tandem follower"
    standbys = Standbys(by_engine(standby, "--standby"), "--standby", application, clock)
    others = {one: EngineConnection(Hosts(dsn, label=label_of(one)), application, clock) for one, dsn in standbys.check().items()}
    first = EngineConnection(Hosts(engine), application, clock)
    with contextlib.suppress(ConfigurationError):  # it may be away just now, which is what this command is for
        Schema(engine, first).complete()
    followed = {FIRST_ENGINE: first, **others}
    return ClusterFollower({one: Follower(name, followed[one], standbys.connections[one]) for one in followed})


def _behind(lag: dict[str, Any]) -> str:
    """A line for the whole, and one for each engine if there are several."""
    told = [("", lag), *((f"engine {name}: ", one) for name, one in lag["engines"].items())]
    return "\n".join(
        f"{who}{one['lag_seconds']:.1f} s and {'' if one['counted'] else 'at least '}{one['lag_messages']} messages behind"
        for who, one in (told if len(told) > 2 else told[:1])
    )


def _keep(path: Path, lag: dict[str, Any]) -> None:
    """Whole, or as it was."""
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_text(json.dumps(lag) + "\n", encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise ConfigurationError(f"--state: {path} cannot be written: {error.strerror}; give another file, or make room") from error


def promote(
    engine: Annotated[list[str], typer.Option("--engine", help=_STANDBYS, metavar="[NAME=]DSN")],
    state: Annotated[
        Path | None, typer.Option(help="What `follow` kept: how far the other region was known to be.", metavar="FILE")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Although the other region still sends, or a standby has not heard of a store of another.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Make the standby of this region the engine, after the loss of the other one, and say which messages may be missing.

    Its stores are taken from whoever owned them, and read and checked from end to end. Sequence numbers that lost messages may have
    had are not given again. Then start nodes here. The other region must never serve again as it was: make a new standby of it.

    Example: tandem cluster promote --engine postgresql://tandem@far/tandem --state follow.json
    """
    try:
        from tandem.cli.promotion import Promotion, known_missing
        from tandem.stores.postgres_standbys import by_engine
    except ImportError as error:
        raise engine_missing() from error
    standbys = by_engine(engine, "--engine")
    known = _read_state(state) if state is not None else None
    try:
        promoted = Promotion(standbys.pop(FIRST_ENGINE), standbys).run(force)
    except BusError as error:  # among them that a journal is damaged: nothing is served from it before somebody has looked
        raise ConfigurationError(f"--engine: {error.description}") from error
    found: dict[str, Any] = {"stores": [store.as_dict() for store in promoted]}
    if known is not None:
        found["known_missing"] = known_missing(promoted, known)
    if as_json:
        typer.echo(json.dumps(found))
        return
    _say(promoted, found.get("known_missing"))


def _read_state(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--state: {path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ConfigurationError(f"--state: {path} is not what tandem cluster follow writes")
    return found


def _instant(milliseconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds / 1000)) + f".{milliseconds % 1000:03d}Z"


def _say(promoted: list[PromotedStore], known: dict[str, Any] | None) -> None:
    several = len({store.engine for store in promoted}) > 1
    for store in promoted:
        name = f"{store.namespace} store-{store.number}" + (f" in engine {store.engine}" if several else "")
        if store.block == 0:
            typer.echo(f"{name}: empty")
        else:
            typer.echo(f"{name}: ends with block {store.block}, written at {_instant(store.instant_ms)}")
        for gap in store.gaps:
            typer.echo(f"  {gap.entity}: messages {gap.first} to {gap.last} may be missing; none of these numbers is given again")
        for path in store.unknown:
            typer.echo(
                f"  {path}: was made after what the first engine has, and is not known there: make it again; what is in it here is lost"
            )
    typer.echo("what was completed after these instants may be delivered again")
    if several:
        typer.echo(
            "the engines end at different moments: a message that was forwarded from a store in one to a store in another may be there "
            "twice or not at all, a transaction over both may have happened in one of them only"
        )
    if known is not None:
        blocks = sum(one["blocks"] for one in known["stores"])
        typer.echo(f"known to be missing: {known['messages']} messages in {blocks} blocks, accepted by {_instant(known['at_ms'])}")
    typer.echo("now: tandem serve --cluster … in this region, and a synchronous standby for its engine")
