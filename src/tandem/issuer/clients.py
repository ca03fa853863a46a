"""The book of clients, in a file of its own: who may have tokens, with which roles; secrets are kept as scrypt hashes only."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tandem.model.errors import ConfigurationError
from tandem.wire.files import write_whole

FILE_NAME: Final = "issuer-clients.json"
CLIENTS_MAX: Final = 10_000
SECRET_CHARS_MAX: Final = 512
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}", re.ASCII)
_SECRET_BYTES: Final = 32
_COST: Final = (2**14, 8, 1)
_MEMORY_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    client_id: str
    salt: bytes = field(repr=False)
    hash: bytes = field(repr=False)
    cost: tuple[int, int, int] = _COST
    roles: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    created_at: int = 0
    """In seconds."""

    def has_secret(self, secret: str) -> bool:
        """Takes some ten milliseconds, on purpose: call it from a thread."""
        return hmac.compare_digest(_hash(secret, self.salt, self.cost), self.hash)


@dataclass(slots=True)
class _Pages:
    clients: dict[str, Client] = field(default_factory=dict)
    revoked: dict[str, int] = field(default_factory=dict)
    """Client id -> the second before which its tokens are void."""


class ClientBook:
    """Read again when the file was changed by a command. Unknown clients cost as much time as known ones."""

    def __init__(self, directory: Path, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._file = directory / FILE_NAME
        self._entropy = entropy
        self._pages = _Pages()
        self._seen: tuple[int, int] | None = None
        self._nobody = Client(client_id="", salt=entropy(16), hash=entropy(32))

    def find(self, client_id: str) -> Client | None:
        self._refresh()
        return self._pages.clients.get(client_id)

    def is_client(self, client_id: str, secret: str) -> Client | None:
        """The client with this id and this secret."""
        client = self.find(client_id)
        good = (client or self._nobody).has_secret(secret[:SECRET_CHARS_MAX])
        return client if good and len(secret) <= SECRET_CHARS_MAX else None

    def all(self) -> list[Client]:
        self._refresh()
        return sorted(self._pages.clients.values(), key=lambda client: client.client_id)

    def revoked(self) -> dict[str, int]:
        self._refresh()
        return dict(self._pages.revoked)

    # -- changes -----------------------------------------------------------------------------

    def add(self, client_id: str, roles: tuple[str, ...], groups: tuple[str, ...], now: int) -> str:
        """Its secret, which is shown this once."""
        if not _ID.fullmatch(client_id):
            raise ConfigurationError(f"a client's id has letters, digits, '.', '_', '@' and '-', at most 128, found {client_id[:140]!r}")
        secret = base64.urlsafe_b64encode(self._entropy(_SECRET_BYTES)).decode("ascii").rstrip("=")
        salt = self._entropy(16)
        with self._changing() as pages:
            if client_id in pages.clients:
                raise ConfigurationError(f"there is a client {client_id!r} already; remove it first, or choose another id")
            if len(pages.clients) >= CLIENTS_MAX:
                raise ConfigurationError(f"there are {CLIENTS_MAX} clients, which is all there may be")
            client = Client(client_id=client_id, salt=salt, hash=_hash(secret, salt, _COST), roles=roles, groups=groups)
            pages.clients[client_id] = replace(client, created_at=now // 1000)
        return secret

    def remove(self, client_id: str, now: int, lifetime_ms: int) -> None:
        """It gets no more tokens; those it has are void as soon as brokers hear of it."""
        with self._changing() as pages:
            if client_id not in pages.clients:
                raise ConfigurationError(f"there is no client {client_id!r}")
            del pages.clients[client_id]
            second = now // 1000
            pages.revoked = {name: at for name, at in pages.revoked.items() if at + lifetime_ms // 1000 + 3600 > second}
            pages.revoked[client_id] = second + 1

    @contextlib.contextmanager
    def _changing(self) -> Iterator[_Pages]:
        """One command at a time, also of different processes."""
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self._file.with_name(self._file.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            pages = _load(self._file)
            yield pages
            rows = [_row(client) for client in pages.clients.values()]
            write_whole(self._file, json.dumps({"clients": rows, "revoked": pages.revoked}, indent=2).encode(), 0o600)
        finally:
            os.close(lock)
        self._refresh()

    def _refresh(self) -> None:
        try:
            found = self._file.stat()
        except FileNotFoundError:
            self._pages, self._seen = _Pages(), None
            return
        seen = (found.st_mtime_ns, found.st_ino)
        if seen != self._seen:
            self._pages = _load(self._file)
            self._seen = seen


def _hash(secret: str, salt: bytes, cost: tuple[int, int, int]) -> bytes:
    n, r, p = cost
    return hashlib.scrypt(secret.encode(errors="surrogatepass"), salt=salt, n=n, r=r, p=p, maxmem=_MEMORY_BYTES, dklen=32)


def _row(client: Client) -> dict[str, Any]:
    return {
        "client_id": client.client_id,
        "salt": client.salt.hex(),
        "hash": client.hash.hex(),
        "scrypt": list(client.cost),
        "roles": list(client.roles),
        "groups": list(client.groups),
        "created_at": client.created_at,
    }


def _load(file: Path) -> _Pages:
    try:
        found = json.loads(file.read_bytes())
        clients = {
            row["client_id"]: Client(
                client_id=row["client_id"],
                salt=bytes.fromhex(row["salt"]),
                hash=bytes.fromhex(row["hash"]),
                cost=(row["scrypt"][0], row["scrypt"][1], row["scrypt"][2]),
                roles=tuple(row["roles"]),
                groups=tuple(row["groups"]),
                created_at=row["created_at"],
            )
            for row in found["clients"]
        }
        return _Pages(clients, dict(found["revoked"]))
    except FileNotFoundError:
        return _Pages()
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise ConfigurationError(f"{file}: cannot be read ({error!r}); restore it from a backup") from error
