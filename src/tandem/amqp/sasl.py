"""SASL as configuration and as frames: what we offer, what we present, and reading the five SASL performatives."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

from mypy_extensions import i64

from tandem.amqp.errors import DecodeError
from tandem.amqp.fields import NAMES, Fields, read_descriptor
from tandem.amqp.frames import (
    SASL_HEADER,
    encode_sasl_challenge,
    encode_sasl_init,
    encode_sasl_mechanisms,
    encode_sasl_outcome,
    encode_sasl_response,
    sasl_frame,
)
from tandem.amqp.handlers import ConnectionHandler

MECHANISMS: Final = 0x40
INIT: Final = 0x41
CHALLENGE: Final = 0x42
RESPONSE: Final = 0x43
OUTCOME: Final = 0x44

OK: Final = 0
AUTH: Final = 1

SERVICE_BUS_MECHANISMS: Final = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
SHARED_SECRET: Final = "TANDEM-HMAC-SHA-256"
"""Ours, between nodes of a cluster: either side shows that it knows the secret, nobody says it."""
NONCE_BYTES: Final = 32


def proof_of(secret: bytes, who: bytes, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """That `who` (b"client", b"server") knows the secret, in this exchange and no other."""
    return hmac.digest(secret, who + b"\x00" + client_nonce + server_nonce, hashlib.sha256)


class SaslServer:
    """Mechanisms to offer, in order of preference. With a secret, and a nonce that was never used: the shared secret alone."""

    def __init__(self, mechanisms: tuple[str, ...] = SERVICE_BUS_MECHANISMS, secret: bytes = b"", nonce: bytes = b"") -> None:
        self.mechanisms = (SHARED_SECRET,) if secret else mechanisms
        self.secret = secret
        self.nonce = nonce


class SaslClient:
    """ANONYMOUS, or PLAIN when a user is given, or the shared secret (and a nonce that was never used)."""

    def __init__(self, user: str = "", password: str = "", secret: bytes = b"", nonce: bytes = b"") -> None:
        self.mechanism = SHARED_SECRET if secret else "PLAIN" if user else "ANONYMOUS"
        self.initial_response = nonce or (b"\x00" + user.encode() + b"\x00" + password.encode() if user else b"")
        self.secret = secret

    def answer(self, challenge: bytes) -> bytes | None:
        """To a server's challenge; None: it does not know the secret."""
        if not self.secret:
            return self.initial_response
        nonce = challenge[:NONCE_BYTES]
        if not hmac.compare_digest(challenge, nonce + proof_of(self.secret, b"server", self.initial_response, nonce)):
            return None
        return proof_of(self.secret, b"client", self.initial_response, nonce)


class SaslInit:
    def __init__(self, f: Fields) -> None:
        try:
            self.mechanism = str(f.symbol("mechanism", True))
            self.initial_response = f.binary("initial-response")
            self.hostname = f.string("hostname") or ""
            f.finish()
        except DecodeError as error:
            raise f.explain(error) from None


def parse_plain(response: bytes) -> tuple[str, str] | None:
    """(user, password) of `authzid NUL user NUL password`, or None when it is not that."""
    parts = response.split(b"\x00")
    if len(parts) != 3:
        return None
    try:
        return parts[1].decode("utf-8"), parts[2].decode("utf-8")
    except UnicodeDecodeError:
        return None


class SaslExchange:
    """The SASL layer of one connection, either side. `done` when there is nothing (more) to negotiate."""

    def __init__(self, handler: ConnectionHandler, sasl: SaslServer | SaslClient | None, hostname: str | None) -> None:
        self.handler = handler
        self.sasl = sasl
        self.hostname = hostname
        self.out: list[bytes] = []
        self.done = not isinstance(sasl, SaslClient)
        """False holds AMQP frames back, so only a client starts that way."""
        self.spoken = False
        """The peer's SASL header has come."""
        self.failed = False
        self._challenged = False
        self._client_nonce = b""
        """Of a client that is to show that it knows the secret."""

    def begin(self) -> None:
        self.out.append(SASL_HEADER)

    def meet(self) -> None:
        """The server has answered with its header."""
        self.spoken = True

    def offer(self) -> None:
        assert isinstance(self.sasl, SaslServer)
        self.spoken = True
        self.done = False
        self.out.append(SASL_HEADER)
        self.out.append(sasl_frame(encode_sasl_mechanisms(list(self.sasl.mechanisms))))

    def give_up(self) -> None:
        """A server's last word to a client that talks nonsense."""
        if isinstance(self.sasl, SaslServer) and not self.failed:
            self._finish(False)
        self.failed = True

    def take_frame(self, buf: bytes, at: i64, end: i64) -> None:
        body: i64 = at + (buf[at + 4] << 2)
        if buf[at + 5] != 1 or body < at + 8 or body > end:
            raise DecodeError(f"frame of type {buf[at + 5]} where a SASL frame (1) was expected")
        code, at = read_descriptor(buf, body, end)
        if isinstance(self.sasl, SaslServer):
            if code == INIT and not self._challenged:
                self._on_init(SaslInit(Fields("sasl-init", buf, at, end)))
                return
            if code == RESPONSE and self._challenged:
                f = Fields("sasl-response", buf, at, end)
                response = f.binary("response", True)
                f.finish()
                if self._client_nonce:
                    expected = proof_of(self.sasl.secret, b"client", self._client_nonce, self.sasl.nonce)
                    self._finish(hmac.compare_digest(response or b"", expected))
                else:
                    self._on_plain(response or b"")
                return
        elif isinstance(self.sasl, SaslClient):
            if code == MECHANISMS:
                self._on_mechanisms(self.sasl, Fields("sasl-mechanisms", buf, at, end))
                return
            if code == CHALLENGE:
                f = Fields("sasl-challenge", buf, at, end)
                challenge = f.binary("challenge", True)
                f.finish()
                answer = self.sasl.answer(challenge or b"")
                self.failed = answer is None
                self.out.append(sasl_frame(encode_sasl_response(answer or b"")))
                return
            if code == OUTCOME:
                f = Fields("sasl-outcome", buf, at, end)
                self.done = f.ubyte("code", AUTH) == OK
                self.failed = not self.done
                return
        raise DecodeError(f"{NAMES.get(int(code), 'frame')} was not expected here")

    def _on_init(self, init: SaslInit) -> None:
        assert isinstance(self.sasl, SaslServer)
        if init.mechanism not in self.sasl.mechanisms:
            self._finish(False)
        elif init.mechanism == SHARED_SECRET:
            self._challenge(self.sasl, init.initial_response or b"")
        elif init.mechanism == "PLAIN":
            if init.initial_response is None:
                self._challenged = True
                self.out.append(sasl_frame(encode_sasl_challenge(b"")))
            else:
                self._on_plain(init.initial_response)
        else:
            self._finish(self.handler.on_sasl(init.mechanism, init.hostname))

    def _challenge(self, sasl: SaslServer, nonce: bytes) -> None:
        if len(nonce) != NONCE_BYTES:
            self._finish(False)
            return
        self._challenged = True
        self._client_nonce = nonce
        challenge = sasl.nonce + proof_of(sasl.secret, b"server", nonce, sasl.nonce)
        self.out.append(sasl_frame(encode_sasl_challenge(challenge)))

    def _on_plain(self, response: bytes) -> None:
        parsed = parse_plain(response)
        self._finish(parsed is not None and self.handler.on_sasl_plain(parsed[0], parsed[1]))

    def _on_mechanisms(self, sasl: SaslClient, f: Fields) -> None:
        offered = f.symbols("sasl-server-mechanisms")
        f.finish()
        if sasl.mechanism in offered:
            self.out.append(sasl_frame(encode_sasl_init(sasl.mechanism, sasl.initial_response, self.hostname)))
        else:
            self.failed = True

    def _finish(self, ok: bool) -> None:
        self.out.append(sasl_frame(encode_sasl_outcome(OK if ok else AUTH)))
        self.done = ok
        self.failed = not ok
