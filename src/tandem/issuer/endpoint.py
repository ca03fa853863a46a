"""The token endpoint: client credentials (RFC 6749, section 4.4) in, a token or a refusal out, and a line of audit for each."""

from __future__ import annotations

import asyncio
import base64
import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_plus

import jwt

from tandem.issuer.clients import Client, ClientBook
from tandem.issuer.rate_limit import RateLimit
from tandem.issuer.settings import IssuerSettings
from tandem.issuer.signing_keys import SigningKeys
from tandem.model.clock import Clock
from tandem.tokens.verification import shown

_DEFAULT: Final = "/.default"
_HASHING_MAX: Final = 2
"""Secrets that are compared at once: each takes a core for a while."""

Audit = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: dict[str, Any]
    retry_after: int = 0
    """Seconds; 0: nothing is said."""


class Refusal(Exception):
    """What is wrong, in OAuth's word and in ours."""

    def __init__(self, error: str, description: str, status: int = 400, retry_after: int = 0) -> None:
        super().__init__(description)
        self.answer = Answer(status, {"error": error, "error_description": description}, retry_after)
        self.error = error


class TokenEndpoint:
    def __init__(
        self,
        settings: IssuerSettings,
        keys: SigningKeys,
        book: ClientBook,
        *,
        clock: Clock,
        entropy: Callable[[int], bytes],
        audit: Audit,
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._book = book
        self._clock = clock
        self._entropy = entropy
        self._audit = audit
        self._by_address = RateLimit(settings.requests_per_minute)
        self._by_client = RateLimit(settings.requests_per_minute)
        self._hashing = asyncio.Semaphore(_HASHING_MAX)

    async def answer(self, form: Mapping[str, str], authorization: str, address: str) -> Answer:
        """`authorization` is the header of that name, or empty."""
        client_id = ""
        try:
            self._admit(self._by_address, address)
            client_id, secret = credentials(form, authorization)
            self._admit(self._by_client, client_id)
            client = await self._known(client_id, secret)
            audience = self._audience(form.get("scope", ""))
            if form.get("grant_type") != "client_credentials":
                raise Refusal("unsupported_grant_type", "The grant_type must be client_credentials.")
        except Refusal as refusal:
            self._audit({"event": "refused", "client": shown(client_id), "address": address, "reason": refusal.error})
            return refusal.answer
        return self._issue(client, audience, address)

    def _admit(self, limit: RateLimit, who: str) -> None:
        wait = limit.wait_ms(who, self._clock.steady_ms())
        if wait:
            raise Refusal("temporarily_unavailable", "Too many requests; ask again later.", 429, math.ceil(wait / 1000))

    async def _known(self, client_id: str, secret: str) -> Client:
        async with self._hashing:
            client = await asyncio.to_thread(self._book.is_client, client_id, secret)
        if client is None:
            raise Refusal("invalid_client", "There is no client with this id and this secret.", 401)
        return client

    def _audience(self, scope: str) -> str:
        """`https://servicebus.azure.net/.default` asks for everything the client has there."""
        for audience in self._settings.audiences:
            if scope.removesuffix(_DEFAULT).rstrip("/") == audience.rstrip("/"):
                return audience
        raise Refusal("invalid_scope", f"Tokens can be had for {', '.join(one + _DEFAULT for one in self._settings.audiences)}.")

    def _issue(self, client: Client, audience: str, address: str) -> Answer:
        settings, now = self._settings, self._clock.now_ms()
        seconds, life = now // 1000, settings.lifetime_ms // 1000
        token_id = str(uuid.UUID(bytes=self._entropy(16), version=4))
        claims: dict[str, Any] = {
            "iss": settings.issuer,
            "aud": audience,
            "sub": client.client_id,
            "azp": client.client_id,
            "tid": settings.tenant,
            "iat": seconds,
            "nbf": seconds,
            "exp": seconds + life,
            "jti": token_id,
            "ver": "2.0",
        }
        if client.roles:
            claims["roles"] = list(client.roles)
        if client.groups:
            claims["groups"] = list(client.groups)
        key = self._keys.current(now)
        token = jwt.encode(claims, key.private, algorithm="RS256", headers={"kid": key.key_id})
        self._audit(
            {
                "event": "issued",
                "client": client.client_id,
                "address": address,
                "audience": audience,
                "token_id": token_id,
                "expires_at": seconds + life,
            }
        )
        # refresh_in: the SDKs' credentials ask for the next token from then on, and keep this one while they get none.
        return Answer(
            200, {"token_type": "Bearer", "expires_in": life, "ext_expires_in": life, "refresh_in": life // 2, "access_token": token}
        )


def credentials(form: Mapping[str, str], authorization: str) -> tuple[str, str]:
    """In the form, or as user name and password (RFC 6749, section 2.3.1)."""
    if authorization[:6].casefold() == "basic ":
        try:
            user, colon, password = base64.b64decode(authorization[6:].strip(), validate=True).decode().partition(":")
        except ValueError:
            raise Refusal("invalid_client", "The Authorization header cannot be read.", 401) from None
        if colon:
            return unquote_plus(user), unquote_plus(password)
    client_id, secret = form.get("client_id", ""), form.get("client_secret", "")
    if not client_id or not secret:
        raise Refusal("invalid_request", "client_id and client_secret are needed.")
    return client_id, secret
