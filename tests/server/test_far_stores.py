"""What was between two stores when it stopped, and is found by two nodes that have one each: brought to its end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.broker.entities.queue_entity import QueueEntity
from tandem.broker.ports import Effect
from tandem.broker.recovery import operations, transactions
from tandem.broker.recovery.tenant import StoreTenant
from tandem.model.message import NO_TTL, Message
from tandem.server.far_stores import PeerStores
from tandem.server.server import Server
from tests.cluster.spread import SpreadBroker, held
from tests.waiting import wait_until


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[SpreadBroker]:
    with SpreadBroker(tmp_path / "spread", {"plain": 1}, real_time=True) as broker:

        async def reach() -> None:
            for server in broker.servers:
                context = server.contexts[0]
                assert context.carrier is not None
                owners = context.carrier.spread  # type: ignore[attr-defined]
                context.namespace.reach(PeerStores(context, owners.ownership, owners.ask))

        broker.run(reach())
        yield broker


def store(server: Server, number: int) -> StoreTenant:
    return server.contexts[0].namespace.stores[number]


async def share_in_doubt(server: Server, queue: str, transaction: bytes) -> None:
    """The second node's store has written down its share: a message for the queue. The first node's first store decides."""
    entity = server.contexts[0].namespace.find(queue)
    assert isinstance(entity, QueueEntity)
    part = entity.main.parts()[1]
    message = Message(b"body", b"id", None, NO_TTL, 0, b"", 0, b"", 0, b"", None, False)
    tenant = store(server, 1)
    tenant.prepare(transaction, 0, [], operations.encode([operations.put(part, message)]), server.turn.begin())
    tenant.journal.when_durable(Effect())
    tenant.prepared[transaction].doubt(True)
    server.driver.run_turn()


@pytest.mark.parametrize("happened", [True, False])
def test_a_share_whose_decision_is_with_another_node_is_carried_out_or_dropped_as_that_node_says(
    broker: SpreadBroker, happened: bool
) -> None:
    first, second = broker.servers
    queue = broker.queue("plain")
    transaction = b"t" * 16

    async def work() -> None:
        await share_in_doubt(second, queue, transaction)
        if happened:
            store(first, 0).decide(transaction, 1, first.turn.begin())
            store(first, 0).committed[transaction] = True
            store(first, 0).inherited.add(transaction)
            first.driver.run_turn()
        transactions.resolve(second.contexts[0].namespace)
        second.driver.run_turn()

    broker.run(work())
    wait_until(lambda: transaction not in store(second, 1).prepared, "the end of the share")
    wait_until(lambda: held(second, queue) == int(happened), "its message, or none")

    async def forget() -> None:
        transactions.resolve(first.contexts[0].namespace)

    broker.run(forget())
    wait_until(lambda: transaction not in store(first, 0).committed, "nobody has a share: the decision is forgotten")


def test_a_decision_is_kept_as_long_as_another_node_has_a_share(broker: SpreadBroker) -> None:
    first, second = broker.servers
    queue = broker.queue("plain")
    transaction = b"u" * 16

    async def work() -> None:
        await share_in_doubt(second, queue, transaction)
        store(first, 0).decide(transaction, 1, first.turn.begin())
        store(first, 0).committed[transaction] = True
        store(first, 0).inherited.add(transaction)
        transactions.resolve(first.contexts[0].namespace)
        assert transaction not in store(first, 0).inherited, "it is being asked about"

    broker.run(work())
    wait_until(lambda: transaction in store(first, 0).inherited, "the answer that there is one")
    assert transaction in store(first, 0).committed
