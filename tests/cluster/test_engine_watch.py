"""An engine beside the first: watched without anybody waiting for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tandem.cluster import engine_watch
from tandem.cluster.engine_watch import EngineWatch
from tandem.model.errors import ConfigurationError, EngineAway
from tandem.model.store_row import StoreRow
from tests.cluster.nodes import until

ROW = StoreRow(1, "tandem", 2, bytes(16), 2, 1, "a", 1, "", 1, 1, 1, engine="second")


class Engine:
    """Does as it is told."""

    name = "second"

    def __init__(self) -> None:
        self.trouble: BaseException | None = None
        self.wrong: ConfigurationError | None = None
        self.hangs = threading.Event()
        self.hangs.set()
        self.hung = False
        self.beats = 0
        self.prepared = 0
        self.closed = False

    def prepare(self) -> None:
        if self.wrong is not None:
            raise self.wrong
        self.prepared += 1

    def beat(self) -> None:
        self.hung = not self.hangs.is_set()
        self.hangs.wait(20)
        self.hung = False
        if self.trouble is not None:
            raise self.trouble
        self.beats += 1

    def look(self) -> tuple[dict[str, tuple[int, int]], list[StoreRow]]:
        return {"a": (1, self.beats)}, [ROW]

    def give_up_after(self, milliseconds: int) -> None:
        if milliseconds == 0 and not self.hangs.is_set():
            self.trouble = EngineAway("given up")
            self.hangs.set()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def engine() -> Engine:
    return Engine()


def watch_of(engine: Engine, log: Callable[[str], None] = lambda text: None, boot_ms: Callable[[], int] = lambda: 0) -> EngineWatch:
    return EngineWatch(engine, 1, boot_ms, log)


def test_what_it_showed_last_is_kept_while_it_is_away_and_its_return_is_told(engine: Engine) -> None:
    said: list[str] = []
    watch = watch_of(engine, said.append)
    watch.first_look()
    assert watch.view.answers
    assert watch.view.stores == (ROW,)
    engine.trouble = EngineAway("nobody there")
    until(lambda: not watch.view.answers, 10)
    assert watch.view.stores == (ROW,)
    assert watch.away == "nobody there"
    engine.trouble = None
    until(lambda: watch.view.answers, 10)
    watch.stop()
    assert said == ["engine second does not take our beats: nobody there", "engine second takes our beats again"]
    assert engine.prepared == 1
    assert engine.closed


def test_a_node_starts_without_one_that_is_away_and_has_it_checked_when_it_comes(engine: Engine) -> None:
    engine.wrong = None
    engine.trouble = EngineAway("nobody there")
    watch = watch_of(engine)
    watch.first_look()
    assert (watch.view.answers, watch.away) == (False, "nobody there")
    engine.trouble = None
    until(lambda: watch.view.answers, 10)
    watch.stop()


def test_a_node_that_starts_waits_for_one_that_hangs_only_so_long(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_watch, "_FIRST_LOOK_SECONDS", 0.05)
    engine.hangs.clear()
    watch = watch_of(engine)
    watch.first_look()
    assert not watch.view.answers
    watch.stop()


def test_a_wrong_database_is_refused_at_the_start_and_is_away_until_it_is_the_right_one(engine: Engine) -> None:
    engine.wrong = ConfigurationError("that is another one")
    watch = watch_of(engine)
    with pytest.raises(ConfigurationError, match="another one"):
        watch.first_look()
    assert watch.away == "that is another one"
    engine.wrong = None
    until(lambda: watch.view.answers, 10)
    watch.stop()
    assert watch.refused is None


def test_it_is_late_when_its_last_beat_is_old(engine: Engine) -> None:
    now = [0]
    watch = watch_of(engine, boot_ms=lambda: now[0])
    watch.first_look()
    engine.hangs.clear()
    until(lambda: watch.view.beats > 0, 10)
    now[0] = 5_000
    assert watch.is_late(4_000)
    engine.hangs.set()
    until(lambda: not watch.is_late(4_000), 10)
    watch.stop()
