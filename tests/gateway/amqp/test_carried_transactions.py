"""Transactions over carried links: whole or absent, at the node that has the entities."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tandem import amqp
from tandem.amqp.outcomes import ACCEPTED, ACCEPTED_CODE
from tandem.gateway.amqp import coordinator as coordinator_link
from tests.cluster.carried import CarriedBroker
from tests.conformance.raw import Raw, Refused, message
from tests.gateway.amqp.coordinator import Coordinator, is_settled, send_in, settle_in, transactional_transfer

QUEUES = {"plain": 20}


@pytest.fixture(scope="module")
def pair(module_path: Path) -> Iterator[CarriedBroker]:
    with CarriedBroker(module_path / "pair", QUEUES, real_time=True) as pair:
        yield pair


def texts(client: Raw, queue: str) -> list[str]:
    return [b"".join(entry.body).decode() for entry in client.peek(queue)]  # type: ignore[arg-type]


def test_sends_and_settlements_happen_together_when_the_transaction_is_discharged(pair: CarriedBroker) -> None:
    source, target = pair.queue("plain"), pair.queue("plain")
    with Raw(pair.port) as client, Raw(pair.port) as other:
        client.feed(source, "order")
        coordinator = Coordinator(client)
        receiver, sender = client.receiver(source), client.sender(target)
        (arrival,) = receiver.receive()
        transaction = coordinator.declare()
        send_in(sender, transaction, message("moved"))
        settle_in(receiver, transaction, arrival)
        assert (texts(other, source), texts(other, target)) == (["order"], [])
        coordinator.discharge(transaction)
        assert (texts(other, source), texts(other, target)) == ([], ["moved"])


def test_one_that_is_rolled_back_leaves_nothing_and_the_lock_stays(pair: CarriedBroker) -> None:
    source, target = pair.queue("plain"), pair.queue("plain")
    with Raw(pair.port) as client:
        client.feed(source, "order")
        coordinator = Coordinator(client)
        receiver, sender = client.receiver(source), client.sender(target)
        (arrival,) = receiver.receive()
        transaction = coordinator.declare()
        send_in(sender, transaction, message("moved"))
        settle_in(receiver, transaction, arrival)
        coordinator.discharge(transaction, fail=True)
        assert (texts(client, source), texts(client, target)) == (["order"], [])
        settled = {"disposition-status": "completed", "lock-tokens": amqp.Array(0x98, [arrival.token])}
        assert client.request(source, "com.microsoft:update-disposition", settled)[0] == 200
        assert texts(client, source) == []


def test_what_one_that_is_rolled_back_settled_is_settled_again_by_the_same_link(pair: CarriedBroker) -> None:
    queue = pair.queue("plain")
    with Raw(pair.port) as client:
        client.feed(queue, "one", "two")
        coordinator, receiver = Coordinator(client), client.receiver(queue)
        one, two = receiver.receive(2)
        transaction = coordinator.declare()
        settle_in(receiver, transaction, one)
        settle_in(receiver, transaction, two)
        coordinator.discharge(transaction, fail=True)
        assert not receiver.end.settled
        answer = receiver.settle(one, ACCEPTED)
        assert answer is not None and answer.code == ACCEPTED_CODE
        transaction = coordinator.declare()
        settle_in(receiver, transaction, two)
        coordinator.discharge(transaction)
        is_settled(receiver, two, ACCEPTED_CODE)
        assert texts(client, queue) == []


def test_several_transactions_of_one_client_are_kept_apart(pair: CarriedBroker) -> None:
    queue = pair.queue("plain")
    with Raw(pair.port) as client:
        coordinator, sender = Coordinator(client), client.sender(queue)
        one, two = coordinator.declare(), coordinator.declare()
        send_in(sender, one, message("one"))
        send_in(sender, two, message("two"))
        coordinator.discharge(two)
        coordinator.discharge(one, fail=True)
        assert texts(client, queue) == ["two"]
        with pytest.raises(Refused, match="no transaction of this id"):
            send_in(sender, two, message("late"))


def test_what_the_owner_refuses_is_refused_and_the_transaction_can_still_be_discharged(pair: CarriedBroker) -> None:
    queue = pair.queue("plain")
    with Raw(pair.port) as client:
        coordinator, sender = Coordinator(client), client.sender(queue)
        transaction = coordinator.declare()
        with pytest.raises(Refused, match="could not be decoded"):
            send_in(sender, transaction, b"\x00\x53\x99\x45")
        send_in(sender, transaction, message("good"))
        coordinator.discharge(transaction)
        assert texts(client, queue) == ["good"]


def test_a_state_that_is_none_costs_the_delivery_alone(pair: CarriedBroker) -> None:
    queue = pair.queue("plain")
    with Raw(pair.port) as client:
        sender = client.sender(queue)
        delivery_id = transactional_transfer(sender.link, b"unknown", message("x"), None)
        client.until(lambda: delivery_id in sender.end.outcomes)
        error = sender.end.outcomes[delivery_id].error
        assert error is not None
        assert error.condition == "amqp:transaction:unknown-id"
        sender.send(message("still works"))


def test_what_the_owner_never_sees_costs_no_credit(pair: CarriedBroker) -> None:
    with Raw(pair.port) as client:
        sender = client.sender(pair.queue("plain"))
        sender.send(message("so that there is credit"))
        whole = sender.link.credit
        for _ in range(20):
            with pytest.raises(Refused, match="no transaction of this id"):
                send_in(sender, b"unknown", message("x"))
        client.until(lambda: sender.link.credit == whole)


def test_a_client_with_all_the_sessions_it_may_have_has_transactions_too(pair: CarriedBroker) -> None:
    queue = pair.queue("plain")
    with Raw(pair.port) as client:
        coordinator, sender = Coordinator(client), client.sender(queue)
        for _ in range(client.engine.remote_channel_max):
            client.session = client.engine.begin()
            sender = client.sender(queue)
        transaction = coordinator.declare()
        send_in(sender, transaction, message("in the last session"))
        coordinator.discharge(transaction)
        client.session = sender.link.session
        assert texts(client, queue) == ["in the last session"]


def test_with_the_owner_lost_the_transaction_is_absent(pair: CarriedBroker) -> None:
    queue = pair.queue("plain")
    with Raw(pair.port) as client:
        coordinator, sender = Coordinator(client), client.sender(queue)
        transaction = coordinator.declare()
        send_in(sender, transaction, message("never"))

        def cut() -> None:
            for served in list(pair.owner.contexts[0].connections):
                served.cut()

        pair.on_loop(lambda owner: cut())
        client.until(lambda: sender.end.gone)
        with pytest.raises(Refused, match=r"was lost\. Nothing of it has happened\. Try again"):
            send_in(client.sender(queue), transaction, message("nor this"))
        with pytest.raises(Refused, match=r"was lost\. Nothing of it has happened\. Try again"):
            coordinator.discharge(transaction)
        assert texts(client, queue) == []


def test_with_the_answer_to_a_discharge_lost_nobody_is_told_that_nothing_happened(
    pair: CarriedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = pair.queue("plain")
    answer = coordinator_link._Answer.send
    owners = pair.owner.contexts[0].connections

    def cut_instead(self: Any, state: bytes) -> None:
        """The node dies with the answer on its lips."""
        if self._connection in owners:
            self._connection.cut()
        else:
            answer(self, state)

    with Raw(pair.port) as client:
        coordinator, sender = Coordinator(client), client.sender(queue)
        transaction = coordinator.declare()
        send_in(sender, transaction, message("it happened"))
        monkeypatch.setattr(coordinator_link._Answer, "send", cut_instead)
        with pytest.raises(Refused, match=r"all of it has happened, or nothing\. Look before you try again"):
            coordinator.discharge(transaction)
        assert texts(client, queue) == ["it happened"]
