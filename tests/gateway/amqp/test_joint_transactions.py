"""Transactions over entities of two nodes: whole or absent, whatever is refused and whoever hangs up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem import amqp
from tandem.amqp.outcomes import ACCEPTED, ACCEPTED_CODE, REJECTED_CODE, Outcome
from tandem.broker.recovery import transactions
from tandem.gateway.amqp.carried_transactions import SHARE, CarriedTransaction
from tandem.gateway.amqp.carrier import LinkCarrier
from tandem.gateway.amqp.joint_transactions import DECIDE, END, ENDED, LEAD, PREPARE
from tandem.server.far_stores import PeerStores
from tests.cluster.spread import KEYED, SpreadBroker, held
from tests.conformance.raw import Raw, Refused, message
from tests.gateway.amqp.coordinator import Coordinator, is_settled, send_in, settle_in
from tests.waiting import wait_until


@pytest.fixture(scope="module", params=["a", "c"], ids=["through one of them", "through a third"])
def broker(module_path: Path, request: pytest.FixtureRequest) -> Iterator[SpreadBroker]:
    with SpreadBroker(module_path / f"spread-{request.param}", {"plain": 48}, real_time=True, turns=False, front=request.param) as broker:
        broker.run(_reach(broker))
        yield broker


async def _reach(broker: SpreadBroker) -> None:
    """As nodes with administration do: they ask each other about stores."""
    for server in broker.servers:
        context = server.contexts[0]
        assert isinstance(context.carrier, LinkCarrier)
        owners = context.carrier.spread
        context.namespace.reach(PeerStores(context, owners.ownership, owners.ask))


def kept(broker: SpreadBroker, queue: str) -> list[int]:
    return [broker.run(_held(broker, node, queue)) for node in (0, 1)]


async def _held(broker: SpreadBroker, node: int, queue: str) -> int:
    return held(broker.servers[node], queue)


def left_over(broker: SpreadBroker) -> int:
    """Shares that are not over, and decisions that are still remembered."""

    async def look() -> int:
        for server in broker.servers:
            server.turn.begin()
            transactions.resolve(server.contexts[0].namespace)  # as the next transaction does
            server.driver.run_turn()
        stores = [tenant for server in broker.servers for tenant in server.contexts[0].namespace.stores]
        return sum(len(tenant.prepared) + len(tenant.committed) + len(tenant.awaited) for tenant in stores)

    return broker.run(look())


def nothing_left(broker: SpreadBroker) -> None:
    wait_until(lambda: left_over(broker) == 0, "every share is over", 15)


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (1, 0, 1, 0)])
def test_sends_to_two_nodes_are_all_there_when_it_is_discharged_and_none_before(broker: SpreadBroker, order: tuple[int, ...]) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        coordinator, sender = Coordinator(raw), raw.sender(queue)
        transaction = coordinator.declare()
        for node in order:
            send_in(sender, transaction, message("in it", **KEYED[node]))
        assert kept(broker, queue) == [0, 0]
        coordinator.discharge(transaction)
        assert len(raw.receiver(queue, delete=True).receive(len(order))) == len(order)
    nothing_left(broker)


@pytest.mark.parametrize("fail", [False, True])
@pytest.mark.parametrize("source", [0, 1])
def test_a_message_moves_from_one_node_to_the_other_or_stays(broker: SpreadBroker, source: int, fail: bool) -> None:
    queue, target = broker.queue("plain"), broker.queue("plain")
    with Raw(broker.port) as raw:
        raw.feed(queue, "order", **KEYED[source])
        coordinator, receiver, sender = Coordinator(raw), raw.receiver(queue), raw.sender(target)
        (arrival,) = receiver.receive()
        transaction = coordinator.declare()
        send_in(sender, transaction, message("moved", **KEYED[1 - source]))
        settle_in(receiver, transaction, arrival)
        coordinator.discharge(transaction, fail)
        nothing_left(broker)
        assert (sum(kept(broker, queue)), kept(broker, target)[1 - source]) == (int(fail), int(not fail))
        if fail:
            assert not receiver.end.settled
            receiver.settle(arrival, ACCEPTED)  # by the same link, as if the transaction had never been
        else:
            is_settled(receiver, arrival, ACCEPTED_CODE)
        assert receiver.end.settled == {arrival.delivery_id}
        assert sum(kept(broker, queue)) == 0


@pytest.mark.parametrize("lost", [0, 1])
def test_what_one_node_cannot_do_does_not_happen_at_the_other(broker: SpreadBroker, lost: int) -> None:
    """The lock is gone by the time it is discharged: settled over another link."""
    queue, target = broker.queue("plain"), broker.queue("plain")
    with Raw(broker.port) as raw, Raw(broker.port) as other:
        raw.feed(queue, "order", **KEYED[lost])
        coordinator, receiver, sender = Coordinator(raw), raw.receiver(queue), raw.sender(target)
        (arrival,) = receiver.receive()
        transaction = coordinator.declare()
        for node in (0, 1):
            send_in(sender, transaction, message("moved", **KEYED[node]))
        settle_in(receiver, transaction, arrival)
        settled = {"disposition-status": "completed", "lock-tokens": amqp.Array(0x98, [arrival.token])}
        assert other.request(queue, "com.microsoft:update-disposition", settled)[0] == 200
        with pytest.raises(Refused) as refused:
            coordinator.discharge(transaction)
        assert refused.value.condition == "amqp:transaction:rollback"
        assert (kept(broker, queue), kept(broker, target)) == ([0, 0], [0, 0])
    nothing_left(broker)


@pytest.mark.parametrize("first", [0, 1])
def test_a_client_that_hangs_up_while_it_is_discharged_leaves_all_or_nothing(broker: SpreadBroker, first: int) -> None:
    queue = broker.queue("plain")
    for _ in range(20):
        before = kept(broker, queue)
        raw = Raw(broker.port)
        coordinator, sender = Coordinator(raw), raw.sender(queue)
        transaction = coordinator.declare()
        for node in (first, 1 - first):
            send_in(sender, transaction, message("in it", **KEYED[node]))
        coordinator.start_discharge(transaction)
        raw.socket.close()
        nothing_left(broker)
        added = [now - was for now, was in zip(kept(broker, queue), before, strict=True)]
        assert added in ([0, 0], [1, 1])


@pytest.mark.parametrize("lost", ["request", "answer"])
@pytest.mark.parametrize("verb", [LEAD, PREPARE, DECIDE, END, ENDED])
def test_a_line_between_nodes_that_breaks_at_any_step_leaves_all_or_nothing(
    broker: SpreadBroker, monkeypatch: pytest.MonkeyPatch, verb: str, lost: str
) -> None:
    whole = CarriedTransaction.share
    cut: list[str] = []

    async def share(self: CarriedTransaction, asked: str, *said: object, lasts: bool = False) -> Outcome:
        if asked == verb and lost == "request":
            cut.append(asked)
            self.carried.client_gone(True)
        answer = await whole(self, asked, *said, lasts=lasts)
        if asked == verb and lost == "answer":
            cut.append(asked)
            self.carried.client_gone(True)
            return Outcome(REJECTED_CODE, amqp.AmqpError("amqp:internal-error", "the line was cut"))
        return answer

    monkeypatch.setattr(CarriedTransaction, "share", share)
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        raw.feed(queue, "order", **KEYED[1])
        coordinator, receiver, sender = Coordinator(raw), raw.receiver(queue), raw.sender(queue)
        (arrival,) = receiver.receive()
        transaction = coordinator.declare()
        settle_in(receiver, transaction, arrival)
        send_in(sender, transaction, message("moved", **KEYED[0]))
        with contextlib.suppress(Refused):
            coordinator.discharge(transaction)
    nothing_left(broker)
    assert kept(broker, queue) in ([0, 1], [1, 0])
    led_from_afar = len(broker.servers) == 3
    assert bool(cut) is (verb in (PREPARE, END) or led_from_afar)
    if verb in (END, ENDED) or (verb == DECIDE and lost == "answer" and led_from_afar):
        assert kept(broker, queue) == [1, 0], "it was decided"
    elif led_from_afar or verb == PREPARE:
        assert kept(broker, queue) == [0, 1], "it was not"


def test_shares_are_not_for_clients(broker: SpreadBroker) -> None:
    with Raw(broker.port) as raw:
        coordinator = Coordinator(raw)
        transaction = coordinator.declare()
        with pytest.raises(Refused, match="declare and discharge"):
            coordinator.request(amqp.Described(SHARE, [transaction, transaction]))
        coordinator.discharge(transaction)
