"""Headers on their way through a relay: which stay behind, which are added, how several of one name become one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

HOP_BY_HOP: Final = frozenset(
    {"connection", "content-length", "host", "te", "trailer", "transfer-encoding", "upgrade", "close", "keep-alive", "proxy-connection"}
)
"""They say something about one connection (RFC 7230 6.1) and mean nothing on the next one."""
RELAY_TOKEN: Final = "servicebusauthorization"
"""In lower case; always the relay's own."""


def joined(headers: Iterable[tuple[str, str]], without: frozenset[str]) -> dict[str, str]:
    """Name -> value; several of one name are joined with a comma (RFC 7230 3.2.2), cookies with a semicolon (RFC 6265 5.4)."""
    names: dict[str, str] = {}
    values: dict[str, str] = {}
    for name, value in headers:
        folded = name.casefold()
        if folded in without:
            continue
        if folded in values:
            values[folded] += ("; " if folded == "cookie" else ", ") + value
        else:
            names[folded] = name
            values[folded] = value
    return {names[folded]: value for folded, value in values.items()}


def named_by_connection(headers: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Names that a `Connection` header lists are hop by hop too."""
    listed = [value for name, value in headers if name.casefold() == "connection"]
    return frozenset(part.strip().casefold() for value in listed for part in value.split(",") if part.strip())


def with_via(headers: dict[str, str], host: str) -> dict[str, str]:
    """The relay says that it was between the two: `Via` tells a listener's answer from the relay's own."""
    ours = f"1.1 {host}"
    for name, value in headers.items():
        if name.casefold() == "via":
            headers[name] = f"{value}, {ours}"
            return headers
    headers["Via"] = ours
    return headers


def size_of(headers: dict[str, str]) -> int:
    return sum(len(name) + len(value) + 4 for name, value in headers.items())
