"""A process that sends to sessions of its own, one message after the other, and writes down the id of each that was accepted.

Arguments: primary and secondary connection strings, CA file, number of the process, file. It goes on where the file ends, runs until its
standard input closes, and ends when nothing of its sessions is left in the backlog.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from azure.servicebus import ServiceBusMessage

from tandem.aio import PairedNamespaces
from tests.waiting import until

PROCESSES = 3
SESSIONS = 4


async def main() -> None:
    primary, secondary, ca, number, file = sys.argv[1:6]
    done = Path(file)
    count = max((int(line.rpartition("-")[2]) + 1_000 for line in done.read_text().split()), default=0) if done.exists() else 0
    ending = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    async with PairedNamespaces(
        primary, secondary, sdk_options={"connection_verify": ca}, primary_namespace="contoso", backlog_queue_count=3,
        failover_interval=0, ping_primary_interval=1, operation_timeout=10, keep_session_order=True, enable_syphon=number == "0",
    ) as pair, pair.get_queue_sender("orders") as sender:  # fmt: skip
        with done.open("a") as log:
            while not ending.done():
                session = f"{number}-{count % SESSIONS}"
                try:
                    await sender.send_messages(ServiceBusMessage("x", message_id=f"{session}-{count}", session_id=session))
                except Exception as error:
                    sys.stderr.write(f"{session}-{count}: {error!r}\n")
                else:
                    log.write(f"{session}-{count}\n")
                    log.flush()
                count += 1
                await asyncio.sleep(0.01)
        await until(lambda: not pair.order.held_count("orders"), 300)  # a long story on a slow machine leaves thousands


if __name__ == "__main__":
    asyncio.run(main())
