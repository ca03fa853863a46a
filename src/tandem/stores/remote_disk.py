"""The broker's side of a store's disk process: starts it, speaks to it, and starts it anew when it is gone."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import socket
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tandem.stores import disk_process as wire
from tandem.stores.disk import Disk

_CONNECT_SECONDS: Final = 10.0
_LET_GO_SECONDS: Final = 10.0
"""For closing and unlocking, which may be waited for by a broker that stops."""
_GENERATION_BITS: Final = 32
_I: Final = wire._I
_II: Final = wire._II
_III: Final = wire._III


_starter: Final = ThreadPoolExecutor(1, "tandem-disk-starter")
"""Lives as long as the broker does: a process that ends with its parent ends with the thread that started it."""


def _start_process(listener: int) -> subprocess.Popen[bytes]:
    """In a group of its own: Ctrl-C is the broker's business, from the first instant on."""
    return subprocess.Popen(
        [sys.executable, "-m", "tandem.stores.disk_process", str(listener), str(os.getpid())],
        pass_fds=(listener,),
        stdin=subprocess.DEVNULL,
        process_group=0,
    )


class RemoteDisk(Disk):
    """Every call is answered by the process; when that is gone, calls fail with EIO, which takes the store down and nothing else."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._address = ""
        self._generation = 0
        self._local = threading.local()
        self._connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        """Of all threads, to the process that is there now."""
        self._dying: list[subprocess.Popen[bytes]] = []
        """Processes that were ended. One that the kernel does not let go of, because its disk hangs, ends when the disk does."""

    @property
    def pid(self) -> int | None:
        """Of the process that holds the store; None before the first call."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    # -- the process ---------------------------------------------------------------------------

    def _start(self) -> None:
        """With the lock held."""
        self._dying = [process for process in self._dying if process.poll() is None]
        self._address = f"\0tandem-{secrets.token_hex(16)}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(self._address)
            listener.listen(16)
            self._process = _starter.submit(_start_process, listener.fileno()).result()
        finally:
            listener.close()
        self._generation += 1

    def abandon(self) -> None:
        """It does not answer: end it, and let whoever waits for it hear that it is gone. Its end is not waited for, since we may be on
        the loop; whatever it still does, it does with the store locked."""
        with self._lock:
            if self._process is None:
                return
            self._process.kill()
            self._dying.append(self._process)
            self._process = None
            for connection in self._connections:
                with contextlib.suppress(OSError):  # closed by the other side already
                    connection.shutdown(socket.SHUT_RDWR)
            self._connections.clear()

    def _connection(self, restart: bool) -> socket.socket:
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                if not restart and self._generation:
                    raise self._gone()
                self._start()
            generation, address = self._generation, self._address
        known: tuple[int, socket.socket] | None = getattr(self._local, "connection", None)
        if known is not None and known[0] == generation:
            return known[1]
        if known is not None:
            known[1].close()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(_CONNECT_SECONDS)
        try:
            connection.connect(address)
        except OSError as error:
            connection.close()
            raise self._gone() from error
        connection.settimeout(None)
        self._keep(connection, generation)
        self._local.connection = (generation, connection)
        return connection

    def _keep(self, connection: socket.socket, generation: int) -> None:
        with self._lock:
            if self._process is None or generation != self._generation:
                connection.close()
                raise self._gone()  # it was given up while we turned to it
            self._connections.add(connection)

    def _gone(self) -> OSError:
        return OSError(errno.EIO, f"the process of {self._name} is gone")

    def _call(self, code: int, *parts: bytes) -> bytes:
        connection = self._connection(restart=False)
        try:
            wire.send_frame(connection, code, list(parts))
            status, answer = wire.receive_frame(connection)
        except (ConnectionError, OSError) as error:
            self._local.connection = None
            connection.close()
            raise self._gone() from error
        if status:
            (number,) = _I.unpack_from(answer)
            text = answer[_I.size :].decode(errors="replace")
            raise OSError(number, text)  # Python turns the number into the right subclass
        return answer

    def _mark(self, descriptor: int) -> int:
        """Descriptors carry the process they belong to: a new one gives out the same numbers for other files."""
        return self._generation << _GENERATION_BITS | descriptor

    def _plain(self, descriptor: int) -> int:
        if descriptor >> _GENERATION_BITS != self._generation:
            raise self._gone()
        return descriptor & (1 << _GENERATION_BITS) - 1

    def _number(self, code: int, *parts: bytes) -> int:
        number: int = _I.unpack(self._call(code, *parts))[0]
        return number

    # -- the calls -----------------------------------------------------------------------------

    def begin(self) -> None:
        """The one place where a process that is gone is started anew."""
        self._connection(restart=True)

    def open(self, path: str, flags: int) -> int:
        return self._mark(self._number(wire.OPEN, _I.pack(flags), os.fsencode(path)))

    def close(self, descriptor: int) -> None:
        self._let_go(wire.CLOSE, descriptor)

    def pread(self, descriptor: int, size: int, offset: int) -> bytes:
        return self._call(wire.PREAD, _III.pack(self._plain(descriptor), size, offset))

    def pwritev(self, descriptor: int, buffers: list[bytes], offset: int) -> int:
        return self._number(wire.PWRITE, _II.pack(self._plain(descriptor), offset), *buffers)

    def fdatasync(self, descriptor: int) -> None:
        self._call(wire.FDATASYNC, _I.pack(self._plain(descriptor)))

    def fsync(self, descriptor: int) -> None:
        self._call(wire.FSYNC, _I.pack(self._plain(descriptor)))

    def fallocate(self, descriptor: int, size: int) -> bool:
        return self._number(wire.FALLOCATE, _II.pack(self._plain(descriptor), size)) != 0

    def truncate(self, descriptor: int, size: int) -> None:
        self._call(wire.TRUNCATE, _II.pack(self._plain(descriptor), size))

    def size(self, descriptor: int) -> int:
        return self._number(wire.SIZE, _I.pack(self._plain(descriptor)))

    def next_data(self, descriptor: int, offset: int) -> int:
        return self._number(wire.NEXT_DATA, _II.pack(self._plain(descriptor), offset))

    def drop_cache(self, descriptor: int) -> None:
        self._call(wire.DROP_CACHE, _I.pack(self._plain(descriptor)))

    def rename(self, source: str, target: str) -> None:
        self._call(wire.RENAME, wire.pack_paths(source, target))

    def unlink(self, path: str) -> None:
        self._call(wire.UNLINK, wire.pack_paths(path))

    def listdir(self, path: str) -> list[str]:
        answer = self._call(wire.LISTDIR, wire.pack_paths(path))
        return [os.fsdecode(part) for part in answer.split(b"\0")] if answer else []

    def identity(self, path: str) -> tuple[int, int]:
        device, inode = _II.unpack(self._call(wire.IDENTITY, wire.pack_paths(path)))
        return device, inode

    def free_bytes(self, path: str) -> int:
        return self._number(wire.FREE_BYTES, wire.pack_paths(path))

    def mkdir(self, path: str) -> None:
        self._call(wire.MKDIR, wire.pack_paths(path))

    def sync_directory(self, path: str) -> None:
        self._call(wire.SYNC_DIRECTORY, wire.pack_paths(path))

    def lock(self, path: str) -> int:
        return self._mark(self._number(wire.LOCK, wire.pack_paths(path)))

    def unlock(self, descriptor: int) -> None:
        self._let_go(wire.UNLOCK, descriptor)

    def _let_go(self, code: int, descriptor: int) -> None:
        """A process that does not even let go is ended, and lets go of everything."""
        with contextlib.suppress(OSError):  # a descriptor of a process that is gone is closed already
            plain = self._plain(descriptor)
            connection = self._connection(restart=False)
            connection.settimeout(_LET_GO_SECONDS)
            try:
                self._call(code, _I.pack(plain))
            except OSError as error:
                if isinstance(error.__cause__, TimeoutError):
                    self.abandon()
                raise
            connection.settimeout(None)
