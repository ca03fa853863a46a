"""What a namespace consists of, as its catalog keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from tandem.model.entity import AuthorizationRule, HybridConnectionDescription
from tandem.model.entity_json import EntityDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEntity:
    """`id` is this entity's for ever: one that is deleted and created again gets another."""

    id: int
    description: EntityDescription
    store: int
    """Index of the messaging store that holds it (a partitioned entity: of its first)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What other nodes have changed since a revision."""

    revision: int
    entities: tuple[StoredEntity, ...]
    """As they are now, topics before their subscriptions."""
    gone: tuple[int, ...]
    """Ids."""
    authorization_rules: tuple[AuthorizationRule, ...]
    relays: tuple[HybridConnectionDescription, ...]
    relays_gone: tuple[str, ...]
    highest_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything, topics before their subscriptions."""

    entities: tuple[StoredEntity, ...]
    authorization_rules: tuple[AuthorizationRule, ...]
    highest_id: int = 0
    """That was ever given to an entity."""
    relays: tuple[HybridConnectionDescription, ...] = ()
