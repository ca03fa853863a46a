"""`trigger(availableNow=True)` takes what was there when it began, run after run on one checkpoint, whatever became of the run before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tandem.engine_client.blocking import TransportError
from tandem.spark.connector.options import OptionError
from tests.acceptance.brokers import Broker
from tests.spark.connector.test_source import MODES, Query, no_connection_outlives_its_test, queue
from tests.spark.house import administration, connect, counts, create_queue, messages, send

__all__ = ["no_connection_outlives_its_test", "queue"]


def run(query: Query, again: bool = False) -> list[str]:
    """All the batches of a query; the last logged one first, if `again`."""
    query.reader.prepareForTriggerAvailableNow()
    found = query.read() if again else []
    while query.plan():
        found += query.read()
    query.die()
    return sorted(found)


def named(count: int, prefix: str = "m") -> list[str]:
    return sorted(f"{prefix}{n}" for n in range(count))


@MODES
def test_a_second_run_takes_what_came_since_the_first(west: Broker, queue: str, mode: str) -> None:
    send(west, queue, messages(10))
    first = Query(west, queue=queue, mode=mode)
    assert run(first) == named(10)
    send(west, queue, messages(3, "late"))
    assert run(Query(west, first.log, queue=queue, mode=mode)) == named(3, "late")
    assert counts(west, queue)["total"] == 0


@MODES
@pytest.mark.parametrize("logged", [True, False])
def test_a_run_after_a_death_takes_everything(west: Broker, queue: str, mode: str, logged: bool) -> None:
    send(west, queue, messages(10))
    first = Query(west, queue=queue, mode=mode, maxMessagesPerTrigger="5")
    first.next()
    first.next()
    if not logged:
        first.log.pop()
    first.die()
    send(west, queue, messages(3, "late"))
    heir = Query(west, first.log, queue=queue, mode=mode)
    assert run(heir, again=logged) == sorted([f"m{n}" for n in range(5, 10)] + named(3, "late"))
    assert counts(west, queue)["total"] == 0


def test_a_broker_that_is_away_for_a_moment_does_not_end_a_run(mortal: Broker) -> None:
    create_queue(mortal, "orders")
    send(mortal, "orders", messages(10))
    query = Query(mortal, queue="orders", maxMessagesPerTrigger="6", operationTimeoutSeconds="60")
    query.reader.prepareForTriggerAvailableNow()
    query.next()
    found = query.read()
    mortal.kill()
    with ThreadPoolExecutor() as beside:
        planning = beside.submit(query.plan)
        mortal.start()
        assert planning.result(), "a run that ends now has left messages behind without a word"
    found += query.read()
    assert sorted(found) == named(10)
    assert not query.plan()
    query.die()
    assert counts(mortal, "orders")["total"] == 0


def test_a_broker_that_stays_away_fails_a_run(mortal: Broker) -> None:
    create_queue(mortal, "orders")
    send(mortal, "orders", messages(2))
    query = Query(mortal, queue="orders", maxMessagesPerTrigger="1", operationTimeoutSeconds="1")
    query.reader.prepareForTriggerAvailableNow()
    query.next()
    mortal.kill()
    with pytest.raises(OptionError, match="cannot connect"):
        query.plan()
    query.die()


@pytest.mark.parametrize("before", ["lease", "defer"])
def test_a_checkpoint_keeps_the_way_in_which_its_messages_are_set_aside(west: Broker, queue: str, before: str) -> None:
    send(west, queue, messages(10))
    first = Query(west, queue=queue, mode=before, maxMessagesPerTrigger="5")
    first.next()
    first.next()
    first.die()
    other = Query(west, list(first.log), queue=queue, mode="defer" if before == "lease" else "lease")
    with pytest.raises(OptionError, match=f"'mode': the checkpoint was begun with {before}"):
        other.read()
    with pytest.raises(OptionError, match=f"'mode': the checkpoint was begun with {before}"):
        other.plan()
    assert run(Query(west, first.log, queue=queue, mode="auto"), again=True) == [f"m{n}" for n in range(5, 10)]
    assert counts(west, queue)["total"] == 0


@MODES
def test_a_checkpoint_of_another_namespace_costs_no_message(west: Broker, east: Broker, queue: str, mode: str) -> None:
    create_queue(east, queue)
    send(east, queue, messages(5, "east"))
    send(west, queue, messages(5, "west"))
    first = Query(west, queue=queue, mode=mode)
    assert run(first) == named(5, "west")
    assert run(Query(east, first.log, queue=queue, mode=mode)) == named(5, "east")


def test_a_checkpoint_of_another_namespace_deletes_nothing_that_somebody_else_deferred_there(
    west: Broker, east: Broker, queue: str
) -> None:
    send(west, queue, messages(5, "west"))
    first = Query(west, queue=queue, mode="defer")
    first.next()
    assert first.read() == named(5, "west")
    create_queue(east, queue)
    send(east, queue, messages(5, "east"))
    with connect(east) as client:
        tokens = [token for token, _ in client.receive(queue, 5, 5.0)]
        client.request(queue, "com.microsoft:update-disposition", {"disposition-status": "defered", "lock-tokens": client.uuids(tokens)})
    other = Query(east, first.log, queue=queue, mode="defer")
    with pytest.raises(TransportError, match="never deferred by this query"):
        other.read()
    other.reader.commit(other.log[-1])
    later = Query(east, first.log, queue=queue, mode="defer")
    assert not later.plan()
    assert counts(east, queue)["deferred"] == 5
    for query in (first, other, later):
        query.die()


@MODES
def test_a_queue_that_was_deleted_and_made_again_loses_nothing_to_an_old_checkpoint(west: Broker, queue: str, mode: str) -> None:
    send(west, queue, messages(5))
    first = Query(west, queue=queue, mode=mode)
    assert run(first) == named(5)
    with administration(west) as admin:
        admin.delete_queue(queue)
    create_queue(west, queue)
    send(west, queue, messages(5, "new"))
    assert run(Query(west, first.log, queue=queue, mode=mode)) == named(5, "new")
