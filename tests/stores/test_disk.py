"""The lock that keeps two processes out of one store, and files that are whole or not there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tandem.stores.disk import Disk, LocalDisk, read_file, write_file, write_fully
from tandem.stores.fault_disk import FaultDisk
from tandem.stores.remote_disk import RemoteDisk


def test_a_lock_is_held_against_this_process_and_others_until_it_is_given_back(tmp_path: Path) -> None:
    disk = LocalDisk()
    path = str(tmp_path / "lock")
    held = disk.lock(path)
    with pytest.raises(BlockingIOError):
        disk.lock(path)
    program = f"from tandem.stores.disk import LocalDisk\nLocalDisk().lock({path!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert "BlockingIOError" in other.stderr
    disk.unlock(held)
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0


def test_a_lock_does_not_outlive_its_process_in_a_child_that_was_forked(tmp_path: Path) -> None:
    """A daemonised child that inherited the descriptor would keep the store shut for ever."""
    path = str(tmp_path / "lock")
    program = (
        "import os, sys, time\n"
        "from tandem.stores.disk import LocalDisk\n"
        f"LocalDisk().lock({path!r})\n"
        "if os.fork() == 0:\n"
        "    print(os.getpid(), flush=True)\n"
        "    os.close(1)\n"
        "    time.sleep(60)\n"
        "    os._exit(0)\n"
        "sys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    disk = LocalDisk()
    try:
        with pytest.raises(BlockingIOError):
            disk.lock(path)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        os.kill(child, 0)
        disk.unlock(disk.lock(path))
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_program_that_is_started_does_not_inherit_the_lock(tmp_path: Path) -> None:
    disk = LocalDisk()
    held = disk.lock(str(tmp_path / "lock"))
    program = "import sys; print('running', flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)
    assert child.stdout is not None
    assert child.stdout.readline() == b"running\n"
    disk.unlock(held)
    disk.unlock(disk.lock(str(tmp_path / "lock")))
    child.communicate(b"")


def test_a_file_is_written_whole_also_by_a_disk_that_takes_little_at_a_time(tmp_path: Path) -> None:
    class Sipping(LocalDisk):
        def pwritev(self, descriptor: int, buffers: list[bytes], offset: int) -> int:
            return super().pwritev(descriptor, [b"".join(buffers)[:3]], offset)

    write_file(Sipping(), str(tmp_path), "name", b"0123456789")
    assert read_file(LocalDisk(), str(tmp_path / "name")) == b"0123456789"
    assert os.listdir(tmp_path) == ["name"]


def test_a_disk_that_takes_nothing_is_an_error_and_not_an_endless_loop(tmp_path: Path) -> None:
    class Full(LocalDisk):
        def pwritev(self, descriptor: int, buffers: list[bytes], offset: int) -> int:
            return 0

    descriptor = LocalDisk().open(str(tmp_path / "name"), os.O_RDWR | os.O_CREAT)
    with pytest.raises(OSError, match="takes no more bytes"):
        write_fully(Full(), descriptor, [b"x"], 0)
    os.close(descriptor)


def test_what_a_directory_is_and_has_left_is_asked_of_the_process_that_drives_its_disk(tmp_path: Path) -> None:
    """Where a file system hangs, looking at it hangs too: not in the broker's process."""
    remote = RemoteDisk("store-0")
    disk = FaultDisk(remote)
    disk.begin()
    try:
        assert disk.identity(str(tmp_path)) == LocalDisk().identity(str(tmp_path))
        assert disk.free_bytes(str(tmp_path)) > 0
        with pytest.raises(FileNotFoundError):
            disk.identity(str(tmp_path / "nowhere"))
        assert remote.pid is not None
        os.kill(remote.pid, signal.SIGKILL)
        with pytest.raises(OSError, match="the process of store-0 is gone"):
            disk.identity(str(tmp_path))
        with pytest.raises(OSError, match="the process of store-0 is gone"):
            disk.free_bytes(str(tmp_path))
    finally:
        disk.abandon()


class Undying(subprocess.Popen[bytes]):
    """A process in a call that the kernel does not break off: it stands still, and no signal ends it."""

    def kill(self) -> None:
        self.send_signal(signal.SIGSTOP)


@pytest.mark.timeout(60)
def test_a_process_that_cannot_be_killed_is_not_waited_for_and_those_who_wait_for_its_answers_hear_that_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that hangs in the kernel keeps its process for as long as it hangs; the broker's loop is not to hang as well."""
    monkeypatch.setattr("tandem.stores.remote_disk.subprocess.Popen", Undying)
    remote = RemoteDisk("store-0")
    remote.begin()
    assert remote.pid is not None
    stuck = remote.pid
    heard: list[str] = []

    def ask() -> None:
        with pytest.raises(OSError, match="the process of store-0 is gone") as gone:
            while True:
                remote.free_bytes(str(tmp_path))
        heard.append(str(gone.value))

    try:
        os.kill(stuck, signal.SIGSTOP)
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        giving_up = threading.Thread(target=remote.abandon, daemon=True)
        giving_up.start()
        giving_up.join(10)
        asking.join(10)
        assert not giving_up.is_alive() and not asking.is_alive() and len(heard) == 1
        remote.begin()  # another one, which would wait for the lock of the first
        assert remote.pid != stuck
        assert remote.free_bytes(str(tmp_path)) > 0
    finally:
        os.kill(stuck, signal.SIGKILL)
        monkeypatch.undo()
        if remote.pid is not None:
            os.kill(remote.pid, signal.SIGKILL)
            remote.abandon()


def test_a_disk_that_lacks_a_call_cannot_be_made() -> None:
    class Half(RemoteDisk):
        begin = Disk.begin

    with pytest.raises(TypeError, match="abstract"):
        Half("store-0")


def test_a_lock_that_is_let_go_in_time_is_taken_and_one_that_is_not_is_refused(tmp_path: Path) -> None:
    holder, patient = LocalDisk(), LocalDisk()
    held = holder.lock(str(tmp_path / "lock"))
    patient.lock_wait_seconds = 0.1
    with pytest.raises(BlockingIOError):
        patient.lock(str(tmp_path / "lock"))
    patient.lock_wait_seconds = 10.0
    letting_go = threading.Timer(0.1, holder.unlock, (held,))
    letting_go.start()
    patient.unlock(patient.lock(str(tmp_path / "lock")))
    letting_go.join()
