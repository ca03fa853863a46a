"""What only the engine in memory has to promise: bodies go when they are forgotten, and it can be made to fail."""

from __future__ import annotations

import pytest

from tandem.broker.facts import ENQUEUED
from tandem.broker.ports import StoreState
from tandem.model.errors import Corrupt, StoreUnavailable
from tandem.stores import LogSettings, MemoryStore, Shelf
from tests.stores.harness import Fetched, Loop, Note, Shop, Sink


def test_a_forgotten_body_is_gone_at_once() -> None:
    loop, shelf = Loop(), Shelf()
    store = MemoryStore(loop.call, shelf=shelf)
    store.replay(Sink())
    early = store.append(ENQUEUED, 0, 4, 1, 0, 0, b"", b"early")
    store.forget(early)
    store.flush()
    late = store.append(ENQUEUED, 0, 4, 2, 0, 0, b"", b"late")
    store.flush()
    store.forget(late)
    assert shelf.bodies == {}
    effect = Fetched()
    store.fetch([late], effect)
    loop.run_until(lambda: effect.arrived)
    assert isinstance(effect.error, Corrupt)


def test_a_store_made_to_fail_tells_everybody_who_waits_and_comes_back_with_what_was_durable() -> None:
    loop = Loop()
    store = MemoryStore(loop.call)
    store.replay(Sink())
    log: list[tuple[str, BaseException | None]] = []
    store.append(ENQUEUED, 0, 4, 1, 0, 0, b"", b"durable")
    store.when_durable(Note(log, "a"))
    store.flush()
    loop.run_until(lambda: len(log) == 1)
    store.append(ENQUEUED, 0, 4, 2, 0, 0, b"", b"not durable")
    store.when_durable(Note(log, "b"))
    store.fail("pulled the plug")
    loop.run_until(lambda: len(log) == 2)
    assert log[0] == ("a", None)
    assert isinstance(log[1][1], StoreUnavailable)
    assert store.health.state is StoreState.DOWN
    assert store.health.cause == "pulled the plug"
    with pytest.raises(StoreUnavailable, match="pulled the plug"):
        store.append(ENQUEUED, 0, 4, 3, 0, 0, b"", b"")
    effect = Fetched()
    store.fetch([1 << 32], effect)
    loop.run_until(lambda: effect.arrived)
    assert isinstance(effect.error, StoreUnavailable)
    sink = Sink()
    store.reopen(sink)
    assert [fact[3] for fact in sink.replayed_facts] == [1]


def test_memory_is_given_back_however_long_it_runs() -> None:
    loop, shelf = Loop(), Shelf()
    store = MemoryStore(loop.call, LogSettings(segment_bytes=10_000), shelf)
    shop = Shop()
    shop.journal = store
    store.replay(shop)
    for _ in range(100):
        for seq in [shop.put(4, b"key", b"x" * 100) for _ in range(50)]:
            shop.settle(4, seq)
        store.flush()
        store.step_compaction()
        loop.run_ready()
    loop.run_until(lambda: not store.step_compaction())
    assert store.segment_count <= 4
    assert shelf.bodies == dict.fromkeys(shelf.bodies, b"")
