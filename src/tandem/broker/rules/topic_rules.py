"""All subscriptions of a topic at once: only those whose rules can match are asked.

A rule that demands `property = 'text'` (a correlation filter, or such a part of a SQL filter) cannot match a message with another
text there. So subscriptions are looked up by the texts their rules demand, and those that demand none are always asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from tandem.broker.rules.message_view import MessageView, fold
from tandem.broker.rules.rules import RuleSet, Selection
from tandem.broker.rules.sql_nodes import And, Compare, In, Literal, Property, SqlNode

K = TypeVar("K")
Demand = tuple[bool, str, tuple[str, ...]]
"""System or not, name of the property (folded if not), and the texts of which it must be one."""


def demand_of(node: SqlNode) -> Demand | None:
    """The most telling demand among the parts that must all be true; None if there is none."""
    best: Demand | None = None
    for item in node.items if isinstance(node, And) else (node,):
        demand = _demand(item)
        if demand is not None and (best is None or len(demand[2]) < len(best[2])):
            best = demand
    return best


def _demand(node: SqlNode) -> Demand | None:
    operand: SqlNode
    items: tuple[SqlNode, ...]
    if isinstance(node, Compare) and node.sign == "=":
        operand, items = node.left, (node.right,)
        if isinstance(operand, Literal):
            operand, items = node.right, (node.left,)
    elif isinstance(node, In) and not node.negated:
        operand, items = node.operand, node.items
    else:
        return None
    if not isinstance(operand, Property):
        return None
    texts: list[str] = []
    for item in items:
        if not isinstance(item, Literal) or not isinstance(item.value, str):
            return None
        texts.append(str(item.value))
    return operand.is_system, operand.name if operand.is_system else fold(operand.name), tuple(texts)


class TopicRules(Generic[K]):
    """The rule sets of a topic's subscriptions, by whatever key the caller knows them. Made anew when a rule changes."""

    def __init__(self, subscriptions: Sequence[tuple[K, RuleSet]]) -> None:
        self._subscriptions: list[tuple[K, RuleSet]] = list(subscriptions)
        self._asked_always: list[int] = []
        self._by_system: dict[str, dict[str, list[int]]] = {}
        self._by_user: dict[str, dict[str, list[int]]] = {}
        for position, (_, rules) in enumerate(self._subscriptions):
            self._enter(position, rules)

    def _enter(self, position: int, rules: RuleSet) -> None:
        demands: list[Demand] = []
        for rule in rules.rules:
            if rule.filter.constant is False:
                continue
            demand = demand_of(rule.filter.node)
            if demand is None:
                self._asked_always.append(position)
                return
            demands.append(demand)
        for is_system, name, texts in demands:
            by_text = (self._by_system if is_system else self._by_user).setdefault(name, {})
            for text in texts:
                positions = by_text.setdefault(text, [])
                if not positions or positions[-1] != position:
                    positions.append(position)

    def candidates(self, view: MessageView) -> list[int]:
        """Positions of the subscriptions whose rules have to be evaluated, in order."""
        if not self._by_system and not self._by_user:
            return self._asked_always
        found: set[int] = set(self._asked_always)
        for name, by_text in self._by_system.items():
            value = view.system_properties().get(name)
            if isinstance(value, str):
                found.update(by_text.get(value, ()))
        for name, by_text in self._by_user.items():
            self._add_user_candidates(view, name, by_text, found)
        return sorted(found)

    def _add_user_candidates(self, view: MessageView, folded: str, by_text: dict[str, list[int]], found: set[int]) -> None:
        """Properties whose names differ in case only are one to most rules and several to some: try each."""
        for key in view.keys_of(folded):
            value = view.user_properties()[key]
            if isinstance(value, str):
                found.update(by_text.get(value, ()))

    def select(self, view: MessageView) -> list[tuple[K, Selection]]:
        """Every subscription that gets a copy of the message, or has to dead-letter it."""
        result: list[tuple[K, Selection]] = []
        for position in self.candidates(view):
            key, rules = self._subscriptions[position]
            selection = rules.select(view)
            if selection.copies or selection.failure is not None:
                result.append((key, selection))
        return result
