"""Doubles and tools for tests, shipped to users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandem.testing.bus import Bus, Counts

__all__ = ["Bus", "Counts"]


def __getattr__(name: str) -> Any:
    """Loaded when asked for: pytest imports this package in every run, also in those that need no broker."""
    if name in __all__:
        from tandem.testing import bus

        return getattr(bus, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
