"""What a user of kombu does, as a program: `kombu_story.py <broker URL> <name> <port>`.

The name and the ports that the SDK insists on (5671, 443) lead to the broker's one port here, as a hosts file and two listeners would.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

from kombu import Connection, Exchange, Queue

URL, NAME, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])
DIALLED: set[int] = set()
_look_up = socket.getaddrinfo


def look_up(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
    if host == NAME:
        DIALLED.add(int(port))
        host, port = "127.0.0.1", PORT
    return _look_up(host, port, *rest, **options)


def administration(channel: Any) -> list[object]:
    """A queue is made, counted, emptied and deleted."""
    queue = Queue("kombu.passing", Exchange("kombu.passing"), channel=channel)
    queue.declare()
    for number in range(3):
        channel.basic_publish(channel.prepare_message(str(number)), exchange=queue.name, routing_key="")
    counted = queue.queue_declare(passive=True).message_count
    purged = queue.purge()
    left = queue.queue_declare(passive=True).message_count
    queue.delete()
    there = [one.name for one in channel.queue_mgmt_service.list_queues()]
    return [counted, purged, left, queue.name in there]


def main() -> None:
    seen: dict[str, Any] = {}
    with Connection(URL, transport_options={"wait_time_seconds": 20}) as connection:
        queue = connection.SimpleQueue("kombu.orders")
        queue.put({"order": 1})
        queue.put({"order": 2})
        bodies = []
        for _ in range(2):
            message = queue.get(block=True, timeout=30)
            bodies.append(message.payload["order"])
            message.ack()
        seen["bodies"] = sorted(bodies)
        queue.close()
        seen["administration"] = administration(connection.channel())
    seen["dialled"] = sorted(DIALLED)
    print(json.dumps(seen))


if __name__ == "__main__":
    socket.getaddrinfo = look_up
    main()
