"""What a token of either kind, self-signed or issued, allows in one namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.model.clock import Clock
from tandem.model.entity import Right
from tandem.model.errors import AuthenticationFailed, Unauthorized
from tandem.server import sas
from tandem.server.sas import Grant, RuleLookup

if TYPE_CHECKING:  # loaded only where issued tokens are accepted: it takes a while
    from tandem.tokens.verifier import Believed, TokenVerifier

_NO_RIGHTS: Final[frozenset[Right]] = frozenset()


class Authority:
    """Asked by every door. A token is known by its text: clients send both kinds under one name."""

    def __init__(self, namespace: str, rules: RuleLookup, clock: Clock, verifier: TokenVerifier | None = None) -> None:
        self._namespace = namespace
        self._rules = rules
        self._clock = clock
        self._verifier = verifier

    def grants(self, token: str, path: str, rest: str = "") -> list[Grant]:
        """For `path` and what lies beneath it. Raises AuthenticationFailed; UnknownKey when `grants_looking` may know more."""
        if sas.looks_like_sas(token):
            return [sas.verify(token, path, self._rules, self._clock.now_ms(), rest=rest)]
        if self._verifier is None:
            raise AuthenticationFailed("The token is not a shared access signature; no other token issuer is configured.")
        return _issued(self._verifier.verify(token, self._namespace), path)

    async def grants_looking(self, token: str, path: str, rest: str = "") -> list[Grant]:
        """The same; the key of an issued token that is not known yet is looked for first."""
        if self._verifier is None or sas.looks_like_sas(token):
            return self.grants(token, path, rest)
        return _issued(await self._verifier.verify_looking(token, self._namespace), path)

    async def authorized_until(self, token: str | None, path: str, right: Right, rest: str = "") -> int:
        """`token` is the value of an Authorization header, `rest` what follows `path` in the request's. When it ends, in ms UTC; raises
        AuthenticationFailed or Unauthorized."""
        if not token:
            raise AuthenticationFailed("MissingToken: the request has no Authorization header.")
        for grant in await self.grants_looking(token, path, rest):
            if grant.allows(right) and grant.covers(path):
                return grant.expires_at_ms
        raise Unauthorized(f"InsufficientClaims: the claim '{right.value}' is needed for '{path or self._namespace}'.")

    def holder_of(self, token: str) -> str:
        """Whose token it is, for those who have let it pass: the name of a key, or issuer and subject."""
        if sas.looks_like_sas(token):
            return sas.parse(token).key_names[0]
        grants = self.grants(token, "")
        return grants[0].key_name if grants else ""

    def revoked(self, grant: Grant) -> bool:
        """Its issuer has taken back what it stands on."""
        holder = grant.holder
        return holder is not None and self._verifier is not None and self._verifier.revoked(holder)


def _issued(believed: Believed, path: str) -> list[Grant]:
    """A grant for the path itself, even if it allows nothing (an older one must not outlive it), and one for each entity beneath."""
    claims, folded = believed.claims, path.strip("/").casefold()
    rights = _NO_RIGHTS
    grants = []
    name = f"{claims.issuer} {claims.subject}"
    for scope, allowed in believed.rights.items():
        if sas.beneath(folded, scope):
            rights |= allowed
        elif sas.beneath(scope, folded):
            grants.append(Grant(allowed, claims.expires_at_ms, scope, name, claims))
    return [Grant(rights, claims.expires_at_ms, folded, name, claims), *grants]
