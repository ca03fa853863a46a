"""What clients of earlier years take for granted: each rule here made one of them fail as a whole."""

from __future__ import annotations

import uuid

import pytest

from tandem import amqp
from tandem.amqp.performatives import Begin, Disposition, Open, Transfer
from tandem.testing import Bus
from tests.amqp.peers import parse
from tests.conformance.raw import Raw, token_for
from tests.gateway.amqp.connected import Connected, payload


def said(both: Connected) -> list[object]:
    """What the broker answers to all that the client has to say, frame by frame."""
    both.peer.receive(both.client.bytes_to_send())
    both.desk.turn.run()
    data, both.writer.data = b"".join(both.writer.data), []
    both.client.receive_bytes(data)
    return [performative for _, performative in parse(data)]


def test_a_request_is_accepted_before_it_is_answered() -> None:
    """uamqp, under azure-servicebus for Python up to 7.8, fails an answer to a request that it does not know to have arrived."""
    both = Connected()
    link, _ = both.sender("$cbs")
    both.receiver("$cbs")
    request = amqp.encode_message(properties={"message-id": 1}, application_properties={"operation": "none"}, body="", body_kind=0x77)
    link.send(request, b"t", False, None)
    kinds = [type(one) for one in said(both)]
    assert kinds.index(Disposition) < kinds.index(Transfer)


def test_a_client_that_counts_our_transfers_from_zero_gets_them() -> None:
    """rhea 1, under @azure/service-bus 1 and 7.0, does not look at the number with which our session begins."""
    both = Connected()
    link, _ = both.sender()
    both.session.next_incoming_id = 0
    _, notes = both.receiver()
    for text in "abc":
        link.send(payload(text), text.encode(), False, None)
    both.settle()
    assert [amqp.decode_message(transfer[2]).properties["message-id"] for transfer in notes.transfers] == ["a", "b", "c"]


@pytest.mark.parametrize(("properties", "first"), [({"framework": "Python/3.11.7"}, 0x40000000), ({"framework": "Go"}, 0), (None, 0)])
def test_ids_of_deliveries_stay_away_from_those_of_a_python_client(properties: dict[object, object] | None, first: int) -> None:
    """Its sender links take a disposition of the broker's for one of their own. Proton, connected again, takes no other id than 0."""
    both = Connected(properties=properties)
    link, _ = both.sender()
    _, notes = both.receiver()
    link.send(payload("a"), b"a", False, None)
    both.settle()
    assert notes.transfers[0][0] == first


def test_open_says_what_it_speaks_to_in_its_last_field() -> None:
    """pyamqp, under azure-servicebus for Python 7.9 to 7.11, reads the tenth field of open whether it is there or not."""
    both = Connected()
    assert both.client.remote_properties == {"product": "Tandem"}
    fresh = amqp.Connection(amqp.ConnectionHandler(), amqp.ConnectionConfig(container_id="client"), False)
    other = Connected()
    other.client = fresh
    fresh.open()
    fresh.begin()
    other.peer.engine = amqp.Connection(other.peer, other.peer.engine_config(other.context.limits, "broker"), True)
    opened = said(other)
    assert [type(one) for one in opened] == [Open, Begin]
    begun = opened[1]
    assert isinstance(begun, Begin) and begun.next_outgoing_id == 1


def test_a_refused_token_is_refused_with_a_condition() -> None:
    """com.microsoft.azure:azure-servicebus for Java throws the exception that belongs to it; without one, a retryable error."""
    with Bus() as bus, Raw(bus.port) as raw:

        def condition(token: str) -> object:
            properties = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": f"sb://localhost:{bus.port}/nowhere"}
            request = amqp.encode_message(
                properties={"message-id": uuid.uuid4()}, application_properties=properties, body=token, body_kind=0x77
            )
            return raw.exchange("$cbs", request).application_properties["errorCondition"]

        assert condition(token_for(bus.port, "nowhere")) == "amqp:not-found"
        assert condition(token_for(bus.port, "nowhere", key="another")) == "com.microsoft:auth-failed"
