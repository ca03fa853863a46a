from __future__ import annotations

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ServiceRequestError
from azure.servicebus import exceptions as sb

from tandem.client.errors import classify, condition_of, is_unreachable
from tandem.client.verdicts import Verdict


@pytest.mark.parametrize(
    "error",
    [
        sb.ServiceBusConnectionError(message="reset"),
        sb.ServiceBusCommunicationError(message="no route"),
        sb.OperationTimeoutError(message="late"),
        ConnectionRefusedError(),
        TimeoutError(),
        sb.ServiceBusError("store down", condition=b"amqp:internal-error"),
        sb.ServiceBusError("forced", condition=b"amqp:connection:forced"),
        sb.ServiceBusError("Handler failed", error=ConnectionResetError()),
        ServiceRequestError("dns"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_loss_of_reachability_counts_towards_failover(error: Exception):
    assert classify(error) is Verdict.UNREACHABLE
    assert is_unreachable(error)


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (sb.ServiceBusAuthenticationError(message="key"), Verdict.UNAUTHORIZED),
        (sb.ServiceBusAuthorizationError(message="claim"), Verdict.UNAUTHORIZED),
        (sb.ServiceBusConnectionError(message="closed", condition=b"amqp:unauthorized-access"), Verdict.UNAUTHORIZED),
        (ClientAuthenticationError("401"), Verdict.UNAUTHORIZED),
        (sb.MessagingEntityNotFoundError(message="gone"), Verdict.REFUSED),
        (sb.MessagingEntityDisabledError(message="off"), Verdict.REFUSED),
        (sb.MessageSizeExceededError(message="big"), Verdict.REFUSED),
        (sb.ServiceBusQuotaExceededError(message="full"), Verdict.QUOTA),
        (sb.ServiceBusServerBusyError(message="wait"), Verdict.BUSY),
        (sb.ServiceBusError("bad", condition=b"amqp:not-allowed"), Verdict.REFUSED),
        (ValueError("argument"), Verdict.REFUSED),
        (TypeError("argument"), Verdict.REFUSED),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Exception) else v.value,
)
def test_what_is_not_loss_of_reachability_never_counts_towards_failover(error: Exception, verdict: Verdict):
    assert classify(error) is verdict
    assert not is_unreachable(error)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(500, Verdict.UNREACHABLE), (503, Verdict.UNREACHABLE), (403, Verdict.UNAUTHORIZED), (429, Verdict.BUSY), (409, Verdict.REFUSED)],
)
def test_http_statuses_are_read_the_same_way(status: int, verdict: Verdict):
    error = HttpResponseError("http")
    error.status_code = status
    assert classify(error) is verdict


def test_the_condition_is_read_from_bytes_and_enums():
    assert condition_of(sb.ServiceBusError("x", condition=b"amqp:not-found")) == "amqp:not-found"
    assert condition_of(ValueError()) == ""
