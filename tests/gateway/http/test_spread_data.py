"""Messages over HTTP of a partitioned queue whose fragments two nodes have."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem.gateway.amqp.peer_requests import NodeChannel
from tandem.model.errors import OperationTimeout
from tests.cluster.spread import KEYED, SpreadBroker
from tests.conformance.house import KINDS
from tests.conformance.raw import Raw, token_for

LARGE = 17 * 1024 * 1024
"""More than a request from node to node may have."""


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[SpreadBroker]:
    KINDS["large"] = {"max_message_bytes": LARGE + 1024}
    try:
        with SpreadBroker(module_path / "spread", {"plain": 2, "large": 1}, real_time=True, turns=False) as broker:
            yield broker
    finally:
        del KINDS["large"]


def take(broker: SpreadBroker, queue: str) -> str:
    connection = http.client.HTTPConnection("localhost", broker.port, timeout=20)
    try:
        connection.request("DELETE", f"/{queue}/messages/head?timeout=5", headers={"Authorization": token_for(broker.port, "")})
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def test_messages_of_one_node_do_not_wait_until_another_has_none(broker: SpreadBroker) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        for node in (0, 1):
            raw.feed(queue, *(str(node) for _ in range(4)), **KEYED[node])
    taken = [take(broker, queue) for _ in range(8)]
    assert sorted(taken[:4]) == sorted(taken[4:]) == ["0", "0", "1", "1"]


def test_a_large_message_of_another_node_is_received(broker: SpreadBroker) -> None:
    queue = broker.queue("large")
    with Raw(broker.port) as raw:
        raw.feed(queue, "x" * LARGE, **KEYED[1])
    assert len(take(broker, queue)) == LARGE


def test_a_node_that_does_not_answer_keeps_nobody_from_what_the_others_have(broker: SpreadBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        raw.feed(queue, "0", "1", **KEYED[0])

    async def ask(*_: object) -> dict[object, object]:
        raise OperationTimeout("It hangs.")

    monkeypatch.setattr(NodeChannel, "ask", ask)
    assert [take(broker, queue) for _ in range(2)] == ["0", "1"]
