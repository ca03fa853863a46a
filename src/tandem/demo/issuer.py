"""`tandem demo --story issuer`: the issuer of tokens is killed; who holds one goes on to its end, who has a key goes on beyond."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import typer
from azure.core.exceptions import AzureError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from tandem.aio import HttpIssuer, IssuerCredential, SasCredential, TokenUnavailableError
from tandem.client.tokens import SERVICE_BUS_SCOPE

QUEUE: Final = "orders"
LIFETIME: Final = 12
"""Seconds; three hours unless somebody wants to see the end."""
_ROLE: Final = "Azure Service Bus Data Owner"


@dataclass(slots=True)
class IssuerVerdict:
    sent_before: int = 0
    sent_without_issuer: int = 0
    """By the holder of a token, after the issuer was killed."""
    sent_past_the_end: int = 0
    """By the same, when its token had ended: nothing may."""
    signed_by_fallback: int = 0
    sent_after_return: int = 0

    def send_before(self) -> None:
        self.sent_before += 1

    def send_alone(self, in_time: bool) -> None:
        """While there is no issuer; `in_time`: with a token that has not ended."""
        if in_time:
            self.sent_without_issuer += 1
        else:
            self.sent_past_the_end += 1

    def send_signed(self, by_fallback: int) -> None:
        self.signed_by_fallback = by_fallback

    def send_after(self) -> None:
        self.sent_after_return += 1

    @property
    def held(self) -> bool:
        counts = (self.sent_before, self.sent_without_issuer, self.signed_by_fallback, self.sent_after_return)
        return all(counts) and not self.sent_past_the_end


def issuer_demo(as_json: bool) -> None:
    """Exit code 1 if somebody was cut off too early, too late, or for good."""
    logging.getLogger("tandem.client.tokens").setLevel(logging.ERROR)  # that the issuer is away is the story
    with tempfile.TemporaryDirectory(prefix="tandem-demo-") as name:
        stage = _Stage(Path(name), quiet=as_json)
        try:
            verdict = asyncio.run(_play(stage))
        finally:
            stage.close()
    if as_json:
        print(json.dumps({**asdict(verdict), "held": verdict.held}))
    else:
        print("  ".join(f"{name.replace('_', ' ')} {count}" for name, count in asdict(verdict).items()))
    if not verdict.held:
        raise typer.Exit(1)


class _Stage:
    """The processes: an issuer that may be killed and started again, and a broker that believes it."""

    def __init__(self, directory: Path, quiet: bool) -> None:
        self._directory = directory
        self._quiet = quiet
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = int(probe.getsockname()[1])
        shown = self._tandem("issuer", "client", "add", "shop", "--data", "issuer", "--role", _ROLE, "--json")
        self.secret = str(json.loads(shown)["client_secret"])
        self.issuer = self._start_issuer()
        trusted = f'[[trusted_issuer]]\nissuer = "{self.authority}/tandem/v2.0"\n'
        trusted += f'jwks_url = "{self.authority}/tandem/discovery/v2.0/keys"\nca = "issuer/ca.pem"\n'
        (directory / "tandem.toml").write_text(f'[[queue]]\nname = "{QUEUE}"\n{trusted}', encoding="utf-8")
        self.broker, lines = self._start("serve", "--dev", "--port", "0", "--data", "data")
        self.connection = next(line.partition(": ")[2] for line in lines if line.startswith("connection string: "))

    @property
    def authority(self) -> str:
        return f"https://localhost:{self.port}"

    @property
    def host(self) -> str:
        return self.connection.partition("sb://")[2].partition(";")[0].rstrip("/")

    def say(self, text: str) -> None:
        if not self._quiet:
            print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)

    def credential(self, fallback: bool) -> IssuerCredential:
        issuer = HttpIssuer(
            f"{self.authority}/tandem/oauth2/v2.0/token", "shop", self.secret, ca=str(self._directory / "issuer" / "ca.pem")
        )
        key = SasCredential.from_connection_string(self.connection) if fallback else None
        return IssuerCredential(issuer, scope=SERVICE_BUS_SCOPE, fallback=key, retry_pause=0.5, retry_pause_max=1.0)

    def kill_issuer(self) -> None:
        self.issuer.kill()
        self.issuer.wait()

    def return_issuer(self) -> None:
        self.issuer = self._start_issuer()

    def close(self) -> None:
        for process in (self.issuer, self.broker):
            process.kill()
            process.wait()

    def _start_issuer(self) -> subprocess.Popen[str]:
        return self._start("issuer", "serve", "--data", "issuer", "--port", str(self.port), "--lifetime", f"{LIFETIME}s")[0]

    def _start(self, *arguments: str) -> tuple[subprocess.Popen[str], list[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tandem", *arguments], cwd=self._directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert process.stdout is not None
        lines: list[str] = []
        for line in process.stdout:
            lines.append(line.strip())
            if line.startswith("ready"):
                return process, lines
        raise RuntimeError(f"tandem {' '.join(arguments[:2])} ended with {process.wait()}")

    def _tandem(self, *arguments: str) -> str:
        return subprocess.check_output([sys.executable, "-m", "tandem", *arguments], cwd=self._directory, text=True)


async def _play(stage: _Stage) -> IssuerVerdict:
    verdict = IssuerVerdict()
    stage.say(
        f"an issuer ({stage.authority}) and a broker ({stage.host}) are ready; tokens are good for {LIFETIME} s instead of three hours"
    )
    holder = stage.credential(fallback=False)
    token = await holder.get_token(QUEUE)
    async with _client(stage, holder) as client, client.get_queue_sender(QUEUE) as sender:
        for _ in range(10):
            await sender.send_messages(ServiceBusMessage("before"))
            verdict.send_before()
        stage.say(f"{verdict.sent_before} messages sent with an issued token")
        stage.kill_issuer()
        stage.say(f"the issuer was killed; the token in hand is good for {token.expires_on - time.time():.1f} s more")
        await _go_on(sender, token.expires_on, verdict)
    stage.say(f"{verdict.sent_without_issuer} more sent without it; then the token ended and the broker took nothing more")
    spare = stage.credential(fallback=True)
    async with _client(stage, spare) as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("signed by ourselves"))
        verdict.send_signed(spare.signed_by_fallback)
    stage.say("a new client that was given a key signed for itself, and sent")
    await asyncio.to_thread(stage.return_issuer)
    stage.say("the issuer is back")
    await _renewed(holder)
    async with _client(stage, holder) as client, client.get_queue_sender(QUEUE) as sender:
        await sender.send_messages(ServiceBusMessage("after"))
        verdict.send_after()
    stage.say("and the first client has a token again, and sends")
    await holder.close()
    await spare.close()
    return verdict


def _client(stage: _Stage, credential: IssuerCredential) -> Any:
    return ServiceBusClient(stage.host, credential, use_tls=False, retry_total=0)


async def _go_on(sender: Any, ends: int, verdict: IssuerVerdict) -> None:
    """Until it is refused; a send that began in time and is answered a moment later was in time."""
    while time.time() < ends + 3:
        began = time.time()
        try:
            await sender.send_messages(ServiceBusMessage("during"))
        except (AzureError, TokenUnavailableError):
            return
        verdict.send_alone(in_time=began <= ends + 1)
        await asyncio.sleep(0.1)


async def _renewed(credential: IssuerCredential) -> None:
    """Asked as a client asks: again and again."""
    for _ in range(300):
        try:
            await credential.get_token(QUEUE)
        except TokenUnavailableError:
            await asyncio.sleep(0.1)
        else:
            return
