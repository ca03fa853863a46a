"""Relays a second time, beside the metadata: they store nothing, so no journal knows them, and lost metadata is rebuilt from here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tandem.model.entity import HybridConnectionDescription
from tandem.model.entity_json import NotADescription, dump_relay, load_relay
from tandem.model.errors import StoreUnavailable
from tandem.stores.disk import sync_name

FILE_NAME: Final = "relays.jsonl"


@dataclass(slots=True)
class CopiedRelays:
    """What the file says. Keys are not in it."""

    relays: dict[str, HybridConnectionDescription] = field(default_factory=dict)
    """By name in lower case."""
    keys_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Likewise: authorization rules it had."""
    unreadable: int = 0
    """Lines that are damaged."""


class RelayCopy:
    """One line for each change, on disk before the change is; written anew when it is opened."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    def begin(self, relays: Iterable[HybridConnectionDescription]) -> None:
        """These are all there are."""
        lines = b"".join(_put(relay) for relay in relays)
        if lines != (self._path.read_bytes() if self._path.exists() else b""):
            self._path.unlink(missing_ok=True)
            self._write(lines)

    def put(self, relay: HybridConnectionDescription) -> None:
        self._write(_put(relay))

    def gone(self, name: str) -> None:
        self._write(_line({"gone": name}))

    def read(self) -> CopiedRelays:
        found = CopiedRelays()
        for line in self._path.read_bytes().splitlines() if self._path.exists() else ():
            if not line:
                continue
            try:
                told = json.loads(line)
                if "gone" in told:
                    found.relays.pop(told["gone"].casefold(), None)
                    continue
                relay, rules = load_relay(json.dumps(told["relay"])), tuple(map(str, told["keys_of"]))
                found.relays[relay.name.casefold()], found.keys_of[relay.name.casefold()] = relay, rules
            except (ValueError, KeyError, TypeError, AttributeError, NotADescription):
                found.unreadable += 1
        return found

    def _write(self, lines: bytes) -> None:
        try:
            is_new = not self._path.exists()
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                while lines:
                    lines = lines[os.write(descriptor, lines) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if is_new:
                sync_name(self._path)
        except OSError as error:
            raise StoreUnavailable(f"{self._path}: {error}; nothing was changed") from error


def _put(relay: HybridConnectionDescription) -> bytes:
    bare = json.loads(dump_relay(replace(relay, authorization_rules=())))
    return _line({"relay": bare, "keys_of": [rule.key_name for rule in relay.authorization_rules]})


def _line(told: dict[str, object]) -> bytes:
    """It begins on a line of its own even where the one before it was cut off."""
    return b"\n" + json.dumps(told).encode()
