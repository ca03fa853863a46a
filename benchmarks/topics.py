"""One topic, ten subscriptions with an SQL filter each, 1 KB: how many publishes per second are fanned out durably?

python benchmarks/topics.py [--build LABEL=DIR] [--messages N] [--subscriptions N] [--matching N] [--json]
"""

from __future__ import annotations

import time
from pathlib import Path

from under_test import Broker, Build, Table, Yardstick, builds, parser, workplace

from tandem.amqp import encode_message
from tandem.engine_client.blocking import BlockingClient, Endpoint

BODY_BYTES = 1024
WARM_UP = 2_000


def config(subscriptions: int, matching: int) -> str:
    """The first `matching` subscriptions want every message; the others fail at their last term."""
    lines = ['[[topic]]\nname = "bench"\nmax_size_megabytes = 5120\n']
    for number in range(subscriptions):
        wanted = "ord%" if number < matching else "inv%"
        lines.append(f'[[topic.subscription]]\nname = "s{number}"\n[[topic.subscription.rule]]\nname = "sql"\n')
        lines.append(f"sql = \"region = 'eu' AND total > {number} AND kind LIKE '{wanted}'\"\n")
    return "".join(lines)


def publish(client: BlockingClient, payload: bytes, count: int) -> None:
    sender = client.sender("bench", max_in_flight=1_000)
    for _ in range(count):
        sender.send(payload)
    sender.drain()
    sender.close()
    if sender.failed:
        raise SystemExit(f"refused: {sender.failed[0][1]}")


def measure(build: Build, directory: Path, messages: int, subscriptions: int, matching: int, table: Table) -> None:
    payload = encode_message(
        properties={"message-id": "m"}, application_properties={"region": "eu", "total": 100, "kind": "order"}, body=b"x" * BODY_BYTES
    )
    with Broker(build, directory, config(subscriptions, matching)) as broker:
        with BlockingClient(Endpoint.parse(broker.connection_string)) as client, Yardstick() as yardstick:
            publish(client, payload, WARM_UP)
            cpu, began = broker.cpu_seconds(), time.monotonic()
            publish(client, payload, messages)
            wall, cpu = time.monotonic() - began, broker.cpu_seconds() - cpu
        memory = broker.memory_mb()
    table.add(build.label, "publishes/s, fanned out and synced", messages / wall, ">= 10,000 compiled")
    table.add(build.label, "broker CPU us/publish", cpu / messages * 1e6, "<= 100 allows the rate")
    table.add(build.label, "broker CPU us/copy", cpu / messages / max(matching, 1) * 1e6)
    table.add(build.label, "copies/s", messages * matching / wall)
    table.add(build.label, "memory MB", memory)
    table.add(build.label, "yardstick us", yardstick.us)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--messages", type=int, default=30_000)
    options.add_argument("--subscriptions", type=int, default=10)
    options.add_argument("--matching", type=int, default=10, help="subscriptions that want the message")
    arguments = options.parse_args()
    table = Table(f"topic: {arguments.subscriptions} subscriptions with SQL filters, {arguments.matching} matching, 1 KB")
    with workplace(arguments) as directory:
        for number, build in enumerate(builds(arguments)):
            measure(build, directory / str(number), arguments.messages, arguments.subscriptions, arguments.matching, table)
    table.show(arguments.json)


if __name__ == "__main__":
    main()
