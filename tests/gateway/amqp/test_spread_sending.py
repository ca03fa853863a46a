"""Senders to a partitioned queue whose fragments two nodes have: by key to who has it, the rest stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem import amqp
from tests.cluster.spread import KEYED, SpreadBroker, held
from tests.conformance.raw import Raw, message
from tests.gateway.amqp.coordinator import Coordinator, send_in


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[SpreadBroker]:
    with SpreadBroker(module_path / "spread", {"plain": 12, "sessions": 4}, real_time=True, turns=False) as broker:
        yield broker


def test_a_key_leads_to_the_node_that_has_its_fragment_and_what_has_none_stays(broker: SpreadBroker) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        raw.feed(queue, "a", **KEYED[0])
        raw.feed(queue, "b", **KEYED[1])
        raw.feed(queue, "c", "d")
        assert [held(server, queue) for server in broker.servers] == [3, 1]
        texts = [str(b"".join(one.body), "utf-8") for one in raw.peek(queue) if isinstance(one.body, list)]
        assert sorted(texts) == ["a", "b", "c", "d"]


def test_a_batch_is_shared_out_and_answered_once(broker: SpreadBroker) -> None:
    queue = broker.queue("plain")
    parts = [message(str(number), **KEYED[number % 2]) for number in range(10)]
    with Raw(broker.port) as raw:
        outcome = raw.sender(queue).send(amqp.encode_message(body=parts), message_format=0x80013700)
        assert outcome is None or outcome.error is None
        assert [held(server, queue) for server in broker.servers] == [5, 5]
        assert sorted(arrival.text for arrival in raw.receiver(queue, delete=True).receive(10)) == [str(n) for n in range(10)]


def test_in_a_transaction_what_has_no_key_goes_where_the_transaction_is(broker: SpreadBroker) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        coordinator = Coordinator(raw)
        sender = raw.sender(queue)
        transaction = coordinator.declare()
        for options in (KEYED[1], {}):
            send_in(sender, transaction, message("in it", **options))
        coordinator.discharge(transaction)
        assert [held(server, queue) for server in broker.servers] == [0, 2]
