"""The shape of a parsed filter or action: immutable, with the place in the text each part came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SqlNode:
    at: int
    end: int
    """Offsets of the part in the expression's text; -1 and -1 where it was not written as SQL."""


@dataclass(frozen=True, slots=True)
class Literal(SqlNode):
    """A constant or a parameter's value; None is NULL."""

    value: object


@dataclass(frozen=True, slots=True)
class Property(SqlNode):
    is_system: bool
    name: str
    """Canonical for a system property, as written for a user's."""


@dataclass(frozen=True, slots=True)
class PropertyCall(SqlNode):
    """`property(name)`: a user property whose name is computed."""

    argument: SqlNode


@dataclass(frozen=True, slots=True)
class NewId(SqlNode):
    pass


@dataclass(frozen=True, slots=True)
class Unary(SqlNode):
    sign: str
    operand: SqlNode


@dataclass(frozen=True, slots=True)
class Binary(SqlNode):
    sign: str
    left: SqlNode
    right: SqlNode


@dataclass(frozen=True, slots=True)
class Compare(SqlNode):
    sign: str
    """One of = <> < <= > >=; `!=` is read as `<>`."""
    left: SqlNode
    right: SqlNode


@dataclass(frozen=True, slots=True)
class IsNull(SqlNode):
    operand: SqlNode
    negated: bool


@dataclass(frozen=True, slots=True)
class Exists(SqlNode):
    operand: Property


@dataclass(frozen=True, slots=True)
class In(SqlNode):
    operand: SqlNode
    items: tuple[SqlNode, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Like(SqlNode):
    operand: SqlNode
    pattern: SqlNode
    escape: SqlNode | None
    negated: bool


@dataclass(frozen=True, slots=True)
class Not(SqlNode):
    operand: SqlNode


@dataclass(frozen=True, slots=True)
class And(SqlNode):
    items: tuple[SqlNode, ...]


@dataclass(frozen=True, slots=True)
class Or(SqlNode):
    items: tuple[SqlNode, ...]


@dataclass(frozen=True, slots=True)
class SetProperty(SqlNode):
    target: Property
    value: SqlNode


@dataclass(frozen=True, slots=True)
class RemoveProperty(SqlNode):
    target: Property


Statement = SetProperty | RemoveProperty

_PREDICATES = (Compare, IsNull, Exists, In, Like, Not, And, Or)


def is_predicate(node: SqlNode) -> bool:
    """Whether the node is true, false or unknown, rather than a value."""
    return isinstance(node, _PREDICATES)
