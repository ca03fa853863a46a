"""`tandem rule create|list|show|delete`: rules of subscriptions, over the administration API; `tandem rule match` stands beside it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tandem.cli.operations.output import JsonFlag, Yes, confirm, plain, show, show_one, tell
from tandem.cli.operations.target import OperationTarget, refusals, takes_target
from tandem.cli.property_pairs import property_pair
from tandem.cli.rule import app
from tandem.model.errors import ConfigurationError

_SYSTEM = ("correlation_id", "message_id", "to", "reply_to", "label", "session_id", "reply_to_session_id", "content_type")

Subscription = Annotated[str, typer.Argument(help="topic/subscription", metavar="SUBSCRIPTION")]
RulePath = Annotated[str, typer.Argument(help="topic/subscription/rule", metavar="RULE")]


def _split(path: str, wanted: int, example: str) -> tuple[str, ...]:
    parts = [part for part in path.split("/") if part.casefold() not in ("subscriptions", "rules")]
    if len(parts) < wanted or not all(parts):
        raise ConfigurationError(f"'{path}': write it like {example}")
    return ("/".join(parts[: len(parts) - wanted + 1]), *parts[len(parts) - wanted + 1 :])


@app.command(name="list")
@takes_target
def list_rules(
    target: OperationTarget,
    subscription: Subscription,
    as_json: JsonFlag = False,
) -> None:
    """List the rules of a subscription.

    Example: tandem rule list orders/billing
    """
    topic, name = _split(subscription, 2, "orders/billing")
    with refusals(), target.administration() as administration:
        show([_row(one) for one in administration.list_rules(topic, name)], as_json, ("name", "filter", "action"))


@app.command(name="show")
@takes_target
def show_rule(
    target: OperationTarget,
    rule: RulePath,
    as_json: JsonFlag = False,
) -> None:
    """Show one rule.

    Example: tandem rule show orders/billing/large
    """
    where = _split(rule, 3, "orders/billing/large")
    with refusals(), target.administration() as administration:
        show_one(_row(administration.get_rule(*where)), as_json)


@app.command(name="create")
@takes_target
def create_rule(
    target: OperationTarget,
    rule: RulePath,
    sql: Annotated[str | None, typer.Option(help="An SQL expression: \"total > 100 AND region = 'eu'\".")] = None,
    correlation: Annotated[
        list[str] | None, typer.Option(help=f"name=value, all of which must hold; {', '.join(_SYSTEM)} mean the message's own.")
    ] = None,
    action: Annotated[str | None, typer.Option(help="SQL statements that change the copy: \"SET priority = 'high'\".")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a rule; without --sql and --correlation it takes every message.

    Example: tandem rule create orders/billing/large --sql "total > 100"
    """
    from azure.servicebus.management import SqlRuleAction

    where = _split(rule, 3, "orders/billing/large")
    if sql is not None and correlation:
        raise ConfigurationError("a rule has one filter: say --sql or --correlation")
    with refusals(), target.administration() as administration:
        made = administration.create_rule(*where, filter=_filter(sql, correlation), action=SqlRuleAction(action) if action else None)
        show_one(_row(made), as_json)


@app.command(name="update")
@takes_target
def update_rule(
    target: OperationTarget,
    rule: RulePath,
    sql: Annotated[str | None, typer.Option(help="The new SQL expression.")] = None,
    correlation: Annotated[list[str] | None, typer.Option(help="name=value, all of which must hold.")] = None,
    action: Annotated[str | None, typer.Option(help="The new action; empty removes it.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Change the filter or the action of a rule.

    Example: tandem rule update orders/billing/large --sql "total > 200"
    """
    from azure.servicebus.management import SqlRuleAction

    where = _split(rule, 3, "orders/billing/large")
    with refusals(), target.administration() as administration:
        found = administration.get_rule(*where)
        if sql is not None or correlation:
            found.filter = _filter(sql, correlation)
        if action is not None:
            found.action = SqlRuleAction(action) if action else None
        administration.update_rule(*where[:-1], found)
        show_one(_row(administration.get_rule(*where)), as_json)


@app.command(name="delete")
@takes_target
def delete_rule(
    target: OperationTarget,
    rule: RulePath,
    yes: Yes = False,
    as_json: JsonFlag = False,
) -> None:
    """Delete a rule.

    Example: tandem rule delete orders/billing/$Default
    """
    where = _split(rule, 3, "orders/billing/large")
    confirm(f"Delete rule {rule}?", yes)
    with refusals(), target.administration() as administration:
        administration.delete_rule(*where)
    tell(as_json, f"deleted {rule}", deleted=rule)


def _filter(sql: str | None, correlation: list[str] | None) -> Any:
    from azure.servicebus.management import CorrelationRuleFilter, SqlRuleFilter, TrueRuleFilter

    if sql is not None:
        return SqlRuleFilter(sql)
    if not correlation:
        return TrueRuleFilter()
    pairs = dict(property_pair(text) for text in correlation)
    own: dict[str, Any] = {name: pairs.pop(name) for name in _SYSTEM if name in pairs}
    properties: Any = pairs
    return CorrelationRuleFilter(**own, properties=properties)


def _row(rule: Any) -> dict[str, Any]:
    return {"name": rule.name, "filter": _filter_text(rule.filter), "action": getattr(rule.action, "sql_expression", None)}


def _filter_text(found: Any) -> str:
    sql = getattr(found, "sql_expression", None)
    if sql is not None:
        return str(sql)
    pairs = {name: getattr(found, name) for name in _SYSTEM if getattr(found, name, None) is not None} | dict(found.properties or {})
    return " and ".join(f"{name} = {plain(value)!r}" for name, value in pairs.items())
