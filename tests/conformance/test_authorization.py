"""Who may do what: namespace and entity rules, both keys, Send, Listen and Manage, tokens that expire."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError

from tandem import amqp
from tests.conformance.house import GUARDED, ROOT_KEY, ROOT_NAME, ClockedBroker, ProcessBroker, connection_string
from tests.conformance.raw import Raw, Refused, message, token_for
from tests.conformance.sdk import Bus, Flavour, bodies, text

QUEUES = {"plain": 16}


@pytest.fixture(scope="module")
def aging(module_path: Path) -> Iterator[ClockedBroker]:
    """A broker whose clock can jump, with tokens that feel it."""
    with ClockedBroker(module_path / "aging", QUEUES, connections_too=True) as broker:
        yield broker


@pytest.fixture
def flavour(either: Flavour) -> Flavour:
    return either


def with_key(bus: Bus, name: str, key: str) -> Any:
    return bus.client(connection_string(bus.broker.port, name, key))


def words(failure: pytest.ExceptionInfo[ServiceBusAuthenticationError]) -> str:
    """The SDK keeps what the broker said about a token one level deeper than what it prints."""
    return str(failure.value.inner_exception)


@pytest.mark.compiled_too
def test_a_wrong_key_is_refused_with_a_tracking_id(bus: Bus) -> None:
    with pytest.raises(ServiceBusAuthenticationError) as failure:
        bus.sender(bus.queue(), with_key(bus, ROOT_NAME, "wrong")).send_messages(text("x"))
    assert re.search(r"Status code: 401\s+Description: InvalidSignature.*TrackingId:.*SystemTracker:.*Timestamp:", words(failure))
    with pytest.raises(ServiceBusAuthenticationError) as failure:
        bus.receiver(bus.queue(), with_key(bus, "nobody", ROOT_KEY))
    assert "no authorization rule named 'nobody'" in words(failure)


def test_a_missing_entity_fails_authentication_as_the_service_does_it(bus: Bus) -> None:
    with pytest.raises(ServiceBusAuthenticationError) as failure:
        bus.sender("no-such-queue").send_messages(text("x"))
    assert re.search(r"Status code: 404\s+Description: .*could not be found.*TrackingId:", words(failure))
    with pytest.raises(ServiceBusAuthenticationError) as failure:
        bus.receiver("no-such-queue")
    assert "could not be found" in words(failure)


@pytest.mark.parametrize("key", ["first", "second"])
@pytest.mark.parametrize("entity", ["namespace rule", "entity rule"])
def test_both_keys_of_a_rule_open_what_it_allows(bus: Bus, key: str, entity: str) -> None:
    queue = GUARDED if entity == "entity rule" else bus.queue()
    bus.sender(queue, with_key(bus, "sender", f"sender-{key}")).send_messages(text(key))
    received = bus.receiver(queue, with_key(bus, "listener", f"listener-{key}")).receive_messages(1, max_wait_time=10)
    assert bodies(received) == [key]
    received_by = bus.receiver(queue, with_key(bus, "listener", f"listener-{key}"))
    received_by.complete_message(received[0])


def test_send_and_listen_are_enforced_by_name(bus: Bus) -> None:
    queue = bus.queue()
    with pytest.raises(
        ServiceBusAuthorizationError,
        match=r"Unauthorized access\. 'Listen' claim\(s\) are required to perform this operation\..*TrackingId:",
    ):
        bus.receiver(queue, with_key(bus, "sender", "sender-first"))
    with pytest.raises(
        ServiceBusAuthorizationError, match=r"Unauthorized access\. 'Send' claim\(s\) are required to perform this operation\..*TrackingId:"
    ):
        bus.sender(queue, with_key(bus, "listener", "listener-first")).send_messages(text("x"))
    manager = with_key(bus, "manager", "manager-first")
    bus.sender(queue, manager).send_messages(text("x"))
    assert bodies(bus.receiver(queue, manager).receive_messages(1, max_wait_time=10)) == ["x"]


def test_the_rule_of_one_entity_does_not_open_another(broker: ProcessBroker) -> None:
    elsewhere = broker.queue("plain")
    with Raw(broker.port, user="") as raw:
        own = token_for(broker.port, GUARDED, "sender", "sender-first")
        assert raw.put_token(GUARDED, own)[0] == 202
        status, text = raw.put_token(elsewhere, own)
        assert (status, "InvalidAudience" in text) == (401, True)
        with pytest.raises(Refused) as refusal:
            raw.sender(elsewhere)
        assert refusal.value.condition == "amqp:unauthorized-access"
        assert "'Send'" in refusal.value.description
        raw.sender(GUARDED).send(message("x"))


@pytest.mark.parametrize(
    ("operation", "body", "needed"),
    [
        ("peek-message", {"from-sequence-number": 0, "message-count": amqp.Int(1)}, "Listen"),
        ("renew-lock", {"lock-tokens": amqp.Array(0x98, [])}, "Listen"),
        ("update-disposition", {"lock-tokens": amqp.Array(0x98, []), "disposition-status": "completed"}, "Listen"),
        ("receive-by-sequence-number", {"sequence-numbers": amqp.Array(0x81, [1]), "receiver-settle-mode": amqp.UInt(1)}, "Listen"),
        ("batch-delete-messages", {"message-count": amqp.Int(1)}, "Listen"),
        ("schedule-message", {"messages": [{"message-id": "m", "message": b""}]}, "Send"),
        ("cancel-scheduled-message", {"sequence-numbers": amqp.Array(0x81, [1])}, "Send"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_management_operations_need_the_claim_of_their_kind(broker: ProcessBroker, operation: str, body: object, needed: str) -> None:
    other = "sender" if needed == "Listen" else "listener"
    with Raw(broker.port, user="") as raw:
        assert raw.put_token(GUARDED, token_for(broker.port, GUARDED, other, f"{other}-first"))[0] == 202
        status, reply = raw.request(GUARDED, f"com.microsoft:{operation}", body)
        assert status == 401
        assert reply.application_properties["errorCondition"] == "amqp:unauthorized-access"
        assert f"'{needed}'" in str(reply.application_properties["statusDescription"])
        assert "TrackingId:" in str(reply.application_properties["statusDescription"])


def test_credentials_of_every_kind_are_understood(broker: ProcessBroker, raw: Raw) -> None:
    queue = broker.queue("plain")
    raw.feed(queue, "x")
    token = token_for(broker.port, "")
    ready_made = f"Endpoint=sb://localhost:{broker.port};SharedAccessSignature={token};UseDevelopmentEmulator=true;"
    clients = [
        ServiceBusClient.from_connection_string(ready_made, retry_total=0),
        ServiceBusClient.from_connection_string(connection_string(broker.port) + f"EntityPath={queue};", retry_total=0),
    ]
    for client in clients:
        with client, client.get_queue_receiver(queue) as receiver:
            assert bodies(receiver.peek_messages(1)) == ["x"]
    assert AzureSasCredential(token).signature == token
    assert AzureNamedKeyCredential(ROOT_NAME, ROOT_KEY).named_key.key == ROOT_KEY


def test_a_token_that_has_expired_is_refused_also_when_it_was_good_before(broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port, user="") as raw:
        status, words = raw.put_token(queue, token_for(broker.port, queue, expires_in=-120))
        assert status == 401
        assert "ExpiredToken" in words
        assert "TrackingId:" in words
        with pytest.raises(Refused) as refusal:
            raw.receiver(queue)
        assert refusal.value.condition == "amqp:unauthorized-access"


@pytest.mark.compiled_too
def test_links_are_detached_when_their_token_lapses_and_the_token_cannot_be_used_again(aging: ClockedBroker) -> None:
    queue = aging.queue("plain")
    with Raw(aging.port, user="") as raw:
        token = token_for(aging.port, queue, expires_in=aging.clock.skipped_ms / 1000 + 600)
        assert raw.put_token(queue, token)[0] == 202
        sender, receiver = raw.sender(queue), raw.receiver(queue)
        sender.send(message("before"))
        aging.jump(600)
        raw.quiet(0.1)
        assert not sender.end.gone, "clocks differ a little: a token is honoured a moment longer"
        aging.jump(120)
        raw.until(lambda: sender.end.gone and receiver.end.gone)
        for end in (sender.end, receiver.end):
            assert end.error is not None
            assert end.error.condition == "amqp:unauthorized-access"
            assert "expired" in (end.error.description or "")
        status, words = raw.put_token(queue, token)
        assert (status, "ExpiredToken" in words) == (401, True)
        fresh = token_for(aging.port, queue, expires_in=aging.clock.skipped_ms / 1000 + 600)
        assert raw.put_token(queue, fresh)[0] == 202
        assert [a.text for a in raw.receiver(queue).receive()] == ["before"]


def test_a_renewed_token_keeps_links_open(aging: ClockedBroker) -> None:
    queue = aging.queue("plain")
    with Raw(aging.port, user="") as raw:
        for _ in range(3):
            token = token_for(aging.port, queue, expires_in=aging.clock.skipped_ms / 1000 + 600)
            assert raw.put_token(queue, token)[0] == 202
            if "sender" not in locals():
                sender = raw.sender(queue)
            aging.jump(500)
            sender.send(message("still here"))
        assert not sender.end.gone


def test_plain_sasl_takes_key_name_and_key_and_nothing_else(broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port, user="sender", password="sender-second") as raw:
        raw.sender(queue).send(message("x"))
        with pytest.raises(Refused) as refusal:
            raw.receiver(queue)
        assert refusal.value.condition == "amqp:unauthorized-access"
    with Raw(broker.port, password="wrong") as raw:
        with pytest.raises(Refused):
            raw.sender(queue)
        assert raw.engine.sasl.failed


@pytest.mark.parametrize("name", ["", "$nothing", "no/such/queue/at/all"])
def test_a_token_for_an_entity_that_is_not_there_is_answered_404(broker: ProcessBroker, name: str) -> None:
    with Raw(broker.port, user="") as raw:
        status, words = raw.put_token(name, token_for(broker.port, name))
        assert (status, "TrackingId:" in words or status == 202) == (202 if name == "" else 404, True)


def test_tokens_that_are_no_tokens_are_told_what_is_wrong(broker: ProcessBroker) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port, user="") as raw:
        for token, complaint in (
            ("", "not a shared access signature"),
            ("eyJ0eXAiOiJKV1QifQ.e30.x", "not a shared access signature"),
            ("SharedAccessSignature sr=x", "MalformedToken"),
            ("SharedAccessSignature sr=sb%3A%2F%2Fh&sig=%%%&se=1&skn=x", "MalformedToken"),
            ("SharedAccessSignature " + "x" * 9000, "characters"),
        ):
            status, words = raw.put_token(queue, token)
            assert status == 401, words
            assert complaint in words


def test_a_connection_without_a_token_is_closed_after_its_time(aging: ClockedBroker) -> None:
    with Raw(aging.port, user="") as raw:
        raw.until(lambda: raw.engine.remote_open)
        aging.jump(21)
        raw.until(lambda: raw.engine.closed)
        error = raw.events.closed_with
        assert error is not None
        assert error.condition == "amqp:connection:forced"
        assert "token" in (error.description or "")
        assert "TrackingId:" in (error.description or "")


def test_a_connection_without_links_is_closed_after_its_time(aging: ClockedBroker) -> None:
    with Raw(aging.port) as raw:
        raw.until(lambda: raw.engine.remote_open)
        aging.jump(301)
        raw.until(lambda: raw.engine.closed)
        error = raw.events.closed_with
        assert error is not None
        assert error.condition == "amqp:connection:forced"
        assert "inactive" in (error.description or "")
