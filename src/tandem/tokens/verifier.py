"""Believes tokens: finds the issuer a token names, its keys, and what the token allows in a namespace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tandem.model.clock import Clock
from tandem.model.errors import AuthenticationFailed
from tandem.tokens.key_set import KeySet
from tandem.tokens.key_source import KeySource
from tandem.tokens.rights import RightsByScope, rights_of
from tandem.tokens.trust import UnknownKey
from tandem.tokens.verification import Claims, read_unverified, shown, verify

_KNOWN_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Believed:
    """A token that was believed, in one namespace."""

    claims: Claims
    rights: RightsByScope


@dataclass(frozen=True, slots=True)
class _Known:
    keys: KeySet
    """With which it was believed; when they change it is looked at anew."""
    believed: Believed


class TokenVerifier:
    """All trusted issuers of a broker."""

    def __init__(self, sources: Sequence[KeySource], clock: Clock) -> None:
        self._sources: Mapping[str, KeySource] = {source.trust.issuer: source for source in sources}
        self._clock = clock
        self._known: dict[tuple[str, str], _Known] = {}
        """Over HTTP the same token comes with every request; a signature takes a tenth of a millisecond."""
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
        now = self._clock.now_ms()
        known = self._known.get((text, namespace))
        if (
            known is not None
            and known.keys is self._sources[known.believed.claims.issuer].keys
            and now < known.believed.claims.expires_at_ms
        ):
            return known.believed
        token = read_unverified(text)
        source = self._sources.get(token.issuer)
        if source is None:
            raise AuthenticationFailed(f"InvalidIssuer: tokens of '{shown(token.issuer)}' are not accepted here.")
        keys = source.keys
        claims = verify(token, source.trust, keys, now)
        believed = Believed(claims, rights_of(claims, source.trust, namespace))
        self._known.pop((text, namespace), None)
        while len(self._known) >= _KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[text, namespace] = _Known(keys, believed)
        return believed

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
