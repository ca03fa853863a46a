"""Configuration files as sections that complain well: file, line, key, what was found and what is allowed."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tandem.cli.configuration.json_positions import JsonError
from tandem.cli.configuration.json_positions import Path as KeyPath
from tandem.cli.configuration.json_positions import parse as parse_json
from tandem.cli.configuration.setting_types import InvalidSetting, SettingType
from tandem.model.errors import ConfigurationError

FILE_BYTES_MAX: Final = 16_777_216


@dataclass(frozen=True, slots=True)
class Document:
    """One parsed file. Lines are looked up only when something is wrong: large files start as fast as small ones."""

    file: Path
    root: dict[str, object]
    locate: Callable[[], dict[KeyPath, int]]
    folds_case: bool

    def line_of(self, path: KeyPath) -> int:
        """The line of the key, or of the nearest thing around it that has one."""
        lines = self.locate()
        while path and path not in lines:
            path = path[:-1]
        return lines.get(path, 1)

    def section(self) -> Section:
        return Section(self, (), self.root)


@dataclass(slots=True)
class Section:
    """A table of a document. Whoever reads it asks for each key once and then calls `finish`, which refuses the rest."""

    document: Document
    path: KeyPath
    values: dict[str, object]
    asked: dict[str, str] = field(default_factory=dict)
    """Every key that was asked for, by its folded form: what is allowed here."""

    def has(self, key: str) -> bool:
        return self._find(key) is not None

    def get(self, key: str, kind: SettingType) -> object | None:
        """The value, read by its kind; None when the key is absent."""
        found = self._find(key)
        if found is None or (self.document.folds_case and self.values[found] is None):  # null in JSON is "not said"
            return None
        try:
            return kind.read(self.values[found])
        except InvalidSetting:
            raise self.refusal(key, self.values[found], kind.allowed) from None

    def need(self, key: str, kind: SettingType) -> object:
        value = self.get(key, kind)
        if value is None:
            raise ConfigurationError(f"{self.place()}: {key} is missing; it must be {kind.allowed}")
        return value

    def table(self, key: str) -> Section | None:
        found = self._find(key)
        if found is None or (self.document.folds_case and self.values[found] is None):
            return None
        value = self.values[found]
        if not isinstance(value, dict):
            raise self.refusal(key, value, "a table of settings")
        return Section(self.document, (*self.path, found), value)

    def need_table(self, key: str) -> Section:
        found = self.table(key)
        if found is None:
            raise ConfigurationError(f"{self.place()}: {key} is missing; it must be a table of settings")
        return found

    def tables(self, key: str) -> list[Section]:
        """A list of tables; absent is empty."""
        found = self._find(key)
        if found is None or (self.document.folds_case and self.values[found] is None):
            return []
        value = self.values[found]
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.refusal(key, value, "a list of tables")
        return [Section(self.document, (*self.path, found, index), item) for index, item in enumerate(value)]

    def place(self, key: str = "") -> str:
        """`tandem.toml:12: namespace[0].queue[1].name`."""
        path = (*self.path, self._find(key) or key) if key else self.path
        shown = show_path(path)
        where = f"{self.document.file}:{self.document.line_of(path)}"
        return f"{where}: {shown}" if shown else where

    def refusal(self, key: str, found: object, allowed: str) -> ConfigurationError:
        return ConfigurationError(f"{self.place(key)}: found {show(found)}; allowed is {allowed}")

    def finish(self) -> None:
        """Every key that nobody asked for is a mistake."""
        for key in self.values:
            if self._fold(key) not in self.asked:
                known = list(self.asked.values())
                raise ConfigurationError(
                    f"{self.place(key)}: there is no such setting here.{did_you_mean(key, known)} Allowed is {listed(known)}"
                )

    def _find(self, key: str) -> str | None:
        self.asked[self._fold(key)] = key
        if not self.document.folds_case:
            return key if key in self.values else None
        return next((name for name in self.values if self._fold(name) == self._fold(key)), None)

    def _fold(self, key: str) -> str:
        return key.casefold() if self.document.folds_case else key


def read(file: Path) -> Document:
    """A TOML or, by its ending, a JSON file."""
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {error.strerror}") from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigurationError(f"{file}: is larger than {FILE_BYTES_MAX} bytes")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigurationError(f"{file}:{line}: is not UTF-8 text") from error
    return _read_json(file, text) if file.suffix.casefold() == ".json" else _read_toml(file, text)


def show(found: object) -> str:
    """A value as its writer would recognise it, shortened."""
    if isinstance(found, bool):
        text = "true" if found else "false"
    elif isinstance(found, str):
        text = f'"{found}"'
    elif isinstance(found, dict):
        text = "a table"
    elif isinstance(found, list):
        text = "a list"
    elif found is None:
        text = "null"
    else:
        text = str(found)
    return text if len(text) <= 80 else text[:79] + "…"


def show_path(path: Iterable[str | int]) -> str:
    shown = ""
    for part in path:
        shown += f"[{part}]" if isinstance(part, int) else f".{part}" if shown else part
    return shown


def did_you_mean(word: str, known: Iterable[str]) -> str:
    by_fold = {name.casefold(): name for name in known}
    close = difflib.get_close_matches(word.casefold(), by_fold, n=1, cutoff=0.6)
    return f" Did you mean {by_fold[close[0]]}?" if close else ""


def listed(known: Iterable[str]) -> str:
    return ", ".join(sorted(known)) or "nothing"


def _read_json(file: Path, text: str) -> Document:
    try:
        root: object = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):  # or only comments and trailing commas, which the slower reader takes
        root, _ = _parsed(file, text)
    if not isinstance(root, dict):
        raise ConfigurationError(f"{file}:1: found {show(root)}; allowed is an object {{…}}")
    return Document(file, root, lambda: _parsed(file, text)[1], folds_case=True)


def _parsed(file: Path, text: str) -> tuple[object, dict[KeyPath, int]]:
    """Stricter than `json.loads`, which takes NaN, and any depth."""
    try:
        return parse_json(text)
    except JsonError as error:
        raise ConfigurationError(f"{file}:{error.line}: is not valid JSON: {error.problem}") from error


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key appears twice")
    return members


def _read_toml(file: Path, text: str) -> Document:
    import tomllib

    try:
        root = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem = str(error)
        match = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", problem)
        line = int(match.group(1)) if match and match.group(1) else text.count("\n") + 1
        raise ConfigurationError(f"{file}:{line}: is not valid TOML: {problem[: match.start()] if match else problem}") from error
    except RecursionError as error:
        raise ConfigurationError(f"{file}: is nested too deeply") from error
    return Document(file, root, lambda: _toml_lines(text), folds_case=False)


def _toml_lines(text: str) -> dict[KeyPath, int]:
    """Line of every key. tomllib does not tell, so each statement is read on its own: a header, or an assignment."""
    lines: dict[KeyPath, int] = {}
    counts: dict[KeyPath, int] = {}
    prefix: KeyPath = ()
    for number, statement in _toml_statements(text):
        header = re.match(r"\[(\[)?(.*?)\]", statement)
        if statement.startswith("[") and header:
            names = _toml_names(header.group(2) + " = 0")
            prefix = ()
            for index, name in enumerate(names):
                prefix = (*prefix, name)
                last = index == len(names) - 1
                if last and header.group(1):
                    counts[prefix] = counts.get(prefix, -1) + 1
                if prefix in counts:
                    lines.setdefault(prefix, number)
                    prefix = (*prefix, counts[prefix])
            lines.setdefault(prefix, number)
        else:
            _toml_assignment(statement, number, prefix, lines)
    return lines


def _toml_statements(text: str) -> Iterator[tuple[int, str]]:
    """(line, statement); one that goes on over several lines is joined by trying until it parses."""
    import tomllib

    pending, begun = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not pending and (not line.strip() or line.lstrip().startswith("#")):
            continue
        begun = begun if pending else number
        pending += line + "\n"
        try:
            tomllib.loads(pending)
        except tomllib.TOMLDecodeError:
            continue
        yield begun, pending.strip()
        pending = ""


def _toml_names(assignment: str) -> list[str]:
    """The dotted key on the left of an assignment."""
    import tomllib

    names: list[str] = []
    value: object = tomllib.loads(assignment)
    while isinstance(value, dict) and len(value) == 1:
        name, value = next(iter(value.items()))
        names.append(name)
    return names


def _toml_assignment(statement: str, number: int, prefix: KeyPath, lines: dict[KeyPath, int]) -> None:
    import tomllib

    rows = statement.split("\n")
    used: dict[str, int] = {}

    def note(path: KeyPath, value: object, row: int) -> None:
        lines.setdefault(path, number + row)
        if isinstance(value, dict):
            for name, inner in value.items():
                note((*path, name), inner, find(name, row))
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                note((*path, index), inner, row)

    def find(name: str, row: int) -> int:
        """The next row, from where this name was last seen, that assigns it: inline tables over several lines."""
        pattern = re.compile(rf"(?:^|[\s,{{.\"']){re.escape(name)}[\"']?\s*[.=]")
        for candidate in range(max(row, used.get(name, 0)), len(rows)):
            if pattern.search(rows[candidate]):
                used[name] = candidate + (1 if len(rows) > 1 else 0)
                return candidate
        return row

    for name, value in tomllib.loads(statement).items():
        note((*prefix, name), value, 0)
