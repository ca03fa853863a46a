"""Rules of subscriptions as files describe them, and names that may stand only once."""

from __future__ import annotations

from typing import Any, Final, cast

from tandem.cli.configuration.documents import Section
from tandem.cli.configuration.setting_types import Choice, SettingType, Text
from tandem.model.entity import CorrelationFilter, Filter, RuleDescription, SqlAction, SqlFilter, TrueFilter
from tandem.model.errors import ConfigurationError

RULE_NAME: Final = Text(chars_max=50, allowed="a name of at most 50 characters")
_VALUE_ALLOWED: Final = "a text, a number, or true or false"


class UniqueNames:
    """Queues and topics share one space of names, whatever their case."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, section: Section, key: str, kind: SettingType) -> str:
        name = cast(str, section.need(key, kind))
        if name.casefold() in self._taken:
            raise ConfigurationError(f"{section.place(key)}: the name '{name}' is used twice")
        self._taken.add(name.casefold())
        return name


def read_rule(section: Section, names: UniqueNames) -> RuleDescription:
    name = names.take(section, "name", RULE_NAME)
    expression = section.get("sql", Text(allowed="an SQL condition"))
    parameters = _values(section.table("sql_parameters"))
    action = section.get("action", Text(allowed="an SQL action"))
    correlation = section.table("correlation")
    if expression is not None and correlation is not None:
        raise ConfigurationError(f"{section.place('correlation')}: a rule has either sql or correlation, not both")
    chosen: Filter = TrueFilter()
    if expression is not None:
        chosen = SqlFilter(expression=cast(str, expression), parameters=parameters)
    elif correlation is not None:
        chosen = _correlation(correlation, emulator=False)
    section.finish()
    return RuleDescription(name=name, filter=chosen, action=None if action is None else SqlAction(expression=cast(str, action)))


def read_emulator_rule(section: Section, names: UniqueNames) -> RuleDescription:
    name = names.take(section, "Name", RULE_NAME)
    properties = section.need_table("Properties")
    wanted = properties.get("FilterType", Choice(("Sql", "Correlation")))
    sql, correlation, action = properties.table("SqlFilter"), properties.table("CorrelationFilter"), properties.table("Action")
    if wanted == "Sql" and sql is None:
        raise ConfigurationError(f"{properties.place()}: FilterType is Sql, but SqlFilter is missing")
    if wanted == "Correlation" and correlation is None:
        raise ConfigurationError(f"{properties.place()}: FilterType is Correlation, but CorrelationFilter is missing")
    chosen: Filter = TrueFilter()
    if sql is not None and wanted != "Correlation":
        chosen = SqlFilter(expression=_expression(sql))
    elif correlation is not None:
        chosen = _correlation(correlation, emulator=True)
    expression = None if action is None else _expression(action)
    properties.finish()
    section.finish()
    return RuleDescription(name=name, filter=chosen, action=SqlAction(expression=expression) if expression else None)


def _expression(section: Section) -> str:
    expression = cast(str, section.need("SqlExpression", Text(empty=True, allowed="an SQL expression")))
    for ignored in ("CompatibilityLevel", "RequiresPreprocessing"):
        section.has(ignored)
    section.finish()
    return expression


_CORRELATION: Final = (
    ("correlation_id", "CorrelationId"),
    ("message_id", "MessageId"),
    ("to", "To"),
    ("reply_to", "ReplyTo"),
    ("label", "Label"),
    ("session_id", "SessionId"),
    ("reply_to_session_id", "ReplyToSessionId"),
    ("content_type", "ContentType"),
)


def _correlation(section: Section, emulator: bool) -> CorrelationFilter:
    fields: dict[str, Any] = {}
    for field, emulator_key in _CORRELATION:
        value = section.get(emulator_key if emulator else field, Text(empty=True))
        if value:
            fields[field] = value
    if emulator:
        subject = section.get("Subject", Text(empty=True))  # newer name of Label
        if subject and "label" not in fields:
            fields["label"] = subject
        section.has("RequiresPreprocessing")
    properties = _values(section.table("Properties" if emulator else "properties"))
    section.finish()
    return CorrelationFilter(**fields, properties=properties)


def _values(section: Section | None) -> tuple[tuple[str, object], ...]:
    """User properties: any name, plain values."""
    if section is None:
        return ()
    for key, value in section.values.items():
        if not isinstance(value, str | int | float | bool):
            raise section.refusal(key, value, _VALUE_ALLOWED)
    return tuple(section.values.items())
