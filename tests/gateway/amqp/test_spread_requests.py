"""Requests about a partitioned queue whose fragments two nodes have: asked of each about its own, answered in one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandem import amqp
from tandem.amqp.types import Array
from tests.cluster.spread import KEYED, SpreadBroker, key_of
from tests.conformance.raw import Raw, message

LONG = 0x81


@pytest.fixture(scope="module")
def broker(module_path: Path) -> Iterator[SpreadBroker]:
    with SpreadBroker(module_path / "spread", {"plain": 12, "sessions": 4}, real_time=True, turns=False) as broker:
        yield broker


def test_messages_of_both_nodes_are_settled_renewed_deferred_scheduled_and_put_aside(broker: SpreadBroker) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        for node in (0, 1):
            raw.feed(queue, *(f"{node}-{number}" for number in range(3)), **KEYED[node])
        receiver = raw.receiver(queue)
        arrivals = {arrival.text: arrival for arrival in receiver.receive(6)}
        tokens = [arrivals["0-0"].token, arrivals["1-0"].token]
        status, answer = raw.request(queue, "com.microsoft:renew-lock", {"lock-tokens": Array(0x98, list[object](tokens))})
        assert status == 200 and isinstance(answer.body, dict) and len(answer.body["expirations"].values) == 2
        for node in (0, 1):
            receiver.settle(arrivals[f"{node}-0"], amqp.ACCEPTED)
            receiver.settle(arrivals[f"{node}-1"], amqp.encode_rejected(None))
            receiver.settle(arrivals[f"{node}-2"], amqp.encode_modified(False, True, None))
        dead = raw.receiver(f"{queue}/$DeadLetterQueue", delete=True).receive(2)
        assert sorted(arrival.text for arrival in dead) == ["0-1", "1-1"]
        numbers = [one.message_annotations[amqp.Symbol("x-opt-sequence-number")] for one in raw.peek(queue)]
        wanted = {"sequence-numbers": Array(LONG, numbers), "receiver-settle-mode": amqp.UInt(0)}
        status, answer = raw.request(queue, "com.microsoft:receive-by-sequence-number", wanted)
        assert status == 200 and isinstance(answer.body, dict) and len(answer.body["messages"]) == 2
        assert raw.peek(queue) == []

        at = {amqp.Symbol("x-opt-scheduled-enqueue-time"): amqp.Timestamp(4_000_000_000_000)}
        later = [message(str(n), str(n), message_annotations={**at, amqp.Symbol("x-opt-partition-key"): key_of(n % 2)}) for n in range(4)]
        wish = {"messages": [{"message-id": str(n), "message": one} for n, one in enumerate(later)]}
        status, answer = raw.request(queue, "com.microsoft:schedule-message", wish)
        assert status == 200 and isinstance(answer.body, dict)
        planned = answer.body["sequence-numbers"].values
        assert [(number >> 48) % 2 for number in planned] == [0, 1, 0, 1], "each by its key, in the order asked"
        assert len(raw.peek(queue)) == 4
        assert raw.request(queue, "com.microsoft:cancel-scheduled-message", {"sequence-numbers": Array(LONG, planned)})[0] == 200
        assert raw.peek(queue) == []


@pytest.mark.parametrize("refusing", [0, 1])
def test_of_messages_that_one_node_refuses_to_schedule_the_other_keeps_none(
    module_path: Path, monkeypatch: pytest.MonkeyPatch, refusing: int
) -> None:
    with SpreadBroker(module_path / f"third-{refusing}", {"plain": 1}, real_time=True, turns=False, front="c") as broker:
        queue = broker.queue("plain")
        at = amqp.Timestamp(4_000_000_000_000)
        later = [
            message(str(n), str(n), message_annotations={"x-opt-scheduled-enqueue-time": at, "x-opt-partition-key": key_of(n % 2)})
            for n in range(4)
        ]
        wish = {"messages": [{"message-id": str(n), "message": one} for n, one in enumerate(later)]}
        context = broker.servers[refusing].contexts[0]
        with Raw(broker.port) as raw:
            with monkeypatch.context() as full:
                full.setattr(context, "limits", dataclasses.replace(context.limits, management_requests_in_flight_max=0))
                status, answer = raw.request(queue, "com.microsoft:schedule-message", wish)
                assert (status, answer.application_properties["errorCondition"]) == (503, "com.microsoft:server-busy")
            assert raw.peek(queue) == []
            assert raw.request(queue, "com.microsoft:schedule-message", wish)[0] == 200
            assert len(raw.peek(queue)) == 4


@pytest.mark.parametrize("delete", [False, True])
def test_a_number_that_one_node_refuses_leaves_what_the_other_has_deferred(broker: SpreadBroker, delete: bool) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        for node in (0, 1):
            raw.feed(queue, str(node), **KEYED[node])
        receiver = raw.receiver(queue)
        for arrival in receiver.receive(2):
            receiver.settle(arrival, amqp.encode_modified(False, True, None))
        numbers = [one.message_annotations[amqp.Symbol("x-opt-sequence-number")] for one in raw.peek(queue)]
        mode = {"receiver-settle-mode": amqp.UInt(0 if delete else 1)}
        for first, second in (numbers, reversed(numbers)):
            wrong = {"sequence-numbers": Array(LONG, [first, second + 1]), **mode}
            assert raw.request(queue, "com.microsoft:receive-by-sequence-number", wrong)[0] == 404
        status, answer = raw.request(queue, "com.microsoft:receive-by-sequence-number", {"sequence-numbers": Array(LONG, numbers), **mode})
        assert status == 200 and isinstance(answer.body, dict) and len(answer.body["messages"]) == 2


def test_a_number_of_messages_to_delete_that_is_none_is_refused(broker: SpreadBroker) -> None:
    with Raw(broker.port) as raw:
        queue = broker.queue("plain")
        for count in (-1, 0, 1_000_000):
            assert raw.request(queue, "com.microsoft:batch-delete-messages", {"message-count": amqp.Int(count)})[0] == 400


def test_sessions_are_with_the_node_of_their_id_and_listed_in_one(broker: SpreadBroker) -> None:
    queue = broker.queue("sessions")
    ids = [key_of(0), key_of(1), key_of(0, 1), key_of(1, 1)]
    with Raw(broker.port) as raw:
        for id_ in ids:
            raw.feed(queue, id_, session_id=id_)
        found: list[str] = []
        for id_ in ids[:2]:
            found += [arrival.text for arrival in raw.receiver(queue, session=id_).receive()]
        for _ in range(2):
            found += [arrival.text for arrival in raw.receiver(queue, session=None).receive()]
        assert sorted(found) == sorted(ids)
        asked = {"last-updated-time": amqp.Timestamp(253_402_300_800_000), "skip": amqp.Int(1), "top": amqp.Int(2)}
        status, answer = raw.request(queue, "com.microsoft:get-message-sessions", asked)
        assert status == 200 and isinstance(answer.body, dict)
        assert answer.body["sessions-ids"].values == sorted(ids)[1:3]


def test_a_lease_is_with_one_node_and_found_wherever_it_is(broker: SpreadBroker) -> None:
    queue = broker.queue("plain")
    with Raw(broker.port) as raw:
        for node in (0, 1):
            raw.feed(queue, *(f"{node}-{number}" for number in range(3)), **KEYED[node])
        taken = 0
        for number in range(2):
            asked = {"lease-id": f"l{number}", "max-messages": 100, "max-bytes": 1_000_000, "duration-ms": 60_000}
            status, answer = raw.request(queue, "com.tandem:lease-batch", asked)
            assert status == 200 and isinstance(answer.body, dict)
            taken += int(answer.body["message-count"])
            assert raw.request(queue, "com.tandem:lease-batch", asked)[1].body == answer.body, "the same id gives the same lease"
            page = raw.request(queue, "com.tandem:read-lease", {"lease-id": f"l{number}", "skip": 0, "top": 10})[1].body
            assert isinstance(page, dict) and len(page["messages"]) == 3
        assert taken == 6
        empty = {"lease-id": "l2", "max-messages": 1, "max-bytes": 1_000, "duration-ms": 60_000}
        assert raw.request(queue, "com.tandem:lease-batch", empty)[0] == 204
        assert raw.request(queue, "com.tandem:lease-batch", {**empty, "ranges": "nonsense"})[0] == 400
        listed = raw.request(queue, "com.tandem:list-leases", {})[1].body
        assert isinstance(listed, dict) and sorted(one["lease-id"] for one in listed["leases"]) == ["l0", "l1"]
        for number in range(2):
            assert raw.request(queue, "com.tandem:complete-lease", {"lease-id": f"l{number}"})[0] == 200
        assert raw.request(queue, "com.tandem:renew-lease", {"lease-id": "nobody's", "duration-ms": 1_000})[0] == 410
