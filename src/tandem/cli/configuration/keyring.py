"""The keys of a broker: made once, kept in its data directory where only the owner can read them."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from tandem.cli.configuration.settings import is_loopback
from tandem.model.entity import AuthorizationRule, HybridConnectionDescription, QueueDescription, Right, TopicDescription
from tandem.model.errors import ConfigurationError
from tandem.server.settings import NamespaceSettings
from tandem.stores.disk import LocalDisk, make_directory, sync_name

ROOT_RULE: Final = "RootManageSharedAccessKey"
WELL_KNOWN_KEY: Final = "SAS_KEY_VALUE"
"""The emulator's, known to everybody."""
FILE_NAME: Final = "keys.json"
_KEY_BYTES: Final = 32

Keys = dict[str, str]
"""(namespace, path, rule, which) joined by `|` -> key."""


class KeyRing:
    """Generated keys by namespace, path of the entity (`""`: the namespace), rule and slot. Saved only when something was added."""

    def __init__(self, file: Path | None, entropy: Callable[[int], bytes] = os.urandom) -> None:
        self._file = file
        self._entropy = entropy
        self._keys: dict[str, dict[str, dict[str, Keys]]] = _load(file) if file is not None else {}
        self._changed = False

    @property
    def empty(self) -> bool:
        return not self._keys

    def key(self, namespace: str, path: str, rule: str, slot: str) -> str:
        """The key in that slot (`primary_key`, `secondary_key`), made now if there is none yet."""
        slots = self._keys.setdefault(namespace, {}).setdefault(path, {}).setdefault(rule, {})
        if slot not in slots:
            slots[slot] = base64.b64encode(self._entropy(_KEY_BYTES)).decode("ascii")
            self._changed = True
        return slots[slot]

    def of_namespace(self, namespace: str) -> dict[str, dict[str, Keys]]:
        return self._keys.get(namespace, {})

    def adopt(self, namespace: str, keys: dict[str, dict[str, Keys]]) -> None:
        """The keys of this namespace are these."""
        if self._keys.get(namespace) != keys:
            self._keys[namespace] = keys
            self._changed = True

    def save(self) -> None:
        """Whole or not at all, and never readable by others for a moment."""
        if self._file is None or not self._changed:
            return
        make_directory(LocalDisk(), str(self._file.parent))
        temporary = self._file.with_name(self._file.name + ".new")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(self._keys, file, indent=2, sort_keys=True)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._file)
        sync_name(self._file)
        self._changed = False


def fill(namespaces: tuple[NamespaceSettings, ...], ring: KeyRing, root_key: str | None, dev: bool) -> tuple[NamespaceSettings, ...]:
    """Every rule with both its keys, and in every namespace the rule that may do everything."""
    given = root_key or (WELL_KNOWN_KEY if dev else "")
    return tuple(_fill_namespace(namespace, ring, given) for namespace in namespaces)


def _fill_namespace(namespace: NamespaceSettings, ring: KeyRing, root_key: str) -> NamespaceSettings:
    root = next((rule for rule in namespace.authorization_rules if rule.key_name == ROOT_RULE), None)
    root = root or AuthorizationRule(key_name=ROOT_RULE, primary_key="", secondary_key="", rights=frozenset(Right))
    root = replace(root, primary_key=root_key or root.primary_key, rights=frozenset(Right))
    others = [rule for rule in namespace.authorization_rules if rule.key_name != ROOT_RULE]

    def complete(path: str, rule: AuthorizationRule) -> AuthorizationRule:
        return replace(
            rule,
            primary_key=rule.primary_key or ring.key(namespace.name, path, rule.key_name, "primary_key"),
            secondary_key=rule.secondary_key or ring.key(namespace.name, path, rule.key_name, "secondary_key"),
        )

    def on_entity(entity: QueueDescription | TopicDescription | HybridConnectionDescription) -> tuple[AuthorizationRule, ...]:
        return tuple(complete(entity.name, rule) for rule in entity.authorization_rules)

    return replace(
        namespace,
        authorization_rules=tuple(complete("", rule) for rule in (root, *others)),
        queues=tuple(replace(queue, authorization_rules=on_entity(queue)) for queue in namespace.queues),
        topics=tuple(replace(topic, authorization_rules=on_entity(topic)) for topic in namespace.topics),
        relays=tuple(replace(relay, authorization_rules=on_entity(relay)) for relay in namespace.relays),
    )


def endpoint_host(namespace: NamespaceSettings, listening_on: str) -> str:
    """The name to dial: the namespace's own, or that of the machine."""
    if namespace.hosts:
        return namespace.hosts[0]
    if is_loopback(listening_on):
        return "localhost"
    if listening_on in ("0.0.0.0", "::", ""):
        import socket

        return socket.gethostname()
    return listening_on


def endpoint(host: str, port: int, tls: bool = False) -> str:
    if ":" in host:
        host = f"[{host}]"
    return f"sb://{host}/" if tls else f"sb://{host}:{port}"


def connection_string(host: str, port: int, rule: AuthorizationRule, entity: str = "", tls: bool = False) -> str:
    """What an SDK is given. With TLS the port is left out: SDKs dial 5671 whatever it says."""
    parts = [f"Endpoint={endpoint(host, port, tls)}", f"SharedAccessKeyName={rule.key_name}", f"SharedAccessKey={rule.primary_key}"]
    if entity:
        parts.append(f"EntityPath={entity}")
    if not tls:
        parts.append("UseDevelopmentEmulator=true")
    return ";".join(parts)


def _load(file: Path) -> dict[str, dict[str, dict[str, Keys]]]:
    try:
        text = file.read_text(encoding="utf-8")
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot be read: {error}") from error
    try:
        found = json.loads(text)
        for paths in found.values():
            for rules in paths.values():
                for slots in rules.values():
                    if not all(isinstance(key, str) and key for key in slots.values()):
                        raise ValueError("a key is not a text")
    except (ValueError, AttributeError) as error:
        problem = f"{file}: is damaged ({error}); restore it from a backup, or delete it to have new keys made"
        raise ConfigurationError(problem) from error
    keys: dict[str, dict[str, dict[str, Keys]]] = found
    return keys
