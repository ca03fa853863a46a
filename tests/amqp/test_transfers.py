from __future__ import annotations

import pytest

from tandem import amqp
from tandem.amqp import errors
from tandem.amqp.performatives import Transfer
from tests.amqp.peers import (
    AMQP_HEADER,
    BEGIN,
    LinkNotes,
    Notes,
    Pair,
    Raw,
    RawPeer,
    attach,
    frame,
    notes_of,
    parse,
    performative,
    transfer,
)

SDK_TAIL = [0, False, False, None, None, None, None, None]


def wide(body: bytes) -> bytes:
    """The same performative with a list32 header."""
    size, count = body[4], body[5]
    fields = body[6 : 5 + size]
    return body[:3] + b"\xd0" + (len(fields) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + fields + body[5 + size :]


def long_uint(n: int) -> Raw:
    return Raw(b"\x70" + n.to_bytes(4, "big"))


# -- in ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("handle", [0, 1, 255])
@pytest.mark.parametrize("delivery_id", [0, 1, 255, 256, 0xFFFFFFFF])
@pytest.mark.parametrize("tag", [b"", b"\x00\x00\x00\x01", b"t" * 32])
def test_every_ordinary_encoding_of_a_transfer_means_the_same(handle: int, delivery_id: int, tag: bytes) -> None:
    bodies = [
        performative(0x14, handle, delivery_id, tag, *SDK_TAIL),
        performative(0x14, handle, delivery_id, tag),
        performative(0x14, handle, delivery_id, tag, 0),
        performative(0x14, long_uint(handle), long_uint(delivery_id), tag, long_uint(0), False),
        performative(0x14, handle, long_uint(delivery_id), tag, 0, Raw(b"\x56\x00"), Raw(b"\x56\x00")),
        performative(0x14, handle, delivery_id, Raw(b"\xb0" + len(tag).to_bytes(4, "big") + tag), 0),
    ]
    bodies += [wide(body) for body in bodies]
    peer = RawPeer().begun().send(frame(0, attach("l", handle, False)))
    # twice each: the second time the tail is known
    for body in bodies + bodies:
        peer.send(frame(0, body + b"payload"))
    expected = (delivery_id, tag, b"payload", False, 0, None)
    assert notes_of(peer.link).transfers == [expected] * (2 * len(bodies))


def test_message_format_settled_and_state_reach_the_owner() -> None:
    peer = RawPeer().attached()
    state = amqp.Described(amqp.ULong(0x34), [b"tx"])
    for _ in range(2):
        peer.send(frame(0, performative(0x14, 0, 1, b"t", 0x80013700, True) + b"x"))
        peer.send(frame(0, performative(0x14, 0, 2, b"t", 0, False, False, None, state) + b"y"))
    batch = (1, b"t", b"x", True, 0x80013700, None)
    transactional = (2, b"t", b"y", False, 0, amqp.encode_value(state))
    assert notes_of(peer.link).transfers == [batch, transactional] * 2


def test_a_tail_that_was_seen_with_another_count_is_read_again() -> None:
    peer = RawPeer().attached()
    peer.send(frame(0, performative(0x14, 0, 1, b"t", 0, False) + b"x"))
    lie = bytearray(frame(0, performative(0x14, 0, 1, b"t", 0, False) + b"x"))
    lie[8 + 5] = 9
    error = peer.send(bytes(lie)).error()
    assert error.condition == errors.DECODE_ERROR


def test_many_different_tails_are_all_read_right() -> None:
    peer = RawPeer().attached()
    for i in range(300):
        peer.send(frame(0, performative(0x14, 0, i, b"t", i, i % 2 == 0) + b"x"))
    assert [(t[0], t[4], t[3]) for t in notes_of(peer.link).transfers] == [(i, i, i % 2 == 0) for i in range(300)]
    assert len(peer.link.session.tails) <= 64


def test_frames_of_several_links_may_be_interleaved() -> None:
    peer = RawPeer().begun().send(frame(0, attach("a", 1, False)), frame(0, attach("b", 2, False)))
    peer.send(frame(0, transfer(1, 10, b"1", b"a1", more=True)), frame(0, transfer(2, 11, b"2", b"b1", more=True)))
    peer.send(frame(0, performative(0x14, 1, None, None, None, None, True) + b"a2"))
    peer.send(frame(0, performative(0x14, 2, 11, b"2", 0, False, False) + b"b2"))
    peer.send(frame(0, performative(0x14, 1) + b"a3"))
    a, b = peer.notes.links
    assert [t[:3] for t in notes_of(a).transfers] == [(10, b"1", b"a1a2a3")]
    assert [t[:3] for t in notes_of(b).transfers] == [(11, b"2", b"b1b2")]
    assert peer.server.unfinished_bytes == 0


def test_settled_on_any_frame_settles_the_delivery() -> None:
    peer = RawPeer().attached()
    peer.send(frame(0, transfer(0, 0, b"t", b"a", more=True)), frame(0, performative(0x14, 0, None, None, None, True, False) + b"b"))
    assert notes_of(peer.link).transfers[0][3] is True


def test_an_aborted_delivery_is_forgotten_and_counts_as_one() -> None:
    peer = RawPeer().attached()
    link = peer.link
    peer.send(frame(0, transfer(0, 0, b"t", b"a" * 100, more=True)))
    peer.send(frame(0, performative(0x14, 0, None, None, None, None, None, None, None, None, True)))
    peer.send(frame(0, transfer(0, 1, b"u", b"b")))
    assert [t[:3] for t in notes_of(link).transfers] == [(1, b"u", b"b")]
    assert link.delivery_count == 2
    assert peer.server.unfinished_bytes == 0


@pytest.mark.parametrize(
    ("frames", "says"),
    [
        ([performative(0x14, 0, None, b"t") + b"x"], "mandatory on the first frame"),
        ([transfer(0, 0, b"t", b"a", more=True), transfer(0, 1, b"u", b"b")], "1 while 0 is not finished"),
    ],
)
def test_delivery_ids_that_make_no_sense_close_the_connection(frames: list[bytes], says: str) -> None:
    error = RawPeer().attached().send(*[frame(0, body) for body in frames]).error()
    assert error.condition == errors.INVALID_FIELD
    assert error.description is not None and says in error.description


def test_a_delivery_without_a_tag_has_an_empty_one() -> None:
    peer = RawPeer().attached().send(frame(0, transfer(0, 0, None, b"x")))
    assert notes_of(peer.link).transfers == [(0, b"", b"x", False, 0, None)]


def sized_peer(limit: int, **config: int) -> RawPeer:
    notes = Notes()
    notes.max_message_size = limit
    return RawPeer(notes, amqp.ConnectionConfig(**config)).attached()


@pytest.mark.parametrize("limit_by", ["link", "ceiling"])
def test_a_delivery_over_the_limit_is_dropped_and_the_link_lives_on(limit_by: str) -> None:
    peer = sized_peer(100) if limit_by == "link" else sized_peer(0, message_bytes_ceiling=100)
    link = peer.link
    peer.send(frame(0, transfer(0, 0, b"one", b"x" * 101)))
    peer.send(
        frame(0, transfer(0, 1, b"two", b"x" * 60, more=True)), frame(0, performative(0x14, 0, None, None, None, None, True) + b"x" * 60)
    )
    peer.send(frame(0, performative(0x14, 0, None, None, None, None, True) + b"x" * 6000))
    assert peer.server.unfinished_bytes == 0, "nothing is kept of what will be refused"
    assert notes_of(link).oversized == [(0, b"one", False)]
    peer.send(frame(0, performative(0x14, 0, None, None, None, True, False) + b"x"))
    peer.send(frame(0, transfer(0, 2, b"three", b"x" * 100)))
    peer.send(frame(0, transfer(0, 3, b"four", b"x" * 60, more=True)), frame(0, performative(0x14, 0) + b"x" * 40))
    assert notes_of(link).oversized == [(0, b"one", False), (1, b"two", True)]
    assert [t[:2] for t in notes_of(link).transfers] == [(2, b"three"), (3, b"four")]
    assert link.attached and link.delivery_count == 4


def test_unfinished_deliveries_of_all_links_together_are_bounded() -> None:
    peer = RawPeer(config=amqp.ConnectionConfig(unfinished_bytes_max=1000)).begun()
    for i in range(3):
        peer.send(frame(0, attach(f"l{i}", i, False)), frame(0, transfer(i, i, b"t", b"x" * 300, more=True)))
    assert peer.server.unfinished_bytes == 900
    assert not peer.server.closed
    assert (
        peer.send(frame(0, performative(0x14, 0, None, None, None, None, True) + b"x" * 300)).error().condition
        == errors.RESOURCE_LIMIT_EXCEEDED
    )
    assert peer.server.unfinished_bytes == 0


def test_a_link_that_goes_takes_its_unfinished_bytes_along() -> None:
    peer = RawPeer().attached().send(frame(0, transfer(0, 0, b"t", b"x" * 300, more=True)), frame(0, performative(0x16, 0, True)))
    assert peer.server.unfinished_bytes == 0
    peer.send(frame(0, attach("l", 0, False)), frame(0, transfer(0, 1, b"t", b"x" * 300, more=True)), frame(0, performative(0x17)))
    assert peer.server.unfinished_bytes == 0


# -- out ---------------------------------------------------------------------------------------------------------------


def receiving_peer(max_frame_size: int = 512, window: int = 1000, handle: int = 0) -> tuple[RawPeer, amqp.SenderLink]:
    config = amqp.ConnectionConfig(handle_max=70000, next_outgoing_id=0x40000000)
    peer = RawPeer(config=config).send(AMQP_HEADER, frame(0, performative(0x10, "r", None, max_frame_size)), frame(0, BEGIN))
    peer.send(frame(0, attach("l", handle, True)), frame(0, performative(0x13, 0x40000000, window, 0, 9, handle, 0, 100)))
    peer.server.bytes_to_send()
    link = peer.link
    assert isinstance(link, amqp.SenderLink)
    return peer, link


def payloads(data: bytes) -> list[bytes]:
    """Payloads of the transfer frames in `data`."""
    found = []
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        body = data[at + 8 : at + size]
        found.append(body[amqp.skip_value(body, 0) :])
        at += size
    return found


@pytest.mark.parametrize("handle", [0, 7, 255, 256, 65536])
@pytest.mark.parametrize("tag", [b"", b"t", b"t" * 16, b"t" * 32])
@pytest.mark.parametrize("settled", [True, False])
def test_a_delivery_that_fits_is_one_frame(handle: int, tag: bytes, settled: bool) -> None:
    peer, link = receiving_peer(handle=handle)
    delivery_id = link.send(b"payload", tag, settled, "context")
    data = peer.server.bytes_to_send()
    ((channel, sent),) = parse(data)
    assert isinstance(sent, Transfer)
    assert (channel, sent.handle, sent.delivery_id, sent.tag, sent.settled, sent.more) == (0, handle, delivery_id, tag, settled, False)
    assert sent.message_format == 0
    assert payloads(data) == [b"payload"]
    assert (delivery_id in link.session.unsettled) is not settled


def test_the_tag_may_change_its_length_from_one_delivery_to_the_next() -> None:
    peer, link = receiving_peer()
    for tag in (b"a", b"bb", b"", b"dddd", b"a"):
        link.send(b"x", tag, True, None)
    assert [p.tag for _, p in peer.frames() if isinstance(p, Transfer)] == [b"a", b"bb", b"", b"dddd", b"a"]


@pytest.mark.parametrize("size", [0, 1, 450, 470, 480, 481, 482, 483, 484, 485, 486, 487, 488, 489, 490, 500, 512, 1000, 10_000])
def test_larger_deliveries_are_split_at_the_peers_frame_size(size: int) -> None:
    peer, link = receiving_peer(512)
    payload = bytes(i % 251 for i in range(size))
    delivery_id = link.send(payload, b"t" * 16, False, None)
    data = peer.server.bytes_to_send()
    frames = [p for _, p in parse(data)]
    assert all(int(s) <= 512 for s in sizes(data))
    assert b"".join(payloads(data)) == payload
    first = frames[0]
    assert isinstance(first, Transfer)
    assert (first.delivery_id, first.tag, first.more) == (delivery_id, b"t" * 16, len(frames) > 1)
    for later in frames[1:]:
        assert isinstance(later, Transfer)
        assert (later.delivery_id, later.tag) == (-1, None), "continuations leave out id and tag"
    assert [p.more for p in frames if isinstance(p, Transfer)] == [True] * (len(frames) - 1) + [False]
    assert link.session.remote_incoming_window == 1000 - len(frames)


def sizes(data: bytes) -> list[int]:
    found = []
    at = 0
    while at < len(data):
        found.append(int.from_bytes(data[at : at + 4], "big"))
        at += found[-1]
    return found


def test_an_unread_common_form_format_is_written() -> None:
    peer, link = receiving_peer()
    link.send(b"x", b"t", True, None, 0x80013700)
    sent = peer.frames()[0][1]
    assert isinstance(sent, Transfer)
    assert sent.message_format == 0x80013700


def test_a_split_delivery_waits_in_the_middle_when_the_window_shuts() -> None:
    peer, link = receiving_peer(512, window=2)
    link.send(b"a" * 1500, b"t", False, None)
    link.send(b"b", b"u", False, None)
    assert len(peer.frames()) == 2
    peer.send(frame(0, performative(0x13, 0x40000002, 1, 0, 9)))
    assert len(peer.frames()) == 1
    peer.send(frame(0, performative(0x13, 0x40000003, 100, 0, 9)))
    rest = peer.server.bytes_to_send()
    assert payloads(rest)[-1] == b"b"
    assert not link.session.waiting


def test_a_detached_link_takes_its_waiting_deliveries_along() -> None:
    peer, link = receiving_peer(window=0)
    link.send(b"never", b"t", False, None)
    link.detach()
    peer.frames()
    peer.send(frame(0, performative(0x13, 0x40000000, 100, 0, 9)))
    assert not peer.server.has_output


@pytest.mark.parametrize("size", [0, 100, 65_000, 70_000, 1_000_000])
def test_two_engines_carry_payloads_of_any_size_both_ways(size: int) -> None:
    pair = Pair()
    sender, receiver = pair.sender()
    payload = bytes(size)
    sender.send(payload, b"up", False, None)
    downward, upward = pair.receiver()
    upward.send(payload, b"down", False, None)
    pair.exchange()
    assert [t[1:3] for t in notes_of(receiver).transfers] == [(b"up", payload)]
    assert [t[1:3] for t in notes_of(downward).transfers] == [(b"down", payload)]


def test_two_engines_with_the_smallest_frames_and_windows_still_get_through() -> None:
    tiny = amqp.ConnectionConfig(max_frame_size=512, incoming_window=2, container_id="tiny")
    pair = Pair(tiny, amqp.ConnectionConfig(max_frame_size=512, incoming_window=2, next_outgoing_id=0xFFFFFFF0))
    sender, receiver = pair.sender()
    downward, upward = pair.receiver(credit=1000)
    for i in range(50):
        sender.send(bytes([i]) * 3000, b"u%d" % i, True, None)
        upward.send(bytes([i]) * 3000, b"d%d" % i, True, None)
    pair.exchange()
    assert [t[2] for t in notes_of(receiver).transfers] == [bytes([i]) * 3000 for i in range(50)]
    assert [t[1] for t in notes_of(downward).transfers] == [b"d%d" % i for i in range(50)]


def test_a_handler_that_answers_from_within_sees_its_answers_leave() -> None:
    class Answering(LinkNotes):
        def on_transfer(
            self,
            link: amqp.ReceiverLink,
            delivery_id: int,
            tag: bytes,
            payload: bytes,
            settled: bool,
            message_format: int,
            state: bytes | None,
        ) -> None:
            link.session.send_disposition(True, delivery_id, delivery_id, True, amqp.ACCEPTED)

    pair = Pair()
    sender, receiver = pair.sender()
    receiver.handler = Answering()
    for i in range(10):
        sender.send(b"x", b"t%d" % i, False, i)
    pair.exchange()
    assert [ids for ids, _, _ in notes_of(sender).dispositions] == [list(range(10))]
    assert sender.session.unsettled == {}
