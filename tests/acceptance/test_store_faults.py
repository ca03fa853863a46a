"""Disks that fill up, files that rot or vanish under a running or stopped broker: found, confined to one store, told in one line."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import ServiceBusError

from tests.acceptance.store_house import CONFIG, House, eventually, flip


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.stop()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a small file system to fill")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(tmp_path)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_full_disk_refuses_sends_lets_settling_go_on_and_heals_by_itself(small_disk: Path) -> None:
    house = House(small_disk)
    try:
        house.send("first", 20)
        ballast = small_disk / "ballast"
        ballast.write_bytes(b"")
        with ballast.open("ab") as file:
            free = os.statvfs(small_disk)
            file.write(b"z" * max(free.f_bavail * free.f_frsize - 2_000_000, 0))
        house.await_states("degraded", "degraded")
        with pytest.raises(ServiceBusError, match="bytes are free"):
            house.send("first", 1)
        with pytest.raises(ServiceBusError, match="bytes are free"):
            house.send("spread", 1)
        assert house.receive("first", 20) == 20, "what is there can be received and settled while the disk is full"
        ballast.unlink()
        house.await_states("up", "up")
        house.send("first", 5)
        house.send("spread", 5)
        assert house.receive("first", 5) == 5
        assert house.receive("spread", 5) == 5
    finally:
        house.stop()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_disk_without_a_single_byte_left_loses_nothing(small_disk: Path) -> None:
    house = House(small_disk)
    accepted = 0
    try:
        house.send("second", 10)
        with (small_disk / "ballast").open("wb") as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(b"z" * 65_536)
                ballast.flush()
        with house.client.get_queue_sender("first") as sender, contextlib.suppress(ServiceBusError):
            for number in range(600):
                sender.send_messages(ServiceBusMessage(b"y" * 8_000, message_id=str(number)))
                accepted += 1
        assert house.receive("second", 10) == 10, "the other store's messages can be received and settled"
        (small_disk / "ballast").unlink()
        house.await_states("up", "up")
        assert house.receive("first", accepted + 5) >= accepted
        house.send("first", 3)
    finally:
        house.stop()


def fill(directory: Path) -> Path:
    """A file that takes the last byte."""
    ballast = directory / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (65_536, 4_096, 1):
            with contextlib.suppress(OSError):
                while file.write(b"z" * size) == size:
                    pass
    return ballast


@pytest.mark.timeout(180)
def test_a_disk_that_fills_up_at_once_degrades_its_stores_and_everything_can_be_received_and_settled_also_after_a_crash(
    small_disk: Path,
) -> None:
    house = House(small_disk, CONFIG.replace("free_bytes_min = 3145728", "free_bytes_min = 0"))  # full is full
    states: set[str] = set()
    accepted = {"first": 0, "second": 0}
    try:
        for queue in accepted:  # the next segment and the spare are made in the background
            made = [house.store(queue) / name for name in ("0000000002.seg", "spare")]
            eventually(lambda made=made: all(path.exists() and path.stat().st_size for path in made), lambda made=made: f"not made: {made}")
        ballast = fill(small_disk)
        for queue in accepted:
            refusal = ""
            try:
                with house.client.get_queue_sender(queue) as sender:
                    for number in range(2_000):
                        sender.send_messages(ServiceBusMessage(b"y" * 20_000, message_id=f"{queue} {number}"))
                        accepted[queue] += 1
                        states.update(house.states() if number % 10 == 0 else ())
            except ServiceBusError as error:
                refusal = str(error)
            assert 40 < accepted[queue] < 2_000, f"it takes what was reserved, and then no more; {queue}: {refusal}"
        house.await_states("degraded", "degraded")
        assert house.receive("first", 10) == 10
        for _ in range(2):
            house.kill()
            house.start()
            house.await_states("degraded", "degraded")
            assert house.receive("first", 10) == 10, "the disk is still full"
            states.update(house.states())
        for queue, count in accepted.items():
            house.receive(queue, count)
            states.update(house.states())
        assert house.seen == {f"{queue} {number}" for queue, count in accepted.items() for number in range(count)}
        assert states <= {"up", "degraded"}
        ballast.unlink()
        house.await_states("up", "up")
        house.send("first", 3)
    finally:
        house.stop()


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_loss_of_a_store_directory_takes_down_that_store_only_and_it_comes_back_with_it(house: House) -> None:
    house.send("first", 30)
    house.send("second", 3)
    store = house.store("first")
    away = store.with_name("away")
    store.rename(away)
    store.write_text("a file where the directory was")
    with contextlib.suppress(ServiceBusError):
        house.send("first", 600, size=8_000)  # the segment in use is still open; making the next one fails
    eventually(lambda: house.states()[0] in ("down", "degraded", "corrupt"), lambda: f"stores are {house.health()}")
    house.send("second", 3)
    assert house.receive("second", 6) == 6
    store.unlink()
    away.rename(store)
    eventually(lambda: house.states() == ["up", "up"], lambda: f"stores are {house.health()}")
    assert house.receive("first", 30) == 30


def fill_segments(house: House, queue: str) -> Path:
    """Three megabytes, so that segments are sealed; the oldest one."""
    house.send(queue, 120, size=25_000)
    store = house.store(queue)
    eventually(lambda: len(list(store.glob("*.idx"))) >= 1, lambda: f"nothing is sealed: {sorted(store.iterdir())}")
    return min(store.glob("*.seg"))


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("what", ["index", "manifest", "cut"])
def test_damage_at_rest_is_found_confined_and_told_and_a_restored_file_brings_everything_back(house: House, what: str) -> None:
    segment = fill_segments(house, "first")
    house.send("second", 5)
    house.stop()
    path = {"cut": segment, "index": segment.with_suffix(".idx"), "manifest": segment.with_name("store.json")}[what]
    whole = path.with_suffix(".backup")
    shutil.copy(path, whole)
    if what == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif what == "manifest":
        for part in (1, 3):  # it stands there twice
            flip(path, path.stat().st_size * part // 4 - 100)
    else:
        flip(path, path.stat().st_size // 2)
    house.start()
    with contextlib.suppress(ServiceBusError):
        house.receive("first", 120)
    if what == "index":
        assert len(house.seen) == 120, "an index can be made again from its segment"
    else:
        eventually(lambda: house.states()[0] == "corrupt", lambda: f"stores are {house.health()}")
    assert house.states()[1] == "up"
    assert house.receive("second", 5) == 5
    house.send("second", 1)
    if what != "index":
        said = house.stop()
        assert len([line for line in said.splitlines() if "store-0 is corrupt" in line and path.name in line]) == 1, said
        shutil.copy(whole, path)
        house.start()
        house.receive("first", 120)
        assert house.seen == {str(number) for number in range(120)}


@pytest.mark.timeout(180)
def test_a_rotten_byte_costs_one_message_its_body_which_is_dead_lettered_with_the_reason_and_the_store_goes_on(house: House) -> None:
    segment = fill_segments(house, "first")
    house.stop()
    flip(segment, segment.read_bytes().index(b"x" * 20_000) + 10_000)
    house.start()
    assert house.receive("first", 120) == 119
    (lost,) = {str(number) for number in range(120)} - house.seen
    with house.client.get_queue_receiver("first", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (letter,) = receiver.receive_messages(5, max_wait_time=5)
        assert (letter.message_id, letter.dead_letter_reason, b"".join(letter.body)) == (lost, "MessageDamaged", b"")
        assert segment.name in str(letter.dead_letter_error_description)
        receiver.complete_message(letter)
    (note,) = house.health()[0]["notes"]
    assert segment.name in note and "fails its checksum" in note
    assert house.states() == ["up", "up"]
    assert house.stop().count(note) == 1
    house.start()
    assert house.states() == ["up", "up"]
    assert house.receive("first", 1) == 0


@pytest.mark.timeout(180)
def test_a_rotten_byte_among_messages_that_are_not_sealed_yet_costs_one_of_them_after_a_crash(house: House) -> None:
    house.send("first", 20, size=3_000)
    house.kill()
    segment = next(path for path in sorted(house.store("first").glob("*.seg")) if b"x" * 3_000 in path.read_bytes())
    flip(segment, segment.read_bytes().index(b"x" * 3_000) + 1_500)
    house.start()
    (note,) = house.health()[0]["notes"]
    assert "fails its checksum" in note
    assert house.receive("first", 20) == 19
    with house.client.get_queue_receiver("first", sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        (letter,) = receiver.receive_messages(5, max_wait_time=5)
    assert letter.dead_letter_reason == "MessageDamaged"
    assert {str(letter.message_id)} == {str(number) for number in range(20)} - house.seen
