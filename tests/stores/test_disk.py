"""The lock that keeps two processes out of one store, and files that are whole or not there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tandem.stores.disk import Disk, read_file, write_file, write_fully


def test_a_lock_is_held_against_this_process_and_others_until_it_is_given_back(tmp_path: Path) -> None:
    disk = Disk()
    path = str(tmp_path / "lock")
    held = disk.lock(path)
    with pytest.raises(BlockingIOError):
        disk.lock(path)
    program = f"from tandem.stores.disk import Disk\nDisk().lock({path!r})"
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
        "from tandem.stores.disk import Disk\n"
        f"Disk().lock({path!r})\n"
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
    disk = Disk()
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
    disk = Disk()
    held = disk.lock(str(tmp_path / "lock"))
    program = "import sys; print('running', flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False)
    assert child.stdout is not None
    assert child.stdout.readline() == b"running\n"
    disk.unlock(held)
    disk.unlock(disk.lock(str(tmp_path / "lock")))
    child.communicate(b"")


def test_a_file_is_written_whole_also_by_a_disk_that_takes_little_at_a_time(tmp_path: Path) -> None:
    class Sipping(Disk):
        def pwritev(self, descriptor: int, buffers: list[bytes], offset: int) -> int:
            return super().pwritev(descriptor, [b"".join(buffers)[:3]], offset)

    write_file(Sipping(), str(tmp_path), "name", b"0123456789")
    assert read_file(Disk(), str(tmp_path / "name")) == b"0123456789"
    assert os.listdir(tmp_path) == ["name"]


def test_a_disk_that_takes_nothing_is_an_error_and_not_an_endless_loop(tmp_path: Path) -> None:
    class Full(Disk):
        def pwritev(self, descriptor: int, buffers: list[bytes], offset: int) -> int:
            return 0

    descriptor = Disk().open(str(tmp_path / "name"), os.O_RDWR | os.O_CREAT)
    with pytest.raises(OSError, match="takes no more bytes"):
        write_fully(Full(), descriptor, [b"x"], 0)
    os.close(descriptor)
