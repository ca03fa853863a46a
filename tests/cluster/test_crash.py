"""Two nodes, of which the one that serves is killed in a loop under load, with every kind of entity and operation at once.

`TANDEM_CLUSTER_KILLS=100` makes an evening of it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psycopg
import pytest

from tandem.simulator.amqp_client import AmqpClient, Gone, PeerRefused
from tests.acceptance.crash_everything import SMALL_SEGMENTS, crash_again_and_again
from tests.acceptance.crash_stories import Plain
from tests.acceptance.crashing import CrashingBroker, peek
from tests.postgres import SECRET
from tests.waiting import until

_NOBODY = 1
KILLS = int(os.environ.get("TANDEM_CLUSTER_KILLS", "3"))
CLUSTER = SMALL_SEGMENTS + '[cluster]\nlease = "1500ms"\nsecret_file = "secret"\n'


class Node(CrashingBroker):
    """One node; its directory is its own."""

    def __init__(self, directory: Path, name: str, dsn: str) -> None:
        directory.mkdir()
        super().__init__(directory, CLUSTER)
        (directory / "secret").write_bytes(SECRET)
        self.name = name
        self._dsn = dsn

    def _more_arguments(self) -> list[str]:
        return ["--cluster", self._dsn, "--node", self.name]


class Pair(CrashingBroker):
    """Both nodes. Who is killed is the one that serves, or the one that is just taking over."""

    def __init__(self, directory: Path, dsn: str) -> None:
        super().__init__(directory, "")
        self._dsn = dsn
        self._nodes = {name: Node(directory / name, name, dsn) for name in ("a", "b")}
        self._serving = "a"

    def configure(self, more: str) -> None:
        for node in self._nodes.values():
            node.configure(more)

    async def start(self) -> None:
        for node in self._nodes.values():
            if not node.running:
                await node.start()
        await until(self._has_owner, 60, "a node that has all stores")
        async with asyncio.timeout(60):
            while not await self._serves(self._nodes[self._serving].port):
                await asyncio.sleep(0.05)
        self.port = self._nodes[self._serving].port

    async def _serves(self, port: int) -> bool:
        try:
            client = await AmqpClient.connect(port)
        except Gone:
            return False
        try:
            await peek(client, Plain.queue)
        except (Gone, PeerRefused):
            return False
        finally:
            client.abort()
        return True

    def _has_owner(self) -> bool:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            owners = {row[0] for row in connection.execute("SELECT owner FROM tandem.store")}
        self._serving = owners.pop() if len(owners) == 1 else ""
        return self._serving in self._nodes and self._nodes[self._serving].running

    def asks_to_try_again(self, refused: PeerRefused) -> bool:
        """Stores are opened one after the other."""
        return "Try again" in str(refused)

    async def spawn(self) -> None:
        for node in self._nodes.values():
            if not node.running:
                await node.spawn()

    async def kill(self) -> None:
        victim = self._nodes.get(self._serving)
        if victim is None or not victim.running:
            victim = next(node for node in self._nodes.values() if node.running)
        self.port = _NOBODY  # until it is known who serves
        await victim.kill()
        self.kills += 1

    async def stop(self) -> None:
        await asyncio.gather(*(node.stop() for node in self._nodes.values()))

    def last_words(self) -> str:
        return "\n".join(f"{node.name}: {node.last_words()}" for node in self._nodes.values())


@pytest.mark.slow
@pytest.mark.timeout(240 + 20 * KILLS)
async def test_nothing_confirmed_is_lost_doubled_or_changed_however_often_the_serving_node_is_killed(
    tmp_path: Path, cluster_dsn: str
) -> None:
    await crash_again_and_again(Pair(tmp_path, cluster_dsn), KILLS, mercy=0.8)
