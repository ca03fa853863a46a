"""A store that was closed well, and then something happened to its files: each kind of damage is detected and said."""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from random import Random

import pytest

from tandem.broker.facts import PREPARED
from tandem.broker.ports import StoreState
from tandem.model.errors import Corrupt, StoreUnavailable
from tandem.model.message import DAMAGED_TTL, decode_body
from tandem.simulator.disk import SimDisk
from tandem.stores import InlineWorker, SegmentStore
from tandem.stores.blocks import RECORD_BYTES, SEGMENT_HEADER_BYTES, pack_block_header, pack_segment_header
from tandem.stores.guard import parts_of
from tandem.stores.scan import SECTOR_BYTES
from tandem.stores.segment_files import decode_manifest
from tandem.stores.segment_reader import SegmentReader
from tandem.stores.synced import MARK
from tandem.stores.verify import verify
from tests.stores.harness import Fetched, Loop, ManualClock, Shop
from tests.stores.story import DIRECTORY, SETTINGS, Story


def path(name: str) -> str:
    return f"{DIRECTORY}/{name}"


@pytest.fixture(scope="module")
def story() -> Story:
    story = Story(5)
    story.open()
    story.run(70)
    while len(blocks_of(story.disk, last_with_blocks(story.disk))) < 3:
        story.run(1)  # the last block can be torn only where one stands before it
    story.store.close()
    assert verify(DIRECTORY, story.disk).problems == []
    return story


@pytest.fixture
def disk(story: Story) -> SimDisk:
    return story.disk.copy()


def names(disk: SimDisk, suffix: str) -> list[str]:
    return [name for name in disk.paths() if name.endswith(suffix)]


def blocks_of(disk: SimDisk, name: str) -> list[tuple[int, int]]:
    """(offset, end) of each."""
    file = SegmentReader(disk, name)
    try:
        return [(offset, offset + 32 + len(payload)) for offset, _, payload, _, _ in file.blocks()]
    finally:
        file.close()


def last_with_blocks(disk: SimDisk) -> str:
    return [name for name in names(disk, ".seg") if blocks_of(disk, name)][-1]


class Opened:
    def __init__(self, disk: SimDisk) -> None:
        self.loop = Loop()
        self.store = SegmentStore(DIRECTORY, self.loop.call, SETTINGS, ManualClock(), disk, InlineWorker)
        self.shop = Shop()
        self.shop.journal = self.store
        self.error: Exception | None = None
        try:
            self.store.replay(self.shop)
        except (Corrupt, StoreUnavailable) as error:
            self.error = error

    def bodies(self) -> dict[tuple[int, int], bytes]:
        found = sorted(self.shop.messages)
        effect = Fetched()
        self.store.fetch([self.shop.messages[name][1] for name in found], effect)
        self.loop.run_until(lambda: effect.arrived)
        if effect.error is not None:
            raise effect.error
        assert effect.bodies is not None
        return dict(zip(found, effect.bodies, strict=True))


@pytest.fixture(scope="module")
def truth(story: Story) -> tuple[dict[tuple[int, int], tuple[bytes, int]], dict[tuple[int, int], bytes]]:
    opened = Opened(story.disk.copy())
    assert opened.error is None
    assert len(opened.shop.messages) > 10
    return dict(opened.shop.messages), opened.bodies()


Truth = tuple[dict[tuple[int, int], tuple[bytes, int]], dict[tuple[int, int], bytes]]


def refused(opened: Opened, truth: Truth, name: str) -> bool:
    """True if the store is CORRUPT and names the file. Else it has every message, and each body is right or said to be lost."""
    if opened.error is not None:
        assert isinstance(opened.error, Corrupt), opened.error
        assert name in opened.error.description
        assert opened.store.health.state is StoreState.CORRUPT
        return True
    assert opened.shop.messages == truth[0]
    lost = {place for place, body in opened.bodies().items() if body != truth[1][place]}
    for place in lost:
        message = decode_body(opened.bodies()[place])
        assert message.ttl_ms == DAMAGED_TTL
        assert name in message.bare.decode()
        place_of = re.compile(rf"message {place[1]} \(id .*\) of entity {place[0] >> 2} fails")
        assert any(place_of.search(note) for note in opened.store.health.notes)
    assert opened.store.health.state is StoreState.UP
    assert all(body == truth[1][place] for place, body in opened.bodies().items() if place not in lost)
    return False


def without_mark(disk: SimDisk) -> SimDisk:
    """As after a power cut before the mark was ever written back: how much was synced is not known."""
    copy = disk.copy()
    copy.remove(path(MARK))
    return copy


def test_a_tail_torn_at_any_sector_is_cut_off_and_reported(disk: SimDisk, story: Story) -> None:
    disk = without_mark(disk)
    name = last_with_blocks(disk)
    *_, (before_start, before_end), (start, end) = blocks_of(disk, name)
    assert before_end == start
    assert before_start >= SEGMENT_HEADER_BYTES
    shorter = disk.copy()
    shorter.cut(name, start)
    expected = Opened(shorter)
    assert expected.error is None
    assert not expected.store.recovery.torn
    for size in range(start + 1, end):
        for zeros in (False, True) if size % SECTOR_BYTES == 0 else (False,):  # no write ends inside a sector
            torn = disk.copy()
            content = torn.content(name)
            torn.put(name, content[:size] + bytes(len(content) - size) if zeros else content[:size])
            opened = Opened(torn)
            if zeros and not content[size:end].strip(b"\0"):
                assert opened.error is None and opened.store.recovery.torn == "", "what was cut off was zeros: the block is whole"
                continue
            assert opened.error is None, (size, opened.error)
            if zeros and not content[start:size].strip(b"\0"):
                continue
            assert f"{name}: offset {start}: torn tail cut off" in opened.store.recovery.torn, size
            assert opened.store.health.notes == (opened.store.recovery.torn,)
            assert opened.shop.messages == expected.shop.messages
            assert opened.shop.counters == expected.shop.counters
            opened.shop.put(4, b"after", b"after")
            opened.store.close()
            again = Opened(torn)
            assert again.error is None
            assert again.store.recovery.torn == "", "reported once, then gone"
            assert len(again.shop.messages) == len(expected.shop.messages) + 1


def test_whatever_is_missing_of_a_block_known_to_be_synced_is_damage_not_a_torn_tail(disk: SimDisk, truth: Truth) -> None:
    name = last_with_blocks(disk)
    blocks = blocks_of(disk, name)
    (start, end), content = blocks[-1], disk.content(name)
    places = [*range(start, end, 7), *(offset for offset, _ in blocks)]
    refusals = 0
    for size in places:
        for tail in (b"", bytes(len(content) - size), bytes(SECTOR_BYTES) + content[size + SECTOR_BYTES :]):
            damaged = disk.copy()
            damaged.put(name, content[:size] + tail)
            before = damaged.content(name)
            if before[:end] == content[:end]:
                continue
            if refused(Opened(damaged), truth, name):
                assert damaged.content(name) == before, "nothing is cut off"
                refusals += 1
            assert any(name in line for line in verify(DIRECTORY, damaged).problems)
    assert refusals > 10


def test_a_rotten_bit_in_the_last_block_is_no_torn_tail_even_if_nobody_knows_what_was_synced(disk: SimDisk, truth: Truth) -> None:
    disk = without_mark(disk)
    name = last_with_blocks(disk)
    start, end = blocks_of(disk, name)[-1]
    for offset in range(start, end, 3):
        damaged = disk.copy()
        damaged.flip(name, offset, 3)
        if refused(opened := Opened(damaged), truth, name):
            assert f"{name}: offset {start}: damaged" in str(opened.error)


def test_a_mark_that_is_damaged_foreign_or_missing_is_said_and_the_store_opens(disk: SimDisk, truth: Truth) -> None:
    mark = path(MARK)
    content = disk.content(mark)
    foreign = content[:8] + bytes(16) + content[24:40]
    for changed in (b"", content[:-1], content[:40] + bytes(4), foreign + zlib.crc32(foreign).to_bytes(4, "little")):
        damaged = disk.copy()
        damaged.put(mark, changed)
        opened = Opened(damaged)
        assert opened.error is None
        assert [mark in note for note in opened.store.health.notes] == [True]
        assert opened.shop.messages == truth[0]
    opened = Opened(without_mark(disk))
    assert opened.error is None
    assert opened.store.health.notes == ()
    opened.store.close()
    assert Opened(disk).store.health.notes == ()


@pytest.mark.slow
def test_a_flipped_bit_in_any_byte_of_any_file_is_found_by_verify(disk: SimDisk) -> None:
    random = Random(1)
    for name in disk.paths():
        if name.endswith(("/lock", ".tmp", "/spare")):
            continue
        content = disk.content(name)
        used = len(content)
        if name.endswith(".seg") and not content[SEGMENT_HEADER_BYTES:].strip(b"\0"):
            used = SEGMENT_HEADER_BYTES
        for offset in range(used):
            if offset > 200 and offset % 11:
                continue
            disk.flip(name, offset, bit := random.randrange(8))
            report = verify(DIRECTORY, disk)
            disk.flip(name, offset, bit)
            assert report.problems or report.notes, (name, offset)
            if name != last_with_blocks(disk):
                assert report.problems, (name, offset)
            assert any(name in line for line in report.problems + report.notes) or not name.endswith("seg"), (name, offset, report)


@pytest.mark.slow
def test_a_flipped_bit_costs_one_body_at_the_most_and_is_never_believed(disk: SimDisk, truth: Truth) -> None:
    """Whatever is flipped: the store opens with exactly what it held but for one body, or says that it cut off a tail."""
    random = Random(2)
    torn = met = noted = 0
    for name in disk.paths():
        content = disk.content(name)
        for offset in range(0, len(content), 5):
            damaged = disk.copy()
            damaged.flip(name, offset, random.randrange(8))
            opened = Opened(damaged)
            if opened.error is None and opened.store.recovery.torn:
                assert name == last_with_blocks(disk) or not blocks_of(disk, name), name
                torn += 1
                continue
            assert not refused(opened, truth, str(DIRECTORY)), (name, offset, opened.error)
            lost = sum(body != truth[1][place] for place, body in opened.bodies().items())
            assert lost <= 1
            met += lost
            noted += bool(opened.store.health.notes)
    assert min(torn, met, noted) > 10, (torn, met, noted)


def test_a_head_that_rots_while_the_store_is_open_is_restored_on_delivery(disk: SimDisk, truth: Truth) -> None:
    opened = Opened(disk)
    told = 0
    for place, (key, location) in truth[0].items():
        name = path(f"{location >> 32:010d}.seg")
        at = location & 0xFFFF_FFFF
        for offset in (at, at + 31, at + 35, at + 39, at + 42 + len(key) // 2):
            disk.flip(name, offset, 1)
            assert opened.bodies() == truth[1], (place, offset - at)
            disk.flip(name, offset, 1)
        told = len(opened.store.health.notes)
    assert told > 5
    assert opened.store.health.state is StoreState.UP


def as_format_1(disk: SimDisk) -> SimDisk:
    """What an earlier version would have left: no guards, one copy of the manifest."""
    old = without_mark(disk)
    manifest = decode_manifest(disk.content(path("store.json")), "")
    for name in names(old, ".idx"):
        old.remove(name)
    for name in names(old, ".seg"):
        file = SegmentReader(disk, name)
        segment = file.header.segment
        raw = bytearray(pack_segment_header(segment, manifest.store_id, 0, 0))
        raw[8:10] = (1).to_bytes(2, "little")
        raw[60:64] = zlib.crc32(raw[:60]).to_bytes(4, "little")
        for _, number, payload, heads, _ in file.blocks():
            parts = parts_of(payload, len(heads) // RECORD_BYTES)
            records = b"".join(parts)
            raw += pack_block_header(file.seed, segment, number, len(parts) // 3, records) + records
        file.close()
        old.put(name, bytes(raw))
    content = json.loads(disk.content(path("store.json"))[:512])
    del content["crc"]
    content["format"] = 1
    text = json.dumps(content, sort_keys=True)
    old.put(path("store.json"), json.dumps({**content, "crc": zlib.crc32(text.encode())}, sort_keys=True).encode() + b"\n")
    return old


def test_a_store_of_format_1_is_read_and_written_on(disk: SimDisk, truth: Truth) -> None:
    old = as_format_1(disk)
    opened = Opened(old)
    assert opened.error is None
    assert opened.store.health.notes == ()
    assert opened.bodies() == truth[1]
    seq = opened.shop.put(4, b"new", b"new")
    opened.store.close()
    assert verify(DIRECTORY, old).problems == []
    again = Opened(old)
    assert again.bodies() == truth[1] | {(4, seq): b"new"}


def test_a_share_of_a_transaction_that_rots_is_restored_and_if_it_cannot_be_stops_nobody(disk: SimDisk) -> None:
    opened = Opened(disk)
    location = opened.store.append(PREPARED, 0, 0, 0, 1, 2, b"key", b"what to do" * 20)
    for _ in range(40):
        opened.shop.settle(8, opened.shop.put(8, b"key", b"filler" * 20))
        opened.store.flush()
        opened.loop.run_ready()
    name, at = path(f"{location >> 32:010d}.seg"), location & 0xFFFF_FFFF

    def share() -> bytes:
        effect = Fetched()
        opened.store.fetch([location], effect)
        opened.loop.run_until(lambda: effect.arrived)
        assert effect.bodies is not None
        return effect.bodies[0]

    disk.flip(name, at + 60, 0)
    assert share() == b"what to do" * 20
    disk.put(name, disk.content(name).replace(b"TGRD", b"TGR?"))
    assert share() == b""
    assert opened.store.health.state is StoreState.UP
    assert any("the share of a transaction fails its checksum" in note for note in opened.store.health.notes)


def test_a_bad_block_with_good_ones_behind_it_is_damage_and_the_place_is_named(disk: SimDisk, truth: Truth) -> None:
    name = last_with_blocks(disk)
    blocks = blocks_of(disk, name)
    for start, end in blocks[:-1]:
        for offset in (start, start + 5, start + 12, start + 40, end - 1):
            damaged = disk.copy()
            damaged.flip(name, offset, 3)
            before = damaged.content(name)
            if refused(opened := Opened(damaged), truth, name):
                assert f"{name}: offset {start}: damaged" in str(opened.error)
                assert damaged.content(name) == before, "nothing is cut off"


@pytest.mark.parametrize("part", ["body", "head", "key", "block"])
@pytest.mark.parametrize("indexed", [True, False])
def test_compaction_carries_all_but_a_damaged_body_and_what_stands_for_that_says_so(
    disk: SimDisk, truth: Truth, part: str, indexed: bool
) -> None:
    name = names(disk, ".seg")[0]
    first = int(name[-14:-4])
    (place, (key, location)) = min(
        ((place, kept) for place, kept in truth[0].items() if kept[1] >> 32 == first and truth[1][place]), key=lambda item: item[1][1]
    )
    at = location & 0xFFFF_FFFF
    block = max(offset for offset, _ in blocks_of(disk, name) if offset < at)
    opened = Opened(disk)
    disk.flip(name, {"body": at + 42 + len(key) + 1, "head": at + 7, "key": at + 43, "block": block + 20}[part], 2)
    if not indexed:
        disk.remove(name.replace(".seg", ".idx"))
    kept = dict(truth[1])
    for other in sorted(opened.shop.messages):
        if opened.shop.messages[other][1] >> 32 != first:
            opened.shop.settle(*other)
            del kept[other]
    while (left := opened.store.health.state is StoreState.UP) and name in disk.paths():
        opened.shop.settle(8, opened.shop.put(8, b"key", b"filler" * 20))
        opened.store.flush()
        opened.loop.run_ready()
        opened.store.step_compaction()
        opened.loop.run_ready()
    if not left:
        assert not indexed and part != "body", "only there nothing proves what the heads were"
        assert opened.store.health.state is StoreState.CORRUPT
        assert "tandem store repair" in opened.store.health.cause
        return
    bodies = opened.bodies()
    assert bodies.keys() == kept.keys()
    lost = [other for other in kept if bodies[other] != kept[other]]
    assert lost == ([place] if part == "body" else [])
    for other in lost:
        assert decode_body(bodies[other]).ttl_ms == DAMAGED_TTL
        told = [note for note in opened.store.health.notes if note.endswith(f"of entity {other[0] >> 2} fails its checksum: set aside")]
        assert any(f"message {other[1]} (id " in note for note in told)


def test_damage_at_the_end_of_an_unindexed_segment_is_not_taken_for_a_torn_tail_when_another_segment_follows(
    disk: SimDisk, truth: Truth
) -> None:
    last = last_with_blocks(disk)
    name = names(disk, ".seg")[names(disk, ".seg").index(last) - 1]
    disk.remove(name.replace(".seg", ".idx"))
    start, end = blocks_of(disk, name)[-1]
    cut = disk.copy()
    disk.flip(name, end - 1, 0)
    assert not refused(opened := Opened(disk), truth, name)
    assert any("the guard of block" in note and name in note for note in opened.store.health.notes)
    cut.put(name, cut.content(name)[: start + 40] + bytes(end - start - 40))
    opened = Opened(cut)
    assert isinstance(opened.error, Corrupt)
    assert f"{name}: offset {start}" in opened.error.description


def test_a_missing_segment_is_named_wherever_it_was(disk: SimDisk) -> None:
    for name in names(disk, ".seg"):
        damaged = disk.copy()
        damaged.remove(name)
        opened = Opened(damaged)
        assert isinstance(opened.error, Corrupt)
        assert f"{name}: missing" in opened.error.description
        assert any(f"{name}: missing" in problem for problem in verify(DIRECTORY, damaged).problems)


def test_a_sealed_segment_that_was_truncated_is_refused(disk: SimDisk) -> None:
    for index in names(disk, ".idx"):
        name = index.replace(".idx", ".seg")
        size = len(disk.content(name))
        for lost in (1, 40, size - SEGMENT_HEADER_BYTES - 1, size - 10):
            damaged = disk.copy()
            damaged.cut(name, size - lost)
            opened = Opened(damaged)
            assert isinstance(opened.error, Corrupt), (name, lost)
            assert name in opened.error.description


def test_a_sealed_segment_that_was_truncated_between_two_blocks_and_lost_its_index_is_refused(disk: SimDisk) -> None:
    for index in names(disk, ".idx"):
        name = index.replace(".idx", ".seg")
        damaged = disk.copy()
        damaged.remove(index)
        damaged.cut(name, blocks_of(disk, name)[-1][0])
        opened = Opened(damaged)
        assert isinstance(opened.error, Corrupt), name


def test_segments_that_changed_places_are_refused(disk: SimDisk) -> None:
    first, second = names(disk, ".seg")[:2]
    one, two = disk.content(first), disk.content(second)
    disk.put(first, two)
    disk.put(second, one)
    opened = Opened(disk)
    assert isinstance(opened.error, Corrupt)
    assert "is segment" in opened.error.description


def test_a_segment_of_another_store_is_refused(disk: SimDisk) -> None:
    stranger = Story(99)
    stranger.open()
    stranger.run(70)
    name = names(disk, ".seg")[0]
    disk.put(name, stranger.disk.content(name) if name in stranger.disk.paths() else b"")
    opened = Opened(disk)
    assert isinstance(opened.error, Corrupt)
    assert name in opened.error.description


def test_a_segment_too_many_is_refused(disk: SimDisk) -> None:
    names_now = names(disk, ".seg")
    number = int(names_now[-1][-14:-4]) + 2
    disk.put(path(f"{number:010d}.seg"), disk.content(names_now[0]))
    opened = Opened(disk)
    assert isinstance(opened.error, Corrupt)
    assert "does not belong here" in opened.error.description


def test_a_lost_or_stale_or_foreign_index_is_said_and_the_segment_is_read_instead(disk: SimDisk, truth: Truth) -> None:
    indexes = names(disk, ".idx")
    assert len(indexes) >= 2
    lost = disk.copy()
    lost.remove(indexes[0])
    foreign = disk.copy()
    foreign.put(indexes[0], disk.content(indexes[1]))
    short = disk.copy()
    short.cut(indexes[0], 20)
    for damaged, word in ((lost, ""), (foreign, "is of segment"), (short, "too short")):
        opened = Opened(damaged)
        assert opened.error is None
        assert (opened.shop.messages, opened.bodies()) == truth
        assert opened.store.recovery.segments_read_in_full > 0
        assert any(word in note for note in opened.store.recovery.notes) or not word
        opened.store.close()
        again = Opened(damaged)
        assert again.store.recovery.notes == [], "the index was written anew"
        assert again.shop.messages == truth[0]


def test_an_index_that_is_older_than_its_segment_is_stale(truth: Truth, disk: SimDisk) -> None:
    index = names(disk, ".idx")[0]
    name = index.replace(".idx", ".seg")
    disk.put(name, disk.content(name) + b"\0" * 100)
    opened = Opened(disk)
    assert opened.error is None
    assert any("stale" in note and index in note for note in opened.store.recovery.notes)
    assert opened.shop.messages == truth[0]


def test_a_manifest_that_is_gone_or_garbled_is_refused(disk: SimDisk) -> None:
    manifest = path("store.json")
    good = json.loads(disk.content(manifest)[:512])
    for content in (b"", b"{}", b"[]", b"\xff\xfe", json.dumps({**good, "first_segment": good["first_segment"] + 1}).encode()):
        damaged = disk.copy()
        damaged.put(manifest, content)
        opened = Opened(damaged)
        assert isinstance(opened.error, Corrupt), content
        assert manifest in opened.error.description
    disk.remove(manifest)
    opened = Opened(disk)
    assert isinstance(opened.error, Corrupt)
    assert "store.json: missing" in opened.error.description


def test_a_manifest_from_before_is_refused(story: Story) -> None:
    """A manifest put back from an old copy names segments that are gone, or does not name those that came."""
    old = Story(5)
    old.open()
    early = old.disk.content(path("store.json"))
    disk = story.disk.copy()
    disk.put(path("store.json"), early)
    opened = Opened(disk)
    assert isinstance(opened.error, Corrupt)
    assert Path(opened.error.description.split(":")[0]).parent == DIRECTORY
