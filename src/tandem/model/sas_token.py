"""Shared access signatures: how a key signs what its bearer may reach, and until when."""

from __future__ import annotations

import base64
import hmac
from urllib.parse import quote_plus


def sign(key: str, signed: bytes) -> bytes:
    return hmac.digest(key.encode(), signed, "sha256")


def make_token(uri: str, key_name: str, key: str, expires_at_ms: int) -> str:
    """A token for `uri` and everything beneath it, encoded the way the Python SDK does."""
    resource = quote_plus(uri)
    expiry = expires_at_ms // 1000
    signature = quote_plus(base64.b64encode(sign(key, f"{resource}\n{expiry}".encode())))
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={quote_plus(key_name)}"
