"""JSON Web Tokens: who signed one, for whom, from when until when; no clock, no network, no state.

The signature is checked by PyJWT; times are compared here, because the instant is handed in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jwt

from tandem.model.errors import AuthenticationFailed, expired_token
from tandem.tokens.key_set import KeySet
from tandem.tokens.trust import TrustedIssuer, UnknownKey

TOKEN_CHARS_MAX: Final = 16_384
_SECONDS_MAX: Final = 2**40
_NAMES_SHOWN_MAX: Final = 60


@dataclass(frozen=True, slots=True)
class Claims:
    """What a believed token says about its holder."""

    issuer: str
    subject: str
    """For people and logs: `sub`, else the client's id."""
    names: frozenset[str]
    """Everything the holder may be called: `sub`, `oid`, `azp`, `appid`."""
    roles: frozenset[str]
    scopes: frozenset[str]
    groups: frozenset[str]
    issued_at: int
    """In seconds; 0 when it does not say."""
    expires_at_ms: int


@dataclass(frozen=True, slots=True)
class UnverifiedToken:
    """A token taken apart, not yet believed."""

    text: str = field(repr=False)
    issuer: str
    algorithm: str
    key_id: str | None


def looks_like_jwt(text: str) -> bool:
    """Three parts of which the first, as JSON, begins with a brace. SAS and JWT arrive under one token type."""
    return without_bearer(text)[:2] == "ey"


def without_bearer(text: str) -> str:
    text = text.strip()
    return text[7:].lstrip() if text[:7].casefold() == "bearer " else text


def read_unverified(text: str) -> UnverifiedToken:
    """Take a token apart; raises AuthenticationFailed with what is malformed."""
    text = without_bearer(text)
    if len(text) > TOKEN_CHARS_MAX:
        raise AuthenticationFailed(f"MalformedToken: the token has {len(text)} characters; at most {TOKEN_CHARS_MAX} are allowed.")
    try:
        whole = jwt.api_jws.PyJWS().decode_complete(text, options={"verify_signature": False})
        payload = json.loads(whole["payload"])
    except (jwt.PyJWTError, ValueError, RecursionError):
        raise AuthenticationFailed("MalformedToken: the token is no JSON Web Token of three parts.") from None
    header = whole["header"]
    issuer = payload.get("iss") if isinstance(payload, dict) else None
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(issuer, str) or not isinstance(algorithm, str) or not isinstance(key_id, str | None):
        raise AuthenticationFailed("MalformedToken: the token must say its algorithm ('alg') and its issuer ('iss').")
    return UnverifiedToken(text, issuer, algorithm, key_id)


def verify(token: UnverifiedToken, trust: TrustedIssuer, keys: KeySet, now: int) -> Claims:
    """What the token says, once everything about it is right; `now` in milliseconds. Raises AuthenticationFailed with what is wrong."""
    if token.issuer != trust.issuer:
        raise AuthenticationFailed(f"InvalidIssuer: tokens of '{shown(token.issuer)}' are not accepted here.")
    if token.algorithm not in trust.algorithms:
        allowed = " or ".join(trust.algorithms)
        raise AuthenticationFailed(f"AlgorithmNotAllowed: the token says '{shown(token.algorithm)}'; allowed is {allowed}.")
    claims = _signed_claims(token, keys)
    _check_audience(claims, trust)
    expires_at_ms = _check_times(claims, trust, now)
    said = _read(claims, token.issuer, expires_at_ms)
    _check_revoked(said, keys)
    return said


def shown(text: str) -> str:
    """Text of a stranger, fit for a log: short, printable, in one line."""
    clean = "".join(mark if mark.isprintable() and mark != "'" else "?" for mark in text[:_NAMES_SHOWN_MAX])
    return clean + ("…" if len(text) > _NAMES_SHOWN_MAX else "")


def _signed_claims(token: UnverifiedToken, keys: KeySet) -> dict[str, Any]:
    key = keys.find(token.key_id, token.algorithm)
    if key is None:
        if token.key_id is not None and keys.knows(token.key_id):
            raise AuthenticationFailed(f"InvalidSignature: the key '{shown(token.key_id)}' is not for {token.algorithm}.")
        named = f"with key '{shown(token.key_id)}'" if token.key_id is not None else "without saying with which key"
        raise UnknownKey(f"UnknownKey: the token was signed {named}; its issuer publishes no such key.")
    try:
        # Our keys are bound to one algorithm each: what the header says was compared, and decides nothing here.
        payload = jwt.api_jws.PyJWS().decode(token.text, key.public, algorithms=[key.algorithm])
    except jwt.PyJWTError:
        raise AuthenticationFailed("InvalidSignature: the token was signed with another key, or changed after it was signed.") from None
    claims = json.loads(payload)
    if not isinstance(claims, dict):
        raise AuthenticationFailed("MalformedToken: the token's claims are no JSON object.")
    return claims


def _check_audience(claims: Mapping[str, Any], trust: TrustedIssuer) -> None:
    said = claims.get("aud")
    audiences = said if isinstance(said, list) else [said]
    wanted = {audience.rstrip("/") for audience in trust.audiences}
    if not any(isinstance(audience, str) and audience.rstrip("/") in wanted for audience in audiences):
        first = next((audience for audience in audiences if isinstance(audience, str)), "")
        raise AuthenticationFailed(f"InvalidAudience: the token was made for '{shown(first)}', not for this broker.")


def _check_times(claims: Mapping[str, Any], trust: TrustedIssuer, now: int) -> int:
    """When the token ends, in milliseconds."""
    expires_at = _instant(claims, "exp")
    if expires_at is None:
        raise AuthenticationFailed("MalformedToken: the token does not say when it ends ('exp').")
    if now >= expires_at:
        raise expired_token(expires_at, now)
    for name in ("nbf", "iat"):
        begins_at = _instant(claims, name)
        if begins_at is not None and now + trust.leeway_ms < begins_at:
            early = (begins_at - now) // 1000
            raise AuthenticationFailed(f"TokenNotYetValid: the token's '{name}' is {early} seconds ahead of this broker's clock.")
    return expires_at


def _instant(claims: Mapping[str, Any], name: str) -> int | None:
    """Milliseconds of a NumericDate (RFC 7519, section 2), which may have a fraction."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _SECONDS_MAX:
        raise AuthenticationFailed(f"MalformedToken: '{name}' must be a number of seconds since 1970-01-01 UTC.")
    return int(value * 1000)


def _read(claims: Mapping[str, Any], issuer: str, expires_at_ms: int) -> Claims:
    names = [value for name in ("sub", "oid", "azp", "appid") if isinstance(value := claims.get(name), str) and value]
    if not names:
        raise AuthenticationFailed("MalformedToken: the token does not say whose it is ('sub').")
    scopes = claims.get("scp", claims.get("scope", ""))
    words = scopes.split() if isinstance(scopes, str) else _texts(scopes)
    return Claims(
        issuer=issuer,
        subject=names[0],
        names=frozenset(names),
        roles=frozenset(_texts(claims.get("roles"))),
        scopes=frozenset(words),
        groups=frozenset(_texts(claims.get("groups"))),
        issued_at=(_instant(claims, "iat") or 0) // 1000,
        expires_at_ms=expires_at_ms,
    )


def _texts(found: object) -> list[str]:
    return [item for item in found if isinstance(item, str)] if isinstance(found, list) else []


def _check_revoked(claims: Claims, keys: KeySet) -> None:
    if keys.has_revoked(claims.names, claims.issued_at):
        raise AuthenticationFailed(f"RevokedClient: the tokens of '{shown(claims.subject)}' were revoked by their issuer.")
