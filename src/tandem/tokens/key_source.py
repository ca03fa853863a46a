"""Where an issuer's public keys come from: an address or a file, looked at again in the background, the known ones kept meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from tandem.model.clock import Clock
from tandem.tokens.key_set import SET_BYTES_MAX, KeySet, UnusableKeys, parse_key_set
from tandem.tokens.trust import TrustedIssuer

_FETCH_SECONDS_MAX: Final = 10.0
_RETRY_MS: Final = 5_000
"""After a failure the next look comes sooner than usual."""
_FILE_LOOK_MS: Final = 1_000

Fetch = Callable[[TrustedIssuer], Awaitable[bytes]]


class KeySource:
    """The keys of one issuer. `keys` is always at hand; `start` begins to look after them, `look_again` is for a key nobody knows yet."""

    def __init__(
        self,
        trust: TrustedIssuer,
        clock: Clock,
        note: Callable[[str], None],
        *,
        cache: Path | None = None,
        fetch: Fetch | None = None,
    ) -> None:
        self.trust = trust
        self.keys = KeySet()
        self.fetches = 0
        self.failure = ""
        """Why the last look failed; empty when it did not."""
        self.on_change: Callable[[KeySet], None] = lambda keys: None
        self._clock = clock
        self._note = note
        self._cache = cache
        """What was fetched last, so that a broker that starts while its issuer is down knows its keys."""
        self._fetch: Fetch = fetch or (read_keys if trust.jwks_file is not None else fetch_keys)
        self._looking: asyncio.Task[None] | None = None
        self._background: asyncio.Task[None] | None = None
        self._looked_at: int | None = None
        self._file_seen: tuple[int, int] | None = None

    # -- life --------------------------------------------------------------------------------

    async def start(self) -> None:
        """A file is read before this returns, for an address nobody waits: an issuer that is down keeps no broker from starting."""
        if self._cache is not None and self._cache.exists():
            try:
                self._take(await asyncio.to_thread(self._cache.read_bytes))
            except (OSError, UnusableKeys) as error:
                self._note(f"the keys of {self.trust.issuer} kept in {self._cache} cannot be used: {error}")
        if self.trust.jwks_file is not None:
            await self._look()
        self._background = asyncio.create_task(self._keep_fresh())

    async def close(self) -> None:
        for task in (self._background, self._looking):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def look_again(self) -> bool:
        """A token came whose key is unknown: look now, unless we just did. Says whether it was worth the while."""
        before = self.keys
        if self._looking is None:
            now = self._clock.steady_ms()
            if self._looked_at is not None and now - self._looked_at < self.trust.refetch_min_ms and not self._file_changed():
                return False
        await self._look()
        return self.keys is not before

    # -- looking -----------------------------------------------------------------------------

    async def _keep_fresh(self) -> None:
        while True:
            if self.trust.jwks_file is None:
                await self._look()
                pause = min(_RETRY_MS, self.trust.refresh_ms) if self.failure else self.trust.refresh_ms
            else:
                pause = min(_FILE_LOOK_MS, self.trust.refresh_ms)
                if self._file_changed():
                    await self._look()
            await asyncio.sleep(pause / 1000)

    async def _look(self) -> None:
        """One look at a time, however many wait for it."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_once())
        await asyncio.shield(self._looking)

    async def _look_once(self) -> None:
        trust = self.trust
        self._looked_at = self._clock.steady_ms()
        self._file_seen = self._file_state()
        self.fetches += 1
        try:
            async with asyncio.timeout(_FETCH_SECONDS_MAX):
                document = await self._fetch(trust)
            changed = self._take(document)
        except (OSError, UnusableKeys, TimeoutError) as error:
            reason = str(error) or type(error).__name__
            if not self.failure:
                known = f"the {len(self.keys.keys)} known ones stay in use" if self.keys.keys else "its tokens are refused until they can"
                self._note(f"the keys of {trust.issuer} cannot be had: {reason}; {known}")
            self.failure = reason
        else:
            if self.failure:
                self._note(f"the keys of {trust.issuer} can be had again")
            self.failure = ""
            if changed and self._cache is not None:
                await self._keep(self._cache, document)
        finally:
            self._looking = None

    async def _keep(self, cache: Path, document: bytes) -> None:
        try:
            await asyncio.to_thread(_replace, cache, document)
        except OSError as error:
            self._note(
                f"the keys of {self.trust.issuer} cannot be kept in {cache} ({error.strerror}): they are in use until this broker ends"
            )

    def _take(self, document: bytes) -> bool:
        found = parse_key_set(document)
        changed = found != self.keys
        self.keys = found
        if changed:
            self.on_change(found)
        return changed

    def _file_changed(self) -> bool:
        return self.trust.jwks_file is not None and self._file_state() != self._file_seen

    def _file_state(self) -> tuple[int, int] | None:
        if self.trust.jwks_file is None:
            return None
        try:
            found = self.trust.jwks_file.stat()
        except OSError:
            return None
        return (found.st_mtime_ns, found.st_ino)


async def read_keys(trust: TrustedIssuer) -> bytes:
    assert trust.jwks_file is not None
    with trust.jwks_file.open("rb") as file:
        return file.read(SET_BYTES_MAX + 1)


async def fetch_keys(trust: TrustedIssuer) -> bytes:
    """Raises OSError when the issuer does not answer, or not with 200."""
    import aiohttp

    context = ssl.create_default_context(cafile=str(trust.ca)) if trust.ca is not None else ssl.create_default_context()
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_FETCH_SECONDS_MAX)) as session,
            session.get(trust.jwks_url, ssl=context, allow_redirects=False, headers={"Accept": "application/json"}) as answer,
        ):
            if answer.status != 200:
                raise OSError(f"{trust.jwks_url} answered {answer.status}")
            document = bytearray()
            async for piece in answer.content.iter_any():
                document += piece
                if len(document) > SET_BYTES_MAX:
                    break  # whoever reads it refuses it
            return bytes(document)
    except aiohttp.ClientError as error:
        raise OSError(f"{trust.jwks_url}: {error}") from error


def _replace(file: Path, content: bytes) -> None:
    """Whole or not at all."""
    fresh = file.with_name(file.name + ".new")
    fresh.write_bytes(content)
    os.replace(fresh, file)
