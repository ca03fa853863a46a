"""Rules of a subscription: shown, made, changed, deleted, and tried on a message with the reasons why it matched or not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tandem.broker.rules.explanation import Explanation, explain
from tandem.broker.rules.rules import REMOVED, compile_rule, sql_constant
from tandem.gateway.http.api.message_lines import message_of_line
from tandem.gateway.views import view_of_message
from tandem.model.entity import Right, RuleDescription
from tandem.model.entity_json import NotADescription, dump_rule, load_rule
from tandem.model.errors import ArgumentRefused

if TYPE_CHECKING:
    from tandem.broker.entities.topic import Subscription
    from tandem.gateway.http.api.calls import ApiCall


def _subscription(call: ApiCall, right: Right) -> Subscription:
    address = call.address(right)
    parts = address.topic_and_subscription
    if parts is None:
        raise ArgumentRefused(f"'{address.entity}' is no subscription: rules belong to topic/Subscriptions/name")
    return call.context.namespace.subscription(*parts)


async def show(call: ApiCall) -> object:
    """{path of the subscription} -> {rules}."""
    found = _subscription(call, Right.LISTEN)
    return {"rules": [json.loads(dump_rule(rule)) for rule in found.description.rules]}


def _rule(call: ApiCall) -> RuleDescription:
    given = call.argument("rule", dict)
    try:
        return load_rule(json.dumps({"created_at_ms": 0, "action": None} | given))
    except (NotADescription, KeyError) as error:
        raise ArgumentRefused(f"the rule: {error}") from None


async def put(call: ApiCall) -> object:
    """{path, rule, create}."""
    kept, rule = _subscription(call, Right.MANAGE).description, _rule(call)
    if call.argument("create", bool, False):
        made = await call.admin.create_rule(kept.topic, kept.name, rule)
    else:
        made = await call.admin.update_rule(kept.topic, kept.name, rule)
    return json.loads(dump_rule(made))


async def delete(call: ApiCall) -> object:
    """{path, name}."""
    kept = _subscription(call, Right.MANAGE).description
    name = call.argument("name", str)
    await call.admin.delete_rule(kept.topic, kept.name, name)
    return {"deleted": name}


async def test(call: ApiCall) -> object:
    """{path, rule?, message} -> what the rule, or each rule of the subscription, makes of the message, and why. Nothing is sent."""
    found, context = _subscription(call, Right.LISTEN), call.context
    message = message_of_line(context, call.argument("message", dict))
    view = view_of_message(message, context.turn.now)
    wanted = (_rule(call),) if "rule" in call.body else found.description.rules
    return {"results": [_explained(explain(compile_rule(rule, context.limits), view)) for rule in wanted]}


def _explained(found: Explanation) -> dict[str, Any]:
    return {
        "rule": found.rule_name,
        "matches": found.matches,
        "failure": found.failure,
        "reasons": [str(reason) for reason in found.reasons],
        "changes": [
            {"scope": scope, "name": name, "value": None if value is REMOVED else sql_constant(value)}
            for scope, name, value in found.changes
        ],
    }
