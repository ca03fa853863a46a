"""Rules evaluated the plain way: a tree of tuples, three-valued logic written out, nothing shared with the compiler.

A tree also knows how to write itself as SQL, so that parser, compiler and operators are checked together.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any
from uuid import UUID

from tandem.broker.rules.sql_convert import float_text

Tree = tuple[Any, ...]
MISSING = object()


class Oops(Exception):
    """The value cannot be computed."""


class Reference:
    """Evaluates trees against properties; `failed` says whether anything on the way could not be computed."""

    def __init__(self, system: dict[str, object], user: dict[str, object]) -> None:
        self.system = system
        self.user = user
        self.failed = False

    def property(self, name: str) -> object:
        for key, value in self.user.items():
            if key.lower() == name.lower():
                return value
        return MISSING

    def value(self, tree: Tree) -> Any:
        kind = tree[0]
        if kind == "literal":
            return tree[1]
        if kind == "user":
            found = self.property(tree[1])
            return None if found is MISSING else found
        if kind == "sys":
            return self.system.get(tree[1])
        if kind == "negate":
            operand = self.value(tree[1])
            if operand is None:
                return None
            if kind_of(operand) not in ("number", "span"):
                raise Oops
            return in_range(-operand)
        left = self.value(tree[2])
        right = self.value(tree[3])
        if left is None or right is None:
            return None
        return calculate(tree[1], left, right)

    def guarded(self, tree: Tree) -> Any:
        try:
            return self.value(tree)
        except Oops:
            self.failed = True
            return None

    def truth(self, tree: Tree) -> bool | None:
        kind = tree[0]
        if kind == "not":
            inner = self.truth(tree[1])
            return None if inner is None else not inner
        if kind in ("and", "or"):
            outcomes = [self.truth(item) for item in tree[1]]
            decisive = kind == "or"
            if decisive in outcomes:
                return decisive
            return None if None in outcomes else not decisive
        if kind == "null":
            return (self.guarded(tree[2]) is None) is not tree[1]
        if kind == "exists":
            scope, name = tree[1]
            return self.system.get(name) is not None if scope == "sys" else self.property(name) is not MISSING
        if kind == "compare":
            return compare(tree[1], self.guarded(tree[2]), self.guarded(tree[3]))
        left = self.guarded(tree[2])
        if kind == "in":
            items = [self.guarded(item) for item in tree[3]]
            if left is None:
                return None
            return any(compare("=", left, item) is True for item in items) is not tree[1]
        pattern = self.guarded(tree[3])
        if left is None or pattern is None:
            return None
        if not isinstance(pattern, str):
            self.failed = True
            return None
        if not isinstance(left, str):
            return None
        return like(pattern_of(pattern, tree[4]), left) is not tree[1]


def kind_of(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    for kind, sort in ((str, "text"), (UUID, "guid"), (datetime, "instant"), (timedelta, "span")):
        if isinstance(value, kind):
            return sort
    return "other"


def compare(sign: str, left: Any, right: Any) -> bool | None:
    if left is None or right is None or kind_of(left) != kind_of(right) or kind_of(left) == "other":
        return None
    if kind_of(left) in ("boolean", "guid") and sign not in ("=", "<>"):
        return None
    if kind_of(left) == "number" and (isinstance(left, float) or isinstance(right, float)):
        left, right = float(left), float(right)
    table = {"=": left == right, "<>": left != right}
    if sign in table:
        return bool(table[sign])
    return bool({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[sign])


def in_range(value: Any) -> Any:
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise Oops
    return value


def calculate(sign: str, left: Any, right: Any) -> Any:
    kinds = {kind_of(left), kind_of(right)}
    if sign == "+" and "text" in kinds:
        if not kinds <= {"text", "number", "boolean", "guid"}:
            raise Oops
        return "".join([float_text(side) if isinstance(side, float) else str(side) for side in (left, right)])
    if kinds == {"number"}:
        if isinstance(left, int) and isinstance(right, int):
            return calculate_integers(sign, left, right)
        return calculate_floats(sign, float(left), float(right))
    shape = (kind_of(left), sign, kind_of(right))
    try:
        if shape in (("instant", "+", "span"), ("span", "+", "instant"), ("span", "+", "span")):
            return left + right
        if shape in (("instant", "-", "span"), ("instant", "-", "instant"), ("span", "-", "span")):
            return left - right
    except OverflowError:
        raise Oops from None
    raise Oops


def calculate_integers(sign: str, left: int, right: int) -> int:
    if sign in "/%":
        if right == 0:
            raise Oops
        quotient = math.trunc(Fraction(left, right))
        return int(in_range(quotient if sign == "/" else left - right * quotient))
    return int(in_range({"+": left + right, "-": left - right, "*": left * right}[sign]))


def calculate_floats(sign: str, left: float, right: float) -> float:
    if sign == "/":
        if right == 0:
            return math.nan if left == 0 or math.isnan(left) else math.inf * math.copysign(1, left) * math.copysign(1, right)
        return left / right
    if sign == "%":
        try:
            return math.fmod(left, right)
        except ValueError:
            return math.nan
    return {"+": left + right, "-": left - right, "*": left * right}[sign]


def pattern_of(pattern: str, escape: str | None) -> list[tuple[str, str]]:
    """Tokens: ("any", ""), ("one", "") or ("is", character)."""
    tokens: list[tuple[str, str]] = []
    characters = iter(pattern)
    for c in characters:
        if c == escape:
            tokens.append(("is", next(characters)))
        else:
            tokens.append(("any", "") if c == "%" else ("one", "") if c == "_" else ("is", c))
    return tokens


def like(tokens: list[tuple[str, str]], text: str) -> bool:
    """Which lengths of text each prefix of the pattern can cover."""
    reached = {0}
    for kind, c in tokens:
        if kind == "any":
            reached = set(range(min(reached), len(text) + 1)) if reached else set()
        else:
            reached = {at + 1 for at in reached if at < len(text) and (kind == "one" or text[at] == c)}
    return len(text) in reached


def write(tree: Tree) -> str:
    """The tree as SQL, with no more parentheses than safe."""
    kind = tree[0]
    if kind == "literal":
        return write_literal(tree[1])
    if kind == "user":
        return tree[1] if tree[1].isalnum() else f"[{tree[1]}]"
    if kind == "sys":
        return f"sys.{tree[1]}"
    if kind == "negate":
        return f"-({write(tree[1])})"
    if kind == "binary":
        return f"({write(tree[2])} {tree[1]} {write(tree[3])})"
    if kind == "not":
        return f"NOT ({write(tree[1])})"
    if kind in ("and", "or"):
        return f" {kind} ".join([f"({write(item)})" for item in tree[1]])
    if kind == "exists":
        return f"EXISTS({write(tree[1])})"
    if kind == "compare":
        return f"{write(tree[2])} {tree[1]} {write(tree[3])}"
    negated = "NOT " if tree[1] else ""
    if kind == "null":
        return f"{write(tree[2])} IS {negated}NULL"
    if kind == "in":
        return f"{write(tree[2])} {negated}IN ({', '.join([write(item) for item in tree[3]])})"
    escape = f" ESCAPE {write_literal(tree[4])}" if tree[4] is not None else ""
    return f"{write(tree[2])} {negated}LIKE {write(tree[3])}{escape}"


def write_literal(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)
