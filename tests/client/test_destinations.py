from __future__ import annotations

import pytest
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from tandem.client.destinations import Destinations, Fate, Trouble, trouble_of_condition
from tandem.client.errors import trouble_with


@pytest.mark.parametrize(
    ("error", "condition", "trouble"),
    [
        (MessagingEntityNotFoundError(message="x"), "amqp:not-found", Trouble.DESTINATION),
        (MessagingEntityDisabledError(message="x"), "com.microsoft:entity-disabled", Trouble.DESTINATION),
        (ServiceBusQuotaExceededError(message="x"), "amqp:resource-limit-exceeded", Trouble.DESTINATION),
        (ServiceBusError("x", condition=b"amqp:resource-deleted"), "amqp:resource-deleted", Trouble.DESTINATION),
        (MessageSizeExceededError(message="x"), "amqp:link:message-size-exceeded", Trouble.MESSAGE),
        (ServiceBusError("x", condition=b"amqp:not-allowed"), "amqp:not-allowed", Trouble.MESSAGE),
        (ServiceBusError("x", condition=b"amqp:decode-error"), "amqp:decode-error", Trouble.MESSAGE),
        (ServiceBusAuthorizationError(message="x"), "amqp:unauthorized-access", Trouble.AWAY),
        (ServiceBusServerBusyError(message="x"), "com.microsoft:server-busy", Trouble.AWAY),
        (OperationTimeoutError(message="x"), "com.microsoft:timeout", Trouble.AWAY),
        (ServiceBusError("x", condition=b"amqp:internal-error"), "amqp:internal-error", Trouble.AWAY),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_both_pumps_read_a_refusal_the_same_way(error: ServiceBusError, condition: str, trouble: Trouble):
    assert trouble_with(error) is trouble_of_condition(condition) is trouble


def test_a_destination_is_waited_for_from_its_first_refusal_until_the_setting_is_over():
    destinations = Destinations(1_000)
    assert destinations.judge(Trouble.DESTINATION, "Orders", 5_000) is Fate.WAIT
    assert destinations.judge(Trouble.DESTINATION, "orders", 5_999) is Fate.WAIT
    assert destinations.judge(Trouble.DESTINATION, "orders", 6_000) is Fate.DEAD_LETTER_ALL
    assert destinations.judge(Trouble.DESTINATION, "other", 6_000) is Fate.WAIT
    assert destinations.took("ORDERS") and not destinations.took("orders")
    assert destinations.judge(Trouble.DESTINATION, "orders", 7_000) is Fate.WAIT


def test_outages_are_waited_for_for_ever_and_refused_messages_not_at_all():
    destinations = Destinations(0)
    assert destinations.judge(Trouble.AWAY, "q", 10**15) is Fate.WAIT
    assert destinations.judge(Trouble.MESSAGE, "q", 0) is Fate.DEAD_LETTER
    assert destinations.refusing == {}


def test_what_was_known_before_a_restart_goes_on():
    destinations = Destinations(1_000, {"orders": 5_000})
    assert destinations.judge(Trouble.DESTINATION, "orders", 6_000) is Fate.DEAD_LETTER_ALL
