"""Parsed conditions and values into Python code objects: written once per shape of expression, run for every message.

A condition is compiled for one question, "is it true?" or "is it false?", and each question about a part turns into one of
the same two about its parts: NOT swaps them, AND and OR follow De Morgan. So three-valued logic costs nothing when messages
come: no third value is ever passed around, and a message of the wrong type fails a guard that plain Python had to make anyway.

The text that is compiled consists of the templates in this file and of names made here (v0, k0 …). Constants and property
names of the expression are bound to such names and never become part of the text.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Final, cast
from uuid import UUID

from tandem.broker.rules import sql_values
from tandem.broker.rules.message_view import SYSTEM_BY_NAME, MessageView, PropertyKind, fold
from tandem.broker.rules.sql_like import LikePattern, compile_like
from tandem.broker.rules.sql_nodes import (
    And,
    Binary,
    Compare,
    Exists,
    In,
    IsNull,
    Like,
    Literal,
    NewId,
    Not,
    Or,
    Property,
    PropertyCall,
    SqlNode,
    Unary,
)
from tandem.broker.rules.sql_values import RuleEvaluationError

NewIdSource = Callable[[], UUID]
Predicate = Callable[[MessageView], bool]
ValueFunction = Callable[[MessageView], object]

COMPARISON_CODES: Final = {
    "=": sql_values.EQ,
    "<>": sql_values.NE,
    "<": sql_values.LT,
    "<=": sql_values.LE,
    ">": sql_values.GT,
    ">=": sql_values.GE,
}
_MIRRORED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PYTHON_SIGNS: Final = {"=": "==", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
ARITHMETIC: Final[dict[str, Callable[[object, object], object]]] = {
    "+": sql_values.add,
    "-": sql_values.subtract,
    "*": sql_values.multiply,
    "/": sql_values.divide,
    "%": sql_values.remainder,
}
_ARITHMETIC_NAMES: Final = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "remainder"}
_EXACT_MAX: Final = 1 << 52
"""Up to here Python's exact comparison of an integer with a float gives what comparing two doubles gives."""
_TUPLE_ITEMS_MAX: Final = 6
"""Up to here looking at each item is as quick as hashing."""


def look_up(view: MessageView, name: object) -> object:
    """`property(name)` with a name known only now."""
    found = sql_values.property_name(name)
    return None if found is None else view.user_value(found)


def matches_pattern(value: object, pattern: LikePattern) -> bool | None:
    return pattern.matches(value) if isinstance(value, str) else None


_GLOBALS: Final[dict[str, object]] = {
    "__builtins__": {},
    "isinstance": isinstance,
    "bool": bool,
    "str": str,
    "numbers": (int, float),
    "compare": sql_values.compare,
    "member": sql_values.member,
    "like": sql_values.like,
    "matches_pattern": matches_pattern,
    "add": sql_values.add,
    "subtract": sql_values.subtract,
    "multiply": sql_values.multiply,
    "divide": sql_values.divide,
    "remainder": sql_values.remainder,
    "negate": sql_values.negate,
    "plus": sql_values.plus,
    "look_up": look_up,
    "instant_of": sql_values.instant_of,
    "duration_of": sql_values.duration_of,
}


@lru_cache(maxsize=1_024)
def _code(source: str) -> CodeType:
    """Rules of the same shape share it: constants are not part of the text."""
    return compile(source, "<rule>", "exec")


def fold_constants(node: SqlNode) -> SqlNode:
    """Arithmetic between constants is done once. What fails stays, to fail when a message comes."""
    try:
        if isinstance(node, Binary):
            left = fold_constants(node.left)
            right = fold_constants(node.right)
            if isinstance(left, Literal) and isinstance(right, Literal):
                return Literal(node.at, node.end, ARITHMETIC[node.sign](left.value, right.value))
            return Binary(node.at, node.end, node.sign, left, right)
        if isinstance(node, Unary):
            operand = fold_constants(node.operand)
            if isinstance(operand, Literal):
                result = sql_values.negate(operand.value) if node.sign == "-" else sql_values.plus(operand.value)
                return Literal(node.at, node.end, result)
            return Unary(node.at, node.end, node.sign, operand)
    except RuleEvaluationError:
        return node
    return node


def _is_plain_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -_EXACT_MAX <= value <= _EXACT_MAX


def _ready_pattern(pattern: SqlNode, escape: SqlNode | None) -> LikePattern | None:
    """The pattern, if it is known and good; a computed one that is not good fails when a message comes."""
    if not isinstance(pattern, Literal) or not isinstance(pattern.value, str) or len(pattern.value) > sql_values.PATTERN_CHARS_MAX:
        return None
    sign = ""
    if escape is not None:
        if not isinstance(escape, Literal) or not isinstance(escape.value, str) or len(escape.value) != 1:
            return None
        sign = escape.value
    try:
        return compile_like(pattern.value, sign)
    except ValueError:
        return None


class Generator:
    """Writes one function of a view. `_loads` collects what the expression being written needs fetched before it."""

    def __init__(self, new_id: NewIdSource) -> None:
        self._names: dict[str, object] = dict(_GLOBALS)
        self._names["new_id"] = new_id
        self._constants = 0
        self._variables: dict[tuple[bool, str], str] = {}
        self._loaded_scopes: set[bool] = set()
        self._loads: list[str] = []
        self._lines: list[str] = []

    def function(self) -> Callable[[MessageView], object]:
        source = "def rule(view):\n" + "".join([f" {line}\n" for line in self._lines])
        exec(_code(source), self._names)
        return cast(Callable[[MessageView], object], self._names["rule"])

    def _constant(self, value: object) -> str:
        if value is None or value is True or value is False:
            return str(value)
        name = f"k{self._constants}"
        self._constants += 1
        self._names[name] = value
        return name

    def _variable(self, is_system: bool, name: str) -> str:
        key = (is_system, name)
        variable = self._variables.get(key)
        if variable is not None:
            return variable
        variable = f"v{len(self._variables)}"
        self._variables[key] = variable
        scope = "system" if is_system else "user"
        if is_system not in self._loaded_scopes:
            self._loaded_scopes.add(is_system)
            self._loads.append(f"{scope} = view.{scope}")
            self._loads.append(f"if {scope} is None: {scope} = view.{scope}_properties()")
        constant = self._constant(name)
        fetched = f"{scope}.get({constant})"
        if is_system:
            kind = SYSTEM_BY_NAME[fold(name)].kind
            if kind is PropertyKind.INSTANT:
                fetched = f"instant_of({fetched})"
            elif kind is PropertyKind.DURATION:
                fetched = f"duration_of({fetched})"
        self._loads.append(f"{variable} = {fetched}")
        if not is_system:
            self._loads.append(f"if {variable} is None: {variable} = view.find_user({constant}, {self._constant(fold(name))})")
        return variable

    def _flush_loads(self) -> None:
        self._lines.extend(self._loads)
        self._loads.clear()

    # Whole functions.

    def write_predicate(self, node: SqlNode, wanted: bool) -> None:
        """Top-level parts one by one, each after just the fetches it needs: the first that fails ends it."""
        items: tuple[SqlNode, ...] = (node,)
        if isinstance(node, And if wanted else Or):
            items = node.items
        for item in items[:-1]:
            expression = self._condition(item, wanted)
            self._flush_loads()
            self._lines.append(f"if not ({expression}): return False")
        expression = self._condition(items[-1], wanted)
        self._flush_loads()
        self._lines.append(f"return {expression}")

    def write_value(self, node: SqlNode) -> None:
        expression = self._value(fold_constants(node))
        self._flush_loads()
        self._lines.append(f"return {expression}")

    # Conditions: an expression that is True exactly if the node is what is wanted.

    def _condition(self, node: SqlNode, wanted: bool) -> str:
        if isinstance(node, And):
            return self._joined(node.items, wanted, " and " if wanted else " or ")
        if isinstance(node, Or):
            return self._joined(node.items, wanted, " or " if wanted else " and ")
        if isinstance(node, Not):
            return self._condition(node.operand, not wanted)
        if isinstance(node, Compare):
            return self._comparison(node, wanted)
        if isinstance(node, IsNull):
            return f"{self._value(node.operand)} is {'' if wanted is not node.negated else 'not '}None"
        if isinstance(node, Exists):
            return self._exists(node, wanted)
        if isinstance(node, In):
            return self._in(node, wanted is not node.negated)
        if isinstance(node, Like):
            return self._like(node, wanted is not node.negated)
        raise TypeError(f"{type(node).__name__} is not a condition")

    def _joined(self, items: tuple[SqlNode, ...], wanted: bool, operator: str) -> str:
        return operator.join([f"({self._condition(item, wanted)})" for item in items])

    def _exists(self, node: Exists, wanted: bool) -> str:
        if node.operand.is_system:
            return f"{self._value(node.operand)} is {'not ' if wanted else ''}None"
        return f"{'' if wanted else 'not '}view.has_user({self._constant(node.operand.name)})"

    def _comparison(self, node: Compare, wanted: bool) -> str:
        left = fold_constants(node.left)
        right = fold_constants(node.right)
        sign = node.sign
        if isinstance(left, Literal) and isinstance(right, Literal):
            return str(sql_values.compare(COMPARISON_CODES[sign], left.value, right.value) is wanted)
        if isinstance(left, Literal):
            left, right, sign = right, left, _MIRRORED[sign]
        if isinstance(right, Literal) and isinstance(left, Property):
            inline = self._inline_comparison(sign, left, right.value, wanted)
            if inline is not None:
                return inline
        return f"compare({COMPARISON_CODES[sign]}, {self._value(left)}, {self._value(right)}) is {wanted}"

    def _inline_comparison(self, sign: str, left: Property, constant: object, wanted: bool) -> str | None:
        if constant is None:
            return "False"
        if sign == "<>":
            sign, wanted = "=", not wanted
        python = f"{self._value(left)} {_PYTHON_SIGNS[sign]} "
        value = self._value(left)
        if isinstance(constant, str):
            name = self._constant(constant)
            if sign == "=" and wanted:
                return python + name
            return f"isinstance({value}, str) and {'' if wanted else 'not '}{python}{name}"
        if isinstance(constant, bool):
            return f"{value} is {constant is wanted}" if sign == "=" else "False"
        if _is_plain_number(constant):
            name = self._constant(constant)
            if sign == "=" and wanted:
                return f"{python}{name} and {value}.__class__ is not bool"
            return f"isinstance({value}, numbers) and {value}.__class__ is not bool and {'' if wanted else 'not '}{python}{name}"
        return None

    def _in(self, node: In, wanted: bool) -> str:
        left = fold_constants(node.operand)
        items = [fold_constants(item) for item in node.items]
        constants = [item.value for item in items if isinstance(item, Literal)]
        if len(constants) == len(items) and isinstance(left, Property):
            known = [constant for constant in constants if constant is not None]
            value = self._value(left)
            holds = self._inline_membership(value, known)
            if holds is not None:
                return holds if wanted else f"{value} is not None and not ({holds})"
        if len(constants) == len(items):
            return f"member({self._value(left)}, {self._constant(tuple(constants))}) is {wanted}"
        listed = "".join([f"{self._value(item)}, " for item in items])
        return f"member({self._value(left)}, ({listed})) is {wanted}"

    def _inline_membership(self, value: str, known: list[object]) -> str | None:
        if all(isinstance(constant, str) for constant in known):
            if len(known) <= _TUPLE_ITEMS_MAX:
                return f"{value} in {self._constant(tuple(known))}"
            return f"isinstance({value}, str) and {value} in {self._constant(frozenset(known))}"
        if all(_is_plain_number(constant) for constant in known):
            items = self._constant(frozenset(known))
            return f"isinstance({value}, numbers) and {value}.__class__ is not bool and {value} in {items}"
        return None

    def _like(self, node: Like, wanted: bool) -> str:
        left = fold_constants(node.operand)
        pattern = fold_constants(node.pattern)
        escape = None if node.escape is None else fold_constants(node.escape)
        compiled = _ready_pattern(pattern, escape)
        if compiled is None:
            return self._dynamic_like(left, pattern, escape, wanted)
        if isinstance(left, Property):
            return self._inline_like(self._value(left), compiled, wanted)
        return f"matches_pattern({self._value(left)}, {self._constant(compiled)}) is {wanted}"

    def _dynamic_like(self, left: SqlNode, pattern: SqlNode, escape: SqlNode | None, wanted: bool) -> str:
        escaped = "None, False" if escape is None else f"{self._value(escape)}, True"
        return f"like({self._value(left)}, {self._value(pattern)}, {escaped}) is {wanted}"

    def _inline_like(self, value: str, compiled: LikePattern, wanted: bool) -> str:
        guard = f"isinstance({value}, str) and {'' if wanted else 'not '}"
        for text, template in (
            (compiled.equal_to(), "{value} == {text}"),
            (compiled.starts_with(), "{value}.startswith({text})"),
            (compiled.ends_with(), "{value}.endswith({text})"),
            (compiled.contains(), "{text} in {value}"),
        ):
            if text is not None:
                return guard + template.format(value=value, text=self._constant(text))
        return f"{guard}{self._constant(compiled.matches)}({value})"

    # Values.

    def _value(self, node: SqlNode) -> str:
        if isinstance(node, Literal):
            return self._constant(node.value)
        if isinstance(node, Property):
            return self._variable(node.is_system, node.name)
        if isinstance(node, PropertyCall):
            argument = fold_constants(node.argument)
            if isinstance(argument, Literal) and isinstance(argument.value, str):
                return self._variable(False, argument.value)
            return f"look_up(view, {self._value(argument)})"
        if isinstance(node, NewId):
            return "new_id()"
        if isinstance(node, Binary):
            return f"{_ARITHMETIC_NAMES[node.sign]}({self._value(node.left)}, {self._value(node.right)})"
        if isinstance(node, Unary):
            return f"{'negate' if node.sign == '-' else 'plus'}({self._value(node.operand)})"
        raise TypeError(f"{type(node).__name__} is not a value")


def compile_predicate(node: SqlNode, wanted: bool, new_id: NewIdSource) -> Predicate:
    """A function that is True exactly if the condition is true (`wanted`) or false (not `wanted`); unknown is neither."""
    generator = Generator(new_id)
    generator.write_predicate(node, wanted)
    return cast(Predicate, generator.function())


def compile_value(node: SqlNode, new_id: NewIdSource) -> ValueFunction:
    generator = Generator(new_id)
    generator.write_value(node)
    return generator.function()
