"""Application properties on the command line: name=value."""

from __future__ import annotations

import json

import typer


def property_pair(text: str) -> tuple[str, object]:
    """Numbers, true, false and null are taken as such, "…" as text; everything else is text as it stands."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise typer.BadParameter(f"{text!r} is not of the form name=value", param_hint="--property")
    try:
        parsed = json.loads(value)
    except ValueError:
        return name, value
    return name, value if isinstance(parsed, dict | list) else parsed
