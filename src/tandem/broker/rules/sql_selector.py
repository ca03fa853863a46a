"""JMS message selectors, read by the parser of SQL filters with the few things that are different.

Names are Java's identifiers, case-sensitive and without scopes; BETWEEN is there; a property that is true is a condition by itself;
numbers may end in L, F or D. Bounded and refused as filters are.
"""

from __future__ import annotations

from typing import ClassVar, Final
from uuid import uuid4

from tandem.broker.rules import sql_lexer
from tandem.broker.rules.sql_compile import Predicate, compile_predicate
from tandem.broker.rules.sql_lexer import Lexer, Token
from tandem.broker.rules.sql_nodes import And, Compare, Literal, Or, Property, SqlNode
from tandem.broker.rules.sql_parser import Parser
from tandem.model.limits import Limits

_KEYWORDS: Final = (sql_lexer.KEYWORDS - {"EXISTS", "SET", "REMOVE"}) | {"BETWEEN"}
_SUFFIXES: Final = "lLfFdD"


class _SelectorLexer(Lexer):
    keywords: ClassVar[frozenset[str]] = _KEYWORDS
    name_signs: ClassVar[str] = "_$"

    def _next(self) -> Token:
        text = self._text
        at = self._at
        while at < len(text) and text[at].isspace():
            at += 1
        if at < len(text) and text[at] in self.name_signs:
            return self._word(at)
        return super()._next()

    def _number(self, at: int) -> Token:
        """Java's suffixes say how wide a number is, which makes no difference here."""
        text = self._text
        end = at
        while end < len(text) and (text[end].isdecimal() or text[end] == "."):
            end += 1
        if end < len(text) and text[end] in _SUFFIXES and self._word_end(end) == end + 1:
            number = _SelectorLexer(text[at:end], 1)._number(0)
            value = float(number.value or 0) if text[end] in "fFdD" else number.value
            return self._token(sql_lexer.NUMBER, text[at:end], value, at, end + 1)
        return super()._number(at)


class SelectorParser(Parser):
    lexer: ClassVar[type[Lexer]] = _SelectorLexer

    def _condition(self, node: SqlNode) -> SqlNode:
        """A boolean property, TRUE and FALSE are conditions by themselves."""
        if isinstance(node, Property) or (isinstance(node, Literal) and isinstance(node.value, bool)):
            return Compare(node.at, node.end, "=", node, Literal(-1, -1, True))
        return super()._condition(node)

    def _between(self, left: SqlNode, negated: bool) -> SqlNode | None:
        if not self._take_keyword("BETWEEN"):
            return None
        low = self._value(self._additive())
        if not self._take_keyword("AND"):
            self._expected("AND after the first bound of BETWEEN")
        high = self._value(self._additive())
        end = self._end()
        if negated:
            return Or(left.at, end, (Compare(left.at, end, "<", left, low), Compare(left.at, end, ">", left, high)))
        return And(left.at, end, (Compare(left.at, end, ">=", left, low), Compare(left.at, end, "<=", left, high)))

    def _property(self) -> Property:
        name = self._name("a property")
        return Property(name.at, name.end, False, name.text)


def compile_selector(text: str, limits: Limits) -> Predicate:
    """True exactly for views that match; SqlSyntaxError, with the place, if it is no selector."""
    return compile_predicate(SelectorParser(text, (), limits).filter(), True, uuid4)
