"""The channel on which one node asks another, when the other accepts connections and says nothing."""

from __future__ import annotations

import asyncio
import os

import pytest

from tandem.cluster.peers import ClusterNode
from tandem.gateway.amqp import peer_requests
from tandem.gateway.amqp.peer_requests import NodeChannel
from tandem.model.errors import OperationTimeout
from tandem.model.limits import Limits
from tests.cluster.carried import SECRET, Owners


async def test_a_connection_on_which_the_other_node_does_not_answer_is_hung_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_requests, "_CONNECT_SECONDS", 0.1)
    ends: asyncio.Queue[asyncio.Task[bytes]] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.put_nowait(asyncio.ensure_future(reader.read()))
        await asyncio.wait([asyncio.ensure_future(writer.wait_closed())])

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    address = f"127.0.0.1:{port}"
    cluster = ClusterNode(node="a", listen="", secret=SECRET, ownership=lambda namespace: Owners("a", "b"))
    channel = NodeChannel("b", lambda: address, lambda: cluster.config_to("tandem", Limits(), os.urandom))
    for _ in range(3):
        with pytest.raises(OperationTimeout, match="Node 'b' did not answer"):
            await channel.ask("held", {})
        end = await ends.get()
        async with asyncio.timeout(10):
            await end
    server.close()
