from __future__ import annotations

import pytest

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


@pytest.mark.parametrize("pace", ["as asked", 1_000, 5_000])
def test_our_silence_never_lasts_beyond_half_of_what_the_peer_allows(pace: int | str) -> None:
    peer = peer_with(60_000, 0)
    session = peer.send(frame(0, performative(0x11, None, 0, 9, 9))).notes.sessions[0]
    peer.server.bytes_to_send()
    now = last_said = 1_000
    said: list[int] = []
    for step in range(1, 400):
        at = peer.server.tick(now)
        assert at > now
        if peer.server.bytes_to_send():
            said.append(now - last_said)
            last_said = now
        if step % 37 == 0:
            # something is sent right after a tick, which the engine learns of at the next
            session.send_flow()
            peer.server.bytes_to_send()
            last_said = now
        now = at if pace == "as asked" else now + int(pace)
    assert said
    assert 14_000 <= max(said) <= 30_000
    assert len(said) <= now // 14_000 + 11, "no more heartbeats than needed"


def test_a_busy_connection_sends_no_heartbeats() -> None:
    peer = peer_with(60_000, 0)
    session = peer.send(frame(0, performative(0x11, None, 0, 9, 9))).notes.sessions[0]
    peer.server.bytes_to_send()
    now = 1_000
    for _ in range(10):
        now = peer.server.tick(now)
        assert peer.server.bytes_to_send() == b""
        session.send_flow()
        assert EMPTY not in peer.server.bytes_to_send()


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
