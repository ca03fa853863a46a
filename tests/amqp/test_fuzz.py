"""Properties: values and messages survive the round trip, and no bytes whatever do the engine harm."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tandem import amqp
from tests.amqp.peers import AMQP_HEADER, SASL_HEADER, Notes, Pair, RawPeer, attach, frame, notes_of, performative, transfer
from tests.amqp.test_corpus import FILES, GIVEN, read
from tests.amqp.values import BODIES, MESSAGE_PARTS, VALUES, same

RELAXED = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@pytest.mark.slow
@RELAXED
@given(VALUES)
def test_every_value_survives_the_round_trip(value: object) -> None:
    encoded = amqp.encode_value(value)
    decoded, end = amqp.decode_value(encoded + b"\xff", 0)
    assert end == len(encoded) == amqp.skip_value(encoded, 0)
    assert same(decoded, value)
    assert amqp.encode_value(decoded) == encoded


@pytest.mark.slow
@RELAXED
@given(MESSAGE_PARTS, BODIES)
def test_every_message_survives_the_round_trip(parts: dict[str, dict[object, object]], body: tuple[int, object]) -> None:
    payload = amqp.encode_message(**parts, body=body[1], body_kind=body[0])  # type: ignore[arg-type]
    m = amqp.decode_message(payload)
    for name, part in parts.items():
        found = getattr(m, name)
        assert len(found) == len(part)
        assert all(same(found[key], value) for key, value in part.items()), name
    assert m.body_kind == body[0]
    assert same(m.body, body[1])
    s = amqp.scan(payload)
    bare = s.bare(payload)
    assert amqp.decode_message(bare).properties == m.properties


@RELAXED
@given(st.binary(max_size=400))
def test_no_bytes_decode_to_anything_but_a_value_or_a_decode_error(data: bytes) -> None:
    for read_it in (
        lambda: amqp.decode_value(data, 0),
        lambda: amqp.skip_value(data, 0),
        lambda: amqp.scan(data),
        lambda: amqp.decode_message(data),
    ):
        try:
            read_it()
        except amqp.DecodeError as error:
            assert error.description


@RELAXED
@given(VALUES, st.integers(0, 10_000), st.integers(0, 255))
def test_a_value_with_one_byte_changed_is_a_value_or_a_decode_error(value: object, at: int, byte: int) -> None:
    data = bytearray(amqp.encode_value(value))
    data[at % len(data)] = byte
    try:
        decoded, _ = amqp.decode_value(bytes(data), 0)
    except amqp.DecodeError:
        return
    amqp.encode_value(decoded)


def unharmed(peer: RawPeer) -> None:
    """Whatever it was fed, the engine is either closed, having said so once, or waits; and what it says are well-formed frames."""
    said = peer.server.bytes_to_send()
    assert len(peer.notes.closed) == (1 if peer.server.closed else 0)
    assert len(peer.server._partial) <= 65_536
    at = 0
    while at < len(said):
        if said[at : at + 4] == b"AMQP":
            at += 8
            continue
        size = int.from_bytes(said[at : at + 4], "big")
        assert 8 <= size <= len(said) - at
        if size > 8:
            assert amqp.skip_value(said[at : at + size], 8) <= size
        at += size
    for link in peer.notes.links:
        assert len(notes_of(link).detached) <= 1
    if peer.server.closed:
        assert all(len(notes_of(link).detached) == 1 for link in peer.notes.links)
        assert len(peer.notes.ended) == len(peer.notes.sessions)
        assert peer.server.unfinished_bytes == 0


@RELAXED
@given(st.sampled_from(sorted(GIVEN)), st.lists(st.binary(max_size=60), max_size=6))
def test_any_bytes_at_any_stage_close_the_connection_or_leave_it_waiting(stage: str, chunks: list[bytes]) -> None:
    peer = GIVEN[stage]().send(*chunks)
    unharmed(peer)


FIELD = st.one_of(
    VALUES,
    st.integers(0, 5).map(amqp.UInt),
    st.sampled_from([0, 1, 2**31, 2**32 - 1, 0x40000000]).map(amqp.UInt),
    st.booleans(),
    st.none(),
    st.sampled_from(["a", "b"]),
    st.binary(max_size=4),
    st.sampled_from([amqp.Described(amqp.ULong(c), ["x"]) for c in (0x28, 0x29, 0x30, 0x24, 0x25, 0x26, 0x27, 0x1D, 0x34)]),
)
FRAMES = st.tuples(st.integers(0, 2), st.integers(0x10, 0x18), st.lists(FIELD, max_size=12), st.binary(max_size=20))


@pytest.mark.slow
@RELAXED
@given(st.sampled_from(["header", "open", "begun", "attached", "attached-receiver"]), st.lists(FRAMES, max_size=8))
def test_well_formed_frames_with_any_fields_do_no_harm(stage: str, frames: list[tuple[int, int, list[object], bytes]]) -> None:
    peer = GIVEN[stage]()
    for channel, code, fields, payload in frames:
        encoded = amqp.encode_value(amqp.Described(amqp.ULong(code), fields))
        if len(encoded) < 60_000:
            peer.send(frame(channel, encoded + (payload if code == 0x14 else b"")))
    unharmed(peer)


FIRST = 0x40000000
INTERESTING = (0, 1, 0x40, 0x45, 0x53, 0x70, 0x7F, 0x80, 0xA0, 0xC0, 0xD0, 0xFF)
SENSIBLE: list[Callable[[random.Random], bytes]] = [
    lambda r: frame(r.randrange(3), performative(0x11, None, r.randrange(10), r.randrange(50), 10)),
    lambda r: frame(r.randrange(3), attach(r.choice("abc"), r.randrange(4), r.random() < 0.5)),
    lambda r: frame(r.randrange(3), transfer(r.randrange(4), r.randrange(9), b"t", bytes(r.randrange(900)), more=r.random() < 0.3)),
    lambda r: frame(r.randrange(3), performative(0x14, r.randrange(4), None, None, None, None, r.random() < 0.3) + b"rest"),
    lambda r: frame(r.randrange(3), performative(0x14, r.randrange(4), None, None, None, None, None, None, None, None, True)),
    lambda r: frame(
        r.randrange(3), performative(0x13, 0x40000000 + r.randrange(4), r.randrange(9), 0, 9, r.choice([None, 0, 1, 2]), r.randrange(9), 5)
    ),
    lambda r: frame(r.randrange(3), performative(0x15, r.random() < 0.7, FIRST + r.randrange(9), None, r.random() < 0.5)),
    lambda r: frame(r.randrange(3), performative(0x16, r.randrange(4), r.random() < 0.8)),
    lambda r: frame(r.randrange(3), performative(0x17)),
]


class Busy(Notes):
    """Uses everything the engine offers, at random, from within its callbacks."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.dice = dice
        self.answer = self.decide

    def decide(self, link: amqp.Link) -> None:
        if self.dice.random() < 0.2:
            link.refuse(amqp.AmqpError("a:b"))
        elif self.dice.random() < 0.9:
            link.accept(max_message_size=500)

    def stir(self, connection: amqp.Connection) -> None:
        dice = self.dice
        for session in list(connection.sessions.values()):
            for link in list(session.links.values()):
                if isinstance(link, amqp.SenderLink) and link.attached:
                    link.send(bytes(dice.randrange(2000)), b"t", dice.random() < 0.5, None)
                    if link.drain:
                        link.drained()
                elif isinstance(link, amqp.ReceiverLink):
                    link.grant(dice.randrange(5))
                if dice.random() < 0.02:
                    link.detach(amqp.AmqpError("a:b"))
            session.send_disposition(True, dice.randrange(9), 9, True, amqp.ACCEPTED)
            if dice.random() < 0.01:
                session.end()


@pytest.mark.parametrize("seed", range(60))
def test_random_but_sensible_peers_meet_a_busy_owner(seed: int) -> None:
    dice = random.Random(seed)
    peer = RawPeer(Busy(dice), amqp.ConnectionConfig(max_frame_size=1024, incoming_window=8, next_outgoing_id=0x40000000)).opened()
    for _ in range(200):
        peer.send(dice.choice(SENSIBLE)(dice))
        if dice.random() < 0.3 and not peer.server.closed:
            assert isinstance(peer.notes, Busy)
            peer.notes.stir(peer.server)
        if peer.server.closed:
            break
    peer.server.lost()
    unharmed(peer)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_neighbours_of_the_corpus_do_no_harm(path: object) -> None:
    assert hasattr(path, "stem")
    facts, data = read(path)  # type: ignore[arg-type]
    dice = random.Random(len(data))
    for _ in range(20):
        mutant = bytearray(data[:4000])
        for _ in range(dice.randrange(1, 4)):
            mutant[dice.randrange(len(mutant))] = dice.choice(
                [0, 1, 0x40, 0x53, 0x70, 0x7F, 0x80, 0xA0, 0xC0, 0xD0, 0xFF, dice.randrange(256)]
            )
        peer = GIVEN[facts["given"]]().send(bytes(mutant))
        unharmed(peer)


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_with_flipped_bits_ends_closed_or_waiting(seed: int) -> None:
    dice = random.Random(seed)
    pair = Pair()
    pair.client.open()
    session = pair.client.begin()
    session.attach_sender("s", amqp.Terminus("a"), amqp.Terminus("q"), amqp.LinkHandler())
    session.attach_receiver("r", amqp.Terminus("q"), amqp.Terminus("a"), amqp.LinkHandler()).grant(9)
    stream = bytearray(pair.client.bytes_to_send() + b"".join(frame(0, transfer(0, i, b"t", b"x" * 100)) for i in range(5)))
    for _ in range(50):
        mutant = bytearray(stream)
        mutant[dice.randrange(len(mutant))] ^= 1 << dice.randrange(8)
        peer = RawPeer().send(bytes(mutant))
        unharmed(peer)


def test_memory_stays_bounded_under_a_peer_that_never_finishes() -> None:
    notes = Notes()
    notes.max_message_size = 100_000
    peer = RawPeer(notes, amqp.ConnectionConfig(unfinished_bytes_max=300_000)).attached()
    part = frame(0, performative(0x14, 0, None, None, None, None, True) + b"x" * 60_000)
    peer.send(frame(0, transfer(0, 0, b"t", b"", more=True)))
    tracemalloc.start()
    for _ in range(200):
        peer.send(part)
        peer.server.bytes_to_send()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not peer.server.closed
    assert peak < 2_000_000


def test_a_trickle_of_single_bytes_costs_time_in_proportion() -> None:
    """A frame of 60 kB in single bytes: were each byte to copy what came before, this would take minutes."""
    peer = RawPeer().attached()
    data = frame(0, transfer(0, 0, b"t", b"x" * 60_000))
    peer.send(*[data[i : i + 1] for i in range(len(data))])
    assert [len(t[2]) for t in notes_of(peer.link).transfers] == [60_000]


def test_headers_alone_never_raise() -> None:
    for header in (AMQP_HEADER, SASL_HEADER):
        for n in range(9):
            unharmed(RawPeer().send(header[:n]))
