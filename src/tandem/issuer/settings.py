"""What an issuer is told before it starts: decided, checked and frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tandem.tokens.trust import SERVICE_BUS

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerSettings:
    url: str
    """Where clients and brokers reach it; what they are told in its documents."""
    tenant: str = "tandem"
    lifetime_ms: int = 3 * HOUR_MS
    """Of a token. While the issuer is down its clients go on until theirs end."""
    rotate_every_ms: int = 30 * DAY_MS
    """How long one key signs."""
    publish_ahead_ms: int = HOUR_MS
    """A new key is published so long before it signs, so that brokers know it by then."""
    audiences: tuple[str, ...] = (SERVICE_BUS,)
    """What tokens may be asked for."""
    requests_per_minute: int = 120
    """Of one client, and of one address."""

    @property
    def issuer(self) -> str:
        """The `iss` of every token."""
        return f"{self.url}/{self.tenant}/v2.0"

    @property
    def token_url(self) -> str:
        return f"{self.url}/{self.tenant}/oauth2/v2.0/token"

    @property
    def keys_url(self) -> str:
        return f"{self.url}/{self.tenant}/discovery/v2.0/keys"
