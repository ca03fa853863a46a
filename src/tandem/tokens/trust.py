"""Whom a broker believes, and what it lets the holders of their tokens do: decided, checked and frozen."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tandem.model.entity import Right
from tandem.model.errors import AuthenticationFailed

SERVICE_BUS: Final = "https://servicebus.azure.net/"
"""What the SDKs ask a token for."""
ALGORITHMS: Final = ("RS256", "ES256")
"""Signatures by a key pair. Nothing else can be allowed: whoever may check such a token cannot make one."""


class UnknownKey(AuthenticationFailed):
    """Signed with a key that the issuer had not published when we last looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGrant:
    """What a holder may do here, known by exactly one of `subject`, `group` and `role`."""

    subject: str = ""
    """The token's `sub`, `oid`, `azp` or `appid`."""
    group: str = ""
    role: str = ""
    """One of the token's `roles`, or a word of its `scp`."""
    rights: frozenset[Right]
    entities: tuple[str, ...] = ()
    """Paths, each with everything beneath it; none: the whole namespace."""
    namespace: str = ""
    """Only in this one; empty: in every namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedIssuer:
    """An issuer of tokens that this broker believes."""

    issuer: str
    """Must equal the token's `iss`."""
    jwks_url: str = ""
    """Where its public keys are published."""
    jwks_file: Path | None = None
    """Its public keys in a file, read again when it changes."""
    ca: Path | None = None
    """What to trust for `jwks_url`; None: what the machine trusts."""
    audiences: tuple[str, ...] = (SERVICE_BUS,)
    """The token's `aud` must be one of these; a slash at the end does not matter."""
    algorithms: tuple[str, ...] = ALGORITHMS
    leeway_ms: int = 30_000
    """How far the issuer's clock may be ahead of ours. `exp` gets none: a token ends when it says."""
    refresh_ms: int = 300_000
    """How often the keys are fetched again, in the background. While that fails the known ones stay in use."""
    refetch_min_ms: int = 30_000
    """A token signed with an unknown key makes us look at once, but not more often than this."""
    service_roles: bool = True
    """`Azure Service Bus Data Sender`, `… Receiver` and `… Owner`, and the words Send, Listen and Manage in `scp`, mean what they say."""
    grants: tuple[TokenGrant, ...] = ()
