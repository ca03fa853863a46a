from __future__ import annotations

import pytest

from tandem import amqp
from tandem.amqp import errors
from tandem.amqp.performatives import Attach, Begin, Detach, Ending, Open
from tests.amqp.peers import (
    AMQP_HEADER,
    BEGIN,
    OPEN,
    SASL_HEADER,
    LinkNotes,
    Notes,
    Pair,
    RawPeer,
    attach,
    frame,
    notes_of,
    parse,
    performative,
    transfer,
)

EMPTY = b"\x00\x00\x00\x08\x02\x00\x00\x00"


def conversation() -> bytes:
    """What a client says from its first byte to its last, pipelined."""
    return b"".join(
        (
            AMQP_HEADER,
            frame(0, OPEN),
            frame(1, BEGIN),
            EMPTY,
            frame(1, attach("in", 1, False)),
            frame(1, attach("out", 2, True)),
            frame(1, performative(0x13, 0x40000000, 100, 0, 100, 2, 0, 10)),
            frame(1, transfer(1, 0, b"\x00\x00\x00\x01", b"first")),
            frame(1, transfer(1, 1, b"\x00\x00\x00\x02", b"sec", more=True)),
            frame(1, performative(0x14, 1, None, None, None, None, False) + b"ond"),
            frame(1, transfer(1, 300, b"\x00\x00\x00\x03", b"third", settled=True)),
            frame(1, performative(0x16, 1, True)),
            frame(1, performative(0x17)),
            frame(0, performative(0x18)),
        )
    )


def play(*chunks: bytes) -> tuple[RawPeer, bytes]:
    peer = RawPeer()
    said: list[bytes] = []
    for chunk in chunks:
        peer.send(chunk)
        said.append(peer.server.bytes_to_send())
    return peer, b"".join(said)


def test_a_pipelined_conversation_is_answered_frame_by_frame() -> None:
    peer, said = play(conversation())
    kinds = [type(p) for _, p in parse(said)]
    assert said.startswith(AMQP_HEADER)
    assert [k for k in kinds if k in (Open, Begin, Attach, Detach, Ending)] == [Open, Begin, Attach, Attach, Detach, Ending, Ending]
    assert peer.server.closed
    sender, receiver = peer.notes.links
    assert [t[:4] for t in notes_of(sender).transfers] == [
        (0, b"\x00\x00\x00\x01", b"first", False),
        (1, b"\x00\x00\x00\x02", b"second", False),
        (300, b"\x00\x00\x00\x03", b"third", True),
    ]
    assert notes_of(receiver).flows == [(10, False)]
    assert notes_of(sender).detached == [None]
    assert notes_of(receiver).detached == [None]
    assert peer.notes.ended == peer.notes.sessions
    assert peer.notes.closed == [None]


def outcome_of(peer: RawPeer) -> tuple[object, ...]:
    return (
        peer.server.closed,
        [notes_of(link).transfers for link in peer.notes.links],
        [notes_of(link).flows for link in peer.notes.links],
        [notes_of(link).detached for link in peer.notes.links],
        peer.notes.closed,
    )


def test_the_same_bytes_one_by_one_mean_the_same() -> None:
    whole, said_whole = play(conversation())
    single, said_single = play(*[bytes((byte,)) for byte in conversation()])
    assert outcome_of(single) == outcome_of(whole)
    assert said_single == said_whole


@pytest.mark.parametrize("size", [2, 3, 7, 8, 9, 13, 64, 100])
def test_the_same_bytes_in_pieces_mean_the_same(size: int) -> None:
    stream = conversation()
    whole, said_whole = play(stream)
    pieces, said = play(*[stream[at : at + size] for at in range(0, len(stream), size)])
    assert outcome_of(pieces) == outcome_of(whole)
    assert said == said_whole


def test_bytes_behind_the_close_are_ignored() -> None:
    whole, said_whole = play(conversation())
    for trailing in (b"\x00", b"garbage" * 9, EMPTY, frame(1, BEGIN)):
        peer, said = play(conversation() + trailing)
        assert outcome_of(peer) == outcome_of(whole)
        assert said == said_whole
        peer.send(trailing)
        assert not peer.server.has_output


def test_a_chunk_of_whole_frames_leaves_nothing_buffered() -> None:
    peer = RawPeer().attached()
    peer.send(frame(0, transfer(0, 0, b"t", b"x" * 1000)) * 3)
    assert len(notes_of(peer.link).transfers) == 3
    assert len(peer.server._partial) == 0


def test_empty_frames_are_nothing() -> None:
    peer = RawPeer().opened()
    peer.frames()
    peer.send(EMPTY * 100_000)
    assert not peer.server.has_output
    assert not peer.server.closed


def test_an_extended_header_is_stepped_over() -> None:
    peer = RawPeer().send(AMQP_HEADER)
    body = OPEN
    peer.send((8 + 8 + len(body)).to_bytes(4, "big") + b"\x04\x00\x00\x00" + b"extended" + body)
    assert peer.server.remote_container_id == "raw-peer"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x00\x00\x00\x07\x02\x00\x00\x00", "frame of 7 bytes; 8 is the least"),
        (b"\x00\x00\x00\x00\x02\x00\x00\x00", "frame of 0 bytes; 8 is the least"),
        (b"\x00\x01\x00\x01\x02\x00\x00\x00", "frame of 65537 bytes; max-frame-size is 65536"),
        (b"\xff\xff\xff\xff\x02\x00\x00\x00", "frame of 4294967295 bytes"),
        (b"\x00\x00\x00\x08\x01\x00\x00\x00", "data offset 1 does not lie"),
        (b"\x00\x00\x00\x08\x03\x00\x00\x00", "data offset 3 does not lie"),
        (b"\x00\x00\x00\x08\x02\x01\x00\x00", "frame of type 1"),
        (b"\x00\x00\x00\x08\x02\x07\x00\x00", "frame of type 7"),
        (b"GET / HTTP/1.1\r\n\r\n", "bytes; max-frame-size"),
    ],
)
def test_what_is_no_frame_closes_with_a_framing_error(data: bytes, says: str) -> None:
    for chunks in ([data], [data[i : i + 1] for i in range(len(data))]):
        error = RawPeer().opened().send(*chunks).error()
        assert error.condition == errors.FRAMING_ERROR
        assert error.description is not None and says in error.description


def test_a_frame_too_large_is_refused_before_it_is_buffered() -> None:
    peer = RawPeer().opened()
    peer.frames()
    peer.send(b"\x00\x10\x00\x00\x02\x00\x00\x00")
    assert peer.error().condition == errors.FRAMING_ERROR


@pytest.mark.parametrize(
    ("frames", "condition"),
    [
        ([frame(0, BEGIN)], errors.ILLEGAL_STATE),
        ([frame(0, attach("a", 0, False))], errors.ILLEGAL_STATE),
        ([frame(0, transfer(0, 0, b"", b""))], errors.ILLEGAL_STATE),
        ([frame(0, OPEN), frame(0, OPEN)], errors.ILLEGAL_STATE),
        ([frame(0, OPEN), frame(0, attach("a", 0, False))], errors.NOT_ALLOWED),
        ([frame(0, OPEN), frame(0, transfer(0, 0, b"", b""))], errors.NOT_ALLOWED),
        ([frame(0, OPEN), frame(0, performative(0x15, True, 0))], errors.NOT_ALLOWED),
        ([frame(0, OPEN), frame(0, performative(0x17))], errors.NOT_ALLOWED),
        ([frame(0, OPEN), frame(0, BEGIN), frame(0, BEGIN)], errors.NOT_ALLOWED),
        ([frame(0, OPEN), frame(5000, BEGIN)], errors.FRAMING_ERROR),
        ([frame(0, OPEN), frame(5000, transfer(0, 0, b"", b""))], errors.FRAMING_ERROR),
        ([frame(0, OPEN), frame(0, performative(0x11, amqp.UShort(7), 0, 1, 1))], errors.INVALID_FIELD),
        ([frame(0, performative(0x10, "me", None, 511))], errors.INVALID_FIELD),
    ],
)
def test_frames_out_of_order_close_with_the_condition_of_the_specification(frames: list[bytes], condition: str) -> None:
    peer = RawPeer().send(AMQP_HEADER, *frames)
    found = peer.frames()
    assert isinstance(found[0][1], Open), "a close needs an open before it"
    last = found[-1][1]
    assert isinstance(last, Ending) and last.error is not None
    assert last.error.condition == condition
    assert peer.server.closed


def test_the_open_tells_who_we_are_and_what_we_take() -> None:
    config = amqp.ConnectionConfig(
        container_id="box",
        hostname="bus",
        max_frame_size=4096,
        channel_max=7,
        idle_timeout_ms=90_000,
        properties={amqp.Symbol("product"): "x"},
    )
    opened = RawPeer(config=config).opened().frames()[0][1]
    assert isinstance(opened, Open)
    assert (opened.container_id, opened.hostname, opened.max_frame_size, opened.channel_max, opened.idle_timeout_ms) == (
        "box",
        "bus",
        4096,
        7,
        90_000,
    )
    assert opened.properties == {"product": "x"}


def test_the_peers_open_is_kept() -> None:
    peer = RawPeer().send(AMQP_HEADER)
    peer.send(frame(0, performative(0x10, "c", "h", 1000, amqp.UShort(3), 30_000, None, None, None, None, {amqp.Symbol("p"): "q"})))
    s = peer.server
    assert (s.remote_container_id, s.remote_hostname, s.remote_max_frame_size, s.remote_channel_max) == ("c", "h", 1000, 3)
    assert (s.remote_idle_timeout_ms, s.remote_properties) == (30_000, {"p": "q"})
    assert peer.notes.opened == 1


def test_sessions_echo_the_peers_channel_and_live_beside_each_other() -> None:
    peer = RawPeer().opened().send(frame(3, BEGIN), frame(9, BEGIN))
    begins = [(c, p.remote_channel) for c, p in peer.frames() if isinstance(p, Begin)]
    assert begins == [(3, 3), (9, 9)]
    assert sorted(peer.server.sessions) == [3, 9]
    peer.send(frame(3, performative(0x17)))
    assert sorted(peer.server.sessions) == [9]
    peer.send(frame(3, BEGIN))
    assert sorted(peer.server.sessions) == [3, 9]


def test_frames_behind_an_end_are_ignored() -> None:
    peer = RawPeer().attached().send(frame(0, performative(0x17)))
    peer.frames()
    peer.send(
        frame(0, performative(0x16, 0, True)),
        frame(0, transfer(0, 1, b"t", b"x")),
        frame(0, performative(0x15, True, 1)),
        frame(0, performative(0x17)),
    )
    assert not peer.server.has_output
    assert not peer.server.closed


def test_frames_behind_our_own_end_are_ignored_until_the_peer_ends() -> None:
    peer = RawPeer().attached()
    session = peer.notes.sessions[0]
    session.end(amqp.AmqpError(errors.INTERNAL_ERROR, "x"))
    assert peer.notes.ended == [session]
    end = peer.frames()[-1][1]
    assert isinstance(end, Ending) and end.error == amqp.AmqpError(errors.INTERNAL_ERROR, "x")
    peer.send(frame(0, transfer(0, 1, b"t", b"x")), frame(0, performative(0x16, 0, True)), frame(0, performative(0x17)))
    assert notes_of(peer.link).transfers == []
    assert not peer.server.has_output
    assert peer.notes.ended == [session]
    assert peer.server.sessions == {}
    peer.send(frame(0, BEGIN))
    assert len(peer.notes.sessions) == 2


def test_closing_waits_for_the_peers_close_and_ignores_the_rest() -> None:
    peer = RawPeer().attached()
    peer.server.close(amqp.AmqpError(errors.CONNECTION_FORCED, "maintenance"))
    close = peer.frames()[-1][1]
    assert isinstance(close, Ending) and close.error == amqp.AmqpError(errors.CONNECTION_FORCED, "maintenance")
    assert peer.notes.closed == [amqp.AmqpError(errors.CONNECTION_FORCED, "maintenance")]
    assert not peer.server.closed
    peer.send(frame(0, transfer(0, 1, b"t", b"x")), frame(0, BEGIN), frame(9, transfer(0, 1, b"t", b"x")))
    assert not peer.server.has_output
    peer.send(frame(0, performative(0x18)))
    assert peer.server.closed
    assert len(peer.notes.closed) == 1
    peer.server.close()
    assert not peer.server.has_output


def test_a_peer_that_never_answers_our_close_is_given_up() -> None:
    peer = RawPeer().opened()
    peer.server.close()
    later = peer.server.tick(1_000)
    assert later > 1_000
    assert not peer.server.closed
    assert peer.server.tick(later) == 0
    assert peer.server.closed


def test_everybody_is_told_once_when_the_transport_goes() -> None:
    peer = RawPeer().attached()
    peer.server.lost()
    peer.server.lost()
    assert notes_of(peer.link).detached == [None]
    assert len(peer.notes.ended) == 1
    assert peer.notes.closed == [None]
    assert peer.server.closed


def test_the_peers_error_reaches_links_and_owner() -> None:
    peer = RawPeer().attached()
    error = amqp.Described(amqp.ULong(0x1D), [amqp.Symbol("a:b"), "why", {amqp.Symbol("k"): 1}])
    peer.send(frame(0, performative(0x18, error)))
    expected = amqp.AmqpError("a:b", "why", {"k": 1})
    assert notes_of(peer.link).detached == [expected]
    assert peer.notes.closed == [expected]


def test_errors_always_have_their_three_fields() -> None:
    peer = RawPeer().opened()
    peer.server.bytes_to_send()
    peer.server.close(amqp.AmqpError("a:b"))
    assert peer.server.bytes_to_send().endswith(b"\x00\x53\x1d\xc0\x08\x03\xa3\x03a:b\x40\x40")


def test_an_error_is_cut_to_what_the_peer_can_take() -> None:
    peer = RawPeer().send(AMQP_HEADER, frame(0, performative(0x10, "small", None, 512)))
    peer.server.bytes_to_send()
    peer.server.close(amqp.AmqpError("a:b", "x" * 5000, {amqp.Symbol("k"): "y" * 5000}))
    data = peer.server.bytes_to_send()
    assert len(data) <= 512
    close = parse(data)[-1][1]
    assert isinstance(close, Ending) and close.error is not None
    assert close.error.condition == "a:b"
    assert close.error.description == "x" * 96


def test_an_owner_may_close_from_within_on_open() -> None:
    class Refusing(Notes):
        def on_open(self, connection: amqp.Connection) -> None:
            connection.close(amqp.AmqpError(errors.NOT_FOUND, "no such host"))

    peer = RawPeer(Refusing()).send(AMQP_HEADER, frame(0, OPEN), frame(0, BEGIN))
    kinds = [type(p) for _, p in peer.frames()]
    assert kinds == [Open, Ending]
    assert peer.notes.sessions == []


# -- protocol headers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header", [b"AMQP\x00\x00\x09\x01", b"AMQP\x01\x01\x00\x00", b"AMQP\x02\x01\x00\x00", b"HELLO!!!", b"GET / HT", b"\x00" * 8]
)
@pytest.mark.parametrize("required", [False, True])
def test_an_unknown_header_is_answered_with_ours_and_a_hang_up(header: bytes, required: bool) -> None:
    config = amqp.ConnectionConfig(sasl=amqp.SaslServer(), sasl_required=required)
    peer = RawPeer(config=config).send(header + b"anything else")
    assert peer.server.bytes_to_send() == (SASL_HEADER if required else AMQP_HEADER)
    assert peer.server.closed
    assert len(peer.notes.closed) == 1


def test_a_client_may_skip_sasl_where_it_is_not_required() -> None:
    peer = RawPeer(config=amqp.ConnectionConfig(sasl=amqp.SaslServer())).opened()
    assert peer.notes.opened == 1


def test_a_client_may_not_skip_sasl_where_it_is_required() -> None:
    peer = RawPeer(config=amqp.ConnectionConfig(sasl=amqp.SaslServer(), sasl_required=True)).opened()
    assert peer.server.bytes_to_send() == SASL_HEADER
    assert peer.server.closed
    assert peer.notes.opened == 0


def test_a_sasl_header_where_none_is_spoken_is_answered_with_the_amqp_header() -> None:
    peer = RawPeer().send(SASL_HEADER)
    assert peer.server.bytes_to_send() == AMQP_HEADER
    assert peer.server.closed


def test_a_client_hangs_up_on_a_server_of_another_protocol() -> None:
    notes = Notes()
    client = amqp.Connection(notes, amqp.ConnectionConfig(), False)
    client.open()
    assert client.bytes_to_send().startswith(AMQP_HEADER)
    client.receive_bytes(b"HTTP/1.1 400 Bad Request\r\n")
    assert client.closed
    assert len(notes.closed) == 1


# -- two engines -------------------------------------------------------------------------------------------------------


def test_two_engines_open_begin_and_attach_in_one_round_trip() -> None:
    pair = Pair()
    pair.client.open()
    session = pair.client.begin()
    notes = LinkNotes()
    link = session.attach_sender("s", amqp.Terminus("a"), amqp.Terminus("q"), notes)
    upward = pair.client.bytes_to_send()
    pair.server.receive_bytes(upward)
    pair.client.receive_bytes(pair.server.bytes_to_send())
    assert pair.client_notes.opened == pair.server_notes.opened == 1
    assert notes.attached == [link]
    assert link.credit == 100
    assert pair.client.remote_container_id == "server"
    assert pair.server.remote_container_id == "client"


def test_two_engines_close_politely() -> None:
    pair = Pair()
    sender, receiver = pair.sender()
    pair.client.close()
    pair.exchange()
    assert pair.client.closed and pair.server.closed
    assert notes_of(sender).detached == [None]
    assert notes_of(receiver).detached == [None]


def test_a_client_never_asks_for_more_sessions_than_the_server_allows() -> None:
    pair = Pair(server_config=amqp.ConnectionConfig(channel_max=1))
    pair.session()
    pair.client.begin()
    with pytest.raises(RuntimeError, match="2 sessions"):
        pair.client.begin()


def test_a_session_given_up_before_it_was_answered_is_not_announced() -> None:
    pair = Pair()
    pair.client.open()
    session = pair.client.begin()
    session.end()
    pair.exchange()
    assert pair.client_notes.sessions == []
    assert pair.client.sessions == {} and pair.server.sessions == {}
    assert not pair.client.closed
