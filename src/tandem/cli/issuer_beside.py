"""An issuer of tokens in the process of a broker that believes it: one process for those who want no second one."""

from __future__ import annotations

import json
import os
import socket
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Final

from tandem.cli.audit_file import audit_to
from tandem.cli.configuration.own_issuer import OwnIssuer
from tandem.cli.configuration.settings import LOOPBACK, is_loopback
from tandem.cli.listening import listen
from tandem.cli.log_output import LINES
from tandem.issuer.clients import ClientBook
from tandem.issuer.endpoint import TokenEndpoint
from tandem.issuer.server import IssuerServer
from tandem.issuer.settings import IssuerSettings
from tandem.issuer.signing_keys import SigningKeys
from tandem.model.clock import SystemClock
from tandem.server.settings import ServerSettings, TlsSettings
from tandem.tokens.key_source import fetch_keys, read_keys
from tandem.tokens.trust import TrustedIssuer
from tandem.wire.tls import server_context

AUDIT: Final = "issuer-audit.jsonl"
_REFRESH_MS: Final = 1_000
"""Its keys and its removed clients are at hand: the broker looks at them every second."""


class IssuerBeside:
    """Its port is taken when it is made. The broker has its keys without asking over the network."""

    def __init__(self, wanted: OwnIssuer, broker: ServerSettings, directory: Path) -> None:
        host = wanted.host or (broker.listeners[0].host if broker.listeners else LOOPBACK)
        self._listener: socket.socket = listen(host, wanted.port)
        self._address = f"{host}:{self._listener.getsockname()[1]}"
        known_as = "localhost" if is_loopback(host) or host in ("0.0.0.0", "::") else host
        self.settings = IssuerSettings(
            url=(wanted.url or f"https://{known_as}:{self._listener.getsockname()[1]}").rstrip("/"),
            tenant=wanted.tenant,
            lifetime_ms=wanted.lifetime_ms,
            rotate_every_ms=wanted.rotate_every_ms,
            publish_ahead_ms=wanted.publish_ahead_ms,
            requests_per_minute=wanted.requests_per_minute,
        )
        clock = SystemClock()
        self._keys, self._book = SigningKeys(directory, self.settings, os.urandom), ClientBook(directory)
        audit = audit_to(directory / AUDIT, LINES.say)
        endpoint = TokenEndpoint(self.settings, self._keys, self._book, clock=clock, entropy=os.urandom, audit=audit)
        self._server = IssuerServer(self.settings, self._keys, self._book, endpoint, clock=clock, note=LINES.say)
        self.trust = TrustedIssuer(
            issuer=self.settings.issuer,
            jwks_url=self.settings.keys_url,
            refresh_ms=_REFRESH_MS,
            refetch_min_ms=_REFRESH_MS,
            service_roles=wanted.service_roles,
            grants=wanted.grants,
        )
        self._directory = directory
        self._published = ""

    def believed_by(self, broker: ServerSettings) -> ServerSettings:
        return replace(broker, trusted_issuers=(*broker.trusted_issuers, self.trust))

    async def fetch_keys(self, trust: TrustedIssuer) -> bytes:
        """Of this issuer, or of any other that the broker believes."""
        if trust.issuer == self.trust.issuer:
            return json.dumps(self._server.key_set()).encode()
        return await (read_keys(trust) if trust.jwks_file is not None else fetch_keys(trust))

    def in_file(self, file: Path) -> TrustedIssuer:
        """How other processes believe it: its keys are kept in a file for them, see `publish`."""
        return replace(self.trust, jwks_url="", jwks_file=file)

    def publish(self, file: Path) -> None:
        """Whole or not at all, and only what changed."""
        text = json.dumps(self._server.key_set())
        if text != self._published:
            beside = file.with_suffix(".new")
            beside.write_text(text, encoding="utf-8")
            beside.replace(file)
            self._published = text

    async def start(self, tls: TlsSettings) -> None:
        await self._server.start(self._listener, server_context(tls.certificate, tls.private_key))

    def use_certificate(self, tls: ssl.SSLContext) -> None:
        self._server.use_certificate(tls)

    async def stop(self) -> None:
        await self._server.stop()

    def greeting(self) -> list[str]:
        """What a client's credential needs to know."""
        return [
            f"issuer: {self.settings.url}, tenant {self.settings.tenant}; clients: tandem issuer client add NAME --data {self._directory}"
        ]
