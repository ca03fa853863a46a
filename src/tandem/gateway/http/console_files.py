"""`/$tandem/console/`: the files of the web page, the same for everybody. They know only the HTTP API."""

from __future__ import annotations

import functools
import hashlib
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Final

from aiohttp import web

from tandem.gateway.http.types import PASSIVE

_TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".txt": "text/plain"}
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'"
)
"""No script but our own files, nothing from elsewhere, no text that becomes markup."""


@functools.cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """By path: content, type and tag. Read with the first request; a package may be a zip file."""
    found: dict[str, tuple[bytes, str, str]] = {}

    def gather(place: Traversable, before: str) -> None:
        for one in place.iterdir():
            if one.is_dir():
                gather(one, f"{before}{one.name}/")
            elif (kind := _TYPES.get("." + one.name.rpartition(".")[2])) is not None:
                content = one.read_bytes()
                found[before + one.name] = (content, kind, f'"{hashlib.sha256(content).hexdigest()[:32]}"')

    gather(resources.files("tandem.console"), "")
    return found


async def serve_console(request: web.BaseRequest, rest: tuple[str, ...]) -> web.StreamResponse:
    if not rest:  # files are found beside the page
        return web.Response(status=302, headers={"Location": "/$tandem/console/"})
    name = "/".join(rest) or "index.html"
    file = _files().get(name)
    headers = PASSIVE | {"Content-Security-Policy": _POLICY, "Cache-Control": "no-cache", "Referrer-Policy": "no-referrer"}
    if file is None:
        return web.Response(status=404, text=f"the console has no page {name[:80]!r}", headers=headers)
    content, kind, tag = file
    if request.headers.get("If-None-Match") == tag:
        return web.Response(status=304, headers=headers | {"ETag": tag})
    return web.Response(body=content, content_type=kind, charset="utf-8", headers=headers | {"ETag": tag})
