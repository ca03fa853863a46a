"""The listener that speaks everything: real sockets, real TLS, on both event loops."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tandem.wire.sniff import Doors, FirstBytes, SniffProtocol, recognise

Scenario = Callable[[], Coroutine[Any, Any, None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Coroutine[Any, Any, None]], None]]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        yield lambda scenario: runner.run(asyncio.wait_for(scenario, 20))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One self-signed certificate for localhost, key and certificate in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "localhost.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + cert.public_bytes(serialization.Encoding.PEM)
    )
    return path


class Echo(asyncio.Protocol):
    """Says its own name, then everything back in the order it came."""

    def __init__(self, name: bytes, log: list[str]) -> None:
        self.name, self.log = name, log

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.log.append(f"{self.name.decode()} made {'tls' if transport.get_extra_info('ssl_object') else 'plain'}")
        self.transport.write(self.name + b":")

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def eof_received(self) -> None:
        self.log.append("eof")

    def connection_lost(self, exc: Exception | None) -> None:
        self.log.append("lost")


class House:
    def __init__(self) -> None:
        self.log: list[str] = []
        self.dropped: asyncio.Queue[str] = asyncio.Queue()
        self.port = 0

    async def plain(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


@asynccontextmanager
async def house(certificate: Path | None, silent_ms_max: int = 10_000) -> AsyncIterator[House]:
    place = House()
    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
    doors = Doors(
        amqp=lambda: Echo(b"amqp", place.log),
        http=lambda: Echo(b"http", place.log),
        tls=context,
        silent_ms_max=silent_ms_max,
        on_dropped=place.dropped.put_nowait,
    )
    server = await asyncio.get_running_loop().create_server(lambda: SniffProtocol(doors), "127.0.0.1", 0)
    place.port = server.sockets[0].getsockname()[1]
    try:
        yield place
    finally:
        server.close()


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


@pytest.mark.parametrize(
    ("first", "opening"),
    [
        (b"", FirstBytes.UNDECIDED),
        (b"A", FirstBytes.UNDECIDED),
        (b"AMQP\x03", FirstBytes.AMQP),
        (b"AMQX", FirstBytes.UNKNOWN),
        (b"\x16", FirstBytes.UNDECIDED),
        (b"\x16\x03\x01", FirstBytes.TLS),
        (b"\x16\x02", FirstBytes.UNKNOWN),
        (b"P", FirstBytes.UNDECIDED),
        (b"PUT /q HTTP/1.1", FirstBytes.HTTP),
        (b"PUTT", FirstBytes.UNKNOWN),
        (b"PRI * HTTP/2.0", FirstBytes.UNKNOWN),
        (b"get / HTTP/1.1", FirstBytes.UNKNOWN),
        (b"\x00", FirstBytes.UNKNOWN),
    ],
)
def test_first_bytes_name_a_protocol_or_none(first: bytes, opening: FirstBytes) -> None:
    assert recognise(first) is opening


@pytest.mark.parametrize(("hello", "name"), [(b"AMQP\x03\x01\x00\x00", b"amqp"), (b"DELETE /q HTTP/1.1\r\n", b"http")])
def test_plain_connection_reaches_its_protocol_with_every_byte(run: Callable[..., None], hello: bytes, name: bytes) -> None:
    async def scenario() -> None:
        async with house(None) as place:
            reader, writer = await place.plain()
            for at in range(len(hello)):  # one byte at a time, so the sniffer has to wait and keep
                writer.write(hello[at : at + 1])
                await writer.drain()
                await asyncio.sleep(0)
            assert await reader.readexactly(5 + len(hello)) == name + b":" + hello
            writer.close()

    run(scenario())


@pytest.mark.parametrize(("hello", "name"), [(b"AMQP\x00\x01\x00\x00", b"amqp"), (b"GET / HTTP/1.1\r\n\r\n", b"http")])
def test_protocol_is_sniffed_again_inside_tls(run: Callable[..., None], certificate: Path, hello: bytes, name: bytes) -> None:
    async def scenario() -> None:
        async with house(certificate) as place:
            reader, writer = await asyncio.open_connection("localhost", place.port, ssl=trusting(certificate), family=socket.AF_INET)
            writer.write(hello)
            assert await reader.readexactly(5 + len(hello)) == name + b":" + hello
            assert place.log == [f"{name.decode()} made tls"]
            writer.close()

    run(scenario())


def test_megabytes_cross_tls_in_order_while_the_reader_pauses(run: Callable[..., None], certificate: Path) -> None:
    payload = bytes(range(256)) * 16_384  # 4 MiB

    class Pausing(Echo):
        def data_received(self, data: bytes) -> None:
            self.transport.pause_reading()
            assert not self.transport.is_reading()
            super().data_received(data)
            asyncio.get_running_loop().call_soon(self.transport.resume_reading)

    async def scenario() -> None:
        log: list[str] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        doors = Doors(amqp=lambda: Pausing(b"amqp", log), http=lambda: Pausing(b"http", log), tls=context)
        server = await asyncio.get_running_loop().create_server(lambda: SniffProtocol(doors), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("localhost", port, ssl=trusting(certificate), family=socket.AF_INET)
        writer.write(b"AMQP")
        writer.write(payload)
        assert await reader.readexactly(5 + 4 + len(payload)) == b"amqp:AMQP" + payload
        writer.close()
        server.close()

    run(scenario())


def test_clean_tls_end_is_told_to_the_protocol_once(run: Callable[..., None], certificate: Path) -> None:
    async def scenario() -> None:
        async with house(certificate) as place:
            reader, writer = await asyncio.open_connection("localhost", place.port, ssl=trusting(certificate), family=socket.AF_INET)
            writer.write(b"AMQP")
            await reader.readexactly(9)
            writer.close()
            assert await reader.read() == b""
            while "lost" not in place.log:
                await asyncio.sleep(0)
            assert place.log == ["amqp made tls", "eof", "lost"]

    run(scenario())


def test_server_side_close_inside_tls_ends_the_peer_cleanly(run: Callable[..., None], certificate: Path) -> None:
    class Brief(Echo):
        def data_received(self, data: bytes) -> None:
            self.transport.write(b"bye")
            self.transport.close()
            assert self.transport.is_closing()
            self.transport.write(b"never sent")

    async def scenario() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        doors = Doors(amqp=lambda: Brief(b"amqp", []), http=lambda: Brief(b"http", []), tls=context)
        server = await asyncio.get_running_loop().create_server(lambda: SniffProtocol(doors), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("localhost", port, ssl=trusting(certificate), family=socket.AF_INET)
        writer.write(b"AMQP")
        assert await reader.read() == b"amqp:bye"  # an end without close_notify would raise here
        writer.close()
        server.close()

    run(scenario())


def test_silent_peer_is_hung_up(run: Callable[..., None]) -> None:
    async def scenario() -> None:
        async with house(None, silent_ms_max=50) as place:
            reader, _ = await place.plain()
            assert await place.dropped.get() == "said nothing that names a protocol within 50 ms"
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            assert place.log == []

    run(scenario())


def test_peer_that_stalls_in_the_handshake_or_after_it_is_hung_up(run: Callable[..., None], certificate: Path) -> None:
    async def scenario() -> None:
        async with house(certificate, silent_ms_max=300) as place:
            _, writer = await place.plain()
            writer.write(b"\x16\x03\x01\x02\x00\x01")  # a ClientHello that never goes on
            await writer.drain()
            assert (await place.dropped.get()).startswith("said nothing")
            reader, _ = await asyncio.open_connection("localhost", place.port, ssl=trusting(certificate), family=socket.AF_INET)
            assert (await place.dropped.get()).startswith("said nothing")
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
            assert place.dropped.empty()

    run(scenario())


@pytest.mark.parametrize("garbage", [b"\x00\x01\x02\x03", b"SSH-2.0-x\r\n", b"\x80\x2e\x01\x03\x01", b"PRI * HTTP/2.0\r\n"])
def test_unknown_protocol_is_hung_up_and_named(run: Callable[..., None], certificate: Path, garbage: bytes) -> None:
    async def scenario() -> None:
        async with house(certificate) as place:
            _, writer = await place.plain()
            writer.write(garbage)
            assert await place.dropped.get() == f"unknown protocol: first bytes {garbage[:8].hex()}"
            assert place.log == []

    run(scenario())


def test_broken_handshakes_are_reported_and_leave_the_listener_serving(run: Callable[..., None], certificate: Path) -> None:
    async def scenario() -> None:
        async with house(certificate) as place:
            _, writer = await place.plain()
            writer.write(b"\x16\x03\x01\x00\x05hello")
            assert (await place.dropped.get()).startswith("TLS handshake failed")
            with pytest.raises(ssl.SSLError):
                await asyncio.open_connection("localhost", place.port, ssl=ssl.create_default_context(), family=socket.AF_INET)
            assert (await place.dropped.get()).startswith("TLS handshake failed")  # it does not trust us
            _, writer = await place.plain()
            writer.write(b"\x16\x03\x01")
            await writer.drain()
            writer.close()
            assert await place.dropped.get() == "TLS handshake failed: the peer hung up"
            reader, writer = await asyncio.open_connection("localhost", place.port, ssl=trusting(certificate), family=socket.AF_INET)
            writer.write(b"GET /")
            assert await reader.readexactly(10) == b"http:GET /"
            assert place.dropped.empty()

    run(scenario())


def test_tls_is_refused_where_it_is_not_spoken(run: Callable[..., None]) -> None:
    async def scenario() -> None:
        async with house(None) as place:
            _, writer = await place.plain()
            writer.write(b"\x16\x03\x01\x02")
            assert await place.dropped.get() == "TLS is not spoken here"

    run(scenario())


def test_tls_inside_tls_is_refused(run: Callable[..., None], certificate: Path) -> None:
    async def scenario() -> None:
        async with house(certificate) as place:
            _, writer = await asyncio.open_connection("localhost", place.port, ssl=trusting(certificate), family=socket.AF_INET)
            writer.write(b"\x16\x03\x01\x02")
            assert await place.dropped.get() == "TLS is not spoken here"

    run(scenario())


def test_corrupted_record_ends_only_its_own_connection(run: Callable[..., None], certificate: Path) -> None:
    """A byte flipped between client and server: the record fails its check and nothing of it is delivered."""

    async def scenario() -> None:
        async with house(certificate) as place:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            client = trusting(certificate).wrap_bio(incoming, outgoing, server_hostname="localhost")
            reader, writer = await place.plain()
            while True:
                try:
                    client.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(65_536))
            client.write(b"AMQP")
            record = bytearray(outgoing.read())
            record[-1] ^= 1
            writer.write(record)
            assert await place.dropped.get() == "hung up before saying anything"
            assert place.log == []

    run(scenario())
