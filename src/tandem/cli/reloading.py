"""The configuration of a running broker read again: on SIGHUP, and for `tandem reload`."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from tandem.cli.log_output import LINES, OUTPUT, note
from tandem.cli.served_certificate import digest
from tandem.cli.service_manager import ServiceManager
from tandem.model.errors import ArgumentRefused, ConfigurationError

if TYPE_CHECKING:
    from tandem.cli.configuration.settings import Configuration
    from tandem.cli.served_certificate import ServedCertificate
    from tandem.server.reloading import Reloaded
    from tandem.server.settings import ServerSettings, TlsSettings


class ReloadableBroker(Protocol):
    async def reload(self, settings: ServerSettings, tls: ssl.SSLContext | None) -> Reloaded: ...


class Reloader:
    """One at a time. A configuration with a mistake changes nothing."""

    def __init__(
        self,
        read: Callable[[], Configuration],
        prepare: Callable[[Configuration, int], ServerSettings],
        broker: ReloadableBroker,
        manager: ServiceManager,
        certificate: ServedCertificate,
    ) -> None:
        self._read = read
        self._prepare = prepare
        self._broker = broker
        self._manager = manager
        self._certificate = certificate
        self._busy = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def reload(self) -> dict[str, Any]:
        """What came of it. Raises ArgumentRefused with what is wrong with the configuration."""
        async with self._busy:
            self._manager.reloading()
            try:
                configuration = await asyncio.to_thread(self._read)
                settings = await asyncio.to_thread(self._prepare, configuration, time.time_ns() // 1_000_000)
                files = await asyncio.to_thread(digest, settings.tls)
                tls = await asyncio.to_thread(_new_context, settings.tls)
            except ConfigurationError as error:
                LINES.warn(f"reload refused, nothing was changed: {error}")
                raise ArgumentRefused(f"{error}; nothing was changed") from error
            finally:
                self._manager.ready("configuration was read again")
            OUTPUT.configure(configuration.log_format, configuration.log_level)
            told = await self._broker.reload(settings, tls)
            if self._certificate.take(settings.tls, tls, files):
                told.changed.append("tls certificate")
            _tell(told)
            return told.as_dict()

    def on_signal(self) -> None:
        task = asyncio.get_running_loop().create_task(self._by_signal())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _by_signal(self) -> None:
        try:
            await self.reload()
        except ArgumentRefused:
            return  # it was said, with what is wrong


def _new_context(tls: TlsSettings | None) -> ssl.SSLContext | None:
    from tandem.wire.tls import TlsError, server_context

    try:
        return server_context(tls.certificate, tls.private_key) if tls is not None else None
    except TlsError as error:
        raise ConfigurationError(f"tls: {error}") from error


def _tell(told: Reloaded) -> None:
    note(f"configuration read again: {len(told.changed)} changes{': ' if told.changed else ''}{', '.join(told.changed)[:2_000]}")
    for refused in told.refused:
        LINES.warn(f"reload: {refused}")
    if told.left:
        note(f"reload: no longer in the configuration, and left as they are: {', '.join(told.left)[:2_000]}")
    if told.needs_restart:
        LINES.warn(f"reload: needs a restart: {', '.join(told.needs_restart)}")
