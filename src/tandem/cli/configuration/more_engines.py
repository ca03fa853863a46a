"""`[[cluster.more_engines]]` of a tandem.toml: which stores live in another PostgreSQL than the first."""

from __future__ import annotations

from typing import Any, Final

from tandem.cli.configuration.documents import Section, listed
from tandem.cli.configuration.setting_types import Integer, Many, Name, SettingType, Text
from tandem.model.errors import ConfigurationError
from tandem.model.store_row import FIRST_ENGINE
from tandem.server.settings import EngineSettings

_DSN: Final = Text(chars_max=2_000, allowed="a connection string, postgresql://user@host1,host2/database")

KEYS: Final[dict[str, tuple[str, SettingType]]] = {
    "name": ("name", Name(chars_max=30, plain=True)),
    "engine": ("engine", _DSN),
    "stores": ("stores", Many(Integer(low=0, high=63), least=1)),
    "namespaces": ("namespaces", Many(Name(chars_max=50, plain=True), least=1)),
}
"""Key in the file -> field of EngineSettings, and what it may hold."""


def read_more_engines(sections: list[Section], first: str, store_count: int, namespaces: tuple[str, ...]) -> tuple[EngineSettings, ...]:
    """`first`: the engine that has the metadata. Each store is in one engine."""
    engines: list[EngineSettings] = []
    for section in sections:
        engine = _engine(section, store_count, namespaces)
        if engine.name == FIRST_ENGINE:
            raise section.refusal("name", engine.name, "another name: that is what cluster.engine is called")
        if any(other.name == engine.name for other in engines):
            raise ConfigurationError(f"{section.place('name')}: another engine is called {engine.name} already")
        if engine.engine == first:  # said without its text: it may hold a password
            raise ConfigurationError(f"{section.place('engine')}: is the first one, cluster.engine, again; allowed is another database")
        for other in engines:
            if engine.engine == other.engine:
                raise ConfigurationError(f"{section.place('engine')}: is that of {other.name} again; allowed is another database")
            _must_differ(section, engine, other, namespaces)
        engines.append(engine)
    return tuple(engines)


def _engine(section: Section, store_count: int, namespaces: tuple[str, ...]) -> EngineSettings:
    for key in ("name", "engine", "stores"):
        section.need(key, KEYS[key][1])
    values: dict[str, Any] = {}
    for key, (field, kind) in KEYS.items():
        value = section.get(key, kind)
        if value is not None:
            values[field] = value
    section.finish()
    engine = EngineSettings(**values)
    for number in engine.stores:
        if number >= store_count:
            raise section.refusal("stores", number, f"0 to {store_count - 1}: stores.count is {store_count}")
    for key, said in (("stores", engine.stores), ("namespaces", engine.namespaces)):
        twice = [one for one in said if said.count(one) > 1]
        if twice:
            raise ConfigurationError(f"{section.place(key)}: {twice[0]} is named twice")
    for name in engine.namespaces:
        if name not in namespaces:
            raise section.refusal("namespaces", name, f"one of this file: {listed(namespaces)}")
    return engine


def _must_differ(section: Section, engine: EngineSettings, other: EngineSettings, namespaces: tuple[str, ...]) -> None:
    """No store is in both."""
    shared = set(engine.namespaces or namespaces) & set(other.namespaces or namespaces)
    both = sorted(set(engine.stores) & set(other.stores))
    if shared and both:
        raise ConfigurationError(f"{section.place('stores')}: store {both[0]} is in engine {other.name} already; a store is in one engine")
