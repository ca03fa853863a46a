"""Two relays as one: both brokers are real, and one of them goes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from azure.core.credentials import AccessToken

from tandem.aio.relay import (
    BothRelaysUnavailableError,
    ReissueRefusedError,
    RelayEndpoint,
    RelayListener,
    RelayPair,
    RelayRequest,
    RelayResponse,
    RelayUnavailableError,
)
from tandem.client.event_log import EventLog
from tandem.client.tokens import TokenUnavailableError
from tandem.model.clock import SystemClock
from tests.relay.house import RelayHouse, relay, relay_house


def endpoint(house: RelayHouse, name: str) -> RelayEndpoint:
    return RelayEndpoint.from_connection_string(house.connection_string, name)


class Houses:
    """Two data centres: `myPrimaryService` in one, `mySecondaryService` in the other."""

    def __init__(self, one: RelayHouse, other: RelayHouse) -> None:
        self.houses = (one, other)
        self.endpoints = (endpoint(one, "myPrimaryService"), endpoint(other, "mySecondaryService"))
        self.served: Counter[str] = Counter()

    def pair(self, **options: Any) -> RelayPair:
        return RelayPair(*self.endpoints, **options)

    async def handle(self, request: RelayRequest) -> RelayResponse:
        self.served[request.relay] += 1
        if request.path.endswith("/die"):
            self.cut(request.relay)
            await asyncio.sleep(30)
        return RelayResponse(body=request.relay)

    def cut(self, name: str) -> None:
        """Everything that listens there is lost, in the middle of whatever it does."""
        for house in self.houses:
            found = house.entity(name)
            for channel in list(found.listeners) if found is not None else ():
                channel.socket.abort()

    async def stop(self, number: int) -> None:
        await self.houses[number].server.stop()


@asynccontextmanager
async def two_houses() -> AsyncIterator[Houses]:
    async with relay_house(relay("myPrimaryService")) as one, relay_house(relay("mySecondaryService")) as other:
        yield Houses(one, other)


async def test_a_client_picks_either_endpoint_at_random_and_the_service_answers_on_both() -> None:
    async with two_houses() as both, both.pair().listen() as listener:
        listener.handle_http(both.handle)
        await asyncio.gather(*(one.wait_online(10) for one in listener.listeners))
        assert set(listener.health.values()) == {True}
        for chosen, name in ((0, "myPrimaryService"), (1, "mySecondaryService")):
            async with both.pair(choose=lambda n, chosen=chosen: chosen) as pair:
                assert (await pair.request("GET")).text == name
        picked = {both.pair().active for _ in range(60)}
        assert picked == set(both.endpoints)


async def test_a_failed_request_is_made_again_at_the_backup_and_the_roles_switch() -> None:
    async with two_houses() as both, both.pair().listen() as listener:
        listener.handle_http(both.handle)
        await asyncio.gather(*(one.wait_online(10) for one in listener.listeners))
        events: list[tuple[str, str]] = []
        async with both.pair(choose=lambda n: 0, on_event=lambda event: events.append((event.kind, event.path))) as pair:
            assert (await pair.request("POST", data=b"x")).text == "myPrimaryService"
            await both.stop(0)
            assert (await pair.request("POST", data=b"x")).text == "mySecondaryService"
            assert (pair.active, pair.backup) == (both.endpoints[1], both.endpoints[0])
            assert (await pair.request("POST", data=b"x")).text == "mySecondaryService"
            assert isinstance(pair.last_error(both.endpoints[0]), RelayUnavailableError)
            assert events == [("path-failed-over", str(both.endpoints[0])), ("roles-switched", "myPrimaryService")]
            counts = pair.counters.path("myPrimaryService")
            assert (counts.sent_primary, counts.diverted, counts.failed) == (2, 1, 0)


async def test_when_both_fail_the_roles_stay_and_the_error_has_both_causes() -> None:
    async with two_houses() as both, both.pair(choose=lambda n: 0) as pair:
        await both.stop(0)
        with pytest.raises(BothRelaysUnavailableError) as failed:
            await pair.request("GET")
        assert [type(cause) for cause in failed.value.causes] == [RelayUnavailableError, RelayUnavailableError]
        assert "cannot be reached" in str(failed.value.causes[0]) and "no listener" in str(failed.value.causes[1])
        assert pair.active is both.endpoints[0]
        assert pair.counters.path("myPrimaryService").failed == 1


async def test_what_may_have_been_delivered_is_repeated_only_if_that_is_safe_or_asked_for() -> None:
    async with two_houses() as both, both.pair().listen() as listener:
        listener.handle_http(both.handle)

        async def online() -> None:
            await asyncio.gather(*(one.wait_online(10) for one in listener.listeners))

        await online()
        async with both.pair(choose=lambda n: 0) as pair:

            async def ask(method: str, **options: Any) -> str:
                await online()
                both.served.clear()
                return (await pair.request(method, "die", **options)).text

            with pytest.raises(ReissueRefusedError, match="not safe to repeat") as refused:
                await ask("POST", data=b"x")
            assert isinstance(refused.value.__cause__, RelayUnavailableError) and refused.value.delivered
            assert (both.served["myPrimaryService"], both.served["mySecondaryService"]) == (1, 0)
            with pytest.raises(ReissueRefusedError):
                await ask("GET", reissue="never")
            with pytest.raises(BothRelaysUnavailableError):  # each end dies of it in turn
                await ask("PUT", data=b"x")
            assert (both.served["myPrimaryService"], both.served["mySecondaryService"]) == (1, 1)
            with pytest.raises(BothRelaysUnavailableError):
                await ask("POST", data=b"x", reissue=lambda method, error: method == "POST")
            assert both.served["mySecondaryService"] == 1

            async def once() -> AsyncIterator[bytes]:
                yield b"x"

            with pytest.raises(ReissueRefusedError):
                await ask("PUT", data=once())
            assert both.served["mySecondaryService"] == 0


async def test_a_preferred_endpoint_is_returned_to_once_it_serves() -> None:
    async with two_houses() as both, both.pair().listen() as listener:
        listener.handle_http(both.handle)
        await asyncio.gather(*(one.wait_online(10) for one in listener.listeners))
        async with both.pair(prefer="primary", failback_after=0.0, choose=lambda n: 1) as pair:
            assert (await pair.request("GET")).text == "myPrimaryService"
            both.cut("myPrimaryService")
            first = listener.listeners[0]
            while first.online:
                await asyncio.sleep(0.01)
            assert (await pair.request("POST")).text == "mySecondaryService"
            await first.wait_online(10)
            assert (await pair.request("POST")).text == "myPrimaryService"
            assert pair.active is both.endpoints[0]


async def test_streams_are_opened_at_the_backup_too() -> None:
    async with two_houses() as both, both.pair().listen() as listener, both.pair(choose=lambda n: 0) as pair:
        await asyncio.gather(*(one.wait_online(10) for one in listener.listeners))
        await both.stop(0)

        async def echo() -> None:
            async for stream in listener:
                async for message in stream:
                    await stream.send(message)

        echoing = asyncio.create_task(echo())
        async with pair.connect() as stream:
            await stream.send("hello")
            assert await stream.receive() == "hello"
        assert pair.active is both.endpoints[1]
        echoing.cancel()


async def test_outages_stand_in_the_event_log_that_availability_reads(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "relay-events.jsonl", "client-1")
    async with two_houses() as both, both.pair().listen() as listener:
        listener.handle_http(both.handle)
        await asyncio.gather(*(one.wait_online(10) for one in listener.listeners))
        async with both.pair(choose=lambda n: 0, on_event=log) as pair:
            both.cut("myPrimaryService")
            while listener.listeners[0].online:
                await asyncio.sleep(0.01)
            await pair.request("GET")
            log.count(pair.counters, SystemClock().now_ms)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "relay-events.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["source"], line["who"]) for line in lines] == [
        ("path-failed-over", "client", "client-1"),
        ("roles-switched", "client", "client-1"),
        ("counters", "client", "client-1"),
    ]
    assert (lines[-1]["attempted"], lines[-1]["diverted"], lines[-1]["failed"]) == (1, 1, 0)


async def test_a_listener_that_is_closed_ends_every_iteration_and_turns_away_what_nobody_has_taken() -> None:
    async with two_houses() as both:
        listener = both.pair().listen()
        await listener.start()
        await asyncio.gather(*(one.wait_online(10) for one in listener.listeners))
        async with both.pair() as pair:
            streams = [await pair.open() for _ in range(5)]
            taken = await asyncio.wait_for(anext(aiter(listener)), 20)
            await listener.close()
            codes = []
            for stream in streams:
                try:
                    await asyncio.wait_for(stream.send("x"), 5)
                    await asyncio.wait_for(stream.receive(), 1)
                except (RelayUnavailableError, TimeoutError):
                    codes.append(stream.close_code)
            assert sorted(codes, key=str) == [1001, 1001, 1001, 1001, None], "the one that was taken goes on"
            assert await taken.receive() == "x"
            for _ in range(2):
                assert [stream async for stream in listener] == []
            for stream in streams:
                await stream.close()


class NoToken:
    """A credential whose issuer is down."""

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        raise TokenUnavailableError("the issuer is down")


async def test_an_endpoint_for_which_no_token_is_to_be_had_is_out_of_reach(caplog: pytest.LogCaptureFixture) -> None:
    async with relay_house(relay("myPrimaryService")) as one, relay_house(relay("mySecondaryService")) as other:
        both = Houses(one, other)
        both.endpoints = (RelayEndpoint(both.endpoints[0].host, "myPrimaryService", NoToken(), tls=False), both.endpoints[1])
        async with both.pair().listen() as listener, both.pair(prefer="primary") as pair:
            listener.handle_http(both.handle)
            await listener.wait_online(10)
            assert list(listener.health.values()) == [False, True]
            assert (await pair.request("POST", data=b"x")).text == "mySecondaryService"
            async with pair.connect():
                assert pair.active is both.endpoints[1]
            error = pair.last_error(both.endpoints[0])
            assert isinstance(error, RelayUnavailableError) and "the issuer is down" in str(error) and not error.delivered
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    "answer",
    [
        b"Content-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\n\r\n\xff\xfe\xfd",
        b"Content-Type: text/plain; charset=klingon\r\nContent-Length: 3\r\n\r\nabc",
        b"Content-Length: 300\r\n\r\nhalf",
        b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    ],
    ids=["no text", "no charset", "half", "half of its chunks"],
)
async def test_a_proxy_that_answers_in_its_own_way_is_an_outage_too(answer: bytes) -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\n" + answer)
        await writer.drain()
        writer.close()

    async with relay_house(relay("mySecondaryService")) as house:
        proxy = await asyncio.start_server(broken, "127.0.0.1", 0)
        both = Houses(house, house)
        both.endpoints = (RelayEndpoint(f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}", "r", tls=False), both.endpoints[1])
        async with RelayListener(both.endpoints[1]) as listener, both.pair(prefer="primary") as pair:
            listener.handle_http(both.handle)
            assert (await pair.request("GET")).text == "mySecondaryService"
            assert "502" in str(pair.last_error(both.endpoints[0]))
        proxy.close()
