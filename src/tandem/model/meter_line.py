"""One line of what was counted, as it is kept for whoever prices it."""

from __future__ import annotations

MeterLine = tuple[int, str, str, str, int, int, int]
"""Minute (its first millisecond), path of the entity, operation, outcome, size unit, count, bytes."""
