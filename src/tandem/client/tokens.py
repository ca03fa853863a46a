"""Credentials that do not fail with the service that issues tokens: self-signed ones, and issued ones kept while they are valid."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import ssl
import urllib.parse
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
from azure.core.credentials import AccessToken

from tandem.model.backoff import Backoff, unforeseeable
from tandem.model.clock import SystemClock

log = logging.getLogger("tandem.client.tokens")

SAS_TYPE = b"servicebus.windows.net:sastoken"
"""Tells the SDK to ask for a token per entity. On the wire the service looks at the token itself."""

SERVICE_BUS_SCOPE = "https://servicebus.azure.net/.default"
"""What issuers of JSON Web Tokens are asked for."""

Issue = Callable[[str], Awaitable[AccessToken]]

_JITTER = 0.1
"""Of a token's life, or of a pause: so much later, at most, than planned."""
_IDLE_MS = 600_000


class TokenUnavailableError(Exception):
    """The issuer is down, no valid token is left, and there is no key to sign one with. Configure a fallback, or wait for the issuer."""


class SasCredential:
    """Signs its own tokens with a shared key: nobody else has to be up for a send."""

    token_type = SAS_TYPE

    def __init__(self, key_name: str, key: str, *, lifetime: float = 3_600.0, now_ms: Callable[[], int] | None = None) -> None:
        self._key_name = key_name
        self._key = key.encode()
        self._lifetime = lifetime
        self._now_ms = now_ms or SystemClock().now_ms

    @classmethod
    def from_connection_string(cls, connection_string: str, **options: Any) -> SasCredential:
        """The key of a connection string."""
        pairs = (part.partition("=") for part in connection_string.split(";") if part.strip())
        fields = {name.strip().casefold(): value.strip() for name, _, value in pairs}
        try:
            return cls(fields["sharedaccesskeyname"], fields["sharedaccesskey"], **options)
        except KeyError as missing:
            raise ValueError(f"the connection string has no {missing}") from None

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        if not scopes:
            raise ValueError("a token is for a resource; none was named")
        resource = urllib.parse.quote_plus(scopes[0])
        expiry = int(self._now_ms() / 1000 + self._lifetime)
        signature = base64.b64encode(hmac.new(self._key, f"{resource}\n{expiry}".encode(), hashlib.sha256).digest())
        fields = urllib.parse.urlencode({"sr": scopes[0], "sig": signature, "se": str(expiry), "skn": self._key_name})
        return AccessToken("SharedAccessSignature " + fields, expiry)

    async def close(self) -> None:
        """Nothing is held open; here because the SDK closes its credentials."""

    async def __aenter__(self) -> SasCredential:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


@dataclass(slots=True)
class _Held:
    token: AccessToken
    life_ms: int
    refresh_at_ms: int


class IssuerCredential:
    """Tokens from an issuer, fetched long before the old one ends, and kept in use while the issuer is down.

    A token is renewed once `refresh_share` of its life has passed: in the background, a little later for some than for others, and at
    the latest when somebody asks. If that fails the old one stays in use until it ends, and the issuer is asked again after a pause
    that doubles. Past the end, `fallback` signs one, or TokenUnavailableError is raised.
    """

    token_type = SAS_TYPE

    def __init__(
        self,
        issue: Issue,
        *,
        scope: str | None = None,
        fallback: SasCredential | None = None,
        refresh_share: float = 0.5,
        issue_timeout: float = 10.0,
        retry_pause: float = 5.0,
        retry_pause_max: float = 300.0,
        scopes_max: int = 1_000,
        now_ms: Callable[[], int] | None = None,
        chance: Callable[[], float] = unforeseeable,
    ) -> None:
        """`scope`: what the issuer is asked for, when one token is good for all entities; None: each entity's own address."""
        if not 0 < refresh_share < 1:
            raise ValueError("refresh_share must be between 0 and 1")
        self._issue = issue
        self._scope = scope
        self._fallback = fallback
        self._share = refresh_share
        self._timeout = issue_timeout
        self._pauses_ms = Backoff(retry_pause * 1000, retry_pause_max * 1000)
        self._ask_again_ms = 0
        self._scopes_max = scopes_max
        self._now_ms = now_ms or SystemClock().now_ms
        self._chance = chance
        self._held: dict[str, _Held] = {}
        self._wanted: dict[str, int] = {}
        """Scope -> when somebody last asked for it."""
        self._asking: dict[str, asyncio.Task[AccessToken]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False
        self.last_error: BaseException | None = None
        self.issued = 0
        self.signed_by_fallback = 0

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        """A token that is valid now: the held one, a new one, or one signed by the fallback."""
        if not scopes:
            raise ValueError("a token is for a resource; none was named")
        resource = scopes[0]
        scope = self._scope or resource
        now = self._now_ms()
        self._note_wanted(scope, now)
        held = self._held.get(scope)
        valid = held is not None and held.token.expires_on * 1000 > now
        if held is not None and valid and now < held.refresh_at_ms:
            return held.token
        known_down = now < self._ask_again_ms or (scope in self._asking and self.last_error is not None)
        if known_down and (valid or self._fallback is not None):
            return await self._without_issuer(resource, held.token if held is not None and valid else None)
        asking = self._ask(scope)
        if held is not None and valid:
            # Nobody waits for a refresh: the held token is good, and the new one is there for the next call.
            return held.token
        try:
            return await asyncio.shield(asking)
        except Exception as error:
            if self._fallback is None:
                raise TokenUnavailableError(f"no token for {resource}: {error}") from error
            return await self._without_issuer(resource, None)

    def _note_wanted(self, scope: str, now: int) -> None:
        self._wanted.pop(scope, None)
        while len(self._wanted) >= self._scopes_max:
            self._forget(next(iter(self._wanted)))
        self._wanted[scope] = now

    def _forget(self, scope: str) -> None:
        self._wanted.pop(scope, None)
        self._held.pop(scope, None)
        timer = self._timers.pop(scope, None)
        if timer is not None:
            timer.cancel()

    def _ask(self, scope: str) -> asyncio.Task[AccessToken]:
        """One request per scope at a time, however many ask."""
        task = self._asking.get(scope)
        if task is None:
            task = self._asking[scope] = asyncio.ensure_future(self._fetch(scope))
            task.add_done_callback(lambda done: self._answered(scope, done))
        return task

    async def _fetch(self, scope: str) -> AccessToken:
        async with asyncio.timeout(self._timeout):
            token = await self._issue(scope)
        now = self._now_ms()
        life_ms = token.expires_on * 1000 - now
        if life_ms <= 0:
            raise TokenUnavailableError(f"the issuer gave a token for {scope} that is over already")
        if scope in self._wanted:
            self._held[scope] = _Held(token, life_ms, now + int(life_ms * self._share))
        return token

    def _answered(self, scope: str, task: asyncio.Task[AccessToken]) -> None:
        self._asking.pop(scope, None)
        if task.cancelled() or self._closed:
            return
        error = task.exception()
        self.last_error = error
        held = self._held.get(scope)
        if error is None and held is not None:
            self.issued += 1
            self._pauses_ms.reset()
            self._ask_again_ms = 0
            # Not all at the same moment: a thousand clients were started together.
            self._renew_after(scope, held.refresh_at_ms - self._now_ms() + int(held.life_ms * _JITTER * self._chance()))
            return
        pause_ms = int(self._pauses_ms.next_pause())
        self._ask_again_ms = self._now_ms() + pause_ms
        self._renew_after(scope, pause_ms + int(pause_ms * _JITTER * self._chance()))
        log.warning("the token issuer did not answer for %s, asking again in %.3g s: %s", scope, pause_ms / 1000, error or repr(error))

    def _renew_after(self, scope: str, delay_ms: int) -> None:
        timer = self._timers.pop(scope, None)
        if timer is not None:
            timer.cancel()
        self._timers[scope] = asyncio.get_running_loop().call_later(max(delay_ms, 0) / 1000, self._renew, scope)

    def _renew(self, scope: str) -> None:
        """In the background: whoever asks next finds a token that is far from its end."""
        self._timers.pop(scope, None)
        held, now = self._held.get(scope), self._now_ms()
        idle_ms = max(held.life_ms if held is not None else 0, _IDLE_MS)
        if now - self._wanted.get(scope, now) > idle_ms:
            self._forget(scope)
        else:
            self._ask(scope)

    async def _without_issuer(self, resource: str, token: AccessToken | None) -> AccessToken:
        if token is not None:
            return token
        if self._fallback is None:
            raise TokenUnavailableError(f"no token for {resource}: {self.last_error}")
        self.signed_by_fallback += 1
        return await self._fallback.get_token(resource)

    async def close(self) -> None:
        self._closed = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for task in tuple(self._asking.values()):
            task.cancel()

    async def __aenter__(self) -> IssuerCredential:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class HttpIssuer:
    """Asks an issuer over HTTP the OAuth 2.0 way: client credentials in, `access_token` and `expires_in` or `expires_on` out."""

    def __init__(
        self, url: str, client_id: str, client_secret: str, *, ca: str | None = None, now_ms: Callable[[], int] | None = None
    ) -> None:
        """`ca`: a file with what to trust for an issuer that the machine does not know."""
        self._url = url
        self._form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": client_secret}
        self._tls: ssl.SSLContext | bool = ssl.create_default_context(cafile=ca) if ca is not None else True
        self._now_ms = now_ms or SystemClock().now_ms

    async def __call__(self, scope: str) -> AccessToken:
        form = {**self._form, "scope": scope}
        async with aiohttp.ClientSession() as session, session.post(self._url, data=form, ssl=self._tls) as response:
            response.raise_for_status()
            answer = await response.json()
        try:
            expires_on = int(answer["expires_on"]) if "expires_on" in answer else int(self._now_ms() / 1000) + int(answer["expires_in"])
            return AccessToken(str(answer["access_token"]), expires_on)
        except (KeyError, TypeError, ValueError) as error:
            raise TokenUnavailableError(f"{self._url} answered without a usable token: {error!r}") from error
