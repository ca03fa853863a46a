"""What the operators of SQL rules do with values: C# promotion, unknown in and unknown out, errors that name the reason.

Values are None (unknown or NULL), bool, int, float, str, UUID, datetime, timedelta; anything else is opaque: it exists, and no
operator can use it. Comparing what cannot be compared is unknown; computing what cannot be computed is a RuleEvaluationError.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from tandem.broker.rules.sql_convert import concatenable, utc
from tandem.broker.rules.sql_like import compile_like
from tandem.model.errors import BusError

INT64_MIN: Final = -9_223_372_036_854_775_808
INT64_MAX: Final = 9_223_372_036_854_775_807
TEXT_CHARS_MAX: Final = 32_768
"""What concatenation may make: the service bounds one property to this, and doubling in each statement would know no end."""
PATTERN_CHARS_MAX: Final = 1_024
"""A LIKE pattern that is computed from a message; one written in the filter is bounded by the filter."""

NOTHING: Final = 0
NUMBER: Final = 1
TEXT: Final = 2
BOOLEAN: Final = 3
GUID: Final = 4
INSTANT: Final = 5
DURATION: Final = 6
OPAQUE: Final = 7

SORT_NAMES: Final = ("nothing", "a number", "a string", "a boolean", "a GUID", "a date and time", "a time span", "binary data")

EQ: Final = 0
NE: Final = 1
LT: Final = 2
LE: Final = 3
GT: Final = 4
GE: Final = 5

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SORTS: Final[dict[type, int]] = {
    type(None): NOTHING,
    bool: BOOLEAN,
    int: NUMBER,
    float: NUMBER,
    str: TEXT,
    UUID: GUID,
    datetime: INSTANT,
    timedelta: DURATION,
}


class RuleEvaluationError(BusError):
    """A rule could not be evaluated against a message; the subscription dead-letters the message or drops it, as configured."""


def sort_of(value: object) -> int:
    sort = _SORTS.get(type(value))
    if sort is not None:
        return sort
    # Subclasses keep their wire type (32-bit integers, symbols …) and behave as what they extend.
    if isinstance(value, int | float):
        return NUMBER
    if isinstance(value, str):
        return TEXT
    if isinstance(value, datetime):
        return INSTANT
    if isinstance(value, timedelta):
        return DURATION
    return GUID if isinstance(value, UUID) else OPAQUE


def instant_of(value: object) -> object:
    """Milliseconds UTC as expressions see them."""
    if not isinstance(value, int):
        return value
    try:
        return _EPOCH + timedelta(milliseconds=value)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC)


def duration_of(value: object) -> object:
    """Milliseconds as expressions see them."""
    return timedelta(milliseconds=value) if isinstance(value, int) else value


def milliseconds_of(value: object) -> object:
    """The way back: what `instant_of` and `duration_of` made."""
    if isinstance(value, datetime):
        value = utc(value) - _EPOCH
    return value // timedelta(milliseconds=1) if isinstance(value, timedelta) else value


def _ordered(op: int, order: int) -> bool:
    if op == EQ:
        return order == 0
    if op == NE:
        return order != 0
    if op == LT:
        return order < 0
    if op == LE:
        return order <= 0
    if op == GT:
        return order > 0
    return order >= 0


def _compare_floats(op: int, left: float, right: float) -> bool:
    # Not by way of an order: with NaN every comparison but <> is false.
    if op == EQ:
        return left == right
    if op == NE:
        return left != right
    if op == LT:
        return left < right
    if op == LE:
        return left <= right
    if op == GT:
        return left > right
    return left >= right


def compare(op: int, left: object, right: object) -> bool | None:
    """Three-valued: None when either side is unknown or the two sorts of value cannot be compared."""
    sort = sort_of(left)
    if sort != sort_of(right) or sort in (NOTHING, OPAQUE):
        return None
    if isinstance(left, int) and isinstance(right, int):
        if sort == BOOLEAN and op > NE:
            return None
        return _ordered(op, -1 if left < right else 1 if left > right else 0)
    if isinstance(left, int | float) and isinstance(right, int | float):
        return _compare_floats(op, float(left), float(right))
    if isinstance(left, str) and isinstance(right, str):
        return _ordered(op, -1 if left < right else 1 if left > right else 0)
    if isinstance(left, datetime) and isinstance(right, datetime):
        left, right = utc(left), utc(right)
        return _ordered(op, -1 if left < right else 1 if left > right else 0)
    if isinstance(left, timedelta) and isinstance(right, timedelta):
        return _ordered(op, -1 if left < right else 1 if left > right else 0)
    if op > NE:
        return None
    return (left == right) == (op == EQ)


def member(left: object, items: tuple[object, ...]) -> bool | None:
    """IN: unknown only when the left side is; an item that cannot be compared is just not equal."""
    if left is None:
        return None
    for item in items:  # noqa: SIM110 - a generator costs more than the loop
        if compare(EQ, left, item) is True:
            return True
    return False


def like(left: object, pattern: object, escape: object, has_escape: bool) -> bool | None:
    """LIKE with a pattern known only now."""
    if left is None or pattern is None or (has_escape and escape is None):
        return None
    if not isinstance(pattern, str):
        raise RuleEvaluationError(f"the pattern of LIKE is {SORT_NAMES[sort_of(pattern)]}, not a string")
    if has_escape and (not isinstance(escape, str) or len(escape) != 1):
        raise RuleEvaluationError("the escape character of LIKE is not a string of length 1")
    if len(pattern) > PATTERN_CHARS_MAX:
        raise RuleEvaluationError(f"the pattern of LIKE is longer than {PATTERN_CHARS_MAX} characters")
    if not isinstance(left, str):
        return None
    try:
        compiled = compile_like(pattern, escape if isinstance(escape, str) else "")
    except ValueError as error:
        raise RuleEvaluationError(str(error)) from error
    return compiled.matches(left)


def _refuse(sign: str, left: object, right: object) -> RuleEvaluationError:
    return RuleEvaluationError(f"the operator {sign} cannot be applied to {SORT_NAMES[sort_of(left)]} and {SORT_NAMES[sort_of(right)]}")


def _int64(value: int, sign: str) -> int:
    if value > INT64_MAX or value < INT64_MIN:
        raise RuleEvaluationError(f"the result of {sign} is out of the range of a 64-bit integer")
    return value


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def add(left: object, right: object) -> object:
    if left is None or right is None:
        return None
    if isinstance(left, str) or isinstance(right, str):
        first = concatenable(left)
        second = concatenable(right)
        if first is None or second is None:
            raise _refuse("+", left, right)
        if len(first) + len(second) > TEXT_CHARS_MAX:
            raise RuleEvaluationError(f"the result of + is longer than {TEXT_CHARS_MAX} characters")
        return first + second
    if isinstance(left, bool) or isinstance(right, bool):
        raise _refuse("+", left, right)
    if isinstance(left, int) and isinstance(right, int):
        return _int64(int(left) + int(right), "+")
    if isinstance(left, int | float) and isinstance(right, int | float):
        return float(left) + float(right)
    try:
        if isinstance(left, datetime) and isinstance(right, timedelta):
            return utc(left) + right
        if isinstance(left, timedelta) and isinstance(right, datetime):
            return utc(right) + left
        if isinstance(left, timedelta) and isinstance(right, timedelta):
            return left + right
    except OverflowError as error:
        raise RuleEvaluationError("the result of + is out of the range of dates and times") from error
    raise _refuse("+", left, right)


def subtract(left: object, right: object) -> object:
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        raise _refuse("-", left, right)
    if isinstance(left, int) and isinstance(right, int):
        return _int64(int(left) - int(right), "-")
    if isinstance(left, int | float) and isinstance(right, int | float):
        return float(left) - float(right)
    try:
        if isinstance(left, datetime) and isinstance(right, timedelta):
            return utc(left) - right
        if isinstance(left, datetime) and isinstance(right, datetime):
            return utc(left) - utc(right)
        if isinstance(left, timedelta) and isinstance(right, timedelta):
            return left - right
    except OverflowError as error:
        raise RuleEvaluationError("the result of - is out of the range of dates and times") from error
    raise _refuse("-", left, right)


def multiply(left: object, right: object) -> object:
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        raise _refuse("*", left, right)
    if isinstance(left, int) and isinstance(right, int):
        return _int64(int(left) * int(right), "*")
    if isinstance(left, int | float) and isinstance(right, int | float):
        return float(left) * float(right)
    raise _refuse("*", left, right)


def divide(left: object, right: object) -> object:
    """Of integers towards zero, as in C#."""
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        raise _refuse("/", left, right)
    if isinstance(left, int) and isinstance(right, int):
        if right == 0:
            raise RuleEvaluationError("division by zero")
        quotient = abs(int(left)) // abs(int(right))
        return _int64(quotient if (left < 0) == (right < 0) else -quotient, "/")
    if isinstance(left, int | float) and isinstance(right, int | float):
        dividend = float(left)
        divisor = float(right)
        if divisor != 0.0:
            return dividend / divisor
        if dividend == 0.0 or math.isnan(dividend):
            return math.nan
        return math.copysign(math.inf, dividend) * math.copysign(1.0, divisor)
    raise _refuse("/", left, right)


def remainder(left: object, right: object) -> object:
    """With the sign of the dividend, as in C#."""
    if left is None or right is None:
        return None
    if isinstance(left, bool) or isinstance(right, bool):
        raise _refuse("%", left, right)
    if isinstance(left, int) and isinstance(right, int):
        if right == 0:
            raise RuleEvaluationError("division by zero")
        rest = abs(int(left)) % abs(int(right))
        return -rest if left < 0 else rest
    if isinstance(left, int | float) and isinstance(right, int | float):
        dividend = float(left)
        divisor = float(right)
        if divisor == 0.0 or math.isinf(dividend) or math.isnan(dividend) or math.isnan(divisor):
            return math.nan
        return math.fmod(dividend, divisor)
    raise _refuse("%", left, right)


def negate(operand: object) -> object:
    if operand is None:
        return None
    if isinstance(operand, bool):
        raise RuleEvaluationError("the operator - cannot be applied to a boolean")
    if isinstance(operand, int):
        return _int64(-int(operand), "-")
    if isinstance(operand, float):
        return -float(operand)
    if isinstance(operand, timedelta):
        try:
            return -operand
        except OverflowError as error:
            raise RuleEvaluationError("the result of - is out of the range of time spans") from error
    raise RuleEvaluationError(f"the operator - cannot be applied to {SORT_NAMES[sort_of(operand)]}")


def plus(operand: object) -> object:
    if operand is None or _number(operand) or isinstance(operand, timedelta):
        return operand
    raise RuleEvaluationError(f"the operator + cannot be applied to {SORT_NAMES[sort_of(operand)]}")


def property_name(value: object) -> str | None:
    """The argument of `property()`."""
    if value is None or isinstance(value, str):
        return value
    raise RuleEvaluationError(f"the argument of property() is {SORT_NAMES[sort_of(value)]}, not a string")
