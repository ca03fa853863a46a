"""When a request that failed at one endpoint may be made again at the other. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tandem.client.relay.errors import RelayError, RelayUnavailableError, ResponseLostError

IDEMPOTENT: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Doing it twice is as good as doing it once (RFC 9110 9.2.2)."""

Decide = Callable[[str, RelayError], bool]
Reissue = str | Decide
"""`safe`, `always`, `never`, or a function of the method and the error."""
SAFE: Final = "safe"
ALWAYS: Final = "always"
NEVER: Final = "never"


def check_reissue(reissue: Reissue) -> None:
    if not callable(reissue) and reissue not in (SAFE, ALWAYS, NEVER):
        raise ValueError(f"reissue is {reissue!r}; it may be 'safe', 'always', 'never' or a function of method and error")


def is_outage(error: BaseException) -> bool:
    """The endpoint, not the request, is at fault."""
    return isinstance(error, RelayUnavailableError)


def may_reissue(reissue: Reissue, method: str, error: RelayError, repeatable: bool) -> bool:
    """`repeatable`: the body can be sent a second time. Once anything of a response was seen, nothing is repeated."""
    if isinstance(error, ResponseLostError) or not repeatable:
        return False
    if callable(reissue):
        return reissue(method, error)
    if reissue == SAFE:
        return not error.delivered or method.upper() in IDEMPOTENT
    return reissue == ALWAYS
