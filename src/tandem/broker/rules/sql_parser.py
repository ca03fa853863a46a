"""Tokens of a SQL filter or action into nodes: the documented grammar, bounded in length, depth and number of terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import ClassVar, Final, NoReturn
from uuid import UUID

from tandem.broker.rules import sql_lexer
from tandem.broker.rules.message_view import SYSTEM_BY_NAME, SYSTEM_PROPERTIES, fold
from tandem.broker.rules.sql_convert import utc
from tandem.broker.rules.sql_lexer import INT64_MAX, Lexer, SqlSyntaxError, Token, describe
from tandem.broker.rules.sql_like import compile_like
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
    RemoveProperty,
    SetProperty,
    SqlNode,
    Statement,
    Unary,
    is_predicate,
)
from tandem.broker.rules.sql_values import PATTERN_CHARS_MAX, TEXT_CHARS_MAX
from tandem.model.errors import ArgumentRefused
from tandem.model.limits import Limits

Parameters = Iterable[tuple[str, object]]

_COMPARISONS: Final = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_WANTED_COMPARISON: Final = "a comparison (=, <>, <, <=, >, >=, [NOT] IN, [NOT] LIKE, IS [NOT] NULL)"
_SCOPES: Final = ("sys", "user")
_FUNCTIONS: Final = ("newid", "property", "p")
NESTING_CEILING: Final = 60
"""However high the limit is set: Python's own parser and stack read what is made of the expression."""


def check_value(value: object, what: str) -> object:
    """What a parameter or a correlation filter may hold, in the form the operators work on."""
    if isinstance(value, datetime):
        return utc(value)
    if isinstance(value, int) and not isinstance(value, bool) and not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise ArgumentRefused(f"{what} is out of the range of a 64-bit integer")
    if isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        raise ArgumentRefused(f"{what} has {len(value)} characters, {TEXT_CHARS_MAX} are allowed")
    if value is None or isinstance(value, bool | int | float | str | UUID | timedelta):
        return value
    allowed = "string, integer, double, boolean, GUID, date and time, duration"
    raise ArgumentRefused(f"{what} is of a type rules do not know ({type(value).__name__}); allowed are {allowed}")


class Parser:
    """Recursive descent; conditions and values share one descent, so that a parenthesis is read once whichever it holds."""

    lexer: ClassVar[type[Lexer]] = Lexer

    def __init__(self, text: str, parameters: Parameters, limits: Limits) -> None:
        if len(text) > limits.sql_expression_chars_max:
            # Not a position: the text is too long as a whole, and is not even looked at.
            raise SqlSyntaxError(f"the expression has {len(text)} characters, {limits.sql_expression_chars_max} are allowed", "", 0)
        self._text = text
        self._limits = limits
        self._nesting_max = min(limits.sql_expression_nesting_max, NESTING_CEILING)
        self._parameters = {fold(name.removeprefix("@")): check_value(value, f"parameter {name!r}") for name, value in parameters}
        self._tokens = self.lexer(text, 4 * limits.sql_expression_terms_max).tokens()
        self._next = 0
        self._depth = 0
        self._terms = 0

    # The three ways to look at tokens.

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _take_keyword(self, word: str) -> bool:
        if self._peek().is_keyword(word):
            self._next += 1
            return True
        return False

    def _expect(self, sign: str, after: str) -> Token:
        if not self._peek().is_operator(sign):
            self._expected(f"'{sign}' {after}")
        return self._take()

    def _expected(self, what: str) -> NoReturn:
        token = self._peek()
        self._refuse(f"expected {what}, found {describe(token)}", token.at)

    def _refuse(self, reason: str, at: int) -> NoReturn:
        raise SqlSyntaxError(reason, self._text, at)

    def _end(self) -> int:
        return self._tokens[self._next - 1].end if self._next else 0

    def _go_deeper(self, at: int) -> None:
        self._depth += 1
        if self._depth > self._nesting_max:
            self._refuse(f"the expression is nested more than {self._nesting_max} deep", at)

    def _count_term(self, at: int) -> None:
        self._terms += 1
        if self._terms > self._limits.sql_expression_terms_max:
            self._refuse(f"the expression has more than {self._limits.sql_expression_terms_max} terms", at)

    # Conditions.

    def filter(self) -> SqlNode:
        node = self._condition(self._disjunction())
        if self._peek().kind != sql_lexer.END:
            self._expected("AND, OR or the end")
        return node

    def _disjunction(self) -> SqlNode:
        items = [self._conjunction()]
        while self._peek().is_keyword("OR"):
            items[-1] = self._condition(items[-1])
            self._take()
            items.append(self._conjunction())
        if len(items) == 1:
            return items[0]
        items[-1] = self._condition(items[-1])
        return Or(items[0].at, self._end(), tuple(items))

    def _conjunction(self) -> SqlNode:
        items = [self._negation()]
        while self._peek().is_keyword("AND"):
            items[-1] = self._condition(items[-1])
            self._take()
            items.append(self._negation())
        if len(items) == 1:
            return items[0]
        items[-1] = self._condition(items[-1])
        return And(items[0].at, self._end(), tuple(items))

    def _negation(self) -> SqlNode:
        at = self._peek().at
        count = 0
        while self._take_keyword("NOT"):
            count += 1
        node = self._comparison()
        if count == 0:
            return node
        node = self._condition(node)
        # Twice is not at all, also for unknown.
        return Not(at, self._end(), node) if count % 2 else node

    def _condition(self, node: SqlNode) -> SqlNode:
        """The parser stands just behind the node."""
        if not is_predicate(node):
            self._expected(_WANTED_COMPARISON)
        return node

    def _value(self, node: SqlNode) -> SqlNode:
        if is_predicate(node):
            self._refuse("expected a value, found a condition", node.at)
        return node

    def _comparison(self) -> SqlNode:
        token = self._peek()
        if token.is_keyword("EXISTS"):
            return self._exists()
        left = self._additive()
        if is_predicate(left):
            return left
        token = self._peek()
        if token.kind == sql_lexer.OPERATOR and token.text in _COMPARISONS:
            self._take()
            right = self._value(self._additive())
            return Compare(left.at, self._end(), _COMPARISONS[token.text], left, right)
        if token.is_keyword("IS"):
            return self._is_null(left)
        negated = token.is_keyword("NOT")
        if negated:
            self._take()
        if self._take_keyword("IN"):
            return self._in(left, negated)
        if self._take_keyword("LIKE"):
            return self._like(left, negated)
        between = self._between(left, negated)
        if between is not None:
            return between
        if negated:
            self._expected("IN or LIKE after NOT")
        return left

    def _between(self, left: SqlNode, negated: bool) -> SqlNode | None:
        """Not in this grammar; selectors have it."""
        return None

    def _exists(self) -> SqlNode:
        at = self._take().at
        self._expect("(", "after EXISTS")
        operand = self._property()
        self._expect(")", "after the property")
        return Exists(at, self._end(), operand)

    def _is_null(self, left: SqlNode) -> SqlNode:
        if not isinstance(left, Property | PropertyCall):
            self._refuse("IS [NOT] NULL asks about a property, found something else", left.at)
        self._take()
        negated = self._take_keyword("NOT")
        if not self._take_keyword("NULL"):
            self._expected("NULL" if negated else "NULL or NOT NULL after IS")
        return IsNull(left.at, self._end(), left, negated)

    def _in(self, left: SqlNode, negated: bool) -> SqlNode:
        self._expect("(", "after IN")
        items = [self._value(self._additive())]
        while self._peek().is_operator(","):
            self._take()
            items.append(self._value(self._additive()))
        self._expect(")", "or ',' in the list of IN")
        return In(left.at, self._end(), left, tuple(items), negated)

    def _like(self, left: SqlNode, negated: bool) -> SqlNode:
        pattern = self._value(self._additive())
        escape = None
        if self._take_keyword("ESCAPE"):
            escape = self._value(self._additive())
            if isinstance(escape, Literal) and escape.value is not None and (not isinstance(escape.value, str) or len(escape.value) != 1):
                self._refuse("the escape character of LIKE must be a string of length 1", escape.at)
        if isinstance(pattern, Literal):
            self._check_pattern(pattern, escape)
        return Like(left.at, self._end(), left, pattern, escape, negated)

    def _check_pattern(self, pattern: Literal, escape: SqlNode | None) -> None:
        if pattern.value is None:
            return
        if not isinstance(pattern.value, str):
            self._refuse("the pattern of LIKE must be a string", pattern.at)
        if len(pattern.value) > PATTERN_CHARS_MAX:
            self._refuse(f"the pattern of LIKE is longer than {PATTERN_CHARS_MAX} characters", pattern.at)
        if isinstance(escape, Literal) and isinstance(escape.value, str):
            try:
                compile_like(pattern.value, escape.value)
            except ValueError as error:
                self._refuse(str(error), pattern.at)

    # Values.

    def _additive(self) -> SqlNode:
        return self._chain(("+", "-"), self._multiplicative)

    def _multiplicative(self) -> SqlNode:
        return self._chain(("*", "/", "%"), self._signed)

    def _chain(self, signs: tuple[str, ...], operand: Callable[[], SqlNode]) -> SqlNode:
        left = operand()
        before = self._depth
        while self._peek().kind == sql_lexer.OPERATOR and self._peek().text in signs:
            self._value(left)
            token = self._take()
            # Each operator of a chain makes the tree deeper: (((a + b) + c) + d).
            self._go_deeper(token.at)
            right = self._value(operand())
            left = Binary(left.at, self._end(), token.text, left, right)
        self._depth = before
        return left

    def _signed(self) -> SqlNode:
        token = self._peek()
        if not (token.is_operator("-") or token.is_operator("+")):
            return self._primary()
        self._take()
        following = self._peek()
        if token.text == "-" and following.kind == sql_lexer.NUMBER and following.value is not None:
            self._take()
            self._count_term(token.at)
            return Literal(token.at, following.end, -following.value)
        self._go_deeper(token.at)
        operand = self._value(self._signed())
        self._depth -= 1
        return Unary(token.at, self._end(), token.text, operand)

    def _primary(self) -> SqlNode:
        token = self._peek()
        if token.is_operator("("):
            self._take()
            self._go_deeper(token.at)
            node = self._disjunction()
            self._depth -= 1
            self._expect(")", "or an operator")
            return node
        self._count_term(token.at)
        if token.kind == sql_lexer.NUMBER:
            if token.value is not None and token.value == INT64_MAX + 1 and isinstance(token.value, int):
                self._refuse("the number is out of the range of a 64-bit integer", token.at)
            return self._literal(token.value)
        if token.kind == sql_lexer.STRING:
            return self._literal(token.text)
        if token.kind == sql_lexer.PARAMETER:
            name = fold(token.text.removeprefix("@"))
            if name not in self._parameters:
                self._refuse(f"the parameter {token.text} has no value", token.at)
            return self._literal(self._parameters[name])
        if token.kind == sql_lexer.KEYWORD and token.text in ("TRUE", "FALSE", "NULL"):
            return self._literal(None if token.text == "NULL" else token.text == "TRUE")
        if token.kind == sql_lexer.NAME and self._tokens[self._next + 1].is_operator("("):
            return self._call()
        if token.kind in (sql_lexer.NAME, sql_lexer.DELIMITED):
            return self._property()
        self._expected("a value or a property")

    def _literal(self, value: object) -> Literal:
        token = self._take()
        return Literal(token.at, token.end, value)

    def _call(self) -> SqlNode:
        token = self._take()
        name = token.text.lower()
        if name not in _FUNCTIONS:
            self._refuse(f"there is no function {token.text}(): known are newid(), property(name), p(name)", token.at)
        self._take()
        if name == "newid":
            self._expect(")", "after newid(")
            return NewId(token.at, self._end())
        self._go_deeper(token.at)
        argument = self._value(self._additive())
        self._depth -= 1
        self._expect(")", f"after the argument of {token.text}(")
        if isinstance(argument, Literal) and argument.value is not None and not isinstance(argument.value, str):
            self._refuse(f"the argument of {token.text}() must be a string", argument.at)
        return PropertyCall(token.at, self._end(), argument)

    def _property(self) -> Property:
        first = self._name("a property")
        if not self._peek().is_operator("."):
            return Property(first.at, first.end, False, first.text)
        scope = first.text.lower()
        if scope not in _SCOPES:
            self._refuse(f"there is no scope {describe(first)}: known are sys and user; a name with a dot is written in brackets", first.at)
        self._take()
        second = self._name("the name of a property after the dot")
        if scope == "user":
            return Property(first.at, second.end, False, second.text)
        known = SYSTEM_BY_NAME.get(fold(second.text))
        if known is None:
            names = ", ".join([p.name for p in SYSTEM_PROPERTIES])
            self._refuse(f"there is no system property {describe(second)}: known are {names}", second.at)
        return Property(first.at, second.end, True, known.name)

    def _name(self, what: str) -> Token:
        token = self._peek()
        if token.kind == sql_lexer.KEYWORD:
            self._refuse(f"expected {what}, found the keyword {token.text}; a property of that name is written [{token.text}]", token.at)
        if token.kind not in (sql_lexer.NAME, sql_lexer.DELIMITED):
            self._expected(what)
        return self._take()

    # Statements.

    def action(self) -> tuple[Statement, ...]:
        statements: list[Statement] = []
        while True:
            statements.append(self._statement())
            if len(statements) > self._limits.sql_action_statements_max:
                self._refuse(f"the action has more than {self._limits.sql_action_statements_max} statements", statements[-1].at)
            if self._peek().is_operator(","):
                self._take()
                continue
            while self._peek().is_operator(";"):
                self._take()
            if self._peek().kind == sql_lexer.END:
                return tuple(statements)

    def _statement(self) -> Statement:
        at = self._peek().at
        if self._take_keyword("SET"):
            target = self._target("SET")
            self._expect("=", "after the property to set")
            value = self._value(self._additive())
            return SetProperty(at, self._end(), target, value)
        if self._take_keyword("REMOVE"):
            target = self._target("REMOVE")
            return RemoveProperty(at, self._end(), target)
        self._expected("SET or REMOVE")

    def _target(self, verb: str) -> Property:
        target = self._property()
        if target.is_system and not SYSTEM_BY_NAME[fold(target.name)].settable:
            self._refuse(f"{verb} cannot change sys.{target.name}: it is read-only", target.at)
        return target


def parse_filter(text: str, parameters: Parameters = (), limits: Limits | None = None) -> SqlNode:
    """The condition of a SQL filter; SqlSyntaxError if it is none."""
    return Parser(text, parameters, limits or Limits()).filter()


def parse_action(text: str, parameters: Parameters = (), limits: Limits | None = None) -> tuple[Statement, ...]:
    """The statements of a SQL action; SqlSyntaxError if it has none."""
    return Parser(text, parameters, limits or Limits()).action()
