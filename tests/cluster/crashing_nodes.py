"""Two nodes, of which one is killed again and again, as the stories of crashes know a broker."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import psycopg

from tandem.simulator.amqp_client import AmqpClient, Gone, PeerRefused
from tandem.testing.ports import free_port
from tests.acceptance.crash_everything import SMALL_SEGMENTS
from tests.acceptance.crash_stories import Plain
from tests.acceptance.crashing import CrashingBroker, peek
from tests.acceptance.proxy import SlowNetwork
from tests.postgres import SECRET
from tests.waiting import until

_NOBODY = 1
CLUSTER = SMALL_SEGMENTS + '[cluster]\nlease = "1500ms"\nsecret_file = "secret"\n'


class Node(CrashingBroker):
    """One node; its directory is its own."""

    def __init__(self, directory: Path, name: str, dsn: str) -> None:
        directory.mkdir()
        super().__init__(directory, CLUSTER)
        (directory / "secret").write_bytes(SECRET)
        self.name = name
        self._dsn = dsn

    def configure_cluster(self, more: str) -> None:
        """Add to its section of the cluster, before it starts."""
        file = self._directory / "tandem.toml"
        file.write_text(file.read_text().replace("[cluster]\n", f"[cluster]\n{more}"))

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
        for node in self._in_use():
            async with asyncio.timeout(60):
                while not await self._serves(node.port):
                    await asyncio.sleep(0.05)
        self.port = node.port

    def _in_use(self) -> list[Node]:
        """Those that must answer before clients come; the last one is where they go."""
        return [self._nodes[self._serving]]

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
        """Stores are opened one after the other and move, locks end with the line between nodes: the answer says what to do again."""
        return any(words in str(refused) for words in ("ry again", "Attach the link again", "Accept the session again"))

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


class CarryingPair(Pair):
    """Both nodes, seen through the one that has nothing. In turn the line between them is cut, the one that carries is killed, and the
    one that serves."""

    def __init__(self, directory: Path, dsn: str) -> None:
        super().__init__(directory, dsn)
        self._lines: dict[str, SlowNetwork] = {}
        self._turns = itertools.cycle(("cut", "carrying", "serving"))
        self.done: list[str] = []
        """What happened."""

    async def start(self) -> None:
        if not self._lines:
            for name, node in self._nodes.items():
                listen = free_port()
                self._lines[name] = await SlowNetwork(listen).__aenter__()
                node.configure_cluster(f'listen = "127.0.0.1:{listen}"\nadvertise = "127.0.0.1:{self._lines[name].port}"\n')
        await super().start()

    def _in_use(self) -> list[Node]:
        return [self._nodes[self._serving], self._nodes[self._carrying]]

    def asks_to_try_again(self, refused: PeerRefused) -> bool:
        """Connections outlive what they held: a lock may be gone although its client was not."""
        return super().asks_to_try_again(refused) or "lock-lost" in refused.condition

    @property
    def _carrying(self) -> str:
        return next(name for name in self._nodes if name != self._serving)

    async def kill(self) -> None:
        what = next(self._turns)
        if what == "cut" and all(node.running for node in self._nodes.values()):
            for line in self._lines.values():
                line.cut()
            self.kills += 1
        else:
            if what == "carrying" and self._serving:
                self._serving = self._carrying  # it is the one that is killed
            await super().kill()
        self.done.append(what)

    async def stop(self) -> None:
        await super().stop()
        for line in self._lines.values():
            await line.__aexit__()


class SpreadPair(CarryingPair):
    """Both nodes, each with some of the stores; clients begin at the one that has fewer. In turn that one is killed while the line between
    both is cut, that one alone, and the other one."""

    async def start(self) -> None:
        await super().start()
        await until(lambda: set(self._owners()) == set(self._nodes), 60, "stores with both nodes")

    def _owners(self) -> list[str]:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            return [row[0] for row in connection.execute("SELECT owner FROM tandem.store")]

    def _has_owner(self) -> bool:
        """Every store has one that runs."""
        owners = self._owners()
        if not owners or not all(owner in self._nodes and self._nodes[owner].running for owner in owners):
            return False
        self._serving = max(self._nodes, key=owners.count)
        return True

    async def kill(self) -> None:
        what = next(self._turns)
        if what == "cut":
            for line in self._lines.values():
                line.cut()
        if what != "serving" and self._serving:
            self._serving = self._carrying  # it is the one that is killed
        await Pair.kill(self)
        self.done.append(what)

    async def end(self) -> None:
        await asyncio.gather(*(node.kill() for node in self._nodes.values() if node.running))
