"""A real browser at a relay: a page, its requests and its WebSockets come from a listener behind it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tandem.aio.relay import RelayEndpoint, RelayListener, RelayRequest, RelayResponse
from tests.console.browser import a_browser
from tests.relay.house import relay, relay_house

pytestmark = pytest.mark.slow

PAGE = """<!doctype html><title>behind</title><p id=said></p><script>
const say = words => { document.getElementById("said").textContent += words + "; " };
const show = async () => {
  const answer = await fetch("/site/api?x=1", {method: "POST", body: "z".repeat(300000)});
  say(answer.status + " " + await answer.text());
  const socket = new WebSocket(`ws://${location.host}/$hc/site/talk?sb-hc-action=connect`, ["chat", "other"]);
  socket.binaryType = "arraybuffer";
  socket.onopen = () => { say("open " + socket.protocol); socket.send("grüße"); socket.send(new Uint8Array(200000)); };
  socket.onmessage = event => {
    say(typeof event.data === "string" ? event.data : "bytes " + event.data.byteLength);
    if (typeof event.data !== "string") socket.close(4001, "enough");
  };
  socket.onclose = event => say(`closed ${event.code} ${event.wasClean}`);
};
show();
</script>"""


async def test_a_page_its_requests_and_its_websockets_come_through_a_relay() -> None:
    async def handle(request: RelayRequest) -> RelayResponse:
        if request.path.endswith("/api"):
            return RelayResponse(status=201, body=f"{len(await request.read())} {request.query}")
        return RelayResponse(headers={"Content-Type": "text/html; charset=utf-8"}, body=PAGE)

    closed: list[tuple[int | None, str]] = []

    async def echo(listener: RelayListener) -> None:
        async for stream in listener:
            while True:
                try:
                    message = await stream.receive()
                except Exception:
                    message = None
                if message is None:
                    break
                await stream.send(message)
            closed.append((stream.close_code, stream.close_reason))

    def look(address: str) -> str:
        with a_browser() as browser:
            browser.open(address)
            browser.sees("closed")
            return browser.text()

    async with relay_house(relay("site", requires_client_authorization=False)) as house:
        endpoint = RelayEndpoint.from_connection_string(house.connection_string, "site")
        async with RelayListener(endpoint) as listener:
            listener.handle_http(handle)
            echoing = asyncio.create_task(echo(listener))
            said: Any = await asyncio.to_thread(look, house.http("site/page"))
            assert said == "201 300000 x=1; open chat; grüße; bytes 200000; closed 4001 true;"
            assert closed == [(4001, "enough")]
            echoing.cancel()
