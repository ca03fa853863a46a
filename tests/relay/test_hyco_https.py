"""The unmodified npm package hyco-https as a listener, ordinary HTTP clients as its senders."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.relay.house import ROOT_KEY, ROOT_NAME, RelayHouse, needs_curl, needs_node, node, relay, relay_house

pytestmark = [pytest.mark.js, needs_node]


@pytest.fixture
async def house() -> AsyncIterator[RelayHouse]:
    async with relay_house(relay("web"), relay("open", requires_client_authorization=False)) as house:
        environ = {"HOST": house.host, "KEY_NAME": ROOT_NAME, "KEY": ROOT_KEY}
        async with (
            node("relay_https.mjs", RELAY_PATH="web", **environ) as one,
            node("relay_https.mjs", RELAY_PATH="open", **environ) as other,
        ):
            await one.until("listening")
            await other.until("listening")
            yield house


async def test_small_and_large_requests_and_responses_pass_whole(house: RelayHouse) -> None:
    auth = {"ServiceBusAuthorization": house.token()}
    async with aiohttp.ClientSession(headers=auth) as http:
        async with http.get(house.http("web/a/b?x=1&sb-hc-id=7&y=2"), headers={"X-Own": "yes"}) as answer:
            told = await answer.json(content_type=None)
            assert (answer.status, answer.reason, answer.headers["X-Answer"]) == (201, "Made", "42")
            assert answer.headers["Via"] == "1.1 relay-tests"
        assert (told["method"], told["url"], told["bytes"]) == ("GET", "/web/a/b?x=1&y=2", 0)
        assert told["headers"]["x-own"] == "yes" and "via" in told["headers"] and "servicebusauthorization" not in told["headers"]
        for size in (1, 1000, 60_000, 64 * 1024, 200_000, 5_000_000):
            async with http.post(house.http("web/echo"), data=b"\x03" * size) as answer:
                told = await answer.json(content_type=None)
            assert (told["method"], told["bytes"], told["sum"]) == ("POST", size, 3 * size)
        async with http.get(house.http("web/large")) as answer:
            assert await answer.read() == b"\x05" * 3_000_000
        async with http.get(house.http("web/pieces")) as answer:
            assert await answer.read() == b"".join(bytes([i]) * 10_000 for i in range(40))


async def test_answers_without_a_body_and_to_head_leave_the_channel_in_order(house: RelayHouse) -> None:
    async with aiohttp.ClientSession(headers={"ServiceBusAuthorization": house.token()}) as http:
        for _ in range(3):
            async with http.delete(house.http("web/empty")) as answer:
                assert (answer.status, await answer.read()) == (204, b"")
            async with http.head(house.http("web/echo")) as answer:
                assert (answer.status, await answer.read()) == (201, b"")
            async with http.put(house.http("web/echo"), data=b"abc") as answer:
                assert (await answer.json(content_type=None))["bytes"] == 3
        answers = await asyncio.gather(*(http.post(house.http("web/echo"), data=b"\x01" * n) for n in range(30)))
        assert [(await answer.json(content_type=None))["bytes"] for answer in answers] == list(range(30))


async def test_a_body_that_trickles_in_goes_to_a_rendezvous(house: RelayHouse) -> None:
    async def trickle() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"\x02" * 50_000
            await asyncio.sleep(0.1)

    async with (
        aiohttp.ClientSession(headers={"ServiceBusAuthorization": house.token()}) as http,
        http.post(house.http("web/echo"), data=trickle()) as answer,
    ):
        assert (await answer.json(content_type=None))["sum"] == 400_000


async def test_the_application_keeps_its_authorization_where_senders_need_none(house: RelayHouse) -> None:
    async with aiohttp.ClientSession() as http:
        async with http.get(house.http("open/x"), headers={"Authorization": "Basic abc"}) as answer:
            assert (await answer.json(content_type=None))["headers"]["authorization"] == "Basic abc"
        async with http.get(house.http("web/x"), headers={"Authorization": house.token("web")}) as answer:
            assert "authorization" not in (await answer.json(content_type=None))["headers"]
        async with http.get(
            house.http("web/x"), headers={"Authorization": "Basic abc", "ServiceBusAuthorization": house.token("web")}
        ) as answer:
            assert (await answer.json(content_type=None))["headers"]["authorization"] == "Basic abc"


@needs_curl
async def test_curl_sends_through_it(house: RelayHouse, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(b"\x01" * 300_000)
    curl = await asyncio.create_subprocess_exec(
        "curl", "-sS", "--fail-with-body", "-H", f"ServiceBusAuthorization: {house.token('web')}", "-T", str(tmp_path / "body"),
        house.http("web/from/curl"), stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(curl.communicate(), 30)
    told = json.loads(out)
    assert (told["method"], told["url"], told["bytes"]) == ("PUT", "/web/from/curl", 300_000)
