from __future__ import annotations

import pytest

from tandem import amqp
from tandem.amqp.sasl import parse_plain
from tests.amqp.peers import AMQP_HEADER, OPEN, SASL_HEADER, Notes, Pair, RawPeer, frame, performative

CONFIG = amqp.ConnectionConfig(sasl=amqp.SaslServer(), sasl_required=True)


def sasl_frame(body: bytes) -> bytes:
    return (8 + len(body)).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body


def init(mechanism: str, *rest: object) -> bytes:
    return sasl_frame(performative(0x41, amqp.Symbol(mechanism), *rest))


OK = sasl_frame(b"\x00\x53\x44\xc0\x03\x01\x50\x00")
AUTH = sasl_frame(b"\x00\x53\x44\xc0\x03\x01\x50\x01")


def test_the_server_echoes_the_header_and_offers_its_mechanisms() -> None:
    peer = RawPeer(config=CONFIG).send(SASL_HEADER)
    said = peer.server.bytes_to_send()
    assert said.startswith(SASL_HEADER)
    offered, _ = amqp.decode_value(said, 8 + 8)
    assert offered == amqp.Described(amqp.ULong(0x40), [amqp.Array(0xA3, ["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"])])


@pytest.mark.parametrize("mechanism", ["ANONYMOUS", "MSSBCBS", "EXTERNAL"])
def test_mechanisms_without_a_password_are_put_to_the_owner(mechanism: str) -> None:
    for welcome in (True, False):
        notes = Notes()
        notes.anonymous = welcome
        peer = RawPeer(notes, CONFIG).send(SASL_HEADER)
        peer.server.bytes_to_send()
        peer.send(init(mechanism, b"", "host"))
        assert notes.mechanisms == [(mechanism, "host")]
        assert peer.server.bytes_to_send() == (OK if welcome else AUTH)
        assert peer.server.closed is not welcome


def test_after_success_the_amqp_header_follows() -> None:
    peer = RawPeer(config=CONFIG).send(SASL_HEADER + init("ANONYMOUS") + AMQP_HEADER + frame(0, OPEN))
    assert peer.notes.opened == 1
    said = peer.server.bytes_to_send()
    assert said.startswith(SASL_HEADER)
    assert OK + AMQP_HEADER in said


def test_the_whole_exchange_may_come_byte_by_byte() -> None:
    stream = SASL_HEADER + init("PLAIN", b"\x00key\x00secret", "host") + AMQP_HEADER + frame(0, OPEN)
    notes = Notes()
    notes.users = {"key": "secret"}
    peer = RawPeer(notes, CONFIG).send(*[bytes((b,)) for b in stream])
    assert notes.opened == 1
    assert peer.server.bytes_to_send().count(OK) == 1


@pytest.mark.parametrize(
    ("response", "welcome"),
    [
        (b"\x00key\x00secret", True),
        (b"authzid\x00key\x00secret", True),
        (b"\x00key\x00wrong", False),
        (b"\x00nobody\x00secret", False),
        (b"key secret", False),
        (b"\x00key\x00secret\x00more", False),
        (b"\x00\xff\x00\xff", False),
        (b"", False),
    ],
)
def test_plain_names_a_user_and_a_password(response: bytes, welcome: bool) -> None:
    notes = Notes()
    notes.users = {"key": "secret"}
    peer = RawPeer(notes, CONFIG).send(SASL_HEADER)
    peer.server.bytes_to_send()
    peer.send(init("PLAIN", response))
    assert peer.server.bytes_to_send() == (OK if welcome else AUTH)
    assert peer.server.closed is not welcome


def test_plain_without_an_initial_response_is_asked_for_it() -> None:
    notes = Notes()
    notes.users = {"key": "secret"}
    peer = RawPeer(notes, CONFIG).send(SASL_HEADER)
    peer.server.bytes_to_send()
    peer.send(init("PLAIN"))
    assert peer.server.bytes_to_send() == sasl_frame(b"\x00\x53\x42\xc0\x03\x01\xa0\x00")
    peer.send(sasl_frame(performative(0x43, b"\x00key\x00secret")))
    assert peer.server.bytes_to_send() == OK


@pytest.mark.parametrize(
    "data",
    [
        init("SCRAM-SHA-256"),
        init("plain"),
        sasl_frame(performative(0x41)),
        sasl_frame(performative(0x41, "ANONYMOUS")),
        sasl_frame(performative(0x43, b"x")),
        sasl_frame(performative(0x44, amqp.UByte(0))),
        sasl_frame(b"\x41"),
        frame(0, OPEN),
        b"\xff" * 64,
        b"\x00\x00\x00\x04\x02\x01\x00\x00",
        AMQP_HEADER,
    ],
)
def test_nonsense_in_place_of_sasl_frames_ends_without_access(data: bytes) -> None:
    peer = RawPeer(config=CONFIG).send(SASL_HEADER)
    peer.server.bytes_to_send()
    peer.send(data)
    assert peer.server.bytes_to_send() == AUTH
    assert peer.server.closed
    assert len(peer.notes.closed) == 1
    assert peer.notes.opened == 0


def test_sasl_is_spoken_once() -> None:
    peer = RawPeer(config=CONFIG).send(SASL_HEADER + init("ANONYMOUS") + SASL_HEADER)
    assert peer.server.closed


def test_plain_parsing() -> None:
    assert parse_plain(b"\x00u\x00p") == ("u", "p")
    assert parse_plain(b"u\x00p") is None
    assert parse_plain(b"\x00\xff\x00p") is None


@pytest.mark.parametrize(
    ("client", "welcome"),
    [
        (amqp.SaslClient(), True),
        (amqp.SaslClient("key", "secret"), True),
        (amqp.SaslClient("key", "wrong"), False),
    ],
)
def test_two_engines_authenticate(client: amqp.SaslClient, welcome: bool) -> None:
    pair = Pair(amqp.ConnectionConfig(sasl=client, hostname="bus"), CONFIG)
    pair.server_notes.users = {"key": "secret"}
    pair.client.open()
    pair.client.begin()
    pair.exchange()
    assert pair.client.closed is pair.server.closed is not welcome
    assert pair.client_notes.opened == (1 if welcome else 0)
    if not welcome:
        assert pair.client_notes.closed[0] is not None
        assert pair.client_notes.closed[0].condition == "amqp:unauthorized-access"


def test_a_client_whose_mechanism_is_not_offered_gives_up() -> None:
    pair = Pair(amqp.ConnectionConfig(sasl=amqp.SaslClient("u", "p")), amqp.ConnectionConfig(sasl=amqp.SaslServer(("ANONYMOUS",))))
    pair.client.open()
    pair.exchange()
    assert pair.client.closed
    assert pair.client_notes.opened == 0
