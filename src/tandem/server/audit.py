"""Who changed, purged, took or closed what, read keys, and was let in: told to whoever keeps the audit log. Never a key, never a token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

CHANGED = "changed"
PURGED = "purged"
READ_KEYS = "read-keys"
TOKEN = "token"
"""A token was accepted, or a name with its key: somebody was let in."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the audit log."""

    action: str
    namespace: str
    who: str
    """Name of the key, or issuer and subject of an issued token."""
    peer: str
    """Where it came from: address:port."""
    what: str
    """The entity or page it was done to; empty is the namespace."""
    detail: str = ""


Audit = Callable[[AuditEntry], None]


def no_audit(entry: AuditEntry) -> None:
    """Nobody keeps one."""
