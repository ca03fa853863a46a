"""Rules over a management node: add, remove, list, and "would this message match?"."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.amqp.types import Int
from tandem.broker.entities.queue_entity import QueueEntity
from tandem.broker.entities.topic import Subscription
from tandem.broker.rules.explanation import Explanation, explain_all
from tandem.gateway.amqp.rule_maps import read_rule, write_rule
from tandem.model.errors import ArgumentRefused, NotAllowed
from tandem.server.administration_port import AdminPort, Page
from tandem.server.audit import CHANGED

if TYPE_CHECKING:
    from tandem.gateway.amqp.connection import PeerConnection
    from tandem.model.address import Address

Reply = tuple[int, dict[object, object]]


class RuleOperations:
    """What one management node does about rules. Everything that changes goes through administration, so it is durable."""

    def __init__(self, connection: PeerConnection, address: Address) -> None:
        self._connection = connection
        self._address = address

    def _admin(self) -> AdminPort:
        admin = self._connection.context.admin
        if admin is None:
            raise NotAllowed("This namespace has no administration.")
        return admin

    def _place(self) -> tuple[str, str]:
        parts = self._address.topic_and_subscription
        if parts is None or self._address.key in self._connection.context.namespace.entities:
            raise NotAllowed(f"'{self._address.entity}' has no rules: only subscriptions do.")
        return parts

    async def add(self, body: dict[object, object]) -> Reply:
        topic, subscription = self._place()
        await self._admin().create_rule(topic, subscription, read_rule(_name(body), body.get("rule-description")))
        self._audited(f"rule {_name(body)} created")
        return 200, {}

    async def remove(self, body: dict[object, object]) -> Reply:
        topic, subscription = self._place()
        await self._admin().delete_rule(topic, subscription, _name(body))
        self._audited(f"rule {_name(body)} deleted")
        return 200, {}

    def _audited(self, detail: str) -> None:
        connection = self._connection
        connection.context.audited(CHANGED, connection.holder(self._address), connection.peer, self._address.resource, detail)

    async def enumerate(self, body: dict[object, object]) -> Reply:
        topic, subscription = self._place()
        skip, top = _number(body, "skip", 0), _number(body, "top", 100)
        rules = await self._admin().list_rules(topic, subscription, Page(skip=skip, top=top))
        if not rules:
            return 204, {}
        return 200, {"rules": [{"rule-description": write_rule(rule)} for rule in rules]}

    async def explain(self, body: dict[object, object]) -> Reply:
        """{message: binary} -> {subscriptions: [{name, matches, rules: [{name, matches, reasons, text, …}]}]}.

        At a topic all its subscriptions answer, at a subscription only that one. Nothing is sent.
        """
        raw = body.get("message")
        if not isinstance(raw, bytes):
            raise ArgumentRefused("The request needs 'message' as binary: the message, encoded as it would be sent.")
        connection = self._connection
        message = connection.translator.message(raw)
        found: list[object] = []
        for subscription in self._subscriptions():
            view = connection.translator.view(message, connection.turn.now)
            explanations = explain_all(subscription.rules, view)
            found.append(
                {
                    "name": subscription.description.name,
                    "matches": any(one.matches and one.failure is None for one in explanations),
                    "rules": [_explained(one) for one in explanations],
                }
            )
        return (200, {"subscriptions": found}) if found else (204, {})

    def _subscriptions(self) -> list[Subscription]:
        namespace = self._connection.context.namespace
        entity = namespace.find(self._address.entity)
        if entity is not None and not isinstance(entity, QueueEntity):
            return list(entity.subscriptions.values())
        return [namespace.subscription(*self._place())]


def _explained(one: Explanation) -> dict[object, object]:
    return {
        "name": one.rule_name,
        "matches": one.matches,
        "failure": one.failure,
        "reasons": [str(reason) for reason in one.reasons],
        "changes": Int(len(one.changes)),
        "text": str(one),
    }


def _name(body: dict[object, object]) -> str:
    name = body.get("rule-name")
    if not isinstance(name, str):
        raise ArgumentRefused(f"The request needs 'rule-name' as a string, found {type(name).__name__}.")
    return str(name)


def _number(body: dict[object, object], name: str, default: int) -> int:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ArgumentRefused(f"The request needs '{name}' as a number of 0 or more, found {value!r}.")
    return int(value)
