"""What JMS clients say beyond plain AMQP: delays, durable and shared subscribers, and nodes that are not made by attaching."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tandem.amqp.codec import decode_value
from tandem.model import address as addresses
from tandem.model.entity import LATEST_MS
from tandem.model.errors import InvalidField, NotImplementedByBroker

if TYPE_CHECKING:
    from tandem.amqp.terminus import Terminus
    from tandem.broker.entities.namespace import Namespace
    from tandem.model.address import Address

DELAYED_DELIVERY: Final = "DELAYED_DELIVERY"
"""The capability by which a sender asks whether it may delay messages."""
SHARED_SUBSCRIPTIONS: Final = "SHARED-SUBS"
"""The capability by which a receiver asks whether it may share its subscription with others."""
_SHARING: Final = frozenset({"shared", "global"})


def milliseconds(buf: bytes, at: int, name: str) -> int:
    """The value of an annotation that says when, or how much later."""
    value, _ = decode_value(buf, at)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidField(f"The annotation {name} must be a timestamp or a whole number of milliseconds, found {type(value).__name__}.")
    if value > LATEST_MS:
        raise InvalidField(f"The annotation {name} is {int(value)} milliseconds, which lies beyond the year 9999.")
    return max(int(value), 0)


def node_of(terminus: Terminus, link: str, receives: bool, namespace: Namespace) -> Address:
    """What an attach leads to. A durable or shared receiver's link has the name of its subscription, with something after a bar where
    several share it. Nodes are not made by attaching."""
    if terminus.dynamic:
        raise NotImplementedByBroker(
            "Dynamic nodes (temporary queues and topics) are not made here. Create a queue for replies and name it in reply-to."
        )
    if terminus.address is None:
        raise InvalidField(f"The attach names no address in its {'source' if receives else 'target'}.")
    address = addresses.parse(terminus.address)
    if not receives or not namespace.is_topic(address):
        return address
    if terminus.durable or not _SHARING.isdisjoint(terminus.capabilities):
        return replace(address, entity=f"{address.entity}/Subscriptions/{link.partition('|')[0]}")
    if "topic" in terminus.capabilities:
        raise NotImplementedByBroker(
            f"Subscriptions of '{address.entity}' are not made by receiving from it. Create one, and receive from "
            f"'{address.entity}/Subscriptions/<name>' as from a queue, or as a durable subscriber of that name."
        )
    return address
