"""The keys that sign tokens, in a file of their own: made, published before they are used, and kept until their last token has ended."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from tandem.issuer.settings import IssuerSettings
from tandem.model.errors import ConfigurationError
from tandem.wire.files import write_whole

FILE_NAME: Final = "issuer-signing-keys.json"
_BITS: Final = 2_048
_GRACE_MS: Final = 300_000
"""After the last token of a key has ended: clocks differ."""


@dataclass(frozen=True, slots=True)
class SigningKey:
    key_id: str
    signs_from_ms: int
    private: rsa.RSAPrivateKey


class SigningKeys:
    """Oldest first. `look_after` makes the next one in time and drops those that nobody needs any more."""

    def __init__(self, directory: Path, settings: IssuerSettings, entropy: Callable[[int], bytes]) -> None:
        self._file = directory / FILE_NAME
        self._settings = settings
        self._entropy = entropy
        self._keys: list[SigningKey] = _load(self._file)

    def look_after(self, now: int) -> None:
        """Takes a moment when a key is made: call it from a thread."""
        settings, keys = self._settings, list(self._keys)
        if not keys:
            keys.append(self._make(now))
        elif now >= keys[-1].signs_from_ms + settings.rotate_every_ms - settings.publish_ahead_ms:
            keys.append(self._make(now + settings.publish_ahead_ms))
        keys = [key for key, after in zip(keys, [*keys[1:], None], strict=True) if after is None or not self._over(after, now)]
        self._keep(keys)

    def rotate(self, now: int, at_once: bool = False) -> SigningKey:
        """A new key before its time; it signs when brokers had time to learn of it, or at once."""
        fresh = self._make(now if at_once else now + self._settings.publish_ahead_ms)
        self._keep([*self._keys, fresh])
        return fresh

    def current(self, now: int) -> SigningKey:
        """The newest that may sign."""
        return [key for key in self._keys if key.signs_from_ms <= now or key is self._keys[0]][-1]

    def published(self) -> list[dict[str, Any]]:
        """As JWKs: those that sign, will sign, and have signed what is still valid."""
        return [
            {**jwt.algorithms.RSAAlgorithm.to_jwk(key.private.public_key(), as_dict=True), "kid": key.key_id, "use": "sig", "alg": "RS256"}
            for key in self._keys
        ]

    def reload(self) -> None:
        """A command has changed the file."""
        self._keys = _load(self._file)

    def _over(self, successor: SigningKey, now: int) -> bool:
        return now >= successor.signs_from_ms + self._settings.lifetime_ms + _GRACE_MS

    def _make(self, signs_from_ms: int) -> SigningKey:
        key_id = str(uuid.UUID(bytes=self._entropy(16), version=4))
        return SigningKey(key_id, signs_from_ms, rsa.generate_private_key(public_exponent=65_537, key_size=_BITS))

    def _keep(self, keys: list[SigningKey]) -> None:
        if [key.key_id for key in keys] == [key.key_id for key in self._keys]:
            return
        rows = [
            {
                "kid": key.key_id,
                "signs_from_ms": key.signs_from_ms,
                "pem": key.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode("ascii"),
            }
            for key in keys
        ]
        write_whole(self._file, json.dumps({"keys": rows}, indent=2).encode(), 0o600)
        self._keys = keys


def _load(file: Path) -> list[SigningKey]:
    try:
        rows = json.loads(file.read_bytes())["keys"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"{file}: cannot be read ({error}); restore it, or delete it: then no token issued so far is good"
        ) from error
    keys = []
    for row in rows:
        private = load_pem_private_key(row["pem"].encode("ascii"), None)
        assert isinstance(private, rsa.RSAPrivateKey)
        keys.append(SigningKey(str(row["kid"]), int(row["signs_from_ms"]), private))
    return keys
