"""Believes tokens: finds the issuer a token names, its keys, and what the token allows in a namespace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tandem.model.clock import Clock
from tandem.model.errors import AuthenticationFailed
from tandem.tokens.key_set import KeySet
from tandem.tokens.key_source import KeySource
from tandem.tokens.rights import RightsByScope, rights_of
from tandem.tokens.trust import UnknownKey
from tandem.tokens.verification import Claims, read_unverified, shown, verify


@dataclass(frozen=True, slots=True)
class Believed:
    """A token that was believed, in one namespace."""

    claims: Claims
    rights: RightsByScope


class TokenVerifier:
    """All trusted issuers of a broker."""

    def __init__(self, sources: Sequence[KeySource], clock: Clock) -> None:
        self._sources: Mapping[str, KeySource] = {source.trust.issuer: source for source in sources}
        self._clock = clock
        self.on_revoked: Callable[[], None] = lambda: None
        """Called when an issuer has revoked somebody: what was granted before is looked at again."""
        for source in sources:
            source.on_change = self._keys_changed

    @property
    def sources(self) -> list[KeySource]:
        return list(self._sources.values())

    async def start(self) -> None:
        for source in self._sources.values():
            await source.start()

    async def close(self) -> None:
        for source in self._sources.values():
            await source.close()

    def verify(self, text: str, namespace: str) -> Believed:
        """With the keys at hand. Raises AuthenticationFailed; UnknownKey when it is worth to `look_again` and ask once more."""
        token = read_unverified(text)
        source = self._sources.get(token.issuer)
        if source is None:
            raise AuthenticationFailed(f"InvalidIssuer: tokens of '{shown(token.issuer)}' are not accepted here.")
        claims = verify(token, source.trust, source.keys, self._clock.now_ms())
        return Believed(claims, rights_of(claims, source.trust, namespace))

    async def verify_looking(self, text: str, namespace: str) -> Believed:
        """The same; a key that is not known yet is looked for first."""
        try:
            return self.verify(text, namespace)
        except UnknownKey:
            source = self._sources[read_unverified(text).issuer]
            if not await source.look_again():
                raise
            return self.verify(text, namespace)

    def revoked(self, holder: Claims) -> bool:
        """Since the token was believed."""
        source = self._sources.get(holder.issuer)
        return source is not None and source.keys.has_revoked(holder.names, holder.issued_at)

    def _keys_changed(self, keys: KeySet) -> None:
        if keys.revoked:
            self.on_revoked()
