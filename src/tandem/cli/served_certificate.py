"""The certificate that new connections are shown: files that are replaced while the broker runs are noticed."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import time
from collections.abc import Callable
from typing import Final

from tandem.cli.log_output import LINES, note
from tandem.server.settings import TlsSettings
from tandem.wire.tls import TlsError, days_left, ensure_certificates, nears_end, server_context

LOOK_SECONDS: Final = 5
_END_SECONDS: Final = 3_600
"""How often it is looked at whether a certificate nears its end, and said again that files cannot be used."""
_WARN_DAYS: Final = 14
"""Whoever renews by a timer has done so by then."""


class ServedCertificate:
    """Files that cannot be used, as half-written ones, change nothing: what was served goes on, and it is said."""

    def __init__(self, tls: TlsSettings | None, use: Callable[[ssl.SSLContext], None], *, leads: bool = True) -> None:
        """`leads`: of several processes with the same files, the one that renews what we made, and says what came of it."""
        self._tls = tls
        self._use = use
        self._leads = leads
        self._served = self._looked_at = digest(tls)
        self._ending = ""
        self._look_at_end = time.monotonic()

    def take(self, tls: TlsSettings | None, context: ssl.SSLContext | None, found: bytes) -> bool:
        """After a reload, with the `digest` of before the context was made. True: it is another one."""
        is_new = found != self._served
        self._tls, self._served, self._looked_at = tls, found, found
        if context is not None:
            self._use(context)
        return is_new

    def follow(self, tls: TlsSettings | None) -> None:
        """Other files, perhaps: they are served with the next look."""
        self._tls = tls

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        tls = self._tls
        if tls is None:
            return
        try:
            found, context = await asyncio.to_thread(self._read, tls)
        except (TlsError, OSError) as error:
            if self._leads:
                LINES.warn(f"tls: {error}; the certificate of before goes on, for as long as it is valid; put files there that can be used")
            return
        if self._leads and self._ending:
            LINES.warn(self._ending)
            self._ending = ""
        if context is None or tls is not self._tls:  # or a reload was faster
            return
        self._served = found
        self._use(context)
        if self._leads:
            note(f"tls: the certificate in {tls.certificate} is a new one; new connections are shown it")

    def _read(self, tls: TlsSettings) -> tuple[bytes, ssl.SSLContext | None]:
        found, is_time = digest(tls), time.monotonic() >= self._look_at_end
        before, self._looked_at = self._looked_at, found
        if found == before and not is_time:
            return found, None
        self._look_at_end = time.monotonic() + _END_SECONDS
        now = time.time_ns() // 1_000_000
        if self._leads and tls.made_for and nears_end(tls.certificate, now):
            ensure_certificates(tls.certificate.parent, tls.made_for, now)
            self._looked_at = found = digest(tls)
        left = days_left(tls.certificate, now)
        if left is not None and left < _WARN_DAYS:
            when = f"ends in {left:.1f} days" if left > 0 else "has ended: clients refuse it"
            self._ending = f"tls: the certificate in {tls.certificate} {when}; put a new one there, it is served without a restart"
        return found, server_context(tls.certificate, tls.private_key) if found != self._served else None


def digest(tls: TlsSettings | None) -> bytes:
    """Of what the files hold, or why they cannot be read."""
    found = hashlib.sha256()
    for file in (tls.certificate, tls.private_key) if tls is not None else ():
        try:
            found.update(file.read_bytes())
        except OSError as error:
            found.update(str(error).encode())
    return found.digest()
