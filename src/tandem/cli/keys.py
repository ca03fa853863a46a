"""`tandem keys`: what clients of a broker need to know, without starting it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tandem.cli.audit_file import FILE_NAME, audit_to
from tandem.cli.configuration import keyring
from tandem.cli.configuration.settings import Configuration, Flags, load
from tandem.model.entity import AuthorizationRule, HybridConnectionDescription, QueueDescription, TopicDescription
from tandem.model.errors import ConfigurationError
from tandem.server.audit import READ_KEYS
from tandem.server.settings import NamespaceSettings


@dataclass(frozen=True, slots=True)
class Shown:
    """One rule with its place, as it is printed."""

    namespace: str
    entity: str
    rule: AuthorizationRule
    connection_string: str


def keys(
    data: Annotated[Path | None, typer.Option(help="Data directory of the broker.", metavar="DIR")] = None,
    config: Annotated[Path | None, typer.Option(help="tandem.toml, or the emulator's Config.json.", metavar="FILE")] = None,
    port: Annotated[int | None, typer.Option(help="Port to put into the connection strings.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the keys and connection strings of a broker.

    Example: tandem keys --data tandem-data
    """
    flags = Flags(config=config, data=data, port=(port,) if port is not None else ())
    configuration = load(flags, os.environ, Path.cwd())
    shown = list(list_keys(configuration))
    if configuration.server.data_dir is not None:
        _audited(configuration.server.data_dir / FILE_NAME)
    if as_json:
        print(json.dumps([_as_dict(item) for item in shown], indent=2))
        return
    for item in shown:
        place = f"{item.namespace}/{item.entity}" if item.entity else item.namespace
        print(f"{place}  {item.rule.key_name}  ({', '.join(_rights(item.rule))})")
        print(f"  primary key        {item.rule.primary_key}")
        print(f"  secondary key      {item.rule.secondary_key}")
        print(f"  connection string  {item.connection_string}")


def _audited(path: Path) -> None:
    """Whoever may read the keys may write there."""
    who = f"user {os.getuid()} of this machine"
    audit_to(path, lambda text: print(text, file=sys.stderr))({"action": READ_KEYS, "who": who, "detail": "tandem keys"})


def list_keys(configuration: Configuration) -> Iterator[Shown]:
    """Every rule that the configuration and the data directory know."""
    server = configuration.server
    file = server.data_dir / keyring.FILE_NAME if server.data_dir else None
    ring = keyring.KeyRing(file)
    if ring.empty:
        where = file or "memory"
        raise ConfigurationError(f"{where}: there are no keys yet; start the broker once (tandem serve), or name its directory with --data")
    listener = server.listeners[0]
    for namespace in keyring.fill(server.namespaces, ring, configuration.root_key, server.dev):
        host = keyring.endpoint_host(namespace, listener.host)
        for entity, rule in _rules(namespace):
            yield Shown(namespace.name, entity, rule, keyring.connection_string(host, listener.port, rule, entity))


def _rules(namespace: NamespaceSettings) -> Iterator[tuple[str, AuthorizationRule]]:
    for rule in namespace.authorization_rules:
        yield "", rule
    entities: list[QueueDescription | TopicDescription | HybridConnectionDescription]
    entities = [*namespace.queues, *namespace.topics, *namespace.relays]
    for entity in entities:
        for rule in entity.authorization_rules:
            yield entity.name, rule


def _rights(rule: AuthorizationRule) -> list[str]:
    return sorted(right.value for right in rule.rights)


def _as_dict(item: Shown) -> dict[str, object]:
    return {
        "namespace": item.namespace,
        "entity": item.entity,
        "key_name": item.rule.key_name,
        "rights": _rights(item.rule),
        "primary_key": item.rule.primary_key,
        "secondary_key": item.rule.secondary_key,
        "connection_string": item.connection_string,
    }
