"""The HTTP front on real sockets: what clients other than the official ones send, and peers that misbehave."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests
from aiohttp import web

from tandem.model.limits import Limits
from tests.gateway.http.http_house import Echo, HttpHouse, http_house
from tests.waiting import until

QUICK = Limits(http_header_ms_max=200, http_body_ms_max=200, http_body_bytes_max=100_000)


@pytest.fixture(params=["asyncio", "uvloop"])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HttpHouse]:
    with http_house(tmp_path, loop=request.param) as running:
        yield running


@pytest.fixture(params=["asyncio", "uvloop"])
def quick(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HttpHouse]:
    with http_house(tmp_path, loop=request.param, limits=QUICK) as running:
        yield running


def description(kind: str = "Queue", content: str = "") -> str:
    namespace = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
    inner = f'<{kind}Description xmlns="{namespace}" xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{content}</{kind}Description>'
    return f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">{inner}</content></entry>'


def call(house: HttpHouse, method: str, path: str, body: Any = None, token: bool = True, **headers: str) -> requests.Response:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if token:
        sent["Authorization"] = house.token()
    return requests.request(method, f"https://{house.host}{path}", data=body, headers=sent, verify=house.ca, timeout=10)


# --- administration without an SDK


def test_entry_carries_an_etag_that_if_match_compares(house: HttpHouse) -> None:
    created = call(house, "PUT", "/q", description())
    assert created.status_code == 201
    assert created.headers["Content-Type"] == "application/atom+xml;type=entry;charset=utf-8"
    tag = created.headers["ETag"]
    assert call(house, "GET", "/q").headers["ETag"] == tag
    changed = description(content="<MaxDeliveryCount>3</MaxDeliveryCount>")
    assert call(house, "PUT", "/q", changed).status_code == 409
    stale = call(house, "PUT", "/q", changed, If_Match='"0"')
    assert stale.status_code == 412
    assert "SubCode=41200." in stale.text and tag.strip('"') in stale.text
    assert call(house, "PUT", "/q", changed, If_Match=f'"other", {tag}').status_code == 200
    assert call(house, "PUT", "/q", changed, If_Match=tag).status_code == 412  # it changed, and so did its tag
    assert call(house, "DELETE", "/q", If_Match=tag).status_code == 412
    assert call(house, "DELETE", "/q", If_Match="*").status_code == 200
    assert call(house, "PUT", "/q", changed, If_Match="*").status_code == 404


def test_slashes_in_names_may_come_as_they_are(house: HttpHouse) -> None:
    assert call(house, "PUT", "/contoso/x-servicebus-transfer/0", description()).status_code == 201
    assert call(house, "GET", "/contoso%2Fx-servicebus-transfer%2F0").status_code == 200
    assert call(house, "PUT", "/a/topic", description("Topic")).status_code == 201
    assert call(house, "PUT", "/a/topic/Subscriptions/s", description("Subscription")).status_code == 201
    assert call(house, "GET", "/a%2Ftopic/subscriptions/s/rules/$Default").status_code == 200


def test_listing_can_be_filtered_by_prefix(house: HttpHouse) -> None:
    for name in ("a/1", "A/2", "b/1"):
        call(house, "PUT", f"/{name}", description())
    listed = call(house, "GET", "/$Resources/Queues?$filter=startswith(path,%20'a/')%20eq%20true&$top=1")
    assert re.findall(r'<title type="text">([^<]*)</title>', listed.text) == ["Queues", "a/1"]
    assert len(re.findall('<link rel="(?:self|next)" href="[^"]*Resources', listed.text)) == 2
    refused = call(house, "GET", "/$Resources/Queues?$filter=size%20gt%205")
    assert refused.status_code == 400
    assert "supported is startswith(path,'prefix') eq true" in refused.text


def test_filter_goes_with_the_next_page(house: HttpHouse) -> None:
    for name in ("a/1", "a/2", "a/3", "b"):
        call(house, "PUT", f"/{name}", description())
    path, names = "/$Resources/queues?$filter=startswith(path,'a/')%20eq%20true&$top=2", []
    while path:
        page = call(house, "GET", path).text
        names += re.findall(r'<title type="text">([^<]*)</title>', page)[1:]
        following = re.search('rel="next" href="https://[^/]*([^"]*)"', page)
        path = following[1].replace("&amp;", "&") if following else ""
    assert names == ["a/1", "a/2", "a/3"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b'<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]><entry>&b;</entry>',
        b'<!DOCTYPE x SYSTEM "file:///etc/passwd"><entry/>',
        b"<entry>" * 1000,
        description("Topic").replace("Topic", "Relay").encode(),
        description(content="<LockDuration>P1Y</LockDuration>").encode(),
        description(content="<ForwardTo>sb://localhost/none</ForwardTo>").encode(),
        description(content="<RequiresSession>true</RequiresSession>" * 2).encode(),
        description("Rule").encode(),
    ],
)
def test_bad_bodies_cost_their_sender_a_400_and_create_nothing(house: HttpHouse, body: bytes) -> None:
    answer = call(house, "PUT", "/q", body)
    assert answer.status_code == 400
    assert re.fullmatch(r"<Error><Code>400</Code><Detail>SubCode=40000\. .* TrackingId:.*</Detail></Error>", answer.text, re.DOTALL)
    assert house.namespace.entities == {}


def test_conflicting_properties_are_refused_and_nothing_is_left_behind(house: HttpHouse) -> None:
    call(house, "PUT", "/target", description())
    forward = f"<RequiresSession>true</RequiresSession><ForwardTo>sb://{house.host}/target</ForwardTo>"
    answer = call(house, "PUT", "/q", description(content=forward))
    assert answer.status_code == 400 and "RequiresSession and ForwardTo exclude each other" in answer.text
    assert set(house.namespace.entities) == {"target"}


def test_stranger_learns_nothing_and_is_told_how_to_come_back(house: HttpHouse) -> None:
    for path in ("/q", "/$Resources/queues", "/$namespaceinfo", "/$nonsense", "/t/subscriptions/s/rules/r"):
        for method in ("GET", "PUT", "DELETE"):
            answer = call(house, method, path, description() if method == "PUT" else None, token=False)
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == "SharedAccessSignature"
            assert "MissingToken" in answer.text


def test_other_verbs_and_other_hosts_are_refused(house: HttpHouse) -> None:
    assert call(house, "PATCH", "/q").status_code == 405
    assert call(house, "POST", "/q", b"").status_code == 405
    elsewhere = call(house, "GET", "/q", Host="stranger.example")
    assert elsewhere.status_code == 404 and "no namespace answers for the host" in elsewhere.text


def test_unexpected_failure_is_a_500_with_a_tracking_id_and_no_secrets(house: HttpHouse) -> None:
    async def broken(name: str) -> Any:
        raise RuntimeError("secret detail")

    house.namespace.get_entity = broken  # type: ignore[method-assign]
    answer = call(house, "GET", "/q")
    assert answer.status_code == 500
    assert "RuntimeError" in answer.text and "secret" not in answer.text and "TrackingId:" in answer.text


def test_racing_creates_of_one_name_make_one_entity(house: HttpHouse) -> None:
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            created = list(pool.map(lambda _: call(house, "PUT", "/q", description()).status_code, range(8)))
            assert sorted(created) == [201] + [409] * 7
            deleted = list(pool.map(lambda _: call(house, "DELETE", "/q").status_code, range(8)))
            assert sorted(deleted) == [200] + [404] * 7
    assert house.namespace.entities == {}
    assert len(house.front._atom._locks) == 0


async def test_change_goes_on_when_its_client_hangs_up(house: HttpHouse) -> None:
    began, finish, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()
    create, here = house.namespace.create_queue, asyncio.get_running_loop()

    async def slow(wish: Any) -> Any:
        here.call_soon_threadsafe(began.set)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(finish.wait(), here))
        made = await create(wish)
        here.call_soon_threadsafe(finished.set)
        return made

    house.namespace.create_queue = slow  # type: ignore[method-assign]
    async with aiohttp.ClientSession() as session:
        headers = {"Authorization": house.token()}
        request = session.put(f"https://{house.host}/q", data=description(), headers=headers, ssl=house.client_context())
        task = asyncio.ensure_future(request._coro)  # type: ignore[attr-defined]
        await asyncio.wait_for(began.wait(), 10)
        task.cancel()
    finish.set()
    await asyncio.wait_for(finished.wait(), 10)
    assert list(house.namespace.entities) == ["q"]


# --- our own pages


def test_mounted_handlers_serve_their_paths(house: HttpHouse) -> None:
    async def health(request: web.BaseRequest, segments: tuple[str, ...]) -> web.StreamResponse:
        return web.json_response({"path": segments})

    async def console(request: web.BaseRequest, segments: tuple[str, ...]) -> web.StreamResponse:
        return web.Response(text="<html>", content_type="text/html")

    house.front.mount("health", health)
    house.front.mount("console", console)
    with pytest.raises(ValueError, match="served already"):
        house.front.mount("Health", health)
    assert call(house, "GET", "/$tandem/health/deep%2Fer/x", token=False).json() == {"path": ["deep/er", "x"]}
    assert call(house, "GET", "/%24Tandem/Health", token=False).json() == {"path": []}
    assert call(house, "GET", "/health", token=False).json() == {"path": []}
    assert call(house, "PUT", "/health?api-version=2021-05", description()).status_code == 201  # an entity may be called so
    assert call(house, "GET", "/", token=False, Accept="text/html,*/*").text == "<html>"
    assert call(house, "GET", "/", Accept="application/xml").status_code == 404
    assert call(house, "GET", "/$tandem/unknown").status_code == 404


# --- AMQP over WebSocket


@pytest.mark.parametrize("scheme", ["ws", "wss"])
async def test_websocket_is_a_byte_stream_to_the_protocol_inside(house: HttpHouse, scheme: str) -> None:
    big = bytes(range(256)) * 4096  # 1 MiB
    async with aiohttp.ClientSession() as session:
        url, tls = f"{scheme}://{house.host}/$servicebus/websocket", house.client_context()
        async with session.ws_connect(url, protocols=["AMQPWSB10"], ssl=tls, max_msg_size=0) as ws:
            assert ws.protocol == "AMQPWSB10"
            await ws.ping()
            for part in (b"AMQP\x03", b"\x01\x00\x00", big):
                await ws.send_bytes(part)
            got = b""
            while len(got) < 8 + len(big):
                message = await ws.receive_bytes(timeout=10)
                assert len(message) <= 32_768, "the usual limit of Go clients"
                got += message
            assert got == b"AMQP\x03\x01\x00\x00" + big
            await ws.send_bytes(b"quit")
            assert await ws.receive_bytes(timeout=10) == b"bye"
            assert (await ws.receive(timeout=10)).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)


@pytest.mark.parametrize(
    ("offered", "chosen"), [(["amqp"], "amqp"), (["other", "amqp"], "amqp"), (["amqp", "AMQPWSB10"], "amqp"), (["AMQPWSB10"], "AMQPWSB10")]
)
async def test_websocket_is_answered_with_a_sub_protocol_that_was_offered(house: HttpHouse, offered: list[str], chosen: str) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"ws://{house.host}/$servicebus/websocket", protocols=offered) as ws,
    ):
        assert ws.protocol == chosen
        await ws.send_bytes(b"x")
        assert await ws.receive_bytes(timeout=10) == b"x"


async def test_websocket_tells_the_protocol_when_the_peer_is_gone(house: HttpHouse) -> None:
    Echo.ends.clear()
    async with aiohttp.ClientSession() as session:
        url = f"ws://{house.host}/$servicebus/websocket"
        async with session.ws_connect(url, protocols=["AMQPWSB10"]) as ws:
            await ws.send_bytes(b"x")
            assert await ws.receive_bytes(timeout=10) == b"x"
        ws = await session.ws_connect(url, protocols=["AMQPWSB10"])
        await ws.send_bytes(b"x")
        await ws.receive_bytes(timeout=10)
        assert ws._response.connection is not None and ws._response.connection.transport is not None
        ws._response.connection.transport.abort()  # no close frame, no FIN
    await until(lambda: Echo.ends == ["lost", "lost"], 10)


async def test_websocket_without_the_sub_protocol_or_with_text_is_refused(house: HttpHouse) -> None:
    url = f"ws://{house.host}/$servicebus/websocket"
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await session.ws_connect(url)
        assert refused.value.status == 400
        async with session.get(url.replace("ws:", "http:")) as answer:
            assert answer.status == 426
        async with session.ws_connect(url, protocols=["other", "AMQPWSB10"]) as ws:
            await ws.send_str("AMQP")
            message = await ws.receive(timeout=10)
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, aiohttp.WSCloseCode.UNSUPPORTED_DATA)


def websocket(house: HttpHouse) -> socket.socket:
    """A connection on which the upgrade has been answered; frames are up to the test."""
    raw = socket.create_connection(("127.0.0.1", house.port), timeout=10)
    raw.sendall(
        b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: AMQPWSB10\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += raw.recv(1)
    assert answer.startswith(b"HTTP/1.1 101")
    return raw


def ends(raw: socket.socket) -> bool:
    """Nothing more comes, and the connection is over."""
    try:
        raw.sendall(masked(0x88, b"\x03\xea"))
        return raw.recv(65_536) == b""
    except (BrokenPipeError, ConnectionResetError):
        return True


def masked(first: int, payload: bytes) -> bytes:
    size = bytes((0x80 | len(payload),)) if len(payload) < 126 else b"\xfe" + len(payload).to_bytes(2, "big")
    return bytes((first,)) + size + b"mask" + bytes(byte ^ b"mask"[at % 4] for at, byte in enumerate(payload))


def test_websocket_messages_that_are_small_and_many_all_arrive_in_order(house: HttpHouse) -> None:
    texts = [b"%d," % number for number in range(5_000)]
    with websocket(house) as raw:
        raw.sendall(b"".join(masked(0x89, b"") + masked(0x82, b"") + masked(0x82, text) for text in texts) + masked(0x82, b"quit"))
        reader = raw.makefile("rb")
        got = b""
        while not got.endswith(b"bye"):
            kind, size = reader.read(2)
            payload = reader.read(int.from_bytes(reader.read(2), "big") if size == 126 else size)
            got += payload if kind == 0x82 else b""
        assert got == b"".join(texts) + b"bye"


@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "byte-by-byte"])
def test_websocket_frames_that_are_not_masked_end_the_connection(house: HttpHouse, pieces: bool) -> None:
    with websocket(house) as raw:
        raw.sendall(masked(0x82, b"x" * 300))
        assert b"x" * 300 in raw.recv(65_536)
        data = b"\x82\x03raw" + masked(0x82, b"after")
        for part in [data[at : at + 1] for at in range(len(data))] if pieces else [data]:
            try:
                raw.sendall(part)
            except (BrokenPipeError, ConnectionResetError):
                break
        said = b""
        while b"\x88" not in said:
            said += raw.recv(65_536)
        assert b"raw" not in said and b"after" not in said
        close = said[said.index(b"\x88") :]
        assert int.from_bytes(close[2:4], "big") == 1002
        assert ends(raw)


def test_websocket_text_ends_the_connection(house: HttpHouse) -> None:
    with websocket(house) as raw:
        raw.sendall(masked(0x81, b"text"))
        said = raw.recv(1000)
        assert said[0] == 0x88 and int.from_bytes(said[2:4], "big") == 1003
        assert ends(raw)


def test_what_was_received_is_never_active_content(house: HttpHouse) -> None:
    call(house, "PUT", "/q", description())
    page = "<script>alert(document.domain)</script>"
    hostile = {"Set_Cookie": '"session=1"', "Refresh": '"0; url=http://evil"', "Access_Control_Allow_Origin": '"*"', "Priority": '"high"'}
    assert call(house, "POST", "/q/messages", page, Content_Type="text/html", **hostile).status_code == 201
    answer = call(house, "DELETE", "/q/messages/head?timeout=1")
    assert (answer.status_code, answer.text, answer.headers["Content-Type"]) == (200, page, "text/html")
    assert answer.headers["Content-Disposition"] == "attachment"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "sandbox" in answer.headers["Content-Security-Policy"] and "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert answer.headers["Priority"] == '"high"'
    assert not {"Set-Cookie", "Refresh", "Access-Control-Allow-Origin"} & set(answer.headers)
    assert json.loads(answer.headers["Tandem-Properties"])["Set-Cookie"] == "session=1"
    assert call(house, "GET", "/nothing").headers["X-Content-Type-Options"] == "nosniff"


async def test_slow_websocket_reader_pauses_the_writer_inside(house: HttpHouse) -> None:
    """The peer stops reading: the protocol inside is told to stop writing, and to go on once the peer reads."""
    told: asyncio.Queue[str] = asyncio.Queue()
    here = asyncio.get_running_loop()
    total = 16 * 1024 * 1024

    class Flood(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport, self.left, self.paused = transport, total, False
            self.pour()

        def pour(self) -> None:
            while self.left and not self.paused:
                self.transport.write(b"x" * 65_536)
                self.left -= 65_536

        def pause_writing(self) -> None:
            self.paused = True
            here.call_soon_threadsafe(told.put_nowait, "paused")

        def resume_writing(self) -> None:
            self.paused = False
            self.pour()

    house.front._amqp = Flood
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(f"ws://{house.host}/$servicebus/websocket", protocols=["AMQPWSB10"], max_msg_size=0) as ws,
    ):
        assert await asyncio.wait_for(told.get(), 10) == "paused"
        got = 0
        while got < total:
            got += len(await ws.receive_bytes(timeout=10))
        assert got == total


# --- peers that are slow, silent, or too much


def raw(house: HttpHouse, *, tls: bool = False) -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", house.port), timeout=10)
    return house.client_context().wrap_socket(plain, server_hostname="localhost") if tls else plain


def read_all(connection: socket.socket) -> bytes:
    got = b""
    while True:
        try:
            chunk = connection.recv(65_536)
        except (ConnectionResetError, ssl.SSLError):
            return got
        if not chunk:
            return got
        got += chunk


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("start", [b"GET /q HTTP/1.1\r\nHost: x\r\nX-A: ", b"GET "])
def test_header_that_never_ends_is_hung_up(quick: HttpHouse, tls: bool, start: bytes) -> None:
    connection = raw(quick, tls=tls)
    connection.sendall(start)
    assert read_all(connection) == b""
    connection.close()


def test_second_request_on_a_connection_may_not_dawdle_either(quick: HttpHouse) -> None:
    connection = raw(quick)
    connection.sendall(b"GET /q HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.recv(65_536).startswith(b"HTTP/1.1 401 ")
    connection.sendall(b"GET /q HTT")
    assert read_all(connection) == b""
    connection.close()


def test_body_that_never_ends_is_a_408(quick: HttpHouse) -> None:
    connection = raw(quick)
    connection.sendall(b"PUT /q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n<entry>")
    answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 408 ") and b"did not arrive within 200 ms" in answer
    connection.close()


def test_body_beyond_the_limit_is_a_413_announced_or_not(quick: HttpHouse) -> None:
    connection = raw(quick)
    connection.sendall(b"PUT /q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\n\r\n")
    answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 413 ") and b"at most 100000 are allowed" in answer
    connection = raw(quick)
    connection.sendall(b"PUT /q HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    connection.sendall((b"2000\r\n" + b"x" * 0x2000 + b"\r\n") * 16)
    assert connection.recv(65_536).startswith(b"HTTP/1.1 413 ")
    connection.close()


def test_compressed_bodies_are_refused_so_that_none_can_explode(house: HttpHouse) -> None:
    answer = call(house, "PUT", "/q", b"\x1f\x8b", Content_Encoding="gzip")
    assert answer.status_code == 415


def test_headers_beyond_the_limit_are_a_400_and_do_not_fill_the_log(house: HttpHouse, caplog: pytest.LogCaptureFixture) -> None:
    for request in (
        b"GET /q HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 40_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /q HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: 1\r\n" % i for i in range(500)) + b"\r\n",
        b"GET /q BROKEN\r\n\r\n",
        b"GET /q HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    ):
        connection = raw(house)
        connection.sendall(request)
        answer = read_all(connection)
        assert re.match(rb"HTTP/1\.[01] 400 ", answer), request[:40]
        assert b"<Error><Code>400</Code>" in answer and b"aiohttp" not in answer
        connection.close()
    assert caplog.records == []


def test_client_that_asks_before_it_sends_is_told_to_go_on(house: HttpHouse) -> None:
    connection, body = raw(house), description().encode()
    head = f"PUT /q HTTP/1.1\r\nHost: {house.host}\r\nAuthorization: {house.token()}\r\nContent-Length: {len(body)}\r\n"
    head += "Expect: 100-continue\r\n\r\n"
    connection.sendall(head.encode())
    assert connection.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(body)
    assert connection.recv(65_536).startswith(b"HTTP/1.1 201 ")
    connection.close()


def test_addresses_that_cannot_be_decoded_are_a_400(house: HttpHouse) -> None:
    connection = raw(house)
    connection.sendall(b"GET /%ff HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.recv(65_536).startswith(b"HTTP/1.1 400 ")
    connection.close()


def test_traversal_and_odd_names_over_the_wire_reach_nothing(house: HttpHouse) -> None:
    for path in (b"/..%2f..%2fetc", b"/a/../b", b"/%00", b"/%2e%2e", b"/$Resources/../q", b"/caf%C3%A9", b"/a%0d%0aSet-Cookie:x"):
        connection = raw(house)
        body = description().encode()
        head = b"PUT %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        connection.sendall(head % (path, house.token().encode(), len(body)) + body)
        answer = read_all(connection)
        assert answer[9:12] in (b"400", b"404"), (path, answer)
        assert b"Set-Cookie" not in answer.partition(b"\r\n\r\n")[0]
        connection.close()
    assert house.namespace.entities == {}
