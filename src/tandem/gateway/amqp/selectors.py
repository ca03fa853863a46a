"""JMS message selectors on receivers: `apache.org:selector-filter:string`, with the fields of a message under the names JMS gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from tandem.amqp.codec import decode_value
from tandem.amqp.errors import DecodeError
from tandem.amqp.message import scan
from tandem.amqp.types import Described
from tandem.broker.ports import Selector
from tandem.broker.rules.message_view import exact_view
from tandem.broker.rules.sql_lexer import SqlSyntaxError
from tandem.broker.rules.sql_selector import compile_selector
from tandem.broker.rules.sql_values import RuleEvaluationError
from tandem.gateway.views import application_properties_of, for_rules
from tandem.model.errors import InvalidField

if TYPE_CHECKING:
    from tandem.amqp.terminus import Terminus
    from tandem.model.limits import Limits
    from tandem.model.message import Message

_NAME: Final = "apache.org:selector-filter:string"
_DESCRIPTORS: Final = (0x0000_468C_0000_0004, _NAME)
_DEFAULT_PRIORITY: Final = 4
_FIELDS: Final = {
    2: "JMSDestination",
    3: "JMSType",
    4: "JMSReplyTo",
    8: "JMSExpiration",
    9: "JMSTimestamp",
    10: "JMSXGroupID",
    11: "JMSXGroupSeq",
}
"""Of the properties section by their places; ids are written differently."""
_MESSAGE_ID: Final = 0
_USER_ID: Final = 1
_CORRELATION_ID: Final = 5


class JmsSelector(Selector):
    """Never raises: what cannot be compared or computed does not match."""

    __slots__ = ("_asks_for_headers", "_predicate")

    def __init__(self, text: str, limits: Limits) -> None:
        try:
            self._predicate = compile_selector(text, limits)
        except SqlSyntaxError as error:
            raise InvalidField(f"The selector is not valid: {error.description}") from error
        self._asks_for_headers = "JMS" in text

    def matches(self, message: Message, count: int) -> bool:
        try:
            return self._predicate(exact_view(lambda: self._load(message, count)))
        except (RuleEvaluationError, OverflowError):
            return False  # as unknown is: a division by zero, an instant beyond all calendars

    def _load(self, message: Message, count: int) -> dict[str, object]:
        found = {str(key): for_rules(value) for key, value in application_properties_of(message.bare).items()}
        if self._asks_for_headers:
            found.update(headers_of(message, count))
        return found


def headers_of(message: Message, count: int) -> dict[str, object]:
    """The header fields and properties that JMS defines, as its clients would show them."""
    durable, priority = _header(message.header)
    found: dict[str, object] = {
        "JMSDeliveryMode": "PERSISTENT" if durable is True else "NON_PERSISTENT",
        "JMSPriority": int(priority) if isinstance(priority, int) else _DEFAULT_PRIORITY,
        "JMSRedelivered": count > 0,
        "JMSXDeliveryCount": count + 1,
    }
    for place, value in enumerate(_properties(message.bare)):
        if value is None:
            continue
        if place == _MESSAGE_ID:
            found["JMSMessageID"] = _message_id(value)
        elif place == _CORRELATION_ID:
            found["JMSCorrelationID"] = str(value) if isinstance(value, str) else _typed_id(value)
        elif place == _USER_ID:
            found["JMSXUserID"] = value.decode(errors="replace") if isinstance(value, bytes) else value
        elif place in _FIELDS:
            found[_FIELDS[place]] = int(value) if isinstance(value, int) else str(value)
    return found


def _header(travelling: bytes) -> tuple[object, object]:
    if not travelling:
        return None, None
    durable, at = decode_value(travelling, 0)
    return durable, decode_value(travelling, at)[0]


def _properties(bare: bytes) -> list[object]:
    try:
        s = scan(bare)
        value = decode_value(bare, s.properties_value)[0] if s.properties_at >= 0 else None
    except DecodeError:
        return []  # values are not read on the way in
    return value if isinstance(value, list) else []


def _message_id(value: object) -> str:
    """JMS ids begin with `ID:`; what came from elsewhere says so."""
    if isinstance(value, str):
        return str(value) if value.startswith("ID:") else f"ID:AMQP_NO_PREFIX:{value}"
    return _typed_id(value)


def _typed_id(value: object) -> str:
    if isinstance(value, UUID):
        return f"ID:AMQP_UUID:{value}"
    if isinstance(value, bytes):
        return f"ID:AMQP_BINARY:{value.hex().upper()}"
    return f"ID:AMQP_ULONG:{value}"


def take_selector(source: Terminus, limits: Limits) -> Selector | None:
    """The selector among the filters of an attach. Filters that are not known are left out of the answer, as the specification says."""
    for key, value in source.filter.items():
        described = isinstance(value, Described) and value.descriptor in _DESCRIPTORS
        if not described and str(key) != _NAME:
            continue
        text = value.value if isinstance(value, Described) else value
        if not isinstance(text, str):
            raise InvalidField(f"The filter {_NAME} must be a string, found {type(text).__name__}.")
        source.answer_filter({key: value})
        return JmsSelector(text, limits) if text.strip() else None
    source.answer_filter({})
    return None
