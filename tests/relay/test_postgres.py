"""A PostgreSQL server behind a relay, its clients before it: psql and psycopg, through one data centre and then the other."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tandem.aio.relay import RelayEndpoint, RelayPair
from tandem.client.relay.bridge import expose, serve_bridge
from tests.postgres import running_engine
from tests.relay.house import RelayHouse, relay, relay_house

psycopg = pytest.importorskip("psycopg", reason="MISSING: psycopg")
SESSION = {"host": "127.0.0.1", "user": "tandem", "dbname": "postgres", "connect_timeout": 20, "autocommit": True}


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with running_engine() as engine:
        yield engine.primary.port


class Way:
    """From a port of this machine to the server, through either of two relays."""

    def __init__(self, one: RelayHouse, port: int, pair: RelayPair) -> None:
        self.one = one
        self.port = port
        self.pair = pair

    async def session(self) -> psycopg.AsyncConnection:
        return await psycopg.AsyncConnection.connect(port=self.port, **SESSION)


@asynccontextmanager
async def way_to(server: int) -> AsyncIterator[Way]:
    async with relay_house(relay("db")) as one, relay_house(relay("db-elsewhere")) as two:
        ends = [RelayEndpoint.from_connection_string(h.connection_string, name) for h, name in ((one, "db"), (two, "db-elsewhere"))]
        async with RelayPair(*ends).listen() as listener, RelayPair(*ends, prefer="primary") as pair:
            await asyncio.gather(*(single.wait_online(20) for single in listener.listeners))
            exposing = asyncio.create_task(expose(listener, "127.0.0.1", server))
            async with await serve_bridge(pair.open, "127.0.0.1", 0) as bridge:
                yield Way(one, bridge.sockets[0].getsockname()[1], pair)
            exposing.cancel()


@pytest.mark.slow
async def test_a_session_with_large_copies_notifications_and_a_cancelled_query_is_as_without_a_relay(server: int) -> None:
    rows = 200_000
    async with way_to(server) as way, await way.session() as session, await way.session() as other:
        await session.execute("CREATE TABLE items (n int PRIMARY KEY, text text)")
        async with session.cursor() as cursor, cursor.copy("COPY items FROM STDIN") as copy:
            for n in range(rows):
                await copy.write_row((n, "über Grenzen"))
        found = await (await other.execute("SELECT count(*), sum(n), min(text) FROM items")).fetchone()
        assert found == (rows, rows * (rows - 1) // 2, "über Grenzen")
        async with other.cursor() as cursor, cursor.copy("COPY items TO STDOUT") as copy:
            assert sum([bytes(part).count(b"\n") async for part in copy]) == rows
        await session.execute("LISTEN news")
        await other.execute("NOTIFY news, 'hello'")
        async for note in session.notifies(timeout=20, stop_after=1):
            assert (note.channel, note.payload) == ("news", "hello")
        sleeping = asyncio.create_task(other.execute("SELECT pg_sleep(60)"))
        busy = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'"
        async with asyncio.timeout(20):
            while (await (await session.execute(busy)).fetchone()) != (1,):
                await asyncio.sleep(0.01)
        await other.cancel_safe(timeout=20)  # a connection of its own, as the protocol has it
        with pytest.raises(psycopg.errors.QueryCanceled):
            await sleeping


@pytest.mark.skipif(shutil.which("psql") is None, reason="MISSING: psql")
async def test_psql_reaches_it(server: int) -> None:
    async with way_to(server) as way:
        command = ["psql", "-X", "-A", "-t", "-h", "127.0.0.1", "-p", str(way.port), "-U", "tandem", "-d", "postgres", "-c"]
        process = await asyncio.create_subprocess_exec(
            *command, "SELECT generate_series(1, 100000)", stdout=asyncio.subprocess.PIPE, env={**os.environ, "PGCONNECT_TIMEOUT": "20"}
        )
        said, _ = await asyncio.wait_for(process.communicate(), 60)
        assert (process.returncode, said.count(b"\n")) == (0, 100_000)


async def test_when_a_relay_goes_idle_and_busy_sessions_break_nothing_is_half_done_and_new_ones_go_through_the_other(server: int) -> None:
    async with way_to(server) as way:
        idle, busy = await way.session(), await way.session()
        await idle.execute("CREATE TABLE once (n int)")
        await idle.execute("BEGIN")
        await busy.execute("BEGIN")
        await busy.execute("INSERT INTO once VALUES (1)")
        pouring = asyncio.create_task(busy.execute("SELECT repeat('x', 1000) FROM generate_series(1, 200000)"))
        await asyncio.sleep(0)
        await way.one.server.stop()
        with pytest.raises(psycopg.OperationalError):
            await asyncio.wait_for(pouring, 30)
        with pytest.raises(psycopg.OperationalError):
            await asyncio.wait_for(idle.execute("SELECT 1"), 30)
        async with await way.session() as again:
            assert (await (await again.execute("SELECT count(*) FROM once")).fetchone()) == (0,), "what was not committed is undone"
            await again.execute("INSERT INTO once VALUES (2)")
        assert way.pair.active is way.pair.endpoints[1]
