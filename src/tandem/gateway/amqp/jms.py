"""What JMS clients say beyond plain AMQP: delays, and attaches to nodes that are not made by attaching."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.amqp.codec import decode_value
from tandem.model import address as addresses
from tandem.model.errors import InvalidField, NotImplementedByBroker

if TYPE_CHECKING:
    from tandem.amqp.terminus import Terminus
    from tandem.broker.entities.namespace import Namespace

DELAYED_DELIVERY: Final = "DELAYED_DELIVERY"
"""The capability by which a sender asks whether it may delay messages."""
_LATEST_MS: Final = 253_402_300_799_999
_SHARING: Final = frozenset({"shared", "global"})


def milliseconds(buf: bytes, at: int, name: str) -> int:
    """The value of an annotation that says when, or how much later."""
    value, _ = decode_value(buf, at)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidField(f"The annotation {name} must be a timestamp or a whole number of milliseconds, found {type(value).__name__}.")
    if value > _LATEST_MS:
        raise InvalidField(f"The annotation {name} is {int(value)} milliseconds, which lies beyond the year 9999.")
    return max(int(value), 0)


def refuse_unmade_nodes(terminus: Terminus, receives: bool, namespace: Namespace) -> None:
    """Temporary destinations, and subscriptions made by receiving from a topic, are refused in words that help."""
    if terminus.dynamic:
        raise NotImplementedByBroker(
            "Dynamic nodes (temporary queues and topics) are not made here. Create a queue for replies and name it in reply-to."
        )
    if not receives or terminus.address is None:
        return
    address = addresses.parse(terminus.address)
    sharing = not _SHARING.isdisjoint(terminus.capabilities)
    if sharing or ((terminus.durable or "topic" in terminus.capabilities) and namespace.is_topic(address)):
        raise NotImplementedByBroker(
            f"Subscriptions of '{address.entity}' are not made by receiving from it, be they durable, shared or neither. Create one, and "
            f"receive from '{address.entity}/Subscriptions/<name>' as from a queue."
        )
