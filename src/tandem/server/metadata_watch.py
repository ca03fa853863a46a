"""Looks whether the file with the metadata of a namespace is still the one that was opened, before somebody wants to change it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from tandem.cluster.peers import ClusterNode
    from tandem.server.context import NamespaceContext

_LOOK_EVERY_MS: Final = 5_000


@runtime_checkable
class FileCatalog(Protocol):
    def trouble(self) -> str:
        """Why it takes no changes, and what to do; empty if it does. Waits for the disk."""


def metadata_watch(
    context: NamespaceContext, catalog: object, data_dir: Path | None, cluster: ClusterNode | None
) -> tuple[MetadataWatch, ...]:
    """None if it is in no file, or another worker looks."""
    is_ours = cluster is None or cluster.administers
    return (MetadataWatch(context, catalog),) if data_dir is not None and is_ours and isinstance(catalog, FileCatalog) else ()


class MetadataWatch:
    """One per namespace whose metadata is a file; `look_after` is called often and looks rarely."""

    def __init__(self, context: NamespaceContext, catalog: FileCatalog) -> None:
        self._context = context
        self._catalog = catalog
        self._looked_at = context.turn.now
        self._looking = False

    def look_after(self, now: int) -> None:
        if self._looking or now - self._looked_at < _LOOK_EVERY_MS:
            return
        self._looked_at = now
        self._looking = True
        self._context.spawn(self._look())

    def clock_jumped(self, by_ms: int) -> None:
        self._looked_at += by_ms

    async def _look(self) -> None:
        try:
            found = await asyncio.to_thread(self._catalog.trouble)
        finally:
            self._looking = False
        self._context.metadata_is(found)
