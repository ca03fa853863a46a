"""The disk of one store in a process of its own: it may be killed, stopped or stuck, and the broker goes on without it.

Requests and answers are frames on unix sockets, one connection per thread of the broker: `length u32, operation u8, fields`.
A block travels once, in the write of its group. The process serves its parent only, and ends with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from typing import Final, NoReturn

from tandem.stores.disk import LocalDisk

OPEN, CLOSE, PREAD, PWRITE, FDATASYNC, FSYNC, FALLOCATE, TRUNCATE, SIZE, NEXT_DATA, DROP_CACHE = range(1, 12)
RENAME, UNLINK, LISTDIR, MKDIR, SYNC_DIRECTORY, LOCK, UNLOCK, IDENTITY, FREE_BYTES = range(12, 21)

_HEAD: Final = struct.Struct("<IB")
_EXIT_OUT_OF_MEMORY: Final = 71
_OUT_OF_MEMORY: Final = b"tandem: out of memory in the process of a store: it ends and another is started, everything accepted is on disk\n"
_I: Final = struct.Struct("<q")
_II: Final = struct.Struct("<qq")
_III: Final = struct.Struct("<qqq")
_PEER: Final = struct.Struct("3i")
FRAME_BYTES_MAX: Final = 1 << 30
LOCK_WAIT_SECONDS: Final = 2.0
"""The process of a broker that was killed a moment ago may have to end a call to the disk before it lets go of its store."""
_PR_SET_PDEATHSIG: Final = 1
_DONE: Final = 0
_FAILED: Final = 1


def send_frame(connection: socket.socket, code: int, parts: list[bytes]) -> None:
    """One frame; large parts are not copied together first."""
    head = _HEAD.pack(sum(map(len, parts)), code)
    buffers = [head, *parts]
    sent = connection.sendmsg(buffers[:1000]) if len(buffers) <= 1000 else 0
    rest = b"".join(buffers)[sent:] if sent < len(head) + sum(map(len, parts)) else b""
    if rest:
        connection.sendall(rest)


def receive_frame(connection: socket.socket) -> tuple[int, bytes]:
    """Raises ConnectionError when the other side is gone."""
    length, code = _HEAD.unpack(_exactly(connection, _HEAD.size))
    if length > FRAME_BYTES_MAX:
        raise ConnectionError(f"frame of {length} bytes")
    return code, _exactly(connection, length)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = connection.recv(size) if size else b""
    if len(data) == size:
        return data
    parts = [data]
    left = size - len(data)
    while left:
        data = connection.recv(min(left, 1 << 20))
        if not data:
            raise ConnectionError("the other side is gone")
        parts.append(data)
        left -= len(data)
    return b"".join(parts)


def pack_paths(*paths: str) -> bytes:
    return b"\0".join(os.fsencode(path) for path in paths)


def _signed(number: int) -> int:
    """Device and inode numbers use all 64 bits on some file systems; frames carry signed ones."""
    return number - (1 << 64) if number >= 1 << 63 else number


class _Server:
    """The child's side: plain calls to the real disk."""

    def __init__(self) -> None:
        self._disk = LocalDisk()
        self._disk.lock_wait_seconds = LOCK_WAIT_SECONDS
        disk = self._disk
        self._actions: dict[int, Callable[[bytes], None]] = {
            CLOSE: lambda body: disk.close(*_I.unpack(body)),
            FDATASYNC: lambda body: disk.fdatasync(*_I.unpack(body)),
            FSYNC: lambda body: disk.fsync(*_I.unpack(body)),
            TRUNCATE: lambda body: disk.truncate(*_II.unpack(body)),
            DROP_CACHE: lambda body: disk.drop_cache(*_I.unpack(body)),
            RENAME: lambda body: disk.rename(*self._paths(body)),
            UNLINK: lambda body: disk.unlink(*self._paths(body)),
            MKDIR: lambda body: disk.mkdir(*self._paths(body)),
            SYNC_DIRECTORY: lambda body: disk.sync_directory(*self._paths(body)),
            UNLOCK: lambda body: disk.unlock(*_I.unpack(body)),
        }
        self._questions: dict[int, Callable[[bytes], bytes]] = {
            OPEN: self._open,
            PREAD: lambda body: disk.pread(*_III.unpack(body)),
            PWRITE: self._pwrite,
            FALLOCATE: lambda body: _I.pack(disk.fallocate(*_II.unpack(body))),
            SIZE: lambda body: _I.pack(disk.size(*_I.unpack(body))),
            NEXT_DATA: lambda body: _I.pack(disk.next_data(*_II.unpack(body))),
            LISTDIR: lambda body: pack_paths(*disk.listdir(*self._paths(body))),
            LOCK: lambda body: _I.pack(disk.lock(*self._paths(body))),
            IDENTITY: self._identity,
            FREE_BYTES: lambda body: _I.pack(disk.free_bytes(*self._paths(body))),
        }

    def _answer(self, code: int, body: bytes) -> bytes:
        action = self._actions.get(code)
        if action is None:
            return self._questions[code](body)
        action(body)
        return b""

    def _paths(self, body: bytes) -> list[str]:
        return [os.fsdecode(part) for part in body.split(b"\0")]

    def _open(self, body: bytes) -> bytes:
        (flags,) = _I.unpack_from(body)
        return _I.pack(self._disk.open(os.fsdecode(body[_I.size :]), flags))

    def _identity(self, body: bytes) -> bytes:
        device, inode = self._disk.identity(*self._paths(body))
        return _II.pack(_signed(device), _signed(inode))

    def _pwrite(self, body: bytes) -> bytes:
        descriptor, offset = _II.unpack_from(body)
        view = memoryview(body)[_II.size :]
        return _I.pack(os.pwrite(descriptor, view, offset))

    def serve(self, connection: socket.socket) -> None:
        with connection:
            while True:
                try:
                    code, body = receive_frame(connection)
                except (ConnectionError, OSError):
                    return
                except MemoryError:
                    _out_of_memory()
                try:
                    answer, status = self._answer(code, body), _DONE
                except MemoryError:
                    _out_of_memory()
                except OSError as error:
                    answer, status = _I.pack(error.errno or 0) + str(error.strerror or error).encode(), _FAILED
                try:
                    send_frame(connection, status, [answer])
                except OSError:
                    return  # the broker died with its question open


def _out_of_memory() -> NoReturn:
    """The broker notices, starts another, and the journal is read again: what was accepted is on disk."""
    os.write(2, _OUT_OF_MEMORY)
    os._exit(_EXIT_OUT_OF_MEMORY)


def die_with_parent() -> None:
    """The kernel kills this process when the thread that started it ends, be it stopped or in the middle of anything. Where there is
    no such call, the process looks for its parent once a second."""
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        if prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0):
            raise OSError(ctypes.get_errno(), "the end of the broker cannot be noticed")


def main() -> None:
    """`python -m tandem.stores.disk_process <fd of a listening socket> <pid of the broker>`."""
    parent = int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the broker's business
    die_with_parent()  # before the first look at the parent, which may have died already
    server = _Server()
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        listener.settimeout(1.0)
        while os.getppid() == parent:  # a store never outlives its broker
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            pid, _, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if pid != parent:
                connection.close()
                continue
            connection.settimeout(None)
            threading.Thread(target=server.serve, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
