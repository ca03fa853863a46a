"""The public keys of an issuer (a JWK set, RFC 7517): which of them may check which signature, and which clients it has revoked."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

PublicKey = RSAPublicKey | EllipticCurvePublicKey

REVOKED: Final = "tandem_revoked"
"""A member of the set beside `keys`, as RFC 7517 allows: client id -> the second before which its tokens are void."""
SET_BYTES_MAX: Final = 262_144
_KEYS_MAX: Final = 100
_REVOKED_MAX: Final = 10_000
_RSA_BITS_MIN: Final = 2_048


class UnusableKeys(ValueError):
    """It is no set of keys, or has none that we could use."""


@dataclass(frozen=True, slots=True)
class VerificationKey:
    key_id: str
    algorithm: str
    public: PublicKey


@dataclass(frozen=True, slots=True)
class KeySet:
    keys: tuple[VerificationKey, ...] = ()
    revoked: Mapping[str, int] = field(default_factory=dict)

    def find(self, key_id: str | None, algorithm: str) -> VerificationKey | None:
        """By its id; a token without one is meant for the only key of its algorithm."""
        fitting = [key for key in self.keys if key.algorithm == algorithm and (key_id is None or key.key_id == key_id)]
        return fitting[0] if len(fitting) == 1 or (fitting and key_id is not None) else None

    def has_revoked(self, names: Iterable[str], issued_at: int) -> bool:
        return any(issued_at < self.revoked.get(name, 0) for name in names)

    def knows(self, key_id: str) -> bool:
        return any(key.key_id == key_id for key in self.keys)


def parse_key_set(document: bytes) -> KeySet:
    """Keys we cannot use (encryption, other algorithms, too short) are left out; raises UnusableKeys when none is left."""
    if len(document) > SET_BYTES_MAX:
        raise UnusableKeys(f"the key set has more than {SET_BYTES_MAX} bytes")
    try:
        found = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise UnusableKeys(f"the key set is not JSON: {error}") from None
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise UnusableKeys("the key set has no list 'keys'")
    keys = [key for item in listed[:_KEYS_MAX] if isinstance(item, dict) and (key := _key(item)) is not None]
    if not keys:
        raise UnusableKeys("the key set has no key for RS256 or ES256 signatures")
    return KeySet(tuple(keys), _revoked(found.get(REVOKED)))


def _key(item: dict[str, Any]) -> VerificationKey | None:
    if item.get("use", "sig") != "sig":
        return None
    try:
        public = jwt.PyJWK(item).key
    except jwt.PyJWTError:
        return None
    key_id = item.get("kid", "")
    if not isinstance(key_id, str):
        return None
    if isinstance(public, RSAPublicKey) and public.key_size >= _RSA_BITS_MIN and item.get("alg", "RS256") == "RS256":
        return VerificationKey(key_id, "RS256", public)
    if isinstance(public, EllipticCurvePublicKey) and isinstance(public.curve, SECP256R1) and item.get("alg", "ES256") == "ES256":
        return VerificationKey(key_id, "ES256", public)
    return None


def _revoked(found: object) -> dict[str, int]:
    if not isinstance(found, dict):
        return {}
    entries = list(found.items())[:_REVOKED_MAX]
    return {client: second for client, second in entries if isinstance(second, int) and not isinstance(second, bool)}
