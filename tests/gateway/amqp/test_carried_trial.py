"""The next session of a partitioned queue whose fragments two nodes have: whoever has one gives it, compiled as from source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem import amqp
from tests.cluster.spread import SpreadBroker, key_of
from tests.conformance.raw import Raw, Refused

pytestmark = pytest.mark.compiled_too
TIMEOUT = amqp.Symbol("com.microsoft:timeout")


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[SpreadBroker]:
    with SpreadBroker(module_path / "spread", {"sessions": 3}, real_time=True, turns=False) as broker:
        yield broker


@pytest.mark.parametrize("node", [0, 1], ids=["here", "there"])
def test_a_session_of_either_node_is_had_by_whoever_asks_for_the_next(broker: SpreadBroker, node: int) -> None:
    queue = broker.queue("sessions")
    id_ = key_of(node)
    with Raw(broker.port) as raw:
        raw.feed(queue, "first", "second", session_id=id_)
        receiver = raw.receiver(queue, session=None)
        assert [arrival.text for arrival in receiver.receive(2)] == ["first", "second"]


def test_who_asks_where_no_session_has_messages_is_told_so_in_the_time_given(broker: SpreadBroker) -> None:
    with Raw(broker.port) as raw, pytest.raises(Refused, match=r"com\.microsoft:timeout"):
        raw.receiver(broker.queue("sessions"), session=None, properties={TIMEOUT: amqp.UInt(300)})
