"""A batch in a transaction whose keys lead to two nodes: each has its share, and none happens without the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.gateway.amqp.sending import BATCH_FORMAT
from tandem.gateway.amqp.spread_sending import FarSending, _data_section, _FarLink, _TransactionalJoint
from tests.cluster.spread import KEYED, SpreadBroker
from tests.conformance.raw import Raw, Refused, message
from tests.gateway.amqp.coordinator import Coordinator, send_in, transactional_transfer
from tests.gateway.amqp.test_joint_transactions import _reach, kept, nothing_left


@pytest.fixture(scope="module", params=["a", "c"], ids=["through one of them", "through a third"])
def broker(module_path: Path, request: pytest.FixtureRequest) -> Iterator[SpreadBroker]:
    with SpreadBroker(module_path / f"spread-{request.param}", {"plain": 48}, real_time=True, turns=False, front=request.param) as broker:
        broker.run(_reach(broker))
        yield broker


def batch(*nodes: int, keyless: int = 0) -> bytes:
    payloads = [message(f"for node {node}", **KEYED[node]) for node in nodes] + [message("for any")] * keyless
    return b"".join(_data_section(payload) for payload in payloads)


@pytest.mark.parametrize("settled", [False, True], ids=["unsettled", "settled"])
@pytest.mark.parametrize("nodes", [(0, 1), (1, 0, 0, 1, 1)])
def test_all_of_it_is_there_when_the_transaction_is_discharged_and_none_before(
    broker: SpreadBroker, nodes: tuple[int, ...], settled: bool
) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        coordinator, sender = Coordinator(raw), raw.sender(queue)
        for fail in (True, False):
            transaction = coordinator.declare()
            send_in(sender, transaction, batch(*nodes, keyless=1), settled, BATCH_FORMAT)
            assert kept(broker, queue) == [0, 0]
            coordinator.discharge(transaction, fail)
            if fail:
                assert kept(broker, queue) == [0, 0]
        bodies = [arrival.text for arrival in raw.receiver(queue, delete=True).receive(len(nodes) + 1)]
        assert sorted(bodies) == sorted([f"for node {node}" for node in nodes] + ["for any"])
    nothing_left(broker)


def test_a_discharge_right_behind_it_waits_for_all_shares(broker: SpreadBroker) -> None:
    """In one flush: the links to the nodes that have the fragments are not even attached."""
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        coordinator, sender = Coordinator(raw), raw.sender(queue)
        transaction = coordinator.declare()
        transactional_transfer(sender.link, transaction, batch(0, 1), None, False, BATCH_FORMAT)
        coordinator.discharge(transaction)
        assert len(raw.receiver(queue, delete=True).receive(2)) == 2
    nothing_left(broker)


@pytest.mark.parametrize("settled", [False, True], ids=["unsettled", "settled"])
@pytest.mark.parametrize("node", [0, 1])
def test_a_discharge_right_behind_one_message_waits_for_it(broker: SpreadBroker, node: int, settled: bool) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        coordinator, sender = Coordinator(raw), raw.sender(queue)
        transaction = coordinator.declare()
        transactional_transfer(sender.link, transaction, message("one", **KEYED[node]), None, settled)
        coordinator.discharge(transaction)
        assert [arrival.text for arrival in raw.receiver(queue, delete=True).receive()] == ["one"]
    nothing_left(broker)


@pytest.mark.parametrize("settled", [False, True], ids=["unsettled", "settled"])
@pytest.mark.parametrize("refusing", [0, 1])
def test_if_one_node_refuses_its_share_nothing_of_the_transaction_happens(
    broker: SpreadBroker, monkeypatch: pytest.MonkeyPatch, refusing: int, settled: bool
) -> None:
    queue = broker.queue("plain")
    context = broker.servers[refusing].contexts[0]
    monkeypatch.setattr(context, "limits", dataclasses.replace(context.limits, transaction_operations_max=2))
    with Raw(broker.port) as raw:
        coordinator, sender = Coordinator(raw), raw.sender(queue)
        transaction = coordinator.declare()
        send_in(sender, transaction, message("before", **KEYED[1 - refusing]))
        shares = batch(refusing, 1 - refusing, *[refusing] * 2)
        if settled:
            send_in(sender, transaction, shares, True, BATCH_FORMAT)
        else:
            with pytest.raises(Refused, match="may hold 2 operations"):
                send_in(sender, transaction, shares, False, BATCH_FORMAT)
        here = len(broker.servers) == 2 and refusing == 0
        if here and not settled:  # before anybody had any of it: the rest may happen
            coordinator.discharge(transaction)
        else:
            with pytest.raises(Refused) as refused:
                coordinator.discharge(transaction)
            assert refused.value.condition == "amqp:transaction:rollback"
    nothing_left(broker)
    assert sum(kept(broker, queue)) == (here and not settled)


@pytest.mark.parametrize("lost", ["before it is declared", "before the share", "after the share"])
def test_a_line_that_breaks_while_shares_are_on_their_way_leaves_nothing(
    broker: SpreadBroker, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    queue = broker.queue("plain")
    whole = FarSending.send_share
    cut: list[str] = []

    def send_share(self: FarSending, answer: _TransactionalJoint, share: bytes, tag: bytes) -> None:
        link = self._link
        assert isinstance(link, _FarLink)
        if self.node == "b" and lost == "before the share":
            cut.append(lost)
            link.carried.client_gone(True)
        whole(self, answer, share, tag)
        if self.node == "b" and lost != "before the share":
            cut.append(lost)
            link.carried.client_gone(True)

    with Raw(broker.port) as raw:
        coordinator, sender = Coordinator(raw), raw.sender(queue)
        for round_ in range(2):  # the links are there in the second
            transaction = coordinator.declare()
            if round_ == 1:
                monkeypatch.setattr(FarSending, "send_share", send_share)
                if lost == "after the share":  # the node knows the transaction, so the share is sent at once
                    send_in(sender, transaction, message("first", **KEYED[1]))
                with pytest.raises(Refused):
                    send_in(sender, transaction, batch(0, 1), False, BATCH_FORMAT)
                with pytest.raises(Refused) as refused:
                    coordinator.discharge(transaction)
                assert refused.value.condition == "amqp:transaction:rollback"
            else:
                send_in(sender, transaction, batch(0, 1), False, BATCH_FORMAT)
                coordinator.discharge(transaction)
        assert cut == [lost]
        monkeypatch.undo()
    nothing_left(broker)
    assert kept(broker, queue) == [1, 1], "what the first transaction sent"
    with Raw(broker.port) as raw:
        coordinator, sender = Coordinator(raw), raw.sender(queue)
        transaction = coordinator.declare()
        send_in(sender, transaction, batch(0, 1), False, BATCH_FORMAT)
        coordinator.discharge(transaction)
        assert kept(broker, queue) == [2, 2]
