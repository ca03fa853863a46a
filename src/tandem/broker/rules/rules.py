"""Rules of a subscription, compiled: which copies of a message the subscription gets, and what each copy changes.

All matching rules without an action together give one copy; each matching rule with an action gives a copy of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID, uuid4

from tandem.broker.rules.message_view import SYSTEM_BY_NAME, MessageView, PropertyKind, fold
from tandem.broker.rules.sql_compile import NewIdSource, Predicate, ValueFunction, compile_predicate, compile_value
from tandem.broker.rules.sql_convert import as_existing, text_of, to_kind
from tandem.broker.rules.sql_nodes import And, Compare, Literal, Property, RemoveProperty, SetProperty, SqlNode, Statement
from tandem.broker.rules.sql_parser import check_value, parse_action, parse_filter
from tandem.broker.rules.sql_values import EQ, SORT_NAMES, RuleEvaluationError, compare, milliseconds_of, sort_of
from tandem.model.entity import CorrelationFilter, Filter, RuleDescription, SqlAction, SqlFilter, TrueFilter
from tandem.model.errors import ArgumentRefused
from tandem.model.limits import Limits

RULE_NAME_PROPERTY: Final = "RuleName"
"""The user property by which a copy made by a rule with an action says which rule that was."""

_CORRELATION_FIELDS: Final = (
    ("CorrelationId", "correlation_id"),
    ("MessageId", "message_id"),
    ("To", "to"),
    ("ReplyTo", "reply_to"),
    ("Label", "label"),
    ("SessionId", "session_id"),
    ("ReplyToSessionId", "reply_to_session_id"),
    ("ContentType", "content_type"),
)


class Removed:
    """The value of a property that is gone."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "REMOVED"


REMOVED: Final = Removed()

Change = tuple[str, str, object]
"""Scope (`sys` or `user`), name, and the new value or REMOVED. Instants and durations of `sys` are in milliseconds."""
Changes = tuple[Change, ...]


class CompiledFilter:
    """A condition that is checked when made, and turned into code when the first message comes."""

    __slots__ = ("_is_false", "_new_id", "constant", "node", "predicate", "text")

    def __init__(self, node: SqlNode, text: str, new_id: NewIdSource) -> None:
        self.node: SqlNode = node
        self.text: str = text
        """The expression; for a correlation filter, the SQL that means the same."""
        self.constant: bool | None = _constant_outcome(node)
        """What the filter says of every message, if it is the same for all."""
        self._new_id: NewIdSource = new_id
        self._is_false: Predicate | None = None
        self.predicate: Predicate = self._compile_and_match
        """Call it with a view: True if the message matches, False if not or unknown. RuleEvaluationError if it cannot tell."""

    def _compile_and_match(self, view: MessageView) -> bool:
        self.predicate = compile_predicate(self.node, True, self._new_id)
        return self.predicate(view)

    def matches(self, view: MessageView) -> bool:
        return self.predicate(view)

    def truth(self, view: MessageView) -> bool | None:
        """True, False, or None for unknown."""
        if self.predicate(view):
            return True
        if self._is_false is None:
            self._is_false = compile_predicate(self.node, False, self._new_id)
        return False if self._is_false(view) else None


def _constant_outcome(node: SqlNode) -> bool | None:
    if isinstance(node, Compare) and node.sign == "=" and isinstance(node.left, Literal) and isinstance(node.right, Literal):
        return compare(EQ, node.left.value, node.right.value) is True
    return None


class CompiledAction:
    """SET and REMOVE statements in order; each sees what the ones before it did."""

    __slots__ = ("_limits", "_new_id", "_values", "statements", "text")

    def __init__(self, statements: tuple[Statement, ...], text: str, limits: Limits, new_id: NewIdSource) -> None:
        self.statements: tuple[Statement, ...] = statements
        self.text: str = text
        self._limits: Limits = limits
        self._new_id: NewIdSource = new_id
        self._values: list[ValueFunction] | None = None

    def changes(self, view: MessageView, rule_name: str) -> Changes:
        """What the copy differs in from the message, the name of its rule included. The view stays as it is."""
        values = self._values
        if values is None:
            values = [compile_value(s.value, self._new_id) for s in self.statements if isinstance(s, SetProperty)]
            self._values = values
        scratch = view.scratch()
        changed: dict[tuple[str, str], object] = {}
        named = False
        next_value = 0
        for statement in self.statements:
            target = statement.target
            named = named or (not target.is_system and fold(target.name) == "rulename")
            if isinstance(statement, RemoveProperty):
                self._remove(scratch, target, changed)
            else:
                self._set(scratch, target, values[next_value](scratch), changed)
                next_value += 1
        if not named:
            changed["user", scratch.set_user(RULE_NAME_PROPERTY, rule_name)] = rule_name
        return tuple([(scope, name, value) for (scope, name), value in changed.items()])

    def _remove(self, scratch: MessageView, target: Property, changed: dict[tuple[str, str], object]) -> None:
        if target.is_system:
            scratch.set_system(target.name, None)
            changed["sys", target.name] = REMOVED
            return
        key = scratch.remove_user(target.name)
        if key is not None:
            changed["user", key] = REMOVED

    def _set(self, scratch: MessageView, target: Property, value: object, changed: dict[tuple[str, str], object]) -> None:
        if not target.is_system:
            value = as_existing(value, scratch.user_value(target.name))
            changed["user", scratch.set_user(target.name, value)] = value
            return
        if value is not None:
            value = self._system_value(target.name, value)
        scratch.set_system(target.name, value)
        changed["sys", target.name] = REMOVED if value is None else value

    def _system_value(self, name: str, value: object) -> object:
        kind = SYSTEM_BY_NAME[fold(name)].kind
        converted = to_kind(value, kind)
        if converted is None:
            raise RuleEvaluationError(f"sys.{name} cannot be set to {SORT_NAMES[sort_of(value)]}: its type is {kind.value}")
        if isinstance(converted, str):
            allowed = self._chars_max(name)
            if allowed is not None and len(converted) > allowed:
                raise RuleEvaluationError(f"sys.{name} cannot be set to a text of {len(converted)} characters: {allowed} are allowed")
            return converted
        held = milliseconds_of(converted)
        if kind is PropertyKind.DURATION and isinstance(held, int) and held <= 0:
            raise RuleEvaluationError(f"sys.{name} cannot be set to zero or less")
        return held

    def _chars_max(self, name: str) -> int | None:
        if name == "MessageId":
            return self._limits.message_id_chars_max
        if name in ("SessionId", "ReplyToSessionId", "PartitionKey", "ViaPartitionKey"):
            return self._limits.session_id_chars_max
        return None


class CompiledRule:
    __slots__ = ("action", "alone", "description", "filter", "name")

    def __init__(self, description: RuleDescription, filter: CompiledFilter, action: CompiledAction | None) -> None:
        self.name: str = description.name
        self.description: RuleDescription = description
        self.filter: CompiledFilter = filter
        self.action: CompiledAction | None = action
        self.alone: Selection = Selection(((self, ()),), None)
        """What a message gives that only this rule, and no action, has anything to do with."""

    def matches(self, view: MessageView) -> bool:
        return self.filter.predicate(view)

    def apply_action(self, view: MessageView) -> Changes:
        """What this rule's copy changes; empty for a rule without an action. RuleEvaluationError if the action fails."""
        if self.action is None:
            return ()
        return self.action.changes(view, self.name)


class RuleFailure(RuleEvaluationError):
    """A rule failed on a message. The message still matches what `matched` says; one more copy is to be dead-lettered."""

    def __init__(self, rule: CompiledRule, cause: RuleEvaluationError, matched: list[CompiledRule]) -> None:
        super().__init__(f"rule '{rule.name}': {cause.description}")
        self.rule = rule
        self.matched = matched


class Selection:
    """What a subscription gets of one message."""

    __slots__ = ("copies", "failure")

    def __init__(self, copies: tuple[tuple[CompiledRule, Changes], ...], failure: RuleFailure | None) -> None:
        self.copies: tuple[tuple[CompiledRule, Changes], ...] = copies
        """One per copy, with what it changes."""
        self.failure: RuleFailure | None = failure
        """Set when a filter or an action failed: the message, unchanged, is to be dead-lettered with this as the reason."""


NO_COPY: Final = Selection((), None)


class RuleSet:
    """The rules of one subscription. Made anew when a rule is added or removed."""

    __slots__ = ("_acting", "_always", "_plain", "passes_all", "rules")

    def __init__(self, rules: Sequence[CompiledRule]) -> None:
        self.rules: tuple[CompiledRule, ...] = tuple(rules)
        able = [rule for rule in self.rules if rule.filter.constant is not False]
        self._plain: list[CompiledRule] = [rule for rule in able if rule.action is None]
        self._acting: list[CompiledRule] = [rule for rule in able if rule.action is not None]
        always = [rule for rule in self._plain if rule.filter.constant is True]
        self._always: CompiledRule | None = always[0] if always else None
        self.passes_all: bool = bool(always) and not self._acting
        """Every message gives exactly one unchanged copy: nobody needs to look at it."""

    def evaluate(self, view: MessageView) -> list[CompiledRule]:
        """The rules that give a copy each: at most one of those without an action stands for all of them.

        RuleFailure if the outcome of a rule that matters cannot be told.
        """
        matched: list[CompiledRule] = []
        failure = self._match(view, matched)
        if failure is not None:
            raise failure
        return matched

    def select(self, view: MessageView) -> Selection:
        """`evaluate` and every matching rule's action, failures included instead of raised."""
        matched: list[CompiledRule] = []
        failure = self._match(view, matched)
        if failure is None and not self._acting:
            return matched[0].alone if matched else NO_COPY
        copies: list[tuple[CompiledRule, Changes]] = []
        for rule in matched:
            try:
                copies.append((rule, rule.apply_action(view)))
            except RuleEvaluationError as error:
                failure = failure or RuleFailure(rule, error, matched)
        return Selection(tuple(copies), failure)

    def _match(self, view: MessageView, matched: list[CompiledRule]) -> RuleFailure | None:
        failure: RuleFailure | None = None
        if self._always is not None:
            matched.append(self._always)
        else:
            for rule in self._plain:
                try:
                    if rule.filter.predicate(view):
                        matched.append(rule)
                        # They are one OR: whether another failed does not matter any more.
                        failure = None
                        break
                except RuleEvaluationError as error:
                    failure = failure or RuleFailure(rule, error, matched)
        for rule in self._acting:
            try:
                if rule.filter.predicate(view):
                    matched.append(rule)
            except RuleEvaluationError as error:
                failure = failure or RuleFailure(rule, error, matched)
        return failure


def compile_rule(description: RuleDescription, limits: Limits | None = None, new_id: NewIdSource = uuid4) -> CompiledRule:
    """Checks and prepares a rule. ArgumentRefused (SqlSyntaxError for SQL) if filter or action is not valid."""
    limits = limits or Limits()
    action = None if description.action is None else compile_action(description.action, limits, new_id)
    return CompiledRule(description, compile_filter(description.filter, limits, new_id), action)


def compile_filter(filter: Filter, limits: Limits | None = None, new_id: NewIdSource = uuid4) -> CompiledFilter:
    limits = limits or Limits()
    if isinstance(filter, SqlFilter):
        return CompiledFilter(parse_filter(filter.expression, filter.parameters, limits), filter.expression, new_id)
    if isinstance(filter, CorrelationFilter):
        return _compile_correlation(filter, limits, new_id)
    text = "1=1" if isinstance(filter, TrueFilter) else "1=0"
    return CompiledFilter(parse_filter(text), text, new_id)


def compile_action(action: SqlAction, limits: Limits | None = None, new_id: NewIdSource = uuid4) -> CompiledAction:
    limits = limits or Limits()
    return CompiledAction(parse_action(action.expression, action.parameters, limits), action.expression, limits, new_id)


def _compile_correlation(filter: CorrelationFilter, limits: Limits, new_id: NewIdSource) -> CompiledFilter:
    """A conjunction of equalities, and the SQL that means the same for those who ask why."""
    wanted: list[tuple[bool, str, object]] = []
    for name, field in _CORRELATION_FIELDS:
        value = getattr(filter, field)
        if value is not None:
            wanted.append((True, name, value))
    for name, value in filter.properties:
        wanted.append((False, name, check_value(value, f"property {name!r} of the correlation filter")))
    if not wanted:
        raise ArgumentRefused("a correlation filter needs at least one property to compare")
    if len(wanted) > limits.sql_expression_terms_max:
        raise ArgumentRefused(f"a correlation filter compares at most {limits.sql_expression_terms_max} properties, found {len(wanted)}")
    text = ""
    items: list[SqlNode] = []
    for is_system, name, value in wanted:
        text += " AND " if text else ""
        at = len(text)
        text += f"{sql_name(is_system, name)} = {sql_constant(value)}"
        end = len(text)
        items.append(Compare(at, end, "=", Property(at, end, is_system, name), Literal(at, end, value)))
    return CompiledFilter(items[0] if len(items) == 1 else And(0, len(text), tuple(items)), text, new_id)


def sql_name(is_system: bool, name: str) -> str:
    """A property as a rule would write it."""
    if is_system:
        return f"sys.{name}"
    plain = name[:1].isalpha() and all(c == "_" or c.isalpha() or c.isdecimal() for c in name)
    return name if plain else f"[{name.replace(']', ']]')}]"


def sql_constant(value: object) -> str:
    """A value as a rule would write it, or nearly so where SQL has no constant of its sort."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    text = text_of(value)
    if text is None:
        return SORT_NAMES[sort_of(value)]
    if isinstance(value, int | float):
        return text
    quoted = text.replace("'", "''")
    return f"'{quoted}'" if isinstance(value, str | UUID) else quoted
