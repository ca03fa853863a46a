"""A process of paired senders under steady load: five tasks, each with its own sender; says what became of every send.

Arguments: primary and secondary connection strings, CA file, first number, seconds.
Lines: `ok <id> <milliseconds>` or `failed <id> <error> <state of the path>`.
"""

from __future__ import annotations

import asyncio
import sys

from azure.servicebus import ServiceBusMessage

from tandem.aio import PairedNamespaces

SENDERS = 5


async def main() -> None:
    primary, secondary, ca, first, seconds = sys.argv[1:6]
    loop = asyncio.get_running_loop()
    async with PairedNamespaces(
        primary, secondary, sdk_options={"connection_verify": ca}, primary_namespace="contoso", backlog_queue_count=3,
        failover_interval=1, ping_primary_interval=1, operation_timeout=10,
    ) as pair:  # fmt: skip
        end = loop.time() + float(seconds)
        say("ready")

        async def send(number: int) -> None:
            async with pair.get_queue_sender("orders") as sender:
                count = 0
                while loop.time() < end:
                    message_id = f"{number}-{count}"
                    count += 1
                    started = loop.time()
                    try:
                        await sender.send_messages(
                            ServiceBusMessage(
                                message_id, message_id=message_id, session_id=str(number), subject="load",
                                application_properties={"count": count},
                            )
                        )  # fmt: skip
                        say(f"ok {message_id} {int((loop.time() - started) * 1000)}")
                    except Exception as error:
                        say(f"failed {message_id} {type(error).__name__} {pair.state('orders').state.name}")
                    await asyncio.sleep(0.01)

        await asyncio.gather(*(send(int(first) + i) for i in range(SENDERS)))
        await asyncio.wait_for(pair.monitor("orders").healed.wait(), 30)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
