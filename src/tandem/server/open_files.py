"""The open files that the system allows a process are for its journals, too: connections do not get the last of them."""

from __future__ import annotations

import resource
from typing import Final

_KEPT_MAX: Final = 128
_KEPT_PART: Final = 4
"""Where few are allowed: a fourth of them."""


def no_file_for_connection(descriptor: int) -> str:
    """Why the connection that got this descriptor cannot stay, or nothing. The system gives the lowest that is free."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return ""
    kept = min(_KEPT_MAX, allowed // _KEPT_PART)
    if descriptor < allowed - kept:
        return ""
    told = f"the system allows {allowed} open files, and the last {kept} are kept for journals"
    return f"{told}: raise ulimit -n, or lower limits.connections_max"
