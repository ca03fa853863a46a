"""The shape of a parsed filter or action: immutable, with the place in the text each part came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Node:
    at: int
    end: int
    """Offsets of the part in the expression's text; -1 and -1 where it was not written as SQL."""


@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A constant or a parameter's value; None is NULL."""

    value: object


@dataclass(frozen=True, slots=True)
class Property(Node):
    is_system: bool
    name: str
    """Canonical for a system property, as written for a user's."""


@dataclass(frozen=True, slots=True)
class PropertyCall(Node):
    """`property(name)`: a user property whose name is computed."""

    argument: Node


@dataclass(frozen=True, slots=True)
class NewId(Node):
    pass


@dataclass(frozen=True, slots=True)
class Unary(Node):
    sign: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Binary(Node):
    sign: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Compare(Node):
    sign: str
    """One of = <> < <= > >=; `!=` is read as `<>`."""
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class IsNull(Node):
    operand: Node
    negated: bool


@dataclass(frozen=True, slots=True)
class Exists(Node):
    operand: Property


@dataclass(frozen=True, slots=True)
class In(Node):
    operand: Node
    items: tuple[Node, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Like(Node):
    operand: Node
    pattern: Node
    escape: Node | None
    negated: bool


@dataclass(frozen=True, slots=True)
class Not(Node):
    operand: Node


@dataclass(frozen=True, slots=True)
class And(Node):
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or(Node):
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class SetProperty(Node):
    target: Property
    value: Node


@dataclass(frozen=True, slots=True)
class RemoveProperty(Node):
    target: Property


Statement = SetProperty | RemoveProperty

_PREDICATES = (Compare, IsNull, Exists, In, Like, Not, And, Or)


def is_predicate(node: Node) -> bool:
    """Whether the node is true, false or unknown, rather than a value."""
    return isinstance(node, _PREDICATES)
