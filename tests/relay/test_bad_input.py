"""Strangers, mistakes and accidents at a relay: each refused with its code, none of them anybody else's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
import websockets

from tandem.model.limits import Limits
from tests.relay.house import RelayHouse, accept, next_command, relay, relay_house
from tests.relay.raw import RawSocket, frame, upgrade


async def refused(connecting: Any) -> tuple[int, str]:
    with pytest.raises(websockets.InvalidStatus) as error:
        await connecting
    response = error.value.response
    assert "TrackingId:" in response.body.decode() and "TrackingId:" in response.reason_phrase
    return response.status_code, response.body.decode()


@asynccontextmanager
async def joined(house: RelayHouse, name: str = "hyco") -> AsyncIterator[tuple[RawSocket, RawSocket]]:
    """(sender, listener), both raw."""
    async with house.listen(name) as channel:
        connecting = asyncio.ensure_future(upgrade(house.uri(name, "connect")))
        command = await next_command(channel, "accept")
        listener = await upgrade(command["address"])
        sender = await connecting
        assert (sender.status, listener.status) == (101, 101)
        yield sender, listener
        sender.close()
        listener.close()


@pytest.mark.slow
async def test_tokens_are_needed_on_each_side_and_must_be_good_and_for_this() -> None:
    async with relay_house(relay("hyco"), relay("other"), relay("open", requires_client_authorization=False)) as house:
        missing = [house.listen("hyco", None), house.connect("hyco", None), house.listen("open", None)]
        bad = ["nonsense", house.token(key="wrong"), house.token(lasts_ms=-600_000), "SharedAccessSignature sr=x&sig=y&se=1"]
        for connecting in missing + [make("hyco", token) for token in bad for make in (house.listen, house.connect)]:
            assert (await refused(connecting))[0] == 401
        elsewhere = [house.listen("hyco", house.token("other")), house.connect("hyco", house.token("other"))]
        wrong_right = [
            house.listen("hyco", house.token("hyco", "sender", "sender-key")),
            house.connect("hyco", house.token("hyco", "listener", "listener-key")),
        ]
        for connecting in elsewhere + wrong_right:
            assert (await refused(connecting))[0] == 403
        async with aiohttp.ClientSession() as http:
            for headers, status in (
                ({}, 401),
                ({"ServiceBusAuthorization": "nonsense"}, 401),
                ({"Authorization": house.token("hyco", "listener", "listener-key")}, 403),
                ({"Authorization": house.token("hyco", "sender", "sender-key")}, 502),
            ):
                async with http.get(house.http("hyco/x"), headers=headers) as answer:
                    assert answer.status == status and "TrackingId:" in await answer.text()
                    assert "Via" not in answer.headers and answer.headers["X-Tandem-Delivered"] == "false"


async def test_all_spellings_of_the_resource_open_it() -> None:
    from tandem.model.clock import SystemClock
    from tandem.model.sas_token import make_token

    async with relay_house(relay("a/hyco")) as house:
        expiry = SystemClock().now_ms() + 600_000
        for scheme in ("http://", "https://", "sb://", "HTTP://", ""):
            for host in ("localhost", "LOCALHOST:443", house.host):
                for path in ("/", "/a/hyco", "/a/hyco/", "/A/HYCO"):
                    token = make_token(f"{scheme}{host}{path}", "RootManageSharedAccessKey", "SAS_KEY_VALUE", expiry)
                    async with house.listen("a/hyco", token):
                        pass
        token = house.token("a/hyco")
        async with websockets.connect(
            f"ws://{house.host}/%24hc/a/hyco?x=1&sb-hc-action=listen", additional_headers={"ServiceBusAuthorization": token}, proxy=None
        ):
            assert len(house.entity("a/hyco").listeners) == 1


async def test_nobody_listens_nobody_knows_the_name_and_nobody_answers() -> None:
    async with relay_house(relay("hyco"), limits=replace(Limits(), relay_accept_ms_max=300, relay_response_ms_max=300)) as house:
        assert (await refused(house.connect("hyco")))[0] == 404
        assert (await refused(house.connect("unknown")))[0] == 404
        assert (await refused(house.listen("unknown")))[0] == 404
        async with house.listen("hyco"), aiohttp.ClientSession(headers={"ServiceBusAuthorization": house.token()}) as http:
            status, text = await refused(house.connect("hyco"))
            assert status == 504 and "300 ms" in text
            for size in (10, 200_000):
                async with http.post(house.http("hyco"), data=b"x" * size) as answer:
                    assert answer.status == 504
        assert len(house.server._front._relay._websockets._desk) == 0  # nothing is waited for any more


async def test_the_26th_listener_is_refused_and_goes_in_when_one_leaves() -> None:
    async with relay_house(relay("hyco")) as house:
        channels = [await house.listen("hyco") for _ in range(25)]
        status, text = await refused(house.listen("hyco"))
        assert status == 403 and "quota" in text
        await channels.pop().close()
        channels.append(await house.listen("hyco"))
        taken: set[int] = set()
        sockets = []
        for _ in range(60):  # each is as likely as another: all the same one 60 times is out of the question
            connecting = asyncio.ensure_future(house.connect("hyco").__aenter__())
            waiting = {asyncio.ensure_future(accept(channel)): n for n, channel in enumerate(channels)}
            done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for one in rest:
                one.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            taken.add(waiting[next(iter(done))])
            sockets += [await connecting, next(iter(done)).result()]
        assert len(taken) > 5
        for socket in [*sockets, *channels]:
            socket.transport.abort()


async def test_a_rendezvous_address_works_once_and_for_nobody_else() -> None:
    async with relay_house(relay("hyco"), relay("other")) as house, house.listen("hyco") as channel:
        connecting = asyncio.ensure_future(house.connect("hyco").__aenter__())
        address = (await next_command(channel, "accept"))["address"]
        for wrong in (
            address.replace("/hyco?", "/other?"),
            address.replace("action=accept", "action=request"),
            address[:-4] + "0000",
            address.partition("&sb-hc-rendezvous")[0],
        ):
            assert (await upgrade(wrong)).status == 403
        listener = await upgrade(address)
        assert listener.status == 101
        assert (await upgrade(address)).status == 403
        (await connecting).transport.abort()


async def test_a_rejected_sender_hears_the_listeners_words_and_the_listener_410() -> None:
    async with relay_house(relay("hyco")) as house, house.listen("hyco") as channel:
        connecting = asyncio.ensure_future(house.connect("hyco").__aenter__())
        address = (await next_command(channel, "accept"))["address"]
        rejecting = await upgrade(address + "&sb-hc-statusCode=451&sb-hc-statusDescription=not%20here")
        assert rejecting.status == 410
        with pytest.raises(websockets.InvalidStatus) as error:
            await connecting
        assert (error.value.response.status_code, "not here" in error.value.response.body.decode()) == (451, True)
        assert "Via" in error.value.response.headers


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(2, b"x", rsv=4), 1002),
        (frame(1, b"\xff\xfe"), 1007),
        (frame(8, (1006).to_bytes(2, "big")), 1002),
        (frame(8, b"\x03"), 1002),
        (frame(2, b"x", masked=False), 1002),
    ],
)
async def test_a_side_that_breaks_the_protocol_is_closed_with_its_code_and_the_other_told(data: bytes, code: int) -> None:
    async with relay_house(relay("hyco")) as house, joined(house) as (sender, listener):
        listener.send(data)
        assert await listener.close_code() == code
        assert await sender.close_code() == 1011
    async with relay_house(relay("hyco")) as house, joined(house) as (sender, listener):
        sender.send(data)
        assert await sender.close_code() == code
        assert await listener.close_code() == 1001


async def test_text_split_inside_a_character_and_messages_in_pieces_arrive_as_sent_in_frames_that_every_client_takes() -> None:
    async with relay_house(relay("hyco")) as house, joined(house) as (sender, listener):
        text = "€".encode()
        sender.send(frame(1, text[:1], fin=False) + frame(9, b"in between") + frame(0, text[1:]))
        assert await listener.frame() == (1, False, text[:1])
        assert await listener.frame() == (0, True, text[1:])
        assert await sender.frame() == (10, True, b"in between")
        sender.send(frame(2, b"z" * 1_000_000))
        body, fin = b"", False
        while not fin:
            opcode, fin, piece = await listener.frame()
            assert len(piece) <= 65_536 and opcode == (2 if not body else 0)
            body += piece
        assert body == b"z" * 1_000_000


async def test_who_goes_without_a_word_is_told_to_the_other_side() -> None:
    async with relay_house(relay("hyco")) as house:
        async with joined(house) as (sender, listener):
            sender.writer.transport.abort()
            assert await listener.close_code() == 1001
        async with joined(house) as (sender, listener):
            listener.writer.transport.abort()
            assert await sender.close_code() == 1011
        while house.entity("hyco").connections:
            await asyncio.sleep(0.01)


async def test_a_half_closed_connection_goes_on_in_the_other_direction() -> None:
    async with relay_house(relay("hyco")) as house, joined(house) as (sender, listener):
        sender.send(frame(8, (1000).to_bytes(2, "big") + b"no more"))
        assert await listener.frame() == (8, True, (1000).to_bytes(2, "big") + b"no more")
        for n in range(3):
            listener.send(frame(2, bytes([n])))
            assert await sender.frame() == (2, True, bytes([n]))
        listener.send(frame(8, (1000).to_bytes(2, "big")))
        assert await sender.close_code() == 1000


async def test_a_listener_is_cut_off_when_its_token_ends_or_is_renewed_badly_and_its_connections_live_on() -> None:
    nearly = -88_500  # tokens are honoured 90 seconds longer than they say, for clocks that differ
    async with (
        relay_house(relay("hyco")) as house,
        house.listen("hyco", house.token(lasts_ms=nearly)) as channel,
        house.listen("hyco", house.token(lasts_ms=nearly)) as kept,
    ):
        await kept.send(json.dumps({"renewToken": {"token": house.token()}}))
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await asyncio.wait_for(channel.recv(), 20)
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1008, "the token expired")
        connecting = asyncio.ensure_future(house.connect("hyco").__aenter__())
        listener = await accept(kept)
        sender = await connecting
        await kept.send(json.dumps({"renewToken": {"token": "nonsense"}}))
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await asyncio.wait_for(kept.recv(), 20)
        assert closed.value.rcvd.code == 1008
        await sender.send("still here")
        assert await listener.recv() == "still here"
        await sender.close()
        await listener.close()


async def test_too_many_headers_are_refused_with_431() -> None:
    many = {f"X-Long-{n}": "v" * 7_000 for n in range(5)}
    async with relay_house(relay("hyco")) as house, house.listen("hyco"), aiohttp.ClientSession() as http:
        assert (await upgrade(house.uri("hyco", "connect"), **many)).status == 431
        async with http.get(house.http("hyco"), headers={"ServiceBusAuthorization": house.token(), **many}) as answer:
            assert answer.status == 431


async def test_no_command_is_larger_than_what_listeners_take_whatever_the_letters_of_its_headers() -> None:
    """.NET reads a command into 64 KiB; in JSON a letter of another alphabet takes six bytes."""
    foreign = {f"X-Foreign-{n}": "ü" * 3_500 for n in range(4)}
    async with (
        relay_house(relay("hyco")) as house,
        house.listen("hyco", max_size=65_536) as channel,
        aiohttp.ClientSession(headers={"ServiceBusAuthorization": house.token(), **foreign}) as http,
    ):
        assert (await upgrade(house.uri("hyco", "connect"), **foreign)).status == 431

        async def ask(**options: Any) -> int:
            async with http.request(url=house.http("hyco"), **options) as answer:
                return answer.status

        for options in ({"method": "GET"}, {"method": "POST", "data": b"small"}):
            asking = asyncio.ensure_future(ask(**options))
            command = await next_command(channel, "request")
            assert set(command) == {"address", "id"}, "it waits where there is room"
            async with websockets.connect(command["address"], compression=None, proxy=None) as rendezvous:
                request = json.loads(await rendezvous.recv())["request"]
                assert sum(len(value) for name, value in request["requestHeaders"].items() if name.startswith("X-Foreign")) >= 14_000
                assert request["body"] == ("data" in options)
                if request["body"]:
                    assert await rendezvous.recv() == b"small"
                await rendezvous.send(json.dumps({"response": {"requestId": request["id"], "statusCode": 204, "body": False}}))
                assert await asking == 204


async def test_responses_that_cannot_be_used_are_the_relays_502_and_strays_are_ignored() -> None:
    async with relay_house(relay("hyco")) as house, house.listen("hyco") as channel:
        async with aiohttp.ClientSession(headers={"ServiceBusAuthorization": house.token()}) as http:
            headers = ({"A": "b\r\nC: d"}, {"Transfer-Encoding: chunked\t": "A"}, {"Content-Length ": "1"}, {"": "A"})
            for response in ({"statusCode": 502}, {"statusCode": "x"}, *({"statusCode": 200, "responseHeaders": one} for one in headers)):
                asking = asyncio.ensure_future(http.get(house.http("hyco")))
                request = await next_command(channel, "request")
                await channel.send(json.dumps({"response": {"requestId": request["id"], "body": False, **response}}))
                assert (await asking).status == 502
            await channel.send(b"nobody asked for this")
            await channel.send("{}")
            await channel.send("no JSON at all")
            await channel.send('{"response":' + "[" * 60_000 + "]" * 60_000 + "}")
            await channel.send(json.dumps({"response": {"requestId": "unknown", "statusCode": 200, "body": True}}))
            await channel.send(b"a body for nobody")
            asking = asyncio.ensure_future(http.post(house.http("hyco"), data=b"abc"))
            request = await next_command(channel, "request")
            assert request["body"] is True and await channel.recv() == b"abc"
            await channel.send(json.dumps({"response": {"requestId": request["id"], "statusCode": "299", "body": True}}))
            await channel.send([b"in ", b"pieces"])
            answer = await asking
            assert (answer.status, await answer.read()) == (299, b"in pieces")
        await channel.send("x" * 200_000)
        with pytest.raises(websockets.ConnectionClosed) as closed:
            await asyncio.wait_for(channel.recv(), 20)
        assert closed.value.rcvd.code == 1009


async def test_a_response_body_may_end_by_closing_with_1000_as_the_java_client_does() -> None:
    async with (
        relay_house(relay("hyco", requires_client_authorization=False)) as house,
        house.listen("hyco") as channel,
        aiohttp.ClientSession() as http,
    ):
        for code, whole in ((1000, True), (1011, False)):
            asking = asyncio.ensure_future(http.get(house.http("hyco")))
            request = await next_command(channel, "request")
            socket = await upgrade(request["address"])
            head = {"requestId": request["id"], "statusCode": 200, "body": True}
            socket.send(frame(1, json.dumps({"response": head}).encode()))
            socket.send(frame(2, b"a" * 100_000, fin=False) + frame(0, b"b" * 100_000, fin=False))
            answer = await asking
            socket.send(frame(8, code.to_bytes(2, "big")))
            if whole:
                assert await answer.read() == b"a" * 100_000 + b"b" * 100_000
            else:
                with pytest.raises(aiohttp.ClientError):
                    await answer.read()


async def test_a_listener_does_not_take_half_of_a_body_for_the_whole_when_its_sender_goes() -> None:
    async with relay_house(relay("hyco", requires_client_authorization=False)) as house, house.listen("hyco") as channel:
        _, writer = await asyncio.open_connection("localhost", house.port)
        writer.write(f"POST /hyco HTTP/1.1\r\nHost: {house.host}\r\nContent-Length: 1000000\r\n\r\n".encode() + b"x" * 100_000)
        socket = await upgrade((await next_command(channel, "request"))["address"])
        assert json.loads((await socket.frame())[2])["request"]["body"] is True
        writer.transport.abort()
        assert await socket.close_code() == 1001


@pytest.mark.parametrize("begun", [frame(2, b"half of it", fin=False), b""], ids=["in its body", "before its body"])
async def test_a_listener_that_closes_its_control_channel_in_a_response_breaks_it(begun: bytes) -> None:
    async with relay_house(relay("hyco", requires_client_authorization=False)) as house, aiohttp.ClientSession() as http:
        channel = await upgrade(house.uri("hyco", "listen"))
        asking = asyncio.ensure_future(http.get(house.http("hyco")))
        request = json.loads((await channel.frame())[2])["request"]
        head = {"requestId": request["id"], "statusCode": 200, "body": True}
        channel.send(frame(1, json.dumps({"response": head}).encode()) + begun + frame(8, (1000).to_bytes(2, "big")))
        with pytest.raises(aiohttp.ClientError):
            await (await asking).read()


async def test_a_sender_that_goes_in_the_middle_of_its_body_leaves_nothing_behind() -> None:
    async with relay_house(relay("hyco")) as house, house.listen("hyco") as channel:
        _, writer = await asyncio.open_connection("localhost", house.port)
        head = f"POST /hyco HTTP/1.1\r\nHost: {house.host}\r\nServiceBusAuthorization: {house.token()}\r\nContent-Length: 1000000\r\n\r\n"
        writer.write(head.encode() + b"x" * 100_000)
        request = await next_command(channel, "request")
        assert set(request) == {"address", "id"}
        async with websockets.connect(request["address"], proxy=None, compression=None) as socket:
            assert json.loads(await socket.recv())["request"]["method"] == "POST"
            writer.transport.abort()
            with pytest.raises(websockets.ConnectionClosed):
                await asyncio.wait_for(socket.recv(), 20)
        while house.entity("hyco").requests:
            await asyncio.sleep(0.01)
        assert not any(one.exchanges for one in house.entity("hyco").listeners)


async def test_a_sub_protocol_that_cannot_be_answered_is_refused_and_the_relay_goes_on() -> None:
    async with relay_house(relay("hyco")) as house:
        for action in ("listen", "connect"):
            assert (await upgrade(house.uri("hyco", action), Sec_WebSocket_Protocol="€uro")).status == 400
        async with joined(house) as (sender, listener):
            sender.send(frame(1, b"hello"))
            assert await listener.frame() == (1, True, b"hello")


@pytest.mark.slow
async def test_a_million_small_messages_arrive_in_order() -> None:
    async with relay_house(relay("hyco"), limits=replace(Limits(), relay_ping_ms=600_000)) as house, joined(house) as (sender, listener):
        count = 1_000_000
        block = b"".join(frame(2, bytes([n % 251])) for n in range(251 * 40))
        expected = b"".join(bytes([0x82, 1, n % 251]) for n in range(251 * 40))
        blocks = count // (251 * 40) + 1

        async def pour() -> None:
            for _ in range(blocks):
                sender.send(block)
                await sender.writer.drain()

        pouring = asyncio.create_task(pour())
        for _ in range(blocks):
            assert await asyncio.wait_for(listener.reader.readexactly(len(expected)), 60) == expected
        await pouring
