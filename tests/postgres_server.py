"""A PostgreSQL server of our own, for as long as a block lasts, if its programs are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def postgres_server(port: int | None = None) -> Iterator[Path]:
    """The directory of its socket; with `port` it listens on 127.0.0.1 too. Anybody may come in as `tandem`.

    It refuses to run as root, so then it gets its own account.
    """
    if shutil.which("initdb") is None or shutil.which("pg_ctl") is None:
        pytest.skip("MISSING: PostgreSQL")
    pytest.importorskip("psycopg")
    home = Path(tempfile.mkdtemp(prefix="tandem-postgres-"))
    account: dict[str, Any] = {"cwd": "/"}
    if os.getuid() == 0:
        try:
            owner = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("MISSING: an account for PostgreSQL, which does not run as root")
        os.chown(home, owner.pw_uid, owner.pw_gid)
        account |= {"user": owner.pw_uid, "group": owner.pw_gid}
    data = home / "data"
    try:
        subprocess.run(["initdb", "-A", "trust", "-U", "tandem", "-D", str(data)], check=True, capture_output=True, **account)
        listening = f"-c listen_addresses=127.0.0.1 -c port={port}" if port is not None else "-c listen_addresses=''"
        options = f"{listening} -c unix_socket_directories={home} -c fsync=off"
        start = ["pg_ctl", "-w", "-D", str(data), "-o", options, "-l", str(home / "log"), "start"]
        subprocess.run(start, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **account)
        yield home
        subprocess.run(["pg_ctl", "-m", "immediate", "-D", str(data), "stop"], check=True, capture_output=True, **account)
    finally:
        shutil.rmtree(home, ignore_errors=True)
