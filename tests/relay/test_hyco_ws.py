"""The unmodified npm package hyco-ws, as listener and as sender."""

from __future__ import annotations

import pytest

from tests.relay.house import ROOT_KEY, ROOT_NAME, RelayHouse, needs_node, node, relay, relay_house

pytestmark = [pytest.mark.js, needs_node]


def environ(house: RelayHouse, role: str, **more: str) -> dict[str, str]:
    return {"ROLE": role, "HOST": house.host, "RELAY_PATH": "hyco", "KEY_NAME": ROOT_NAME, "KEY": ROOT_KEY, **more}


async def test_a_listener_and_a_sender_talk_in_text_and_binary_and_part_in_order() -> None:
    async with (
        relay_house(relay("hyco")) as house,
        node("relay_ws.mjs", **environ(house, "listener")) as listener,
    ):
        await listener.until("listening")
        async with node("relay_ws.mjs", **environ(house, "sender", SUFFIX="/deep/er")) as sender:
            assert (await sender.line())["event"] == "open"
            assert await sender.line() == {"event": "message", "text": "text über Grenzen"}
            assert await sender.line() == {"event": "message", "bytes": 300_000, "ok": True}
            assert await sender.line() == {"event": "closed", "code": 1000, "reason": "done"}
            assert (await listener.until("closed"))["code"] == 1000


async def test_any_websocket_client_reaches_it_and_its_sub_protocol_is_answered() -> None:
    async with relay_house(relay("hyco")) as house, node("relay_ws.mjs", **environ(house, "listener")) as listener:
        await listener.until("listening")
        async with house.connect("hyco", subprotocols=["chat", "other"]) as sender:
            assert sender.subprotocol == "chat"
            await sender.send("hello")
            assert await sender.recv() == "hello"
        async with house.connect("hyco") as sender:
            assert sender.subprotocol is None
            await sender.send(b"x" * 1_000_000)
            assert await sender.recv() == b"x" * 1_000_000
