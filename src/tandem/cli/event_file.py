"""State changes of a broker as lines of JSON beside its journals, for `tandem availability`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tandem.cli.log_output import note


def kind_of(event: dict[str, Any]) -> str:
    about = next((one for one in ("store", "clock") if str(event["subject"]).startswith(one)), "broker")
    return f"{about}-{event['state']}"


class EventFile:
    """They are rare, so each is written at once."""

    def __init__(self, path: Path | None, who: str) -> None:
        self._path = path
        """None: a broker in memory leaves nothing behind."""
        self._who = who

    def __call__(self, event: dict[str, Any]) -> None:
        if self._path is None:
            return
        line = {
            "at_ms": event["at_ms"],
            "source": "broker",
            "who": self._who,
            "kind": kind_of(event),
            "path": event["subject"],
            "detail": event["cause"],
        }
        if "namespace" in event:
            line["namespace"] = event["namespace"]
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            note(f"{self._path} cannot be written: {error.strerror}")
