"""Hybrid connections: relays of one namespace, their listeners and what runs through them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tandem.model.entity import AuthorizationRule, HybridConnectionDescription
from tandem.model.errors import QuotaExceeded
from tandem.relay.close_codes import GOING_AWAY
from tandem.relay.target import RelayTarget, longest_match

if TYPE_CHECKING:  # a broker that has no relays loads nothing of this
    from tandem.relay.connection import RelayedConnection
    from tandem.relay.listener import ListenerChannel


class HybridConnection:
    """One relay: a name, who listens, who is connected."""

    def __init__(self, description: HybridConnectionDescription) -> None:
        self.description = description
        self.listeners: dict[ListenerChannel, None] = {}
        self.connections: dict[RelayedConnection, None] = {}
        self.requests = 0
        """HTTP requests under way."""
        self.connections_total = 0
        self.requests_total = 0
        self.bytes_total = 0
        """Relayed by connections that are over, and bodies."""

    @property
    def name(self) -> str:
        return self.description.name

    def authorization_rule(self, key_name: str) -> AuthorizationRule | None:
        return next((rule for rule in self.description.authorization_rules if rule.key_name == key_name), None)

    def add_listener(self, channel: ListenerChannel, listeners_max: int) -> None:
        if len(self.listeners) >= listeners_max:
            raise QuotaExceeded(f"The quota of {listeners_max} listeners of '{self.name}' is used up.")
        self.listeners[channel] = None

    def remove_listener(self, channel: ListenerChannel) -> None:
        self.listeners.pop(channel, None)

    def pick_listener(self, chance: Callable[[], float], but: set[ListenerChannel]) -> ListenerChannel | None:
        """Any that takes something, each as likely as another; `but` have been asked already. One that does not read what it was sent
        before is as good as gone: what is kept for it has a bound."""
        there = [channel for channel in self.listeners if channel.takes_more and channel not in but]
        return there[int(chance() * len(there))] if there else None

    def add_connection(self, connection: RelayedConnection) -> None:
        self.connections[connection] = None
        self.connections_total += 1

    def remove_connection(self, connection: RelayedConnection) -> None:
        if self.connections.pop(connection, connection) is None:
            self.bytes_total += connection.bytes_relayed

    def change(self, description: HybridConnectionDescription) -> None:
        """What runs goes on."""
        self.description = description

    def request_came(self, counted: bool) -> None:
        """A sender waits; `counted`: as a request of its own."""
        self.requests += 1
        if counted:
            self.requests_total += 1

    def request_ended(self) -> None:
        self.requests -= 1

    def close(self, reason: str) -> None:
        """It is deleted, or the broker stops: everybody is told."""
        for channel in list(self.listeners):
            channel.close(GOING_AWAY, reason)
        for connection in list(self.connections):
            connection.close(GOING_AWAY, reason)


class Relays:
    """The relays of one namespace, by name in lower case."""

    def __init__(self) -> None:
        self.entities: dict[str, HybridConnection] = {}

    def put(self, description: HybridConnectionDescription) -> None:
        """New, or changed: what runs goes on."""
        known = self.entities.get(description.name.casefold())
        if known is None:
            self.entities[description.name.casefold()] = HybridConnection(description)
        else:
            known.change(description)

    def remove(self, name: str) -> None:
        entity = self.entities.pop(name.casefold(), None)
        if entity is not None:
            entity.close("the relay was deleted")

    def find(self, name: str) -> HybridConnection | None:
        return self.entities.get(name.casefold())

    def match(self, target: RelayTarget) -> tuple[HybridConnection, int] | None:
        return longest_match(self.entities, target.segments) if self.entities else None

    @property
    def connection_count(self) -> int:
        """Of senders, WebSocket and HTTP."""
        return sum([len(entity.connections) + entity.requests for entity in self.entities.values()])

    def look_at_tokens_again(self) -> None:
        """Of everybody who listens; connections that are relayed already go on, as when a token expires."""
        for entity in self.entities.values():
            for channel in list(entity.listeners):
                channel.look_at_token_again()

    def close(self, reason: str) -> None:
        for entity in self.entities.values():
            entity.close(reason)
