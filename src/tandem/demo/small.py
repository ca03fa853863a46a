"""`tandem demo --small`: one broker, the official SDK, a SIGKILL in the middle, and the proof that nothing was lost. Needs no Spark."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import typer

QUEUE = "demo"


def small_demo(messages: int, as_json: bool) -> None:
    """Send half, kill the broker, start it again, send the rest, receive everything. Exit code 1 if something was lost or doubled."""
    wanted = [f"message-{number}" for number in range(messages)]
    half = messages // 2
    with tempfile.TemporaryDirectory(prefix="tandem-demo-") as name:
        directory = Path(name)
        (directory / "tandem.toml").write_text(f'[[queue]]\nname = "{QUEUE}"\n', encoding="utf-8")
        say = _quiet if as_json else _say
        broker, connection = _start(directory)
        try:
            say(f"a broker is ready: {connection.split(';')[0]}")
            _send(connection, wanted[:half])
            say(f"{half} messages sent with the official SDK; each was accepted once it was on disk")
            broker.kill()
            broker.wait()
            say("the broker was killed (SIGKILL)")
            broker, connection = _start(directory)
            say("and started again on the same directory")
            _send(connection, wanted[half:])
            say(f"{messages - half} more sent")
            received = _receive(connection, messages)
            say(f"{len(received)} received and completed")
        finally:
            broker.terminate()
            broker.wait()
    verdict = judge(wanted, received)
    if as_json:
        print(json.dumps(verdict))
    else:
        print("  ".join(f"{name} {count}" for name, count in verdict.items()))
    if verdict["lost"] or verdict["duplicated"]:
        raise typer.Exit(1)


def judge(wanted: list[str], received: list[str]) -> dict[str, int]:
    """What was sent against what came."""
    return {
        "sent": len(wanted),
        "delivered": len(set(received) & set(wanted)),
        "lost": len(set(wanted) - set(received)),
        "duplicated": len(received) - len(set(received)),
    }


def _start(directory: Path) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "tandem", "serve", "--dev", "--port", "0", "--data", "data"]
    broker = subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True)
    assert broker.stdout is not None
    connection = ""
    for line in broker.stdout:
        if line.startswith("connection string: "):
            connection = line.partition(": ")[2].strip()
        if line.startswith("ready"):
            return broker, connection
    raise typer.Exit(broker.wait() or 1)


def _send(connection: str, bodies: list[str]) -> None:
    from azure.servicebus import ServiceBusClient, ServiceBusMessage

    client: Any = ServiceBusClient.from_connection_string(connection)
    with client, client.get_queue_sender(QUEUE) as sender:
        for start in range(0, len(bodies), 100):
            sender.send_messages([ServiceBusMessage(body, message_id=body) for body in bodies[start : start + 100]])


def _receive(connection: str, count: int) -> list[str]:
    """Until all have come, or nothing comes any more."""
    from azure.servicebus import ServiceBusClient

    received: list[str] = []
    client: Any = ServiceBusClient.from_connection_string(connection)
    with client, client.get_queue_receiver(QUEUE) as receiver:
        while True:
            batch = receiver.receive_messages(max_message_count=100, max_wait_time=5 if len(received) < count else 1)
            if not batch:
                return received
            for message in batch:
                receiver.complete_message(message)
                received.append(str(message))


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def _quiet(text: str) -> None:
    """JSON only."""
