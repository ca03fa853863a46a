"""Would this message match, and why not: the parts of a filter that decided, with the values they met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from tandem.broker.rules.message_view import MessageView
from tandem.broker.rules.rules import REMOVED, Change, CompiledRule, RuleSet, sql_constant, sql_name
from tandem.broker.rules.sql_compile import compile_predicate, compile_value
from tandem.broker.rules.sql_nodes import And, Binary, Compare, Exists, In, IsNull, Like, Not, Or, Property, PropertyCall, SqlNode, Unary
from tandem.broker.rules.sql_values import SORT_NAMES, RuleEvaluationError, sort_of

_SHOWN_CHARS_MAX: Final = 120
_NO_ID: Final = UUID(int=0)
"""What newid() gives while explaining: nothing is sent, and no randomness is used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One part of a filter that decided."""

    expression: str
    outcome: str
    """`true`, `false`, `unknown`, or `failed: …` when it could not be computed."""
    needed: str
    """`true`, or `false` where the part stands under NOT."""
    found: tuple[str, ...]
    """What the message has for each property of the part."""

    def __str__(self) -> str:
        values = f": {', '.join(self.found)}" if self.found else ""
        outcome = self.outcome if self.outcome.startswith("failed") else f"is {self.outcome}"
        if self.outcome == "true" and self.needed == "false":
            outcome += " but must be false"
        return f"{_shortened(self.expression)} {outcome}{values}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    rule_name: str
    matches: bool
    failure: str | None
    """Why filter or action could not be evaluated; the message would be dead-lettered."""
    reasons: tuple[Reason, ...]
    """If the rule matches, the parts that made it match; if not, the parts that stood in the way."""
    changes: tuple[Change, ...]
    """What the action would do to the copy."""

    def __str__(self) -> str:
        verdict = "fails" if self.failure is not None else "matches" if self.matches else "does not match"
        lines = [f"rule '{self.rule_name}' {verdict}" + (f": {self.failure}" if self.failure is not None else "")]
        lines.extend([f"  {reason}" for reason in self.reasons])
        for scope, name, value in self.changes:
            shown = sql_name(scope == "sys", name)
            lines.append(f"  REMOVE {shown}" if value is REMOVED else f"  SET {shown} = {_shortened(sql_constant(value))}")
        return "\n".join(lines)


def explain(rule: CompiledRule, view: MessageView) -> Explanation:
    failure: str | None = None
    changes: tuple[Change, ...] = ()
    matches = False
    try:
        matches = rule.matches(view)
        if matches:
            changes = rule.apply_action(view)
    except RuleEvaluationError as error:
        failure = error.description
    found = _Explainer(rule.filter.text, view)
    reasons = found.support(rule.filter.node, True) if matches else found.obstacles(rule.filter.node, True)
    return Explanation(rule_name=rule.name, matches=matches, failure=failure, reasons=tuple(reasons), changes=changes)


def explain_all(rules: RuleSet, view: MessageView) -> list[Explanation]:
    return [explain(rule, view) for rule in rules.rules]


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS_MAX else text[:_SHOWN_CHARS_MAX] + "…"


class _Explainer:
    def __init__(self, text: str, view: MessageView) -> None:
        self._text = text
        self._view = view

    def _is(self, node: SqlNode, wanted: bool) -> bool:
        try:
            return compile_predicate(node, wanted, lambda: _NO_ID)(self._view)
        except RuleEvaluationError:
            return False

    def obstacles(self, node: SqlNode, wanted: bool) -> list[Reason]:
        """Which parts kept the node from being what was wanted."""
        if isinstance(node, Not):
            return self.obstacles(node.operand, not wanted)
        if isinstance(node, And | Or):
            # Of what is needed all together, those that are missing; of alternatives, every one.
            return [reason for item in node.items if not self._is(item, wanted) for reason in self.obstacles(item, wanted)]
        return [self._reason(node, wanted)]

    def support(self, node: SqlNode, wanted: bool) -> list[Reason]:
        """Which parts made the node what was wanted."""
        if isinstance(node, Not):
            return self.support(node.operand, not wanted)
        if isinstance(node, And | Or):
            return [reason for item in node.items if self._is(item, wanted) for reason in self.support(item, wanted)]
        return [self._reason(node, wanted)]

    def _reason(self, leaf: SqlNode, wanted: bool) -> Reason:
        try:
            if compile_predicate(leaf, True, lambda: _NO_ID)(self._view):
                outcome = "true"
            else:
                outcome = "false" if compile_predicate(leaf, False, lambda: _NO_ID)(self._view) else "unknown"
        except RuleEvaluationError as error:
            outcome = f"failed: {error.description}"
        found: dict[str, None] = {}
        self._collect(leaf, outcome == "unknown", found)
        needed = "true" if wanted else "false"
        return Reason(expression=self._text[leaf.at : leaf.end], outcome=outcome, needed=needed, found=tuple(found))

    def _collect(self, node: SqlNode, with_sort: bool, found: dict[str, None]) -> None:
        if isinstance(node, Property):
            found[self._shown(node, with_sort)] = None
        elif isinstance(node, PropertyCall):
            self._collect(node.argument, with_sort, found)
            name = self._value(node.argument)
            if isinstance(name, str):
                found[self._shown(Property(node.at, node.end, False, name), with_sort)] = None
        else:
            for child in _children(node):
                self._collect(child, with_sort, found)

    def _value(self, node: SqlNode) -> object:
        try:
            return compile_value(node, lambda: _NO_ID)(self._view)
        except RuleEvaluationError:
            return None

    def _shown(self, node: Property, with_sort: bool) -> str:
        name = sql_name(node.is_system, node.name)
        value = self._value(node)
        if value is None:
            exists = not node.is_system and self._view.has_user(node.name)
            return f"{name} is {'null' if exists else 'not set'}"
        sort = f" ({SORT_NAMES[sort_of(value)]})" if with_sort else ""
        return f"{name} = {_shortened(sql_constant(value))}{sort}"


def _children(node: SqlNode) -> tuple[SqlNode, ...]:
    if isinstance(node, Compare | Binary):
        return (node.left, node.right)
    if isinstance(node, IsNull | Exists | Unary):
        return (node.operand,)
    if isinstance(node, In):
        return (node.operand, *node.items)
    if isinstance(node, Like):
        return (node.operand, node.pattern) if node.escape is None else (node.operand, node.pattern, node.escape)
    return ()
