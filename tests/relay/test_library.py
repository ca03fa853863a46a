"""Our own library on both sides of a relay."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tandem.aio.relay import (
    RelayEndpoint,
    RelayListener,
    RelayRefusedError,
    RelayRequest,
    RelayResponse,
    RelaySender,
    RelayUnavailableError,
    ResponseLostError,
    asgi,
)
from tandem.client.tokens import SAS_TYPE, AccessToken, SasCredential
from tests.relay.house import ROOT_KEY, ROOT_NAME, RelayHouse, relay, relay_house


def endpoint(house: RelayHouse, name: str = "hyco") -> RelayEndpoint:
    return RelayEndpoint.from_connection_string(house.connection_string, name)


@asynccontextmanager
async def both_sides() -> AsyncIterator[tuple[RelayHouse, RelayListener, RelaySender]]:
    async with (
        relay_house(relay("hyco")) as house,
        RelayListener(endpoint(house)) as listener,
        RelaySender(endpoint(house)) as sender,
    ):
        yield house, listener, sender


async def test_connections_are_iterated_over_and_carry_text_and_bytes() -> None:
    async with both_sides() as (_, listener, sender):

        async def echo() -> None:
            async for stream in listener:
                assert (stream.path, stream.headers["x-own"], stream.sub_protocol) == ("/sub?a=1", "1", "chat")
                async for message in stream:
                    await stream.send(message)
                assert stream.close_code == 1000

        echoing = asyncio.create_task(echo())
        async with sender.connect("sub", query="a=1", headers={"X-Own": "1"}, sub_protocols=["chat"]) as stream:
            for message in ("text", b"bytes", b"x" * 500_000):
                await stream.send(message)
                assert await stream.receive() == message
        await listener.close()
        await asyncio.wait_for(echoing, 10)


async def test_what_fails_in_the_application_is_told_to_the_sender_at_once() -> None:
    def accept(path: str, headers: dict[str, str]) -> tuple[int, str] | None:
        raise ValueError("not thought of")

    async def nothing(request: RelayRequest) -> Any:
        return None

    async with (
        relay_house(relay("hyco")) as house,
        RelayListener(endpoint(house), accept=accept) as listener,
        RelaySender(endpoint(house)) as sender,
    ):
        listener.handle_http(nothing)
        assert (await asyncio.wait_for(sender.request("GET"), 20)).status == 500
        with pytest.raises(RelayRefusedError) as refused:
            await asyncio.wait_for(sender.open(), 20)
        assert refused.value.status == 500


async def test_a_token_that_could_not_be_renewed_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandem.client.relay.listener._RENEW_SECONDS_MIN", 0.01)
    asked_again = asyncio.Event()

    class Moody:
        """Its issuer is down when the first renewal is due."""

        token_type = SAS_TYPE
        asked = 0

        async def get_token(self, *scopes: str) -> AccessToken:
            self.asked += 1
            if self.asked == 2:
                raise OSError("the issuer is down")
            if self.asked == 3:
                asked_again.set()
            return AccessToken(house.token(), 1)

    async with relay_house(relay("hyco")) as house, RelayListener(RelayEndpoint(house.host, "hyco", Moody(), tls=False)) as listener:
        await asyncio.wait_for(asked_again.wait(), 20)
        assert (listener.online, listener.reconnects) == (True, 0)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_an_endpoint_may_be_an_address_of_ipv6() -> None:
    async def application(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(scope["server"]).encode()})

    async with relay_house(relay("hyco"), address="::1") as house:
        there = RelayEndpoint.from_connection_string(house.connection_string.replace("localhost", "[::1]"), "hyco")
        async with RelayListener(there) as listener, RelaySender(there) as sender:
            listener.handle_http(asgi(application))
            assert json.loads((await sender.request("GET")).body) == ["::1", house.port]
    usual = "Endpoint=sb://[::1];SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
    assert RelayEndpoint.from_connection_string(usual, "hyco").host == "[::1]:5672"


async def test_a_listener_may_reject_and_the_sender_hears_its_words() -> None:
    async with (
        relay_house(relay("hyco")) as house,
        RelayListener(endpoint(house), accept=lambda path, headers: (418, "not for you")),
        RelaySender(endpoint(house)) as sender,
    ):
        with pytest.raises(RelayRefusedError, match="not for you") as refused:
            await sender.open()
        assert refused.value.status == 418


async def test_http_requests_are_answered_by_a_callback_with_bodies_that_stream_both_ways() -> None:
    async def handle(request: RelayRequest) -> RelayResponse:
        if request.path.endswith("/stream"):

            async def twice() -> AsyncIterator[bytes]:
                async for piece in request:
                    yield piece * 2

            return RelayResponse(body=twice(), headers={"Content-Type": "text/plain"})
        if request.path.endswith("/broken"):
            raise ValueError("not told to strangers")
        told = {"method": request.method, "path": request.path, "query": request.query, "bytes": len(await request.read())}
        return RelayResponse(status=202, reason="Taken", headers={"X-Own": "1"}, body=json.dumps(told))

    async def upload() -> AsyncIterator[bytes]:
        for _ in range(50):
            yield b"y" * 100_000

    async with both_sides() as (_, listener, sender):
        listener.handle_http(handle)
        reply = await sender.request("POST", "a b/c", params={"q": "ü"}, data=b"12345")
        assert (reply.status, reply.reason, reply.headers["x-own"]) == (202, "Taken", "1")
        assert json.loads(reply.body) == {"method": "POST", "path": "/hyco/a b/c", "query": "q=%C3%BC", "bytes": 5}
        reply = await sender.request("PUT", "stream", data=upload(), stream=True)
        total = 0
        async for chunk in reply:
            total += len(chunk)
        assert total == 10_000_000
        assert (await sender.request("GET", "broken")).status == 500
        for method in ("PATCH", "PROPFIND", "TRACE", "MKCOL", "REPORT"):
            assert json.loads((await sender.request(method, "x")).body)["method"] == method
        replies = await asyncio.gather(*(sender.request("POST", "x", data=b"z" * n) for n in range(50)))
        assert [json.loads(reply.body)["bytes"] for reply in replies] == list(range(50))


async def test_an_asgi_application_is_served_with_one_line() -> None:
    async def application(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        headers = [(b"content-type", b"text/plain"), (b"x-root", scope["root_path"].encode())]
        await send({"type": "http.response.start", "status": 201, "headers": headers})
        await send({"type": "http.response.body", "body": scope["path"].encode() + b" ", "more_body": True})
        await send({"type": "http.response.body", "body": body * 2})

    async with both_sides() as (_, listener, sender):
        listener.handle_http(asgi(application))
        reply = await sender.request("POST", "some/where", data=b"ab")
        assert (reply.status, reply.headers["X-Root"], reply.body) == (201, "/hyco", b"/hyco/some/where abab")
        reply = await sender.request("POST", "large", data=b"0123456789" * 30_000)
        assert len(reply.body) == len("/hyco/large ") + 600_000


async def test_a_listener_comes_back_when_its_broker_does() -> None:
    states: list[bool] = []
    async with relay_house(relay("hyco")) as house:
        listener = RelayListener(endpoint(house), on_state=lambda _, online, error: states.append(online))
        async with listener:
            await listener.wait_online(10)
            port = house.port
            for channel in list(house.entity("hyco").listeners):
                channel.socket.abort()
            while listener.reconnects == 0:
                await asyncio.sleep(0.02)
            await listener.wait_online(10)
            assert (states, house.port) == ([True, False, True], port)


async def test_refusals_and_outages_are_told_apart() -> None:
    async with relay_house(relay("hyco")) as house:
        wrong = RelayEndpoint(house.host, "hyco", SasCredential(ROOT_NAME, "wrong"), tls=False)
        with pytest.raises(RelayRefusedError, match="InvalidSignature"):
            await RelayListener(wrong).start()
        unknown = RelayEndpoint(house.host, "nothing", SasCredential(ROOT_NAME, ROOT_KEY), tls=False)
        async with RelaySender(unknown) as sender:
            with pytest.raises(RelayUnavailableError, match="no hybrid connection"):
                await sender.open()
        async with RelaySender(endpoint(house)) as sender:
            for attempt in (sender.open(), sender.request("POST", data=b"x")):
                with pytest.raises(RelayUnavailableError, match="no listener") as failed:
                    await attempt
                assert not failed.value.delivered
        nobody = RelayEndpoint("localhost:1", "hyco", tls=False)
        async with RelaySender(nobody) as sender:
            with pytest.raises(RelayUnavailableError, match="cannot be reached"):
                await sender.request("GET")


async def test_a_listener_that_is_lost_in_the_middle_of_its_response_is_noticed() -> None:
    async with both_sides() as (_, listener, sender):
        begun = asyncio.Event()

        async def handle(request: RelayRequest) -> RelayResponse:
            async def pieces() -> AsyncIterator[bytes]:
                yield b"x" * 200_000
                begun.set()
                await asyncio.Event().wait()

            return RelayResponse(body=pieces())

        listener.handle_http(handle)
        reply = await sender.request("GET", stream=True)
        await asyncio.wait_for(begun.wait(), 10)
        await listener.close()
        with pytest.raises(ResponseLostError):
            async for _ in reply:
                pass


def test_without_await_the_same_names_do_the_same() -> None:
    import threading

    import tandem

    started, done, houses = threading.Event(), threading.Event(), []

    async def serve() -> None:
        async with relay_house(relay("hyco")) as house:
            houses.append(house)
            started.set()
            await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        started.wait(20)
        where = tandem.RelayEndpoint.from_connection_string(houses[0].connection_string, "hyco")
        with tandem.RelayListener(where) as listener, tandem.RelaySender(where) as sender:
            listener.handle_http(lambda request: tandem.RelayResponse(body=request.method + request.read().decode()))
            assert sender.request("POST", data=b"!").text == "POST!"

            def echo() -> None:
                for stream in listener:
                    for message in stream:
                        stream.send(message)

            echoing = threading.Thread(target=echo, daemon=True)
            echoing.start()
            with sender.connect() as stream:
                stream.send("hello")
                assert stream.receive() == "hello"
    finally:
        done.set()
        thread.join(20)
