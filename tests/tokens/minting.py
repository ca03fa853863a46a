"""An issuer small enough to see through: it signs whatever a test asks for, right or wrong."""

from __future__ import annotations

import base64
import functools
import json
import time
from collections.abc import Mapping
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ISSUER = "https://issuer.test/tandem/v2.0"
AUDIENCE = "https://servicebus.azure.net/"
OWNER = "Azure Service Bus Data Owner"
SENDER = "Azure Service Bus Data Sender"
RECEIVER = "Azure Service Bus Data Receiver"

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


@functools.cache
def rsa_key(name: str = "one", bits: int = 2048) -> rsa.RSAPrivateKey:
    """The same for the same name, within one process."""
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@functools.cache
def ec_key(name: str = "one") -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def jwk(key: PrivateKey, key_id: str) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        public = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
        return {**public, "kid": key_id, "use": "sig", "alg": "RS256"}
    public = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**public, "kid": key_id, "use": "sig", "alg": "ES256"}


def key_set(*keys: dict[str, Any], **more: Any) -> bytes:
    return json.dumps({"keys": list(keys), **more}).encode()


def usual_keys() -> bytes:
    return key_set(jwk(rsa_key(), "rsa-1"), jwk(ec_key(), "ec-1"))


def claims(now: float | None = None, **changed: Any) -> dict[str, Any]:
    """Good for an hour from now, for everything; a claim changed to None is left out."""
    at = int(time.time() if now is None else now)
    usual = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "shop",
        "iat": at,
        "nbf": at,
        "exp": at + 3600,
        "roles": [OWNER],
    }
    return {name: value for name, value in {**usual, **changed}.items() if value is not None}


def signed(said: Mapping[str, Any], key: PrivateKey | None = None, key_id: str | None = "rsa-1") -> str:
    key = key or rsa_key()
    algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
    return jwt.encode(dict(said), key, algorithm=algorithm, headers={"kid": key_id} if key_id is not None else None)


def unsigned(said: Mapping[str, Any]) -> str:
    return jwt.encode(dict(said), None, algorithm="none", headers={"kid": "rsa-1"})


def signed_with_the_public_key(said: Mapping[str, Any]) -> str:
    """HS256 with the issuer's public RSA key as the secret: what a careless verifier takes for the issuer's own."""
    import hashlib
    import hmac

    secret = rsa_key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    body = b".".join(_part(part) for part in ({"alg": "HS256", "typ": "JWT", "kid": "rsa-1"}, dict(said)))
    return b".".join((body, base64.urlsafe_b64encode(hmac.new(secret, body, hashlib.sha256).digest()).rstrip(b"="))).decode()


def tampered(token: str, **changed: Any) -> str:
    """Other claims under the old signature."""
    head, body, signature = token.split(".")
    said = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return ".".join((head, _part({**said, **changed}).decode(), signature))


def _part(value: Mapping[str, Any]) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")
