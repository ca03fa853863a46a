"""Text of a SQL filter or action into tokens: linear in its length, every complaint with line and column."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final, NoReturn

from tandem.model.errors import ArgumentRefused

KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "EXISTS", "TRUE", "FALSE", "SET", "REMOVE"})

END: Final = "end"
KEYWORD: Final = "keyword"
NAME: Final = "name"
DELIMITED: Final = "delimited name"
NUMBER: Final = "number"
STRING: Final = "string"
PARAMETER: Final = "parameter"
OPERATOR: Final = "operator"

INT64_MAX: Final = 9_223_372_036_854_775_807

_OPERATORS_OF_TWO: Final = frozenset({"<>", "!=", "<=", ">="})
_OPERATORS_OF_ONE: Final = frozenset("=<>+-*/%(),.;")
_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]+|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FOUND_CHARS_MAX: Final = 40


class SqlSyntaxError(ArgumentRefused):
    """An expression is not valid; the text says where, what was expected and what was found."""

    def __init__(self, reason: str, text: str, at: int) -> None:
        self.reason = reason
        self.line = text.count("\n", 0, at) + 1
        self.column = at - text.rfind("\n", 0, at)
        super().__init__(f"line {self.line}, column {self.column}: {reason}")


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    """Keywords in capitals, names and strings without their quotes, anything else as written."""
    value: int | float | None
    at: int
    end: int

    def is_keyword(self, word: str) -> bool:
        return self.kind == KEYWORD and self.text == word

    def is_operator(self, sign: str) -> bool:
        return self.kind == OPERATOR and self.text == sign


class Lexer:
    """One pass over the text; `tokens_max` bounds what an operator's raised length limit would let in."""

    keywords: ClassVar[frozenset[str]] = KEYWORDS
    name_signs: ClassVar[str] = "_"
    """May stand in a name, besides letters and digits."""

    def __init__(self, text: str, tokens_max: int) -> None:
        self._text = text
        self._tokens_max = tokens_max
        self._at = 0

    def tokens(self) -> list[Token]:
        found: list[Token] = []
        while True:
            token = self._next()
            found.append(token)
            if token.kind == END:
                return found
            if len(found) > self._tokens_max:
                self._refuse(f"the expression has more than {self._tokens_max} words and signs", token.at)

    def _refuse(self, reason: str, at: int) -> NoReturn:
        raise SqlSyntaxError(reason, self._text, at)

    def _next(self) -> Token:
        text = self._text
        at = self._at
        while at < len(text) and text[at].isspace():
            at += 1
        if at >= len(text):
            return self._token(END, "", None, at, at)
        c = text[at]
        if c.isalpha():
            return self._word(at)
        if c in "0123456789" or (c == "." and text[at + 1 : at + 2].isdecimal()):
            return self._number(at)
        if c == "'":
            return self._quoted(at, STRING, "'", "string constant")
        if c == '"':
            return self._quoted(at, DELIMITED, '"', "quoted name")
        if c == "[":
            return self._quoted(at, DELIMITED, "]", "name in brackets")
        if c == "@":
            return self._parameter(at)
        if text[at : at + 2] in _OPERATORS_OF_TWO:
            return self._token(OPERATOR, text[at : at + 2], None, at, at + 2)
        if c in _OPERATORS_OF_ONE:
            return self._token(OPERATOR, c, None, at, at + 1)
        if c == "_":
            end = self._word_end(at)
            self._refuse(f"a name starts with a letter: write [{text[at:end]}]", at)
        self._refuse(f"unexpected character {c!r}", at)

    def _token(self, kind: str, text: str, value: int | float | None, at: int, end: int) -> Token:
        self._at = end
        return Token(kind, text, value, at, end)

    def _word_end(self, at: int) -> int:
        text = self._text
        while at < len(text) and (text[at] in self.name_signs or text[at].isalpha() or text[at].isdecimal()):
            at += 1
        return at

    def _word(self, at: int) -> Token:
        end = self._word_end(at)
        word = self._text[at:end]
        capitals = word.upper()
        if capitals in self.keywords:
            return self._token(KEYWORD, capitals, None, at, end)
        return self._token(NAME, word, None, at, end)

    def _number(self, at: int) -> Token:
        match = _NUMBER.match(self._text, at)
        if match is None:
            self._refuse("this is not a number", at)
        end = match.end()
        if self._word_end(end) != end or self._text[end : end + 1] == ".":
            self._refuse(f"a number ends where {self._text[end : end + _FOUND_CHARS_MAX]!r} begins", end)
        digits = match.group()
        if digits[:2] in ("0x", "0X"):
            return self._token(NUMBER, digits, self._integer(int(digits, 16), at), at, end)
        if digits.isdecimal():
            # Longer ones are out of range, and int() of a very long text is not linear.
            return self._token(NUMBER, digits, self._integer(int(digits) if len(digits) <= 64 else INT64_MAX + 2, at), at, end)
        value = float(digits)
        if value == float("inf"):
            self._refuse("the number is out of the range of a 64-bit floating-point number", at)
        return self._token(NUMBER, digits, value, at, end)

    def _integer(self, value: int, at: int) -> int:
        # One more than the largest is let through: with a minus before it, it is the smallest.
        if value > INT64_MAX + 1:
            self._refuse("the number is out of the range of a 64-bit integer", at)
        return value

    def _quoted(self, at: int, kind: str, close: str, what: str) -> Token:
        """The closing sign stands for itself when doubled."""
        text = self._text
        end = at + 1
        while True:
            end = text.find(close, end)
            if end < 0:
                self._refuse(f"the {what} has no closing {close}", at)
            if text[end + 1 : end + 2] != close:
                break
            end += 2
        content = text[at + 1 : end].replace(close + close, close)
        if kind == DELIMITED and not content:
            self._refuse("a name cannot be empty", at)
        return self._token(kind, content, None, at, end + 1)

    def _parameter(self, at: int) -> Token:
        end = self._word_end(at + 1)
        if end == at + 1:
            self._refuse("expected the name of a parameter after '@'", at)
        return self._token(PARAMETER, self._text[at:end], None, at, end)


def describe(token: Token) -> str:
    """What an error message calls a token."""
    if token.kind == END:
        return "the end"
    text = token.text if len(token.text) <= _FOUND_CHARS_MAX else token.text[:_FOUND_CHARS_MAX] + "…"
    if token.kind == STRING:
        return f"the string '{text}'"
    if token.kind == DELIMITED:
        return f"[{text}]"
    return f"'{text}'"
