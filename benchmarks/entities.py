"""Ten thousand entities: created over HTTP, listed page by page, found again after a restart.

python benchmarks/entities.py [--build LABEL=DIR] [--entities N] [--connections N] [--json]
"""

from __future__ import annotations

import http.client
import re
import threading
import time
from pathlib import Path

from under_test import KEY, KEY_NAME, Broker, Build, Table, builds, parser, workplace

from tandem.model.sas_token import make_token

QUEUE = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><QueueDescription '
    'xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"><LockDuration>PT30S</LockDuration>'
    "</QueueDescription></content></entry>"
)
PAGE = 100


class Administration:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("localhost", port, timeout=120)
        expires_at_ms = int((time.time() + 3600) * 1000)
        self._headers = {"Authorization": make_token(f"http://localhost:{port}/", KEY_NAME, KEY, expires_at_ms)}

    def call(self, method: str, path: str, body: str = "") -> str:
        headers = self._headers | ({"Content-Type": "application/atom+xml"} if body else {})
        self._connection.request(method, f"{path}{'&' if '?' in path else '?'}api-version=2021-05", body.encode(), headers)
        answer = self._connection.getresponse()
        text = answer.read().decode()
        if answer.status not in (200, 201):
            raise SystemExit(f"{method} {path}: {answer.status} {text[:300]}")
        return text


def create(port: int, names: list[str]) -> None:
    client = Administration(port)
    for name in names:
        client.call("PUT", f"/{name}", QUEUE)


def listed(port: int) -> list[str]:
    client = Administration(port)
    names: list[str] = []
    while True:
        page = client.call("GET", f"/$Resources/queues?$skip={len(names)}&$top={PAGE}")
        found = re.findall(r"<entry[^>]*>.*?<title[^>]*>([^<]*)</title>", page, re.S)
        names += found
        if len(found) < PAGE:
            return names


def measure(build: Build, directory: Path, entities: int, connections: int, table: Table) -> None:
    names = [f"group-{number % 100:02}/queue-{number:05}" for number in range(entities)]
    with Broker(build, directory, "") as broker:
        cpu, began = broker.cpu_seconds(), time.monotonic()
        threads = [threading.Thread(target=create, args=(broker.port, names[n::connections])) for n in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        created, cpu = time.monotonic() - began, broker.cpu_seconds() - cpu
        began = time.monotonic()
        found = listed(broker.port)
        listing = time.monotonic() - began
        memory = broker.memory_mb()
        broker.kill()
        restart = broker.start()
        restart_cpu = broker.cpu_seconds()
        again = listed(broker.port)
    correct = found == sorted(names) == again
    table.add(build.label, f"{entities:,} entities created over HTTP, s", created, "< 60")
    table.add(build.label, "broker CPU ms/entity", cpu / entities * 1e3)
    table.add(build.label, "restart to ready after SIGKILL, s", restart, "<= 5")
    table.add(build.label, "restart to ready, CPU s", restart_cpu)
    table.add(build.label, f"listed in pages of {PAGE}, s", listing)
    table.add(build.label, "every one listed once, in order", "yes" if correct else "NO", "yes")
    table.add(build.label, "memory KB/entity", memory * 1024 / entities)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--entities", type=int, default=10_000)
    options.add_argument("--connections", type=int, default=8)
    arguments = options.parse_args()
    table = Table(f"entities: {arguments.entities:,} queues over {arguments.connections} connections")
    with workplace(arguments) as directory:
        for number, build in enumerate(builds(arguments)):
            measure(build, directory / str(number), arguments.entities, arguments.connections, table)
    table.show(arguments.json)


if __name__ == "__main__":
    main()
