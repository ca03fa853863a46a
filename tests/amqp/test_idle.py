from __future__ import annotations

from tandem import amqp
from tandem.amqp import errors
from tests.amqp.peers import AMQP_HEADER, RawPeer, frame, performative

EMPTY = b"\x00\x00\x00\x08\x02\x00\x00\x00"


def peer_with(remote_idle_ms: int, idle_ms: int) -> RawPeer:
    peer = RawPeer(config=amqp.ConnectionConfig(idle_timeout_ms=idle_ms))
    peer.send(AMQP_HEADER, frame(0, performative(0x10, "me", None, 65536, None, remote_idle_ms or None)))
    peer.server.bytes_to_send()
    return peer


def test_without_timeouts_nobody_needs_to_call_again() -> None:
    assert peer_with(0, 0).server.tick(1000) == 0


def test_our_silence_never_lasts_beyond_half_of_what_the_peer_allows() -> None:
    peer = peer_with(60_000, 0)
    now = 1_000
    last_said = now
    longest = 0
    for _ in range(40):
        now = peer.server.tick(now)
        if peer.server.bytes_to_send():
            longest = max(longest, now - last_said)
            last_said = now
    assert 0 < longest <= 30_000


def test_a_busy_connection_sends_no_heartbeats() -> None:
    peer = peer_with(60_000, 0)
    session = peer.send(frame(0, performative(0x11, None, 0, 9, 9))).notes.sessions[0]
    now = 1_000
    for _ in range(10):
        session.send_flow()
        assert EMPTY not in peer.server.bytes_to_send()
        now = peer.server.tick(now)
        assert peer.server.bytes_to_send() == b""


def test_a_silent_peer_is_dropped_after_twice_the_timeout() -> None:
    peer = peer_with(0, 10_000)
    now = peer.server.tick(1_000)
    while now and now < 60_000 and not peer.server.closed:
        previous = now
        now = peer.server.tick(now)
    assert peer.error().condition == errors.CONNECTION_FORCED
    assert 21_000 <= previous <= 31_000


def test_a_peer_that_sends_empty_frames_is_never_dropped() -> None:
    peer = peer_with(0, 10_000)
    now = 1_000
    for _ in range(100):
        peer.send(EMPTY)
        now = peer.server.tick(now)
    assert not peer.server.closed


def test_a_peer_in_a_hurry_does_not_keep_us_spinning() -> None:
    peer = peer_with(1, 0)
    assert peer.server.tick(1_000) - 1_000 >= 100


def test_a_closed_connection_needs_no_ticks() -> None:
    peer = peer_with(1000, 1000)
    peer.server.lost()
    assert peer.server.tick(5) == 0
