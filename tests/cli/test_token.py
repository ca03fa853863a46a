"""`tandem token`: what it prints opens the door it names, and no other."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request

from tandem.testing import Bus


def token(connection_string: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tandem", "token", "-c", connection_string, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def post(bus: Bus, queue: str, header: str) -> int:
    request = urllib.request.Request(f"http://localhost:{bus.port}/{queue}/messages", b"hello", {"Authorization": header}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=20) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_token_sends_to_its_entity_and_to_no_other(tandem_bus: Bus) -> None:
    tandem_bus.create_queue("orders")
    tandem_bus.create_queue("payments")
    signed = token(tandem_bus.connection_string, "--entity", "orders", "--minutes", "10").stdout.strip()
    assert (post(tandem_bus, "orders", signed), post(tandem_bus, "payments", signed)) == (201, 401)
    everywhere = token(tandem_bus.connection_string).stdout.strip()
    assert post(tandem_bus, "payments", everywhere) == 201


def test_what_is_no_connection_string_is_refused_in_one_line() -> None:
    done = token("nonsense")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tandem: ") and done.stderr.count("\n") == 1
