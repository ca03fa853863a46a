"""Whatever happened to the files of a store: after a repair it opens, and what is not in it any more stands in the report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tandem.model.errors import ConfigurationError, Corrupt
from tandem.model.message import DAMAGED_TTL, decode_body
from tandem.simulator.agenda import PowerCut
from tandem.simulator.disk import SimDisk
from tandem.stores.repair import RepairReport, repair
from tests.stores.story import DIRECTORY, Story
from tests.stores.test_damage import Opened, Truth, blocks_of, last_with_blocks, names


@pytest.fixture(scope="module")
def story() -> Story:
    story = Story(11)
    story.open()
    story.run(60)
    while len(blocks_of(story.disk, last_with_blocks(story.disk))) < 3:
        story.run(1)
    story.store.close()
    return story


@pytest.fixture(scope="module")
def truth(story: Story) -> Truth:
    opened = Opened(story.disk.copy())
    assert opened.error is None
    return dict(opened.shop.messages), opened.bodies()


def check(disk: SimDisk, truth: Truth, report: RepairReport) -> int:
    """How many messages are not there, or came back because their settlement was lost; each of them is in the report."""
    opened = Opened(disk)
    assert opened.error is None, opened.error
    bodies = opened.bodies()
    listed = {(loss.entity, loss.seq) for loss in report.losses}
    unknown = bool(report.blocks_lost)
    wrong = 0
    for place in truth[0].keys() ^ opened.shop.messages.keys():
        wrong += 1
        assert unknown or (place[0] >> 2, place[1]) in listed, place
    for place in truth[0].keys() & opened.shop.messages.keys():
        if bodies[place] != truth[1][place]:
            assert decode_body(bodies[place]).ttl_ms == DAMAGED_TTL
            assert (place[0] >> 2, place[1]) in {(loss.entity, loss.seq) for loss in report.losses if loss.body_only and loss.proved}
            wrong += 1
    opened.shop.put(4, b"after", b"after")
    opened.store.close()
    again = repair(DIRECTORY, disk)
    assert (again.rewritten, again.losses, again.blocks_lost) == ([], [], [])
    return wrong


def test_a_store_that_is_whole_is_left_as_it_is(story: Story, truth: Truth) -> None:
    disk = story.disk.copy()
    before = {name: disk.content(name) for name in names(disk, "")}
    report = repair(DIRECTORY, disk)
    assert (report.rewritten, report.losses, report.blocks_lost, report.notes) == ([], [], [], [])
    after = {name: disk.content(name) for name in names(disk, "")}
    assert {name for name in before if before[name] != after.get(name)} == {f"{DIRECTORY}/synced"}
    assert check(disk, truth, report) == 0


@pytest.mark.slow
def test_after_any_rotten_byte_a_repaired_store_opens_and_the_report_has_what_is_lost(story: Story, truth: Truth) -> None:
    random = Random(3)
    lost = 0
    for name in names(story.disk, ".seg") + names(story.disk, ".idx") + names(story.disk, "store.json"):
        for offset in range(random.randrange(29), len(story.disk.content(name)), 29):
            disk = story.disk.copy()
            disk.flip(name, offset, random.randrange(8))
            try:
                report = repair(DIRECTORY, disk)
            except Corrupt as error:
                raise AssertionError(f"{name} offset {offset}") from error
            lost += check(disk, truth, report)
    assert lost > 5


@pytest.mark.parametrize("what", ["cut", "missing", "zeroed", "header"])
def test_a_segment_that_is_cut_gone_or_overwritten_costs_what_it_held_and_the_rest_opens(story: Story, truth: Truth, what: str) -> None:
    for name in names(story.disk, ".seg"):
        disk = story.disk.copy()
        content = disk.content(name)
        if what == "missing":
            disk.remove(name)
        elif what == "cut":
            disk.cut(name, len(content) // 3)
        elif what == "zeroed":
            disk.put(name, content[: len(content) // 3] + bytes(700) + content[len(content) // 3 + 700 :])
        else:
            disk.put(name, b"?" * 64 + content[64:])
        report = repair(DIRECTORY, disk)
        wrong = check(disk, truth, report)
        assert what != "header" or wrong == 0
        if report.rewritten and what != "missing":
            assert f"{DIRECTORY}/damaged/{name[-14:]}" in names(disk, ""), "nothing is destroyed"


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power lost"])
def test_a_repair_that_is_interrupted_anywhere_and_run_again_keeps_as_much_as_one_that_was_not(story: Story, power: bool) -> None:
    damaged = story.disk.copy()
    for name in names(damaged, ".seg"):
        damaged.flip(name, len(damaged.content(name)) // 2, 3)
    whole = damaged.copy()
    rewritten = repair(DIRECTORY, whole).rewritten
    assert len(rewritten) > 1
    kept = Opened(whole)
    messages, bodies = kept.shop.messages.keys(), kept.bodies()
    call = 0
    while True:
        disk = damaged.copy()
        disk.before = _cut_at(call)
        try:
            repair(DIRECTORY, disk)
        except PowerCut:
            disk.restart(Random(call) if power else None)
        else:
            break
        repair(DIRECTORY, disk)
        opened = Opened(disk)
        assert opened.error is None, opened.error
        assert opened.shop.messages.keys() == messages, f"call {call}"
        assert opened.bodies().keys() == bodies.keys()
        aside = {name.rpartition("/")[2] for name in names(disk, "") if "/damaged/" in name}
        assert aside >= set(rewritten), "nothing is destroyed"
        call += 1
    assert call > 50


def _cut_at(call: int) -> Callable[[str, str], None]:
    left = [call]

    def before(name: str, path: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise PowerCut(name)

    return before


def test_a_store_that_is_open_is_not_touched(tmp_path: Path, story: Story) -> None:
    disk = story.disk.copy()
    opened = Opened(disk)
    assert opened.error is None
    with pytest.raises(ConfigurationError, match="stop its broker first"):
        repair(DIRECTORY, disk)
