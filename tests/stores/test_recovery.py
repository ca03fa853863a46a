"""Crashes at every call to the disk, torn tails, flipped bits and missing files: replayed, reported or refused, never skipped."""

from __future__ import annotations

import errno

import pytest

from tandem.simulator.agenda import PowerCut
from tests.stores.story import Story


def cut_at(number: int) -> object:
    calls = 0

    def before(name: str, path: str) -> int | None:
        nonlocal calls
        calls += 1
        if calls == number:
            raise PowerCut(f"{name} {path}")
        return None

    return before


TURNS = 60


def calls_of_a_story(seed: int) -> int:
    story = Story(seed)
    story.open()
    story.run(TURNS)
    names = [name for name, _ in story.disk.calls]
    assert names.count("unlink") > 3, "the story compacts"
    assert names.count("rename") > 10
    return len(names)


@pytest.mark.slow
@pytest.mark.parametrize("power_lost", [False, True], ids=["killed", "power-lost"])
def test_a_crash_at_any_call_to_the_disk_loses_and_doubles_nothing(power_lost: bool) -> None:
    total = calls_of_a_story(1)
    torn = 0
    for number in range(1, total, 1 if power_lost else 3):
        story = Story(1)
        story.disk.before = cut_at(number)  # type: ignore[assignment]
        assert not story.attempt(lambda story=story: (story.open(), story.run(TURNS)))  # type: ignore[misc]
        story.restart(power_lost)
        story.open()
        verdict = story.check()
        assert verdict.clean, (number, verdict)
        torn += bool(story.store.recovery.torn)
        story.run(15)
        assert story.check().clean, number
    assert torn > 0 or not power_lost, "some of the cuts tore a block"


@pytest.mark.parametrize("seed", range(40))
def test_a_store_survives_one_crash_after_the_other_also_while_recovering(seed: int) -> None:
    story = Story(1_000 + seed)
    for _ in range(12):
        story.disk.before = cut_at(story.random.randint(1, 400))  # type: ignore[assignment]
        story.attempt(lambda: (story.open(), story.run(80)))  # type: ignore[func-returns-value]
        story.restart(power_lost=story.random.random() < 0.7)
        if story.random.random() < 0.3:
            story.disk.before = cut_at(story.random.randint(1, 30))  # type: ignore[assignment]
            if not story.attempt(story.open):
                story.restart(power_lost=True)
                story.open()
        else:
            story.open()
        verdict = story.check()
        assert verdict.clean, verdict
        story.restart(power_lost=True)


@pytest.mark.parametrize("name", ["fdatasync", "pwritev", "fsync", "rename", "sync_directory", "fallocate", "unlink", "open", "truncate"])
@pytest.mark.parametrize(("code", "times"), [(errno.EIO, 1), (errno.ENOSPC, 4)])
def test_an_error_of_the_disk_at_any_place_stops_or_slows_the_store_but_loses_nothing(name: str, code: int, times: int) -> None:
    story = Story(3)
    story.open()
    story.run(TURNS)
    total = sum(1 for called, _ in story.disk.calls if called == name)
    assert total
    for number in range(1, total + 1, max(1, total // 25)):
        story = Story(3)
        seen = 0

        def before(called: str, path: str, number: int = number) -> int | None:
            nonlocal seen
            seen += called == name
            if called == name and number <= seen < number + times:
                raise OSError(code, "injected", path)
            return None

        story.disk.before = before
        held = story.attempt(lambda story=story: (story.open(), story.run(TURNS)))  # type: ignore[misc]
        if not held:
            assert story.store.health.state.value in ("down", "recovering"), story.store.health
            assert "injected" in story.store.health.cause
        story.disk.before = None
        if held:
            story.store.close()
        else:
            story.shop = type(story.shop)()
            story.shop.journal = story.store
            story.store.reopen(story.shop)
            assert story.check().clean, number
            story.run(10)
            assert story.check().clean, number
            story.store.close()
        story.restart(power_lost=True)
        story.open()
        assert story.check().clean, number


def test_what_a_failed_sync_left_in_the_cache_is_not_believed_by_the_next_process() -> None:
    """After the error the pages count as clean: the file shows a block that the medium will never hold."""
    for number in range(1, 60):
        story = Story(7)
        seen = 0

        def before(called: str, path: str, number: int = number) -> int | None:
            nonlocal seen
            seen += called == "fdatasync"
            if called == "fdatasync" and seen == number:
                raise OSError(errno.EIO, "injected", path)
            return None

        story.disk.before = before
        story.attempt(lambda story=story: (story.open(), story.run(TURNS)))  # type: ignore[misc]
        story.restart(power_lost=False)
        story.open()
        assert story.check().clean, number
        story.run(5)
        story.restart(power_lost=True)
        story.open()
        assert story.check().clean, number
