"""WebSockets through a relay, with a client library that knows nothing of relays on both sides."""

from __future__ import annotations

import asyncio

import pytest
import websockets

from tests.relay.house import accept, next_command, relay, relay_house


async def test_what_a_sender_says_its_listener_hears_and_the_other_way_round() -> None:
    async with relay_house(relay("hyco")) as house, house.listen("hyco") as channel:
        connecting = asyncio.ensure_future(house.connect("hyco/sub/one", query="a=1&b=%20").__aenter__())
        listener = await accept(channel)
        sender = await connecting
        await sender.send("ümläut")
        assert await listener.recv() == "ümläut"
        await listener.send(b"\x00\xff" * 100_000)
        assert await sender.recv() == b"\x00\xff" * 100_000
        await sender.close(4321, "that is all")
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await listener.recv()
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4321, "that is all")
        assert sender.close_code == 4321


async def test_the_listener_is_told_suffix_query_headers_and_id_of_its_sender_and_nothing_of_the_relays_own() -> None:
    async with relay_house(relay("a/b")) as house, house.listen("A/b") as channel:
        connecting = asyncio.ensure_future(
            house.connect(
                "a/b/c%20d/e", query="x=1&sb-hc-id=my-id&y=%2F", additional_headers={"ServiceBusAuthorization": "t", "X-Own": "1"}
            )
        )
        command = await next_command(channel, "accept")
        connecting.cancel()
    address = command["address"]
    assert address.startswith(f"ws://{house.host}/$hc/a/b/c%20d/e?x=1&y=%2F&sb-hc-action=accept&sb-hc-id=my-id&")
    assert command["id"] == "my-id"
    headers = {name.lower(): value for name, value in command["connectHeaders"].items()}
    assert headers["x-own"] == "1" and "servicebusauthorization" not in headers
    assert headers["sec-websocket-key"] and headers["sec-websocket-version"] == "13" and headers["host"] == house.host
    assert command["remoteEndpoint"]["address"] == "127.0.0.1"


async def test_a_target_may_be_a_whole_address_as_proxies_send_it() -> None:
    async with relay_house(relay("hyco", requires_client_authorization=False)) as house, house.listen("hyco") as channel:
        _, writer = await asyncio.open_connection("localhost", house.port)
        writer.write(f"GET {house.http('hyco/at/http://else.where/')}?a=1 HTTP/1.1\r\nHost: {house.host}\r\n\r\n".encode())
        assert (await next_command(channel, "request"))["requestTarget"] == "/hyco/at/http://else.where/?a=1"
        writer.close()
